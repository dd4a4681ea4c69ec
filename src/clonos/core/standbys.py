"""Passive copies of cells: which slot keeps which, and which epoch each task's copy has reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.decisions import Command
from clonos.core.holdings import Holdings
from clonos.core.levels import LOCAL, MEMORY, LayerRef
from clonos.core.placement import Slot, misplaced_standby, place_standbys
from clonos.core.plan import Cell
from clonos.core.roster import Roster

AGAIN_MS: Final = 1000
"""How long a copy that could not be filled waits for the next attempt."""


class Standbys:
    """The copies of all cells.

    Parameters
    ----------
    copies
        How many each cell has.
    """

    def __init__(self, roster: Roster, copies: int, holdings: Holdings) -> None:
        self._roster = roster
        self._holdings = holdings
        self._copies = copies
        self._failed: dict[tuple[int, int], int] = {}  # (slot, task): when

    def fill(self) -> None:
        """Give every cell its passive copies again, away from the executor on which it runs.

        Not while a task recovers: filling copies would take processor time from the recovery.
        """
        roster = self._roster
        if not roster.all_run:
            return
        homes = roster.homes()
        pressing = [cell for cell in homes if any(self._waits_for_copies(task) for task in cell)]
        for slot, cell in place_standbys(roster.slots, homes, self._copies, roster.bound, pressing):
            self.follow(slot, cell)
        while (move := misplaced_standby(roster.slots, homes, roster.bound)) is not None:
            keeper, better, cell = move
            self._give_up(keeper, cell)
            self.follow(better, cell)

    def not_needed(self, slot: Slot, cell: Cell) -> None:
        """A cell does not move to a slot that was given a copy for that: others have enough."""
        home = self._roster.home(cell)
        slots = self._roster.slots.values()
        others = [s for s in slots if s.keeps(cell) and s.id not in (slot.id, home)]
        if len(others) >= self._copies:
            self._give_up(slot, cell)

    def _give_up(self, slot: Slot, cell: Cell) -> None:
        for task in cell:
            if slot.standbys.pop(task, None) is not None:
                self._roster.do(Command(slot.id, msg.Drop(task)))
                self._holdings.moved(task)

    def _waits_for_copies(self, task: int) -> bool:
        """Whether its floors do not move as long as nobody else has its layers."""
        return self._roster.plan.tasks[task].level in (MEMORY, LOCAL)

    def follow(self, slot: Slot, cell: Cell) -> None:
        """A slot begins with a copy."""
        for task in cell:
            slot.standbys[task] = -1
            self._follow(slot.id, task)

    def _follow(self, slot: int, task: int) -> None:
        self._holdings.tell(slot, task)
        self._holdings.moved(task)
        self._roster.do(Command(slot, msg.Follow(task, self._roster.keeper.layers[task])))

    def activated(self, slot: Slot, task: int) -> None:
        """A slot has become `task`: it keeps only its copies of other tasks of the same cell."""
        cell = self._roster.plan.cell_of[task]
        for dropped in {*slot.standbys, task}:
            self._holdings.moved(dropped)
        slot.standbys = {t: n for t, n in slot.standbys.items() if t in cell and t != task}

    def floor(self, layers: Mapping[int, tuple[LayerRef, ...]]) -> None:
        """These floors have moved: every copy applies the new layers of its task."""
        for task in layers:
            self._holdings.moved(task)
        for slot in self._roster.slots.values():
            for task in slot.standbys:
                if task in layers:
                    self._follow(slot.id, task)

    def forget(self) -> None:
        """Tasks go back to earlier floors: drop all copies, which are beyond these."""
        for slot in self._roster.slots.values():
            self.drop(slot)
        self._failed.clear()

    def drop(self, slot: Slot) -> None:
        """Drop all copies of a slot."""
        for task in slot.standbys:
            self._roster.do(Command(slot.id, msg.Drop(task)))
        slot.standbys.clear()

    def tick(self) -> None:
        """Try again to fill copies that could not be filled: the next floor may be far away."""
        roster = self._roster
        for (slot, task), since_ms in list(self._failed.items()):
            if roster.now_ms - since_ms >= AGAIN_MS:
                del self._failed[slot, task]
                if slot in roster.slots and roster.slots[slot].standbys.get(task) == -1:
                    self._follow(slot, task)

    def followed(self, slot: int, report: msg.Followed) -> None:
        """A copy has reached an epoch."""
        standbys = self._roster.slots[slot].standbys
        if report.task in standbys:
            standbys[report.task] = report.epoch
            if report.epoch < 0:
                self._failed[slot, report.task] = self._roster.now_ms
            self._roster.do(notes.Standby(report.task, report.epoch))
