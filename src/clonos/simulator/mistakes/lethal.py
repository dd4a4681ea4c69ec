"""Deliberate mistakes with calls that end the process that makes them."""

from __future__ import annotations

from typing import Any, cast

from clonos.core import watch as watch_module
from clonos.core.blame import Blame
from clonos.core.calls import Outcome
from clonos.core.canonical import encode_error
from clonos.core.suspects import ONE_BY_ONE
from clonos.core.watch import Watch
from clonos.simulator.mistakes.mutation import Mutation, mutation
from clonos.simulator.mistakes.protocol import constant
from clonos.simulator.runs.kinds import Kind


def all_at_once(original: Any) -> Any:
    """No life is told to make its calls one at a time."""

    def next_life(self: Blame, task: int) -> Any:
        steps, suspects = original(self, task)
        return steps, tuple(one for one in suspects if one.rows != ONE_BY_ONE.rows)

    return next_life


def nameless(original: Any) -> Any:
    """The error of a call that is not made again does not say why."""

    def not_made(*asked: Any) -> Outcome:
        return cast("Outcome", original(*asked)._replace(answer=encode_error(ValueError("failed"))))

    return not_made


CALLS = Kind(calls=True)
WRONG_LETHAL: dict[str, Mutation] = {
    "a call that kills is made again": mutation(
        "poison", (Watch, "_killed", constant(0)), kind=CALLS
    ),
    "nobody looks for a call that kills": mutation(
        "poison", (Blame, "next_life", all_at_once), kind=CALLS
    ),
    "nobody says that a call kills": mutation(
        "poison", (watch_module, "_not_made", nameless), kind=CALLS
    ),
    "calls are not held back, so no executor dies of one call alone": mutation(
        "poison", (Blame, "_hold_ms", constant(0)), kind=CALLS
    ),
}
