"""Which slot runs or keeps what: anti-affinity across executors, one running cell per slot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from clonos.core.plan import Cell


@dataclass(slots=True)
class Slot:
    """A process offered by one Spark task: runs the tasks of one cell or keeps passive standbys.

    ``group`` names its executor; ``bound`` the task whose partition of a DataFrame it has, so it
    can only run that task's cell. ``standbys``: task -> epoch that the copy has reached (-1: still
    empty). ``leaves``: it is about to go; ``ends``: it will be ended as soon as it runs nothing,
    and others have what it keeps. ``slow_since``: when a cell in it was overtaken. ``disk``: the
    name of its local disk.
    """

    id: int
    address: str
    group: str = ""
    bound: int | None = None
    standbys: dict[int, int] = field(default_factory=dict)
    leaves: bool = False
    ends: bool = False
    slow_since: int | None = None
    disk: str = ""

    def serves(self, cell: Cell, bound: Collection[int]) -> bool:
        """Whether `cell` could live here; tasks in `bound` need slots of their own."""
        return self.bound == bound_of(cell, bound)

    def keeps(self, cell: Cell) -> bool:
        """Whether this slot should have a copy of `cell`, even if it is still empty."""
        return any(task in self.standbys for task in cell)

    def progress(self, cell: Cell) -> int:
        """The epoch that its copy of the whole cell has reached; -2: there is no copy."""
        return min(self.standbys.get(task, -2) for task in cell)


def bound_of(cell: Cell, bound: Collection[int]) -> int | None:
    """The task of a cell that needs a slot of its own, if there is one."""
    return next((task for task in cell if task in bound), None)


def best_slot(
    cell: Cell,
    slots: Iterable[Slot],
    taken: Collection[int],
    bound: Collection[int],
    shunned: Collection[str] = (),
) -> Slot | None:
    """Where to activate `cell`: its most advanced standby, else the slot with least to lose.

    Leaving or slow slots, and executors in `shunned` (which cannot reach the cell's neighbours),
    are taken only if there is no other.
    """
    free = [s for s in slots if s.id not in taken and s.serves(cell, bound)]
    return min(
        free,
        key=lambda s: (
            s.leaves,
            s.slow_since is not None,
            s.group in shunned,
            -s.progress(cell),
            len(s.standbys),
            s.id,
        ),
        default=None,
    )


def place_standbys(
    slots: Mapping[int, Slot],
    homes: Mapping[Cell, int | None],
    copies: int,
    bound: Collection[int],
    pressing: Collection[Cell] = (),
) -> list[tuple[Slot, Cell]]:
    """New (slot, cell) pairs so that each cell has its passive copies, as far as slots allow.

    A copy never shares the slot of its cell, nor of another copy of it; it avoids the executor of
    its cell, and the disk on which that keeps layers, if another has room; slots fill evenly. If
    no other slot is free, copies of `pressing` cells go to one that leaves, unless that one ends:
    without a copy, floors of what is not in the store would not move.
    """
    taken = {slot for slot in homes.values() if slot is not None}
    spare = [s for s in slots.values() if s.id not in taken and not s.ends]
    load = {s.id: len(s.standbys) for s in spare}
    result: list[tuple[Slot, Cell]] = []
    for cell, home in homes.items():
        at_home = [slots[home]] if home is not None and home in slots else []
        keepers = [s for s in spare if s.keeps(cell) and not s.leaves]
        while len(keepers) < copies:
            used = [*at_home, *keepers]
            others = (s for s in spare if s not in keepers and s.serves(cell, bound))
            best = min(
                (s for s in others if cell in pressing or not s.leaves),
                key=lambda s: (s.leaves, not s.keeps(cell), _near(s, used), load[s.id], s.id),
                default=None,
            )
            if best is None:
                break
            keepers.append(best)
            if not best.keeps(cell):
                load[best.id] += len(cell)
                result.append((best, cell))
    return result


def _near(slot: Slot, others: Iterable[Slot]) -> tuple[bool, bool]:
    """Whether a slot shares the executor, and the disk for layers, with one of these."""
    others = list(others)
    shares_disk = any(slot.disk and slot.disk == other.disk for other in others)
    return any(slot.group == other.group for other in others), shares_disk


def misplaced_standby(
    slots: Mapping[int, Slot], homes: Mapping[Cell, int | None], bound: Collection[int]
) -> tuple[Slot, Slot, Cell] | None:
    """A copy that should move, as (from, to, cell). Slots register one after the other, and the
    first ones should keep neither all copies nor copies of cells on their own executors."""
    taken = {slot for slot in homes.values() if slot is not None}
    spare = [s for s in slots.values() if s.id not in taken and not s.leaves]
    cell_of = {task: cell for cell in homes for task in cell}
    for keeper in sorted(spare, key=lambda s: (-len(s.standbys), s.id)):
        for cell in dict.fromkeys(cell_of[task] for task in keeper.standbys):
            if any(task in bound for task in cell):
                continue  # its slot has begun to read: it could not begin again
            home = homes[cell]
            used = [s for s in spare if s.keeps(cell) and s is not keeper]
            if home is not None and home in slots:
                used.append(slots[home])
            others = [s for s in spare if not s.keeps(cell) and s.serves(cell, bound)]
            near = {s.id: _near(s, used) for s in (keeper, *others)}
            best = min(others, key=lambda s: (near[s.id], len(s.standbys), s.id), default=None)
            if best is None or near[best.id] > near[keeper.id]:
                continue
            apart = near[best.id] < near[keeper.id]
            if apart or len(keeper.standbys) - len(best.standbys) > len(cell):
                return keeper, best, cell
    return None
