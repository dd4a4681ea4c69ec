"""A driver that waits until another one has ended, with its slots in place already.

The slots register as with any driver, and have nothing to do yet. So a driver that takes a job
over, or continues it with another graph, only has to tell these processes what to run. If it knows
what state their tasks will have, more or less, they copy it in advance, like passive standbys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from clonos.core import messages as msg
from clonos.core.decisions import SlotReady
from clonos.core.levels import STORE, LayerRef
from clonos.core.placement import bound_of
from clonos.core.plan import Cell, Plan
from clonos.errors import CannotUpgrade
from clonos.nodes.events import Ended
from clonos.nodes.places import Places
from clonos.nodes.ports import Launcher
from clonos.nodes.settings import DriverSettings
from clonos.transport.events import ControlLost, ControlOpened

PAUSE_MAX_S: Final = 1.0
"""A longer pause between two turns counts as this: the process did not run."""


def places_of(plan: Plan, launcher: Launcher, settings: DriverSettings) -> Places:
    """The places of a job, none of them launched yet."""
    return Places(
        settings.name,
        settings.places,
        launcher,
        spare=len(settings.places) > len(plan.cells),
        versions=settings.versions,
        fatal=settings.interruptions,
        pace=settings.pace,
    )


class Waiting:
    """Slots that are ready before there is a job for them.

    Parameters
    ----------
    warn
        Called with warnings.

    Attributes
    ----------
    ready
        Slots that have registered and have not gone, by number, with the copies that they have.
    now_s
        How long it has waited: the clock of its places.
    """

    def __init__(
        self,
        plan: Plan,
        launcher: Launcher,
        settings: DriverSettings,
        warn: Callable[[str], object],
    ) -> None:
        self.places, self._warn = places_of(plan, launcher, settings), warn
        self._plan = plan
        self._bound = {task for task in settings.places if task is not None}
        self.ready: dict[int, SlotReady] = {}
        self._told: dict[tuple[int, int], tuple[LayerRef, ...]] = {}  # by slot and task
        self._behind: dict[tuple[int, int], int] = {}  # the epoch that a new copy is to reach
        self.now_s = 0.0
        self._looked_s: float | None = None
        self._hear: dict[type[Any], Callable[[Any], None]] = {
            ControlOpened: self._on_control_opened,
            ControlLost: self._on_control_lost,
            Ended: self._on_ended,
        }

    @property
    def is_ready(self) -> bool:
        """Whether all slots are there, and their copies are not empty any more."""
        return self.are_here and not self._behind

    @property
    def are_here(self) -> bool:
        """Whether all slots are there."""
        return len(self.ready) == len(self.places.places)

    def follow(self, layers: Mapping[int, Sequence[LayerRef]]) -> None:
        """Have each slot copy the tasks that it will probably run, from these layers.

        The next driver's coordinator hears of the slots in the same order, and gives each the first
        cell that waits. If a slot gets another one, it begins without a copy.
        """
        for slot, cell in self._cells():
            for task in cell:
                chain = tuple(layers.get(task, ()))
                is_known = self._told.get((slot, task), ()) == chain
                if is_known or self._plan.tasks[task].is_source:  # it would begin to read
                    continue
                if all(ref.level == STORE for ref in chain):
                    if (slot, task) not in self._told:
                        self._behind[slot, task] = chain[-1].epoch
                        self._has_copy(slot, task, -1)
                    self._told[slot, task] = chain
                    self.places.command(slot, msg.Follow(task, chain))

    def _cells(self) -> Iterator[tuple[int, Cell]]:
        cells = list(self._plan.cells)
        for ready in self.ready.values():
            for cell in cells:
                if ready.bound == bound_of(cell, self._bound):
                    cells.remove(cell)
                    yield ready.slot, cell
                    break

    def _has_copy(self, slot: int, task: int, epoch: int) -> None:
        ready = self.ready[slot]
        self.ready[slot] = replace(ready, copies={**ready.copies, task: epoch})

    def start(self) -> None:
        """Ask for the slots."""
        self.places.launch_all(self.now_s)

    def turn(self, heard: Sequence[Any], ticks_s: float) -> None:
        """Handle events. Heartbeats are ignored: silent slots are found when there is something to
        do.

        Raises
        ------
        ClonosError
            Slots end again and again, or have another environment; or state would be lost.
        """
        self._look_at_clock(ticks_s)
        for thing in heard:
            if type(thing) is tuple:
                self._on_report(*thing)
            elif (hear := self._hear.get(type(thing))) is not None:
                hear(thing)
        for warning in self.places.tick(self.now_s):
            self._warn(warning)

    def _look_at_clock(self, ticks_s: float) -> None:
        if self._looked_s is not None:
            self.now_s += min(ticks_s - self._looked_s, PAUSE_MAX_S)
        self._looked_s = ticks_s

    def _on_report(self, slot: int, report: Any) -> None:
        if type(report) is msg.TaskError and (slot, report.task) in self._told:
            raise CannotUpgrade(report.message, where=report.where, remedy=report.remedy)
        if type(report) is not msg.Followed or (slot, report.task) not in self._told:
            return
        self._has_copy(slot, report.task, report.epoch)
        wanted = self._behind.get((slot, report.task), -1)
        if report.epoch < 0 or report.epoch >= wanted:  # a copy that fails is not waited for
            self._behind.pop((slot, report.task), None)

    def _gone(self, slot: int) -> None:
        self.ready.pop(slot, None)
        for asked in (self._told, self._behind):
            for key in [key for key in asked if key[0] == slot]:
                del asked[key]

    def _on_control_opened(self, event: ControlOpened) -> None:
        for slot in self.places.replaced(event):
            self._gone(slot)
            self.places.expel(slot, self.now_s)
        self.ready[event.conn_id] = self.places.registered(event)

    def _on_control_lost(self, event: ControlLost) -> None:
        self._gone(event.conn_id)
        self.places.lost(event.conn_id, self.now_s)

    def _on_ended(self, event: Ended) -> None:
        error = self.places.ended(event, self.now_s)
        if error is not None:
            raise error

    def dismiss(self) -> None:
        """The slots are not needed after all: end them."""
        self.places.close()
        self.places.cancel_all()
