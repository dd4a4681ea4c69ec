"""How much of the logs of failed tasks is still valid (pure functions on logs).

A surviving log entry may say "took an item that its maker's step q made" while the maker's log ends
before q, so the maker will make something else there. Then the entry and all later ones are void.
(The maker is the sender or, if the sender is implied, the nearest task above it that is not.)
Cutting one log can void entries of another, so cuts are repeated until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clonos.core.determinants import Order, decode_record
from clonos.core.fences import Cut, merge
from clonos.core.messages import Dependencies, Dependency, Resolve, Run
from clonos.core.plan import Plan


def valid_length(
    plan: Plan, runs: Iterable[Run], length: int, fences: Mapping[int, Iterable[Cut]]
) -> int:
    """The longest prefix of a log whose entries took only items that still exist.

    Parameters
    ----------
    runs
        The log from its floor on.
    length
        Entries after this one are void anyway.
    fences
        Of each task: how often its log was cut, and where.
    """
    for run in runs:
        for position, record in enumerate(run.records, run.start):
            if position > length:
                return length
            cause = decode_record(record)[0]
            if not isinstance(cause, Order):
                continue
            for incarnation, end in fences.get(plan.makers[cause.channel], ()):
                if cause.incarnation < incarnation and cause.position > end:
                    return position - 1
    return length


def rests_on_stable(
    plan: Plan, record: bytes, stable: Mapping[int, int], resolved: Iterable[Resolve]
) -> bool:
    """Whether the item that a log entry took can never be cut any more.

    ``stable``: how much of each log is stable. ``resolved``: the cuts; if a loss was forgiven, an
    entry may be there although it is cut off.
    """
    cause = decode_record(record)[0]
    if not isinstance(cause, Order):
        return True
    maker = plan.makers[cause.channel]
    is_void = any(
        maker == cut.task and cause.incarnation < cut.incarnation
        for cut in resolved
        if cause.position > cut.length
    )
    return not is_void and cause.position <= stable[maker]


def dependencies_of(plan: Plan, log: Iterable[Run]) -> Dependencies:
    """What the replay of a log depends on directly."""
    result: Dependencies = {}
    for run in log:
        for record in run.records:
            cause = decode_record(record)[0]
            if isinstance(cause, Order):
                maker = plan.makers[cause.channel]
                merge(result, {maker: Dependency(cause.incarnation, cause.position)})
    return result


def consistent_cut(
    plan: Plan,
    logs: Mapping[int, list[Run]],
    fences: Mapping[int, Cut],
    earlier: Iterable[Resolve] = (),
) -> dict[int, int]:
    """The lengths to which the logs of tasks that failed together must be cut.

    Parameters
    ----------
    logs
        Of each failed task: its surviving log from the floor on.
    fences
        Of each failed task: its next incarnation, and the length of its surviving log.
    earlier
        Cuts of earlier failures. Entries that were spared when a loss was forgiven (availability)
        are void now.
    """
    known: dict[int, list[Cut]] = {}
    for cut in earlier:
        known.setdefault(cut.task, []).append((cut.incarnation, cut.length))
    lengths = {task: length for task, (_, length) in fences.items()}
    changed = True
    while changed:
        changed = False
        now: dict[int, list[Cut]] = dict(known)
        for task, fence in fences.items():
            now[task] = [*known.get(task, ()), (fence[0], lengths[task])]
        for task, runs in logs.items():
            length = valid_length(plan, runs, lengths[task], now)
            if length < lengths[task]:
                lengths[task] = length
                changed = True
    return lengths
