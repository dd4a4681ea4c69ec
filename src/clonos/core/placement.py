"""Which slot runs or keeps what: anti-affinity across executors, one running task per slot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Slot:
    """A process offered by one Spark task: runs one task or keeps passive standbys.

    ``group`` names its executor; ``bound`` the only task it can serve (a partition of a
    DataFrame). ``standbys``: task -> epoch that the copy has reached (-1: still empty).
    """

    id: int
    address: str
    group: str = ""
    bound: int | None = None
    standbys: dict[int, int] = field(default_factory=dict)

    def serves(self, task: int, bound: Collection[int]) -> bool:
        """Whether `task` could live here; tasks in `bound` need slots of their own."""
        return self.bound == task if task in bound else self.bound is None


def best_slot(
    task: int,
    slots: Iterable[Slot],
    running: Collection[int],
    bound: Collection[int],
    shunned: Collection[str] = (),
) -> Slot | None:
    """Where to activate `task`: its most advanced standby, else the slot with least to lose.

    Executors in `shunned` (they cannot reach its neighbours) only if there is no other slot.
    """
    free = [s for s in slots if s.id not in running and s.serves(task, bound)]
    return min(
        free,
        key=lambda s: (s.group in shunned, -s.standbys.get(task, -2), len(s.standbys), s.id),
        default=None,
    )


def place_standbys(
    slots: Mapping[int, Slot], homes: Mapping[int, int | None], copies: int, bound: Collection[int]
) -> list[tuple[Slot, int]]:
    """New (slot, task) pairs so that each task has its passive copies, as far as slots allow.

    A copy never shares the slot of its task, nor of another copy of it; it avoids the executor of
    its task if another has room; slots fill evenly.
    """
    running = {slot for slot in homes.values() if slot is not None}
    spare = [s for s in slots.values() if s.id not in running]
    load = {s.id: len(s.standbys) for s in spare}
    result: list[tuple[Slot, int]] = []
    for task, home in homes.items():
        group = slots[home].group if home is not None and home in slots else None
        keepers = [s for s in spare if task in s.standbys]
        while len(keepers) < copies:
            used = {s.group for s in keepers} | {group}
            candidates = [s for s in spare if s not in keepers and s.serves(task, bound)]
            best = min(candidates, key=lambda s: (s.group in used, load[s.id], s.id), default=None)
            if best is None:
                break
            keepers.append(best)
            load[best.id] += 1
            result.append((best, task))
    return result


def misplaced_standby(
    slots: Mapping[int, Slot], homes: Mapping[int, int | None], bound: Collection[int]
) -> tuple[Slot, Slot, int] | None:
    """A copy that should move, as (from, to, task): slots register one after the other, and the
    first must not keep all copies, nor those of tasks on its own executor."""
    running = {slot for slot in homes.values() if slot is not None}
    spare = [s for s in slots.values() if s.id not in running]
    for keeper in sorted(spare, key=lambda s: (-len(s.standbys), s.id)):
        for task in keeper.standbys:
            if task in bound:
                continue  # its slot has begun to read: it could not begin again
            home = homes[task]
            taken = {s.group for s in spare if task in s.standbys and s is not keeper}
            if home is not None and home in slots:
                taken.add(slots[home].group)
            others = [s for s in spare if task not in s.standbys and s.serves(task, bound)]
            best = min(
                others, key=lambda s: (s.group in taken, len(s.standbys), s.id), default=None
            )
            if best is None or (best.group in taken) > (keeper.group in taken):
                continue
            apart = (best.group in taken) < (keeper.group in taken)
            if apart or len(keeper.standbys) - len(best.standbys) > 1:
                return keeper, best, task
    return None
