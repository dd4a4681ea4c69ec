"""Tasks and their standbys on different executors, although Spark puts slots where it likes.

Copies are kept on another executor than their cell if a slot there is free for them
(:mod:`clonos.core.placement`). These are the two cases in which none is, and could be.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clonos.core.plan import Cell
from clonos.nodes.views import SlotView


def to_move(slots: Sequence[SlotView], cells: Sequence[Cell], names: Sequence[str]) -> int | None:
    """A task whose cell should move: all free slots are on one executor, with cells of which they
    keep the copies. If a cell of another executor goes there, its slot is free for those.

    Parameters
    ----------
    slots
        All of them.
    cells
        That any slot can run.
    names
        Of all tasks.

    Examples
    --------
    >>> slots = [
    ...     SlotView(0, 100, "1", 10, runs=("a",), keeps=()),
    ...     SlotView(1, 101, "1", 10, runs=(), keeps=("a",)),
    ...     SlotView(2, 102, "1", 10, runs=(), keeps=("b",)),
    ...     SlotView(3, 103, "2", 20, runs=("b",), keeps=()),
    ... ]
    >>> to_move(slots, [(0,), (1,)], ["a", "b"])
    1
    """
    homes = {name: slot.executor for slot in slots for name in slot.runs}
    mine = {cell: [names[task] for task in cell] for cell in cells}
    if not all(name in homes for each in mine.values() for name in each):
        return None
    free = _free(slots, {name for each in mine.values() for name in each})
    executors = {slot.executor for slot in free}
    if len(free) < 2 or len(executors) > 1:  # the only one would be missed where it was
        return None
    here = [cell for cell, each in mine.items() if homes[each[0]] in executors]
    elsewhere = [cell for cell in cells if cell not in here]
    return elsewhere[-1][0] if here and elsewhere else None


def to_renew(
    slots: Sequence[SlotView], known: Collection[str], room: Collection[str]
) -> int | None:
    """The process of a slot to start anew: all are on one executor, and another has `room`.

    Parameters
    ----------
    known
        Tasks that any slot can run.

    Examples
    --------
    >>> slots = [
    ...     SlotView(0, 100, "1", 10, runs=("a",), keeps=()),
    ...     SlotView(1, 101, "1", 10, runs=(), keeps=("a",)),
    ... ]
    >>> to_renew(slots, {"a"}, {"1", "2"}), to_renew(slots, {"a"}, {"1"})
    (101, None)
    """
    executors = {slot.executor for slot in slots}
    free = _free(slots, known)
    if len(executors) != 1 or not free or not set(room) - executors:
        return None
    return min(free, key=lambda slot: (len(slot.keeps), slot.place)).pid


def _free(slots: Sequence[SlotView], known: Collection[str]) -> list[SlotView]:
    """Those that run nothing, and are not bound to a task that reads a DataFrame."""
    return [s for s in slots if not s.runs and all(name in known for name in s.keeps)]
