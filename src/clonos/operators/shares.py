"""State that a task takes over when the number of its operator's tasks has changed: the former
tasks' state of its key groups, and facts combined from those of all former tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from clonos.errors import CannotUpgrade

if TYPE_CHECKING:
    from clonos.state.runs import Run


class Share(NamedTuple):
    """One former task's contribution: all its facts, and the state by key that is taken over.

    ``groups``: the key group of each row of ``keys`` and ``values``, which come from a layer.
    ``runs``: its runs, with all key groups. They are shared out without the operator.
    """

    facts: Mapping[str, Any]
    groups: pa.Array
    keys: pa.Array
    values: pa.Array
    runs: Sequence[Run] = ()


@dataclass(frozen=True, slots=True)
class Heir:
    """The new task: its index, and the number of tasks."""

    index: int
    parallelism: int


Join = Callable[[Sequence[Any], Heir], Any]
"""Combines the values of a fact in all former tasks (None: it was not set); returns the new value
(None: it is not set)."""


def total(values: Sequence[Any], heir: Heir) -> int | None:
    """A count of events: the first task takes over the sum."""
    return sum(filter(None, values)) if heir.index == 0 else None


def shared_out(values: Sequence[Any], heir: Heir) -> int:
    """Spending against a share: the sum is divided equally.

    Examples
    --------
    >>> [shared_out([5, None, 3], Heir(i, 3)) for i in range(3)]
    [3, 3, 2]
    """
    spent: int = sum(filter(None, values))
    return (spent + heir.parallelism - 1 - heir.index) // heir.parallelism


def highest(values: Sequence[Any], heir: Heir) -> Any:
    """A counter of numbers: continue after the highest one."""
    del heir
    return max((value for value in values if value is not None), default=None)


REWOUND = "rewound"
"""The fact that records rewinds: for each, how many calls the task had made, and the generation
that began."""


def may_be_made(number: int, rewound: Sequence[Sequence[int]]) -> bool:
    """Whether a call came after a rewind, so that its effect may have been made already, in the
    past that the job has left.

    Examples
    --------
    >>> may_be_made(4, [[4, 1]]), may_be_made(5, [[4, 1]]), may_be_made(5, [])
    (False, True, False)
    """
    return any(number > asked for asked, _ in rewound)


def as_of_the_newest(values: Sequence[Any], heir: Heir) -> list[list[int]] | None:
    """After a change of parallelism, all calls have names of the newest generation.

    Examples
    --------
    >>> as_of_the_newest([[[4, 1], [9, 3]], None, [[7, 3]]], Heir(0, 1))
    [[0, 3]]
    """
    del heir
    newest = [value[-1][1] for value in values if value]
    return [[0, max(newest)]] if newest else None


def lowest(values: Sequence[Any], heir: Heir) -> Any:
    """A promise, such as a watermark: the lowest one; none if some task has made none."""
    del heir
    return None if None in values else min(values)


def all_of_them(values: Sequence[Any], heir: Heir) -> list[str] | None:
    """Names, of which each task knows some.

    Examples
    --------
    >>> all_of_them([["sum"], None, ["last", "sum"]], Heir(0, 2))
    ['last', 'sum']
    """
    del heir
    return sorted({name for names in values if names for name in names}) or None


def everybody(values: Sequence[Any], heir: Heir) -> bool:
    """Whether it is true in all tasks."""
    del heir
    return all(values)


def nothing(values: Sequence[Any], heir: Heir) -> None:
    """The fact is dropped, because it is computed anew."""
    del values, heir


CALLS: Final[Mapping[str, Join]] = {
    "asked": highest,
    REWOUND: as_of_the_newest,
    "calls": shared_out,
    "hits": shared_out,
    "micros": shared_out,
    "tokens": shared_out,
    "unknown": shared_out,
    "rows over": nothing,
}
"""How the facts of an operator that makes calls are combined."""


def require_answered(waiting: int, where: str) -> None:
    """Raise `CannotUpgrade` if rows wait for calls, whose numbers belong to a task."""
    if waiting:
        raise calls_are_open(where)


def calls_are_open(where: str) -> CannotUpgrade:
    """The error for open calls, which belong to former tasks."""
    return CannotUpgrade(
        "calls of it are open, and they belong to the tasks that it had",
        where=where,
        remedy="start the job as it was, let the calls be answered, and stop it again with settle=",
    )


def joined(
    shares: Sequence[Share], rules: Mapping[str, Join], heir: Heir, where: str
) -> dict[str, Any]:
    """The facts of a new task.

    Raises
    ------
    CannotUpgrade
        A fact belongs to each task, and no rule says how to combine it.

    Examples
    --------
    >>> shares = [Share({"late_rows": n}, None, None, None) for n in (1, 2)]
    >>> [joined(shares, {"late_rows": total}, Heir(i, 2), "") for i in range(2)]
    [{'late_rows': 3}, {}]
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for share in shares for name in share.facts):
        rule = rules.get(name) or rules.get(name.rpartition(" ")[2])  # of one of its services
        if rule is None:
            raise CannotUpgrade(
                f"what it keeps as {name!r} belongs to each of its tasks",
                where=where,
                remedy="leave the parallelism of this operator as it was",
            )
        value = rule([share.facts.get(name) for share in shares], heir)
        if value is not None:
            found[name] = value
    return found
