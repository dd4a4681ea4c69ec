"""Recovery: fence the failed, find what survives of their logs, cut, activate.

Recovery of any number of tasks is one *round*::

    FENCING   every live task and the house-keeper fence the failed ones and say how much they hold
    READING   the longest prefixes are fetched into the house-keeper
    READY     this task's log is read; others' may not be
    resolved  logs are cut to what is consistent; orphans join the round (consistency) or are
              forgiven (availability); everybody hears the lengths; the tasks are activated

A failure during a round joins it.
"""

from __future__ import annotations

from clonos.core import messages as msg
from clonos.core.blame import Blame
from clonos.core.checkpoints import Checkpoints
from clonos.core.cuts import consistent_cut
from clonos.core.decisions import Command, Note
from clonos.core.fences import depends_on_lost
from clonos.core.log import in_pieces
from clonos.core.placement import best_slot
from clonos.core.plan import Cell, Incarnation
from clonos.core.reach import Reach
from clonos.core.roster import ACTIVE, RUNNING, UNRESOLVED, Roster, TaskEvent, TaskPhase, TaskState
from clonos.core.standbys import Standbys


class Rounds:
    """Recoveries of one job.

    Parameters
    ----------
    availability
        What happens to orphans: False: roll them back to a floor; True: go on at-least-once in
        a new generation.
    bound
        Tasks that can only live in slots of their own.
    reach
        Who cannot reach whom.
    blame
        Which lives are to be watched.
    standbys
        The copies that tasks may begin with.
    """

    def __init__(
        self,
        roster: Roster,
        checkpoints: Checkpoints,
        *,
        availability: bool,
        bound: frozenset[int],
        reach: Reach,
        blame: Blame,
        standbys: Standbys,
    ) -> None:
        self._roster = roster
        self._plan = roster.plan
        self._keeper = roster.keeper
        self._tasks = roster.tasks
        self._do = roster.do
        self._checkpoints = checkpoints
        self._availability = availability
        self._bound = bound
        self._reach = reach
        self._blame = blame
        self._standbys = standbys
        self._since_ms = 0

    @property
    def is_open(self) -> bool:
        """Whether a round is under way."""
        return any(t.phase in UNRESOLVED for t in self._tasks.values())

    # --- fencing, reading ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin a term: every task of an earlier one is fenced, its log cut to what is held."""
        for task in self._tasks.values():
            self._keeper.fence(task.id, task.incarnation)
            task.machine.on(TaskEvent.FAILED)
        self._advance()

    def lost(self, task: TaskState) -> None:
        """The slot of a task is gone."""
        task.slot = None
        self._begin_recovery(task)
        self._advance()

    def _begin_recovery(self, task: TaskState) -> None:
        """Fence the dead life everywhere; each holder answers how much of its log it has."""
        self._do(Note("detected", task.id, task.incarnation))
        self._checkpoints.forget(task)
        task.incarnation = Incarnation(self._roster.term, task.incarnation.n + 1)
        task.machine.on(TaskEvent.FAILED)
        task.answers.clear()
        self._since_ms = self._roster.now_ms
        for other in self._tasks.values():
            if other.machine.may(TaskEvent.JOINED):
                other.machine.on(TaskEvent.JOINED)
        self._keeper.fence(task.id, task.incarnation)
        if task.slot is None:
            for other in self._tasks.values():
                other.awaited.discard(task.id)
                other.answers.pop(task.id, None)
        # Orphans, too, are asked: they are alive, hold what they hold, and best their own log.
        task.awaited = {t.id for t in self._tasks.values() if t.slot is not None}
        for holder in sorted(task.awaited):
            self._roster.command(holder, msg.Fence(task.id, task.incarnation))

    def answered(self, slot: int, report: msg.FenceAnswer) -> None:
        """A holder reports how much it has of a fenced log."""
        task = self._tasks[report.task]
        if report.incarnation != task.incarnation or report.holder not in task.awaited:
            return
        task.awaited.discard(report.holder)
        task.answers[report.holder] = report
        self._advance()

    def _in(self, phase: TaskPhase) -> list[TaskState]:
        return [t for t in self._tasks.values() if t.phase is phase]

    def _advance(self) -> None:
        fenced = self._in(TaskPhase.FENCING)
        if not fenced or self._roster.failed or self._in(TaskPhase.READING):
            return
        if any(t.awaited for t in fenced):
            return
        for task in fenced:
            self._do(Note("fenced", task.id, task.incarnation))
            self._read_longest(task)
        if not self._in(TaskPhase.READING):
            self._resolve()

    def _read_longest(self, task: TaskState) -> None:
        """The longest prefix, beyond what the house-keeper has."""
        held = self._keeper.length(task.id)
        best = max(task.answers.values(), key=lambda a: a.length, default=None)
        if self._plan.causal_log and best is not None and best.length > held:
            task.machine.on(TaskEvent.ASKED)
            self._roster.command(best.holder, msg.ReadLog(task.id, held + 1))
        else:
            task.machine.on(TaskEvent.HELD)

    def read(self, slot: int, report: msg.LogPrefix) -> None:
        """What a holder had beyond the house-keeper."""
        task = self._tasks[report.task]
        if task.phase is not TaskPhase.READING:
            return
        self._keeper.append(report.runs)
        if not report.is_last:
            return
        task.machine.on(TaskEvent.READ)
        if not self._in(TaskPhase.READING):
            self._resolve()

    def silent_since(self, timeout_ms: int) -> list[int]:
        """Slots of overdue holders; their time starts again."""
        now_ms = self._roster.now_ms
        if not self.is_open or now_ms - self._since_ms <= timeout_ms:
            return []
        self._since_ms = now_ms
        silent = {h for t in self._tasks.values() for h in t.awaited}
        for task in self._in(TaskPhase.READING):
            silent.add(max(task.answers.values(), key=lambda a: a.length).holder)
        slots = [self._tasks[holder].slot for holder in sorted(silent)]
        return [slot for slot in slots if slot is not None]

    # --- resolution ---------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Every failed task's log is read: of this round, or without a slot since an earlier."""
        failed = [t for t in self._tasks.values() if t.phase not in ACTIVE]
        lengths = self._surviving(failed)
        orphans = self._orphans(failed, lengths)
        lost_output = [
            t for t in failed if self._keeper.depends_on_lost(t.id, t.incarnation, lengths[t.id])
        ]
        if lost_output and not self._availability:
            self._roster.fail(
                "OrphanedOutput",
                "output that has left the job depends on log entries that nobody holds any "
                "more, and the policy is consistency",
                lost_output[0].id,
            )
            return
        roll_back = self._to_roll_back(failed, orphans, lengths)
        if roll_back:
            for orphan in roll_back:
                self._do(Note("orphan", orphan.id, orphan.incarnation))
                self._begin_recovery(orphan)
            self._advance()
            return
        reset = bool(self._availability and (orphans or lost_output))
        generation = self._keeper.generation + reset
        if reset:
            self._checkpoints.reset()
            self._do(Note("generation", value=generation))
        for task in failed:
            self._settle(task, lengths[task.id], generation, reset=reset)
        self.activate_waiting()

    def _surviving(self, failed: list[TaskState]) -> dict[int, int]:
        keeper = self._keeper
        if not self._plan.causal_log:
            return {t.id: keeper.positions[t.id] for t in failed}
        return consistent_cut(
            self._plan,
            {t.id: keeper.book.runs(t.id, 1) for t in failed},
            {t.id: (t.incarnation, keeper.length(t.id)) for t in failed},
            keeper.resolved,
        )

    def _orphans(self, failed: list[TaskState], lengths: dict[int, int]) -> list[TaskState]:
        """Live tasks that depend on lost log entries."""
        result: dict[int, TaskState] = {}
        for task in failed:
            for holder, answer in task.answers.items():
                if self._tasks[holder].phase not in ACTIVE or answer.dep is None:
                    continue
                dep = {task.id: answer.dep}
                if depends_on_lost(task.id, task.incarnation, lengths[task.id], dep):
                    result[holder] = self._tasks[holder]
        return list(result.values())

    def _to_roll_back(
        self, failed: list[TaskState], orphans: list[TaskState], lengths: dict[int, int]
    ) -> list[TaskState]:
        """Availability spares who is alive; a log yet to be replayed must be true."""
        result = [t for t in orphans if not self._availability or t.phase not in RUNNING]
        for task in failed:  # waiting for a slot since an earlier round, and cut by this one
            is_cut = lengths[task.id] < self._keeper.length(task.id)
            if task.phase is TaskPhase.WAITING and is_cut:
                result.append(task)
        return result

    def _settle(self, task: TaskState, length: int, generation: int, *, reset: bool) -> None:
        """The round's outcome for one task: everybody hears it before the task lives again."""
        self._do(Note("fetched", task.id, task.incarnation, length))
        if task.phase is TaskPhase.READY:
            resolve = msg.Resolve(task.id, task.incarnation, length, generation, reset)
            self._keeper.resolve(resolve)
            for other in self._roster.active():
                self._roster.command(other.id, resolve)
            task.machine.on(TaskEvent.RESOLVED)
        task.answers.clear()

    # --- activation ---------------------------------------------------------------------------

    def activate_waiting(self) -> None:
        """Give resolved tasks a slot, as far as slots are available."""
        for task in self._in(TaskPhase.WAITING):
            if task.slot is None:
                task.slot = self._slot_for(self._plan.cell_of[task.id])
            if task.slot is not None:
                self._activate(task, task.slot)

    def _slot_for(self, cell: Cell) -> int | None:
        """Where the rest of the cell is; the first of it chooses."""
        home = self._roster.home(cell)
        if home is not None:
            return home
        running = {t.slot for t in self._tasks.values() if t.slot is not None}
        slots, shunned = self._roster.slots.values(), self._reach.shunned(cell)
        slot = best_slot(cell, slots, running, self._bound, shunned)
        return slot.id if slot is not None else None

    def _activate(self, task: TaskState, slot_id: int) -> None:
        keeper, roster, slot = self._keeper, self._roster, self._roster.slots[slot_id]
        task.machine.on(TaskEvent.ACTIVATED)
        log = keeper.book.runs(task.id, keeper.positions[task.id] + 1)
        *pieces, last = in_pieces(log if self._plan.causal_log else ()) or [()]
        activate = msg.Activate(
            task.id,
            task.incarnation,
            keeper.epoch,
            keeper.layers[task.id],
            last,
            tuple(keeper.resolved),
            tuple(roster.peers_of(task.id)),
            keeper.generation,
            *self._blame.next_life(task.id),
        )
        self._standbys.activated(slot, task.id)
        for piece in pieces:
            self._do(Command(slot.id, msg.LogPiece(task.id, task.incarnation, piece)))
        self._do(Command(slot.id, activate))
        self._do(Note("activated", task.id, task.incarnation))
        for channel in self._plan.tasks[task.id].inputs:
            sender = self._tasks[self._plan.channels[channel].sender]
            if sender.phase in ACTIVE and sender is not task:
                roster.command(sender.id, msg.Connect(roster.peer(channel)))

    def restored(self, slot: int, report: msg.Restored) -> None:
        """A task has restored its state and its log, and replays."""
        task = self._tasks[report.task]
        if report.incarnation == task.incarnation and task.phase is TaskPhase.RESTORING:
            task.machine.on(TaskEvent.RESTORED)
            self._do(Note("restored", task.id, task.incarnation))
