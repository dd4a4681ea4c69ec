"""How floors become hard, and which layers slots merge on the way there.

The floors in use that are to become hard next are the *aim*. For each task that chooses its levels,
the layers up to the aim are merged into one layer in the checkpoint store, unless all of them are
there. Values that were overwritten in between are never written to the store. When all layers up to
the aim are in the store, the aim is hard, and the floors in use by then are the next aim. So the
store is written only as fast as it can take it.

A merge never reaches across the hard floors or the aim, because a layer has to end there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clonos.core.levels import AUTO, STORE, LayerRef, weakest
from clonos.core.merges import choose
from clonos.core.roster import Roster
from clonos.core.standing import Floors

Part = Sequence[LayerRef]


class Hardening:
    """Makes the floors of one job hard, one aim after the other.

    Attributes
    ----------
    aim
        None: all floors are hard.
    """

    def __init__(self, roster: Roster) -> None:
        self._keeper, self._tasks = roster.keeper, roster.plan.tasks
        self._chooses = [task.id for task in roster.plan.tasks if task.level == AUTO]
        self.aim: Floors | None = None

    def look(self) -> bool:
        """Floors have moved, or layers were merged. Return whether hard floors have moved."""
        keeper, has_moved = self._keeper, False
        while keeper.floors.epoch != keeper.hard.epoch:
            self.aim = self.aim or keeper.floors
            if not self._is_stored(self.aim):
                break
            aim, layers = self.aim, keeper.layers
            parts = {task: aim.part_of(task, layers[task]) for task in layers}
            keeper.harden(replace(aim, layers=parts))
            self.aim, has_moved = None, True
        return has_moved

    def _is_stored(self, aim: Floors) -> bool:
        layers = self._keeper.layers
        return all(
            ref.level == STORE for task in self._chooses for ref in aim.part_of(task, layers[task])
        )

    def forget(self) -> None:
        """All tasks go back to the hard floors."""
        self.aim = None

    def _parts(self, task: int) -> tuple[Part, Part, Part]:
        """A task's layers: up to the hard floor, from there to the aim, and beyond the aim."""
        chain, keeper = self._keeper.layers[task], self._keeper
        hard = keeper.hard.part_of(task, chain)
        aimed = self.aim.part_of(task, chain) if self.aim is not None else hard
        return hard, aimed[len(hard) :], chain[len(aimed) :]

    def merges(self, task: int) -> Iterator[tuple[tuple[LayerRef, ...], str]]:
        """The layers of a task that slots should merge, and the level to keep the result at."""
        level, parts = self._tasks[task].level, self._parts(task)
        hard, aimed, beyond = parts
        oldest = next((ref for part in parts for ref in part), None)
        if level not in (AUTO, STORE):
            for part in parts:
                is_kept = any(ref.level != STORE for ref in part)
                if is_kept and (chosen := choose(part, has_base=part[0] == oldest)):
                    yield tuple(chosen), level
            return
        for part in (hard, aimed):
            if chosen := _kept_by_slots(part):
                yield tuple(chosen), STORE
                break
        if beyond and (chosen := choose(beyond, has_base=beyond[0] == oldest)):
            yield tuple(chosen), weakest(ref.level for ref in chosen)


def _kept_by_slots(part: Part) -> Part:
    """From the first of these layers that is in no store to the last."""
    places = [place for place, ref in enumerate(part) if ref.level != STORE]
    return part[places[0] : places[-1] + 1] if places else ()
