"""Recovery: fence a failed task, find what survives of its log, cut it, activate the task.

Each failed task recovers by itself::

    FENCING   all processes refuse its old life; the live tasks downstream and the house-keeper say
              how much of its log they hold, and how much they depend on
    READING   the longest prefix is fetched into the house-keeper
    READY     the log is read; cuts further upstream may void some of it
    resolved  the log is cut to what is consistent; tasks that depend on more are fenced in turn;
              all processes hear the length
    WAITING   for a slot, and for cuts of tasks that have failed upstream meanwhile

So a task waits for failed tasks upstream of it and for none downstream, and unrelated failures do
not affect each other. Under the availability policy all failed tasks are resolved together, because
no loss may be forgiven before the next is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.blame import Blame
from clonos.core.checkpoints import Checkpoints
from clonos.core.cuts import consistent_cut, valid_length
from clonos.core.decisions import Command
from clonos.core.fences import depends_on_lost
from clonos.core.holdings import Holdings
from clonos.core.log import in_pieces
from clonos.core.placement import best_slot
from clonos.core.plan import HOUSE_KEEPER, Cell, Incarnation
from clonos.core.reach import Reach
from clonos.core.roster import ACTIVE, RUNNING, UNRESOLVED, Roster, TaskEvent, TaskPhase, TaskState
from clonos.core.standbys import Standbys
from clonos.core.throttle import Throttle

PATIENCE_MS: Final = 30_000
"""For how long a recovery waits for a holder that is alive: it may be restoring its state."""


class Recoveries:
    """Recoveries of one job.

    Parameters
    ----------
    availability
        What happens to orphans. False: they roll back to a floor. True: they go on, at least once,
        in a new generation.
    reach
        Which slots cannot reach which.
    blame
        Which lives are to be watched.
    standbys
        The copies that tasks may begin with.
    holdings
        Which slots have the layers that are not in the store.
    throttle
        Whether sources wait.
    patience_ms
        See :data:`PATIENCE_MS`.

    Attributes
    ----------
    availability
        As given.
    failures
        How often something may have been lost.
    """

    def __init__(
        self,
        roster: Roster,
        checkpoints: Checkpoints,
        *,
        availability: bool,
        reach: Reach,
        blame: Blame,
        standbys: Standbys,
        holdings: Holdings,
        throttle: Throttle,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        self._roster = roster
        self._plan = roster.plan
        self._keeper = roster.keeper
        self._tasks = roster.tasks
        self._do = roster.do
        self._checkpoints = checkpoints
        self.availability = availability
        self._reach = reach
        self._blame = blame
        self._standbys = standbys
        self._holdings = holdings
        self._throttle = throttle
        self._patience_ms = patience_ms
        self._heirs: dict[Cell, int] = {}  # cells that move, and their target slots
        self._handed: dict[int, msg.Handed] = {}  # by task, until it lives again
        self.failures = 0

    # --- fencing, reading ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin a term: every task of an earlier one is fenced, its log cut to what is held."""
        for task in self._tasks.values():
            self._keeper.fence(task.id, task.incarnation)
            task.machine.on(TaskEvent.FAILED)
        self._advance()

    def lost(self, tasks: Sequence[TaskState]) -> None:
        """The slot of these tasks is gone."""
        if tasks:
            self._void()
        for task in tasks:
            task.slot = None
            for other in self._tasks.values():
                other.awaited.discard(task.id)
                other.answers.pop(task.id, None)
        for task in tasks:
            if task.phase in ACTIVE:  # else only a holder is gone
                self._begin(task)
        self._advance()

    def unreadable(self, slot: int, report: msg.Unreadable) -> None:
        """A live task cannot read items that it has spilled. Like an orphan, it recomputes them
        from its own log, which is intact."""
        task = self._tasks[report.task]
        if report.incarnation == task.incarnation and task.phase in ACTIVE:
            self._do(notes.Unreadable(task.id, report.channel))
            self.again(task)

    def again(self, task: TaskState) -> None:
        """Let a live task repeat its steps since its floor."""
        if task.phase in ACTIVE:
            self._begin(task)
            self._advance()

    def all_again(self) -> None:
        """Recover all tasks."""
        self._void()
        for task in self._roster.active():
            self._begin(task)
        self._advance()

    def hand_over(
        self,
        cell: Cell,
        heir: int,
        *,
        handed: Mapping[int, msg.Handed] = MappingProxyType({}),
        is_planned: bool = True,
    ) -> None:
        """A cell goes on in another slot. Each task is asked for its own log, which is complete.
        Nothing is lost if the cell rests, as planned; otherwise its step under way is.

        ``handed``: what tasks hand over, their logs included, so that nothing has to be read. All
        processes have to answer the fence nevertheless: one that heard of it after the next life
        had begun would take log entries of that life for lost ones.
        """
        self._heirs[cell] = heir
        for task, given in handed.items():
            self._keeper.append(run for run in given.runs if run.task == task)
        for task in cell:
            self._begin(self._tasks[task], is_planned=is_planned, hands_over=task in handed)
        self._handed.update(handed)
        self._advance()

    def _begin(
        self, task: TaskState, *, is_planned: bool = False, hands_over: bool = False
    ) -> None:
        """Fence a life everywhere; each holder answers how much of its log it has."""
        if is_planned:
            self._do(notes.Moving(task.id, task.incarnation, hands_over))
        else:
            self._void()
            self._do(notes.Detected(task.id, task.incarnation))
        self._checkpoints.forget(task)
        task.incarnation = Incarnation(self._roster.term, task.incarnation.n + 1)
        task.machine.on(TaskEvent.FAILED)
        task.since_ms = self._roster.now_ms
        task.answers.clear()
        task.awaited = self._holders(task)
        self._keeper.fence(task.id, task.incarnation)
        self._tell_all(msg.Fence(task.id, task.incarnation))

    def _void(self) -> None:
        """Something may be lost, on which what was handed over may depend."""
        self.failures += 1
        self._handed.clear()

    def _holders(self, task: TaskState) -> set[int]:
        """The tasks that may hold some of a task's log, or depend on it: those downstream of it.

        Orphans are asked, too: they are alive, and know their own log best. No holder is added
        before the task is resolved, because nothing downstream is activated until then.
        """
        distances = self._plan.distances
        return {
            t.id for t in self._tasks.values() if t.slot is not None and task.id in distances[t.id]
        }

    def _tell_all(self, command: msg.TaskCommand) -> None:
        """Tell all tasks that have a slot, fenced or not: each is a holder as long as its process
        lives."""
        for other in self._tasks:
            self._roster.command(other, command)

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
        """Take every recovery as far as it can go now."""
        while not self._roster.failed:
            self._read_on()
            resolvable = self._resolvable()
            if not resolvable:
                self.activate_waiting()
                return
            self._resolve(resolvable)

    def _read_on(self) -> None:
        for task in self._in(TaskPhase.READING):
            if task.read_from not in task.answers:  # that holder is gone
                self._read_longest(task)
        for task in self._in(TaskPhase.FENCING):
            if not task.awaited:
                self._do(notes.Fenced(task.id, task.incarnation))
                self._read_longest(task)

    def _read_longest(self, task: TaskState) -> None:
        """Ask for the longest prefix, from where that of the house-keeper ends."""
        held = self._keeper.length(task.id)
        best = max(task.answers.values(), key=lambda a: a.length, default=None)
        if self._plan.causal_log and best is not None and best.length > held:
            task.machine.on(TaskEvent.ASKED)
            task.read_from, task.since_ms = best.holder, self._roster.now_ms
            self._roster.command(best.holder, msg.ReadLog(task.id, held + 1))
        else:
            task.machine.on(TaskEvent.HELD)

    def read(self, slot: int, report: msg.LogPrefix) -> None:
        """A holder has sent log entries that the house-keeper lacked."""
        task = self._tasks[report.task]
        if task.phase is not TaskPhase.READING or task.read_from != report.holder:
            return
        task.since_ms = self._roster.now_ms
        self._keeper.append(report.runs)
        if report.is_last:
            task.machine.on(TaskEvent.READ)
            self._advance()

    def overdue(self) -> list[int]:
        """Slots that a recovery has awaited for too long; it then waits anew."""
        now_ms = self._roster.now_ms
        late = [t for t in self._asking() if now_ms - t.since_ms > self._patience_ms]
        for task in late:
            task.since_ms = now_ms
        return sorted(self._asked_by(late))

    def asked(self) -> set[int]:
        """Slots whose answer a recovery awaits."""
        return self._asked_by(self._asking())

    def _asking(self) -> list[TaskState]:
        return [*self._in(TaskPhase.FENCING), *self._in(TaskPhase.READING)]

    def _asked_by(self, asking: Sequence[TaskState]) -> set[int]:
        holders = set[int]()
        for task in asking:
            is_reading = task.phase is TaskPhase.READING
            holders |= {task.read_from} if is_reading else task.awaited
        slots = (self._tasks[holder].slot for holder in holders)
        return {slot for slot in slots if slot is not None}

    # --- resolution ---------------------------------------------------------------------------

    def _resolvable(self) -> list[TaskState]:
        """Tasks whose log is read, and which wait for no more cuts of their ancestors."""
        ready = self._in(TaskPhase.READY)
        if self.availability:
            return [] if self._in(TaskPhase.FENCING) or self._in(TaskPhase.READING) else ready
        return [task for task in ready if not self._awaits_cuts(task)]

    def _awaits_cuts(self, task: TaskState) -> bool:
        """Whether an ancestor's log is still to be cut, which may void entries of this one. Tasks
        of one loop are cut together, because each is an ancestor of the others."""
        loop = self._plan.loops.get(task.id, frozenset())
        return any(
            other.phase is not TaskPhase.READY or other.id not in loop
            for other in self._unresolved_above(task)
        )

    def _unresolved_above(self, task: TaskState) -> list[TaskState]:
        ancestors = (self._tasks[a] for a in self._plan.distances[task.id] if a != task.id)
        return [other for other in ancestors if other.phase in UNRESOLVED]

    def _resolve(self, ready: list[TaskState]) -> None:
        """Cut the logs of these tasks. Tasks that depend on more are fenced before any process
        hears of the cut."""
        lengths = self._surviving(ready)
        lost_output = [
            t for t in ready if self._keeper.depends_on_lost(t.id, t.incarnation, lengths[t.id])
        ]
        if lost_output and not self.availability:
            self._roster.fail(
                "OrphanedOutput",
                "output that has left the job depends on log entries that no process holds "
                "any more, and the policy is consistency",
                lost_output[0].id,
            )
            return
        orphans = [*self._orphans(ready, lengths), *self._cut_waiting(ready, lengths)]
        # Availability spares tasks that run; a log that is still to be replayed must be consistent.
        roll_back = [t for t in orphans if not self.availability or t.phase not in RUNNING]
        for orphan in roll_back:
            self._do(notes.Orphan(orphan.id))
            self._begin(orphan)
        if roll_back and (self.availability or self._are_above(roll_back, ready)):
            return  # what they lose may void entries of these logs: all of them are cut together
        begins_anew = self._plan.leaves_gaps and any(task.incarnation.n for task in ready)
        reset = self.availability and bool(orphans or lost_output or begins_anew)
        generation = self._keeper.generation + reset
        if reset:
            self._checkpoints.reset()
            self._do(notes.Generation(generation))
        before = self._keeper.generation
        for task in ready:
            # The new generation begins with the last cut: a layer sealed before that may rest on
            # what another cut voids.
            begins = generation if task is ready[-1] else before
            self._settle(task, lengths[task.id], begins, reset=reset)

    def _are_above(self, orphans: Sequence[TaskState], ready: Sequence[TaskState]) -> bool:
        """Whether one of these orphans is an ancestor of a task that is to be resolved: they are in
        one loop."""
        distances = self._plan.distances
        return any(orphan.id in distances[task.id] for orphan in orphans for task in ready)

    def _surviving(self, ready: list[TaskState]) -> dict[int, int]:
        keeper = self._keeper
        if not self._plan.causal_log:
            return {t.id: keeper.positions[t.id] for t in ready}
        return consistent_cut(
            self._plan,
            {t.id: keeper.book.runs(t.id, 1) for t in ready},
            {t.id: (t.incarnation, keeper.length(t.id)) for t in ready},
            keeper.resolved,
        )

    def _orphans(self, ready: list[TaskState], lengths: dict[int, int]) -> list[TaskState]:
        """Live tasks that depend on lost log entries."""
        result: dict[int, TaskState] = {}
        for task in ready:
            for holder, answer in task.answers.items():
                if self._tasks[holder].phase not in ACTIVE or answer.dep is None:
                    continue
                dep = {task.id: answer.dep}
                if depends_on_lost(task.id, task.incarnation, lengths[task.id], dep):
                    result[holder] = self._tasks[holder]
        return list(result.values())

    def _cut_waiting(self, ready: list[TaskState], lengths: dict[int, int]) -> list[TaskState]:
        """Resolved tasks without a slot whose logs took items that are lost now.

        They cannot be asked. Only direct receivers are looked at: their cuts lead to the next ones.
        """
        plan, result = self._plan, list[TaskState]()
        for task in ready:
            cut = {task.id: [(task.incarnation, lengths[task.id])]}
            receivers = {c.receiver for c in plan.channels if plan.makers[c.id] == task.id}
            for other in (self._tasks[r] for r in receivers - {HOUSE_KEEPER}):
                if other.phase is TaskPhase.WAITING and other not in result:
                    log, end = self._keeper.book.runs(other.id, 1), self._keeper.length(other.id)
                    if valid_length(self._plan, log, end, cut) < end:
                        result.append(other)
        return result

    def _settle(self, task: TaskState, length: int, generation: int, *, reset: bool) -> None:
        """Tell all processes how much of a log survives, before the task lives again."""
        self._do(notes.Fetched(task.id, task.incarnation, length))
        resolve = msg.Resolve(task.id, task.incarnation, length, generation, reset)
        self._keeper.resolve(resolve)
        self._tell_all(resolve)
        task.machine.on(TaskEvent.RESOLVED)
        task.answers.clear()

    # --- activation ---------------------------------------------------------------------------

    def activate_waiting(self) -> None:
        """Give resolved tasks a slot, as far as slots are available."""
        for cell, heir in list(self._heirs.items()):
            self._inherit(cell, heir)
        for task in filter(self._may_live, self._in(TaskPhase.WAITING)):
            if self._plan.cell_of[task.id] in self._heirs:
                continue
            if task.slot is None:
                task.slot = self._slot_for(self._plan.cell_of[task.id])
            if task.slot is not None and self._holdings.can_restore(task.id):
                self._activate(task, task.slot)

    def _inherit(self, cell: Cell, heir: int) -> None:
        """Move all tasks of a cell at once, or none if the target is gone. Until then the old slot
        answers for the logs that it holds."""
        tasks = [self._tasks[task] for task in cell]
        if not all(t.phase is TaskPhase.WAITING and self._may_live(t) for t in tasks):
            return
        del self._heirs[cell]
        if heir in self._roster.slots:
            for task in tasks:
                if task.slot is not None:
                    self._do(Command(task.slot, msg.Drop(task.id)))
                task.slot = heir

    def _slot_for(self, cell: Cell) -> int | None:
        """The slot of the other tasks of the cell; the first task chooses one."""
        home = self._roster.home(cell)
        if home is not None:
            return home
        taken = self._roster.taken().union(self._heirs.values())
        slots, shunned = self._roster.slots.values(), self._reach.shunned(cell)
        slot = best_slot(cell, slots, taken, self._roster.bound, shunned)
        return slot.id if slot is not None else None

    def _may_live(self, task: TaskState) -> bool:
        """Whether no ancestor is still to be cut: this task would not have been asked about that
        cut.

        So the task need not hear of pending fences: there are none upstream of it.
        """
        if self.availability:
            return not any(t.phase in UNRESOLVED for t in self._tasks.values())
        return not self._unresolved_above(task)

    def _activate(self, task: TaskState, slot_id: int) -> None:
        keeper, roster, slot = self._keeper, self._roster, self._roster.slots[slot_id]
        task.machine.on(TaskEvent.ACTIVATED)
        handed = self._handed.pop(task.id, None)
        if handed is not None and handed.position != keeper.length(task.id):
            handed = None
        is_replayed = self._plan.causal_log and handed is None
        log = keeper.book.runs(task.id, keeper.positions[task.id] + 1) if is_replayed else ()
        *pieces, last = in_pieces(log) or [()]
        activate = msg.Activate(
            task.id,
            task.incarnation,
            keeper.layers[task.id],
            last,
            tuple(keeper.resolved),
            tuple(roster.peers_of(task.id)),
            keeper.generation,
            *self._blame.next_life(task.id),
            claimed=keeper.claimed.get(task.id, (0, b"")),
            handed=handed,
        )
        self._standbys.activated(slot, task.id)
        self._holdings.tell(slot.id, task.id)
        for piece in pieces:
            self._do(Command(slot.id, msg.LogPiece(task.id, task.incarnation, piece)))
        self._do(Command(slot.id, activate))
        self._do(notes.Activated(task.id, task.incarnation))
        self._throttle.activated(task)
        for channel in self._plan.tasks[task.id].inputs:
            sender = self._tasks[self._plan.channels[channel].sender]
            if sender.phase in ACTIVE and sender is not task:
                roster.command(sender.id, msg.Connect(roster.peer(channel)))

    def restored(self, slot: int, report: msg.Restored) -> None:
        """A task has restored its state and its log, and replays."""
        task = self._tasks[report.task]
        if report.incarnation == task.incarnation and task.phase is TaskPhase.RESTORING:
            task.machine.on(TaskEvent.RESTORED)
            came, whole = report.store_bytes, report.state_bytes
            self._do(notes.Restored(task.id, task.incarnation, came, whole))
