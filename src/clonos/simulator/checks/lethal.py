"""What must hold of calls that end the process that makes them."""

from __future__ import annotations

from collections.abc import Sequence

from clonos.core.blame import OUTSIDE_MANY, TOGETHER_MANY
from clonos.core.calls import Request
from clonos.core.canonical import decode_error
from clonos.core.determinants import Outcomes
from clonos.core.plan import TaskSpec
from clonos.core.watch import DEATHS, LIVES
from clonos.errors import EffectUnknown, PoisonRecord
from clonos.simulator.checks.violations import require
from clonos.simulator.jobs.lethal import is_lethal, lethal_row
from clonos.simulator.jobs.programs import AnyJob
from clonos.simulator.world.service import Entries, LethalCall, determinants


def only_lethal_calls_are_blamed(job: AnyJob, spec: TaskSpec, blamed: Sequence[Request]) -> None:
    """No call is convicted that does not kill."""
    innocent = [request.arguments for request in blamed if not is_lethal(job, spec.id, request)]
    require(not innocent, "blame", f"calls {innocent} of {spec.name} kill nobody")


def lethal_calls_end(task: TaskSpec, job: AnyJob, entries: Entries, made: list[LethalCall]) -> None:
    """A call that kills has an error that says so, and was not made again by a later life.

    That of an effect says that nobody knows whether it was made.
    """
    if lethal_row(job, task.id) is None:
        return
    kind = EffectUnknown if task.has_effects else PoisonRecord
    verdicts = {
        outcome.digest: writer
        for writer, determinant in determinants(entries)
        if isinstance(determinant, Outcomes)
        for outcome in determinant.outcomes
        if not outcome.ok and isinstance(decode_error(outcome.answer), kind)
    }
    mine = [call for call in made if call.task == task.id]
    require(not mine or verdicts, "poison", f"a call of {task.name} kills, and nobody says so")
    again = [c for c in mine if c.digest in verdicts and c.incarnation > verdicts[c.digest]]
    require(not again, "calls", f"{task.name} has made calls again that kill: {again}")


def few_die_of_a_call(deaths: int, made: Sequence[LethalCall], terms: int) -> None:
    """A call kills as many processes, or executors, as is promised, for each term.

    That is one, and as many as it takes until calls are made one at a time, and as many more as
    prove it. Whatever else dies may take back what counted against a call, and so may one that is
    given up alive. In an executor a death proves nothing if a neighbour has made a call, too; and
    what is asked may depend on what was lost with it, but not for ever.
    """
    others = deaths - sum(1 + (call.neighbours or 0) for call in made)
    calls, promised = len({(call.task, call.digest) for call in made}), 1 + OUTSIDE_MANY + DEATHS
    if all(call.neighbours is not None for call in made):
        calls = min(calls, 2 * len({call.task for call in made}))
        promised = 1 + TOGETHER_MANY + 2 * LIVES
    most = promised * max(calls, 1) * terms + DEATHS * (1 + max(others, 0))
    require(len(made) <= most, "poison", f"{len(made)} slots have died of {calls} calls")
