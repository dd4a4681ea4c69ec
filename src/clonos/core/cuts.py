"""How much of the logs of failed tasks still means something (pure functions on logs).

A surviving log entry may say "took an item that its sender's step q made" where the sender's
log ends before q: the sender will make something else there. The entry, and all after it, are
then void. Cutting one log can void entries of another, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clonos.core.determinants import Order, decode_record
from clonos.core.messages import Run
from clonos.core.plan import Incarnation, Plan

Fence = tuple[Incarnation, int]
"""(incarnation, length): what lives below the incarnation wrote after `length` is lost."""


def valid_length(plan: Plan, runs: Iterable[Run], length: int, fences: Mapping[int, Fence]) -> int:
    """The longest prefix of a log whose entries took only items that still exist.

    Parameters
    ----------
    runs
        The log from its floor on.
    length
        Entries after this one do not count anyway.
    fences
        Of the tasks that failed together.
    """
    for run in runs:
        for position, record in enumerate(run.records, run.start):
            if position > length:
                return length
            cause = decode_record(record)[0]
            if not isinstance(cause, Order):
                continue
            fence = fences.get(plan.channels[cause.channel].sender)
            if fence and cause.incarnation < fence[0] and cause.position > fence[1]:
                return position - 1
    return length


def consistent_cut(
    plan: Plan, logs: Mapping[int, list[Run]], fences: Mapping[int, Fence]
) -> dict[int, int]:
    """Lengths to which the logs of tasks that failed together must be cut.

    Parameters
    ----------
    logs
        Of each failed task: its surviving log from the floor on.
    fences
        Of each failed task: its next incarnation, and the length of its surviving log.
    """
    lengths = {task: length for task, (_, length) in fences.items()}
    changed = True
    while changed:
        changed = False
        now = {task: (fence[0], lengths[task]) for task, fence in fences.items()}
        for task, runs in logs.items():
            length = valid_length(plan, runs, lengths[task], now)
            if length < lengths[task]:
                lengths[task] = length
                changed = True
    return lengths
