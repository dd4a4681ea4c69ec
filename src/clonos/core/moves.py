"""Planned moves: a live cell goes on in another slot, and no call is made again.

::

    COPYING    a copy of the cell is brought to the newest floor in the target slot
    SEALING    the tasks seal once more, and no more after that; the copy gets that layer, too, as
               soon as it is a floor
    YIELDING   the tasks end the step under way, take the outcomes of their calls, let sinks write,
               and take no more input; if that takes too long they resume, and nothing has happened
    HANDING    the tasks are fenced. Each hands over what has changed since its floor
               (:mod:`clonos.core.handover`), and its next life goes on from there in the target
               slot. If that is too much, the log is read and replayed; it is complete

So a move is a recovery in which nothing is unknown. One cell moves at a time, and none while a
recovery is under way: recoveries come first.

A cell may also be *overtaken*, because it is slow (:mod:`clonos.core.rivals`) and would not rest in
time. So it is not asked to yield: when the copy, its rival, is as up to date as it can be, a fence
ends the old life in the middle of whatever it does, and the rival recovers from the log. This is a
failure like any other, except that a slot is ready and the old life's log is read to its end.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Final

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.floors import in_the_way
from clonos.core.holdings import Holdings
from clonos.core.machine import Table
from clonos.core.placement import Slot, best_slot
from clonos.core.plan import Cell
from clonos.core.recovery import Recoveries
from clonos.core.rivals import Rivals
from clonos.core.roster import RUNNING, Roster
from clonos.core.standbys import Standbys

COPY_MS: Final = 60_000
"""How long a copy may take until the move is given up."""
FRESH_MS: Final = 500
"""How long a move waits for the floor that it has asked for; without it, more is replayed."""
YIELD_MS: Final = 1_000
"""How long steps, calls and writes under way may take: until then the cell takes nothing new."""
FULL_MS: Final = 2_000
"""How long a move waits for a slot while none is free: one that has died comes back by then."""
SLOW_MS: Final = 300_000
"""For this long no rival begins in a slot in which a cell was overtaken."""
AGAIN_MS: Final = 1_000
"""How long a cell that could not move out of a leaving slot waits for the next attempt."""
COPIED_MS: Final = 60_000
"""How long an empty slot of an executor that ends waits until others have copies of its layers."""

FULL: Final = "no slot is free that could take it (those of drained executors cannot)"
NEVER_COPIED: Final = "its state has not been copied within a minute"
FAILED: Final = "a task, or the slot that was to take it, failed meanwhile"
BUSY: Final = "a step, call or write under way took longer than a second"


class MovePhase(Enum):
    """The phases of a move."""

    IDLE = "idle"
    COPYING = "copying"
    SEALING = "sealing"
    YIELDING = "yielding"
    HANDING = "handing over"


class MoveEvent(Enum):
    """What happens to a move."""

    ASKED = "all run, there is a slot"
    COPIED = "the copy is at the floor"
    SEALED = "the copy is at a new floor"
    BEHIND = "the copy begins again"
    YIELDED = "all tasks rest"
    OVERTAKEN = "copy is near, and nobody is asked"
    LIVE = "all tasks live again"
    GIVEN_UP = "too slow, or a failure"


MOVE = Table(
    "a planned move",
    MovePhase.IDLE,
    {
        (MovePhase.IDLE, MoveEvent.ASKED): MovePhase.COPYING,
        (MovePhase.COPYING, MoveEvent.COPIED): MovePhase.SEALING,
        (MovePhase.COPYING, MoveEvent.GIVEN_UP): MovePhase.IDLE,
        (MovePhase.SEALING, MoveEvent.SEALED): MovePhase.YIELDING,
        (MovePhase.SEALING, MoveEvent.BEHIND): MovePhase.COPYING,
        (MovePhase.SEALING, MoveEvent.OVERTAKEN): MovePhase.HANDING,
        (MovePhase.SEALING, MoveEvent.GIVEN_UP): MovePhase.IDLE,
        (MovePhase.YIELDING, MoveEvent.YIELDED): MovePhase.HANDING,
        (MovePhase.YIELDING, MoveEvent.GIVEN_UP): MovePhase.IDLE,
        (MovePhase.HANDING, MoveEvent.LIVE): MovePhase.IDLE,
    },
)


class Moves:
    """The planned moves of one job.

    Attributes
    ----------
    target
        The slot to which a cell moves, or has moved last.
    rivals
        Hears which cells were overtaken; None: nobody chooses any.
    """

    def __init__(
        self,
        roster: Roster,
        standbys: Standbys,
        recoveries: Recoveries,
        holdings: Holdings,
        rivals: Rivals | None,
    ) -> None:
        self._roster = roster
        self._standbys = standbys
        self._recoveries = recoveries
        self._holdings = holdings
        self.rivals = rivals
        self.machine = MOVE.machine("moves")
        self._wanted: dict[Cell, int] = {}  # since when all tasks run, and there may be no slot
        self._again: dict[Cell, int] = {}  # in leaving slots: when last tried
        self._slow: set[Cell] = set()  # cells to be overtaken
        self._late: set[Cell] = set()  # cells that did not rest in time, with what they hand over
        self._leaving: set[str] = set()
        self._ending: set[str] = set()
        self._empty: dict[int, int] = {}  # slots that are to end: since when they run nothing
        self._cell: Cell = ()
        self.target = -1
        self._floors: dict[int, int] = {}  # where the floors of the cell were
        self._began_ms = self._since_ms = 0  # the move, and its phase
        self._number = 0  # of the newest order to yield
        self._sealed: dict[int, int] = {}  # where the last layers of the cell are
        self._awaited: set[int] = set()
        self._handed: dict[int, msg.Handed] = {}  # by task that has yielded
        self._failures = 0  # before that
        self._has_copy = False  # the target had one before

    # --- what is wanted -------------------------------------------------------------------------

    def ask(self, task: int, *, overtakes: bool = False) -> None:
        """The cell of `task` should move to another slot. ``overtakes``: without being asked to
        yield."""
        cell = self._roster.plan.cell_of[task]
        if overtakes and cell not in self._wanted:
            self._slow.add(cell)
        self._wanted.setdefault(cell, self._roster.now_ms)

    def leaving(self, group: str, *, ends: bool = False) -> None:
        """The slots of an executor are about to go, including those that register later. ``ends``:
        the executor ends when nothing runs there any more, so idle slots must end."""
        self._leaving.add(group)
        if ends:
            self._ending.add(group)
        for slot in self._roster.slots.values():
            self.joined(slot)
        self._standbys.fill()

    def joined(self, slot: Slot) -> None:
        """A slot has registered; its executor may be about to go."""
        slot.leaves = slot.leaves or slot.group in self._leaving
        slot.ends = slot.ends or slot.group in self._ending

    def emptied(self) -> list[int]:
        """Slots without tasks in executors that end; while anything recovers they may be needed.

        Others have what they keep by then. If that takes too long, they end nevertheless: their
        executor does not wait for ever.
        """
        if not self._ending or self.machine.state is not MovePhase.IDLE:
            return []
        roster, now_ms = self._roster, self._roster.now_ms
        if not roster.all_run:
            return []
        taken = roster.taken()
        empty = [s.id for s in roster.slots.values() if s.group in self._ending]
        empty = [slot for slot in empty if slot not in taken]
        self._empty = {slot: self._empty.get(slot, now_ms) for slot in empty}
        overdue = {slot for slot, ms in self._empty.items() if now_ms - ms >= COPIED_MS}
        return [s for s in empty if s in overdue or self._holdings.is_safe_without(s)]

    def may_renew(self, slot: int) -> bool:
        """Whether a slot may be started anew. One copy is missing then, until it is back."""
        is_empty = slot not in self._roster.taken()
        return is_empty and self._roster.all_run and self._holdings.is_safe_without(slot, fewer=1)

    def tick(self) -> None:
        """Time passes."""
        phase = self.machine.state
        if phase is MovePhase.IDLE:
            if not self._roster.plan.causal_log:
                return  # at least once: a move would repeat as much as a failure
            if self._wanted or self._leaving:
                self._next()
        elif phase is MovePhase.COPYING:
            self._copy()
        elif phase is MovePhase.SEALING:
            self._seal()
        elif phase is MovePhase.YIELDING:
            self._wait()
        elif all(self._roster.tasks[t].phase in RUNNING for t in self._cell):
            self._end(MoveEvent.LIVE)

    @property
    def wants_floor(self) -> bool:
        """Whether layers should be sealed at once, so that less is replayed."""
        return self.machine.state is MovePhase.SEALING and not self._has_new_floors

    @property
    def sealing(self) -> Cell:
        """The cell whose tasks seal no more than they have to."""
        is_sealing = self.machine.state is MovePhase.SEALING and self._hands_over
        return self._cell if is_sealing else ()

    @property
    def _has_new_floors(self) -> bool:
        """Whether the floors of the cell have moved since, or are where its logs end. A task that
        hands over has a floor at its last layer."""
        keeper = self._roster.keeper
        if self._hands_over:
            return all(keeper.positions[t] >= self._sealed.get(t, inf) for t in self._cell)
        return all(
            keeper.positions[task] > floor or keeper.length(task) == floor
            for task, floor in self._floors.items()
        )

    @property
    def _hands_over(self) -> bool:
        """Whether the tasks are asked to seal a last layer, and hand over what follows. With
        markers no task seals by itself; a loss that is forgiven concerns items that were taken
        since the floor, and the new life would not know these; a task that is overtaken is not
        asked for anything; and perhaps it took too long the last time."""
        has_markers = self._roster.plan.has_markers
        is_asked = self._cell not in self._slow and self._cell not in self._late
        return is_asked and not (has_markers or self._recoveries.availability)

    # --- one move -------------------------------------------------------------------------------

    def _next(self) -> None:
        roster = self._roster
        if not roster.all_run:
            self._wanted = dict.fromkeys(self._wanted, roster.now_ms)
            return
        for cell, home in roster.homes().items():
            is_leaving = home is not None and roster.slots[home].leaves
            if is_leaving and roster.now_ms - self._again.get(cell, -AGAIN_MS) >= AGAIN_MS:
                self._wanted.setdefault(cell, roster.now_ms)
        for cell, since_ms in list(self._wanted.items()):
            target = self._slot_for(cell)
            if target is not None:
                self._begin(cell, target)
                return
            # A cell that is slow now may not be slow later.
            if cell in self._slow or roster.now_ms - since_ms >= FULL_MS:
                self._forget(cell)
                roster.do(notes.Stayed(cell[0], FULL))

    def _slot_for(self, cell: Cell) -> Slot | None:
        """The best slot to move to; never one that leaves. For a rival, preferably on another
        executor, and never a slot in which a cell was overtaken lately."""
        roster = self._roster
        taken, bound = roster.taken(), roster.bound
        slots = [slot for slot in roster.slots.values() if not slot.leaves]
        home = roster.home(cell)
        if cell not in self._slow or home is None:
            return best_slot(cell, slots, taken, bound)
        for slot in slots:
            if slot.slow_since is not None and roster.now_ms - slot.slow_since >= SLOW_MS:
                slot.slow_since = None
        fast = [slot for slot in slots if slot.slow_since is None]
        return best_slot(cell, fast, taken, bound, {roster.slots[home].group})

    def _begin(self, cell: Cell, target: Slot) -> None:
        self.machine.on(MoveEvent.ASKED)
        self._cell, self.target = cell, target.id
        self._began_ms = self._roster.now_ms
        self._has_copy = target.keeps(cell)
        if not self._has_copy:
            self._standbys.follow(target, cell)

    def _is_broken(self) -> bool:
        """Whether a task has failed, or the target slot is gone or taken."""
        target = self._roster.slots.get(self.target)
        is_taken = self.target in self._roster.taken()
        return target is None or target.leaves or is_taken or not self._roster.all_run

    def _copy(self) -> None:
        if self._is_broken():
            self._give_up(FAILED)
        elif self._roster.now_ms - self._began_ms >= COPY_MS:
            self._give_up(NEVER_COPIED)
        elif self._is_filled():
            self.machine.on(MoveEvent.COPIED)
            self._since_ms = self._roster.now_ms
            self._floors = {task: self._roster.keeper.positions[task] for task in self._cell}
            self._sealed.clear()
            for task in self._cell if self._hands_over else ():
                self._roster.command(task, msg.Prepare())

    def prepared(self, slot: int, report: msg.Prepared) -> None:
        """A task has sealed its last layer."""
        is_current = report.incarnation == self._roster.tasks[report.task].incarnation
        if self.machine.state is MovePhase.SEALING and report.task in self._cell and is_current:
            self._sealed[report.task] = report.position

    def _seal(self) -> None:
        waited_ms = self._roster.now_ms - self._since_ms
        if self._is_broken():
            self._give_up(FAILED)
        elif not self._is_filled():
            if waited_ms >= FRESH_MS:  # so long no floor upstream of the cell can move
                self.machine.on(MoveEvent.BEHIND)
                self._resume()
        elif not (self._has_new_floors or waited_ms >= FRESH_MS):
            self._seal_again()
        else:
            if self._cell in self._slow:
                self._overtake()
                return
            self.machine.on(MoveEvent.SEALED)
            self._since_ms, self._awaited = self._roster.now_ms, set(self._cell)
            self._handed, self._failures = {}, self._recoveries.failures
            self._number += 1
            for task in self._cell:
                self._roster.command(task, msg.Yield(self._number))

    def _seal_again(self) -> None:
        """A task whose last layer was sealed before that of a sender in the same cell keeps that
        one from being a floor."""
        roster, cell = self._roster, self._cell
        if self._hands_over:
            beyond, needs = self._holdings.beyond, roster.keeper.needs
            for task in in_the_way(roster.plan, beyond, needs, cell) & self._sealed.keys():
                del self._sealed[task]
                roster.command(task, msg.SealLayer())

    def _overtake(self) -> None:
        """End the old lives, whatever they are doing."""
        roster, home = self._roster, self._roster.home(self._cell)
        assert home is not None
        self.machine.on(MoveEvent.OVERTAKEN)
        roster.slots[home].slow_since = roster.now_ms
        if self.rivals is not None:
            self.rivals.overtaken(self._cell)
        roster.do(notes.Rival(self._cell[0], self.target))
        self._recoveries.hand_over(self._cell, self.target, is_planned=False)

    def _is_filled(self) -> bool:
        """Whether the copy has reached the floor; if there is none (any more), it begins."""
        target, layers = self._roster.slots[self.target], self._roster.keeper.layers
        if not target.keeps(self._cell):
            self._standbys.follow(target, self._cell)
            return False
        standbys = target.standbys
        return all(
            standbys.get(task, -1) >= max((ref.epoch for ref in layers[task]), default=0)
            for task in self._cell
        )

    def yielded(self, slot: int, report: msg.Yielded) -> None:
        """A task rests."""
        task = self._roster.tasks[report.task]
        is_awaited = self.machine.state is MovePhase.YIELDING and task.id in self._awaited
        is_answer = report.number == self._number and report.incarnation == task.incarnation
        if not is_awaited or not is_answer:
            return
        self._awaited.discard(task.id)
        if report.handed is not None:
            self._handed[task.id] = report.handed
        self._wait()

    def _wait(self) -> None:
        if self._is_broken():
            self._give_up(FAILED)
        elif self._roster.now_ms - self._since_ms >= YIELD_MS:
            self._late ^= {self._cell}
            self._give_up(BUSY)
        elif not self._awaited:
            self.machine.on(MoveEvent.YIELDED)
            self._recoveries.hand_over(self._cell, self.target, handed=self._usable())

    def _usable(self) -> dict[int, msg.Handed]:
        """What is handed over, by task; nothing if some life has ended since the tasks were asked.
        They knew all fences before that."""
        return self._handed if self._recoveries.failures == self._failures else {}

    def _give_up(self, why: str) -> None:
        """Give the move up, as if nothing had happened."""
        if self.machine.state in (MovePhase.SEALING, MovePhase.YIELDING):
            self._resume()
        cell, target = self._cell, self._roster.slots.get(self.target)
        self._end(MoveEvent.GIVEN_UP, why)
        if target is not None and not self._has_copy and self._roster.home(cell) != target.id:
            self._standbys.not_needed(target, cell)
        self._standbys.fill()

    def _resume(self) -> None:
        for task in self._cell:
            self._roster.command(task, msg.Resume())

    def _end(self, event: MoveEvent, why: str = FAILED) -> None:
        self.machine.on(event)
        cell, self._awaited, self._handed = self._cell, set(), {}
        self._forget(cell)
        if self._roster.home(cell) == self.target:
            self._roster.do(notes.Moved(cell[0], self.target))
        else:
            self._roster.do(notes.Stayed(cell[0], why, self.target))

    def _forget(self, cell: Cell) -> None:
        self._wanted.pop(cell, None)
        self._slow.discard(cell)
        self._again[cell] = self._roster.now_ms
