"""The coordinator: places tasks on slots, runs recovery, orders the completion of checkpoints.

A sans-I/O machine like the tasks. It owns the :class:`~clonos.core.housekeeper.HouseKeeper`; its
host makes the journal durable *before* it carries out the actions of the same call. Its parts
decide, all on one :class:`~clonos.core.roster.Roster`; the coordinator routes events to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from clonos.core import levels, notes
from clonos.core import messages as msg
from clonos.core.blame import Blame
from clonos.core.checkpoints import Checkpoints
from clonos.core.decisions import (
    Action,
    Compacted,
    Done,
    Event,
    Expel,
    Leaving,
    MoveAsked,
    Reported,
    SlotLost,
    SlotReady,
)
from clonos.core.holdings import LOST_MS, Holdings, Loss
from clonos.core.housekeeper import HouseKeeper
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.log import LOG_BYTES
from clonos.core.machine import Machine, with_stories
from clonos.core.moves import Moves
from clonos.core.placement import Slot, best_slot
from clonos.core.plan import Plan
from clonos.core.reach import GATHER_MS, Reach
from clonos.core.recovery import PATIENCE_MS, Recoveries
from clonos.core.rivals import Rivals
from clonos.core.roster import Roster, TaskEvent, TaskPhase, TaskState
from clonos.core.standbys import Standbys
from clonos.core.throttle import Throttle
from clonos.errors import ProtocolError


class Coordinator:
    """The coordinator of one job in one term.

    Parameters
    ----------
    standbys
        Passive copies per task.
    availability
        What happens to orphans. False: they roll back to a floor. True: they go on, at least once,
        in a new generation.
    address
        Of the house-keeper, for the channels that lead to it.
    bound
        Tasks that can only live in slots of their own (they read a DataFrame's partition).
    patience_ms
        For how long a recovery waits for one answer.
    gather_ms
        How long complaints about slots that cannot be reached are gathered.
    inflight_bytes, log_bytes
        How many bytes of items a process may keep in memory for its receivers, and how many of
        logs.
    speculation
        Whether a task that falls far behind its peers is moved to a faster slot.
    term
        The driver's term, if it has claimed one. The journal does not know all terms: a driver that
        died before its first record has used one up.
    lost_ms
        How long to wait for a machine that is away and whose disk has the only copy of a layer.
    """

    def __init__(
        self,
        plan: Plan,
        keeper: HouseKeeper,
        *,
        address: str,
        standbys: int = 1,
        availability: bool = False,
        bound: Collection[int] = (),
        patience_ms: int = PATIENCE_MS,
        gather_ms: int = GATHER_MS,
        inflight_bytes: int = INFLIGHT_BYTES,
        log_bytes: int = LOG_BYTES,
        speculation: bool = False,
        term: int | None = None,
        lost_ms: int = LOST_MS,
    ) -> None:
        self.plan = plan
        self.keeper = keeper
        self.done = False
        self.roster = Roster(plan, keeper, address, term, bound)
        self.holdings = Holdings(self.roster, standbys, lost_ms)
        self.standbys = Standbys(self.roster, standbys, self.holdings)
        self.checkpoints = Checkpoints(self.roster, self.standbys, self.holdings)
        self.throttle = Throttle(self.roster, inflight_bytes, log_bytes)
        self.reach = Reach(self.roster, gather_ms)
        self.blame = Blame(self.roster)
        self.recoveries = Recoveries(
            self.roster,
            self.checkpoints,
            availability=availability or not plan.causal_log,
            reach=self.reach,
            blame=self.blame,
            standbys=self.standbys,
            holdings=self.holdings,
            throttle=self.throttle,
            patience_ms=patience_ms,
        )
        self._rivals = Rivals(self.roster) if speculation else None
        self.moves = Moves(self.roster, self.standbys, self.recoveries, self.holdings, self._rivals)
        self._reports: dict[type[Any], Callable[[int, Any], None]] = {
            msg.FenceAnswer: self.recoveries.answered,
            msg.LogPrefix: self.recoveries.read,
            msg.Restored: self.recoveries.restored,
            msg.Live: self._on_live,
            msg.Announced: self.blame.announced,
            msg.Survived: self.blame.survived,
            msg.LayerAck: self.checkpoints.acknowledged,
            msg.Resting: self.checkpoints.rest.said,
            msg.Finished: self._on_finished,
            msg.LastWords: self._on_last_words,
            msg.TaskError: self._on_task_error,
            msg.Followed: self.standbys.followed,
            msg.Unreachable: self.reach.complained,
            msg.Reached: self.reach.reached,
            msg.Unreadable: self.recoveries.unreadable,
            msg.Prepared: self.moves.prepared,
            msg.Yielded: self.moves.yielded,
            msg.Claim: self._on_claim,
            levels.Held: self._on_held,
            levels.Lacks: self._on_lacks,
            levels.LayersMerged: self.holdings.merged,
            levels.LevelInUse: self._on_level_in_use,
        }

    @property
    def tasks(self) -> dict[int, TaskState]:
        """What is known about each task."""
        return self.roster.tasks

    @property
    def slots(self) -> dict[int, Slot]:
        """The slots that have registered."""
        return self.roster.slots

    @property
    def waiting(self) -> list[int]:
        """One task of each cell for which there is no slot: the bound one, if there is one."""
        waiting = {
            self.plan.cell_of[t.id] for t in self.tasks.values() if t.phase is TaskPhase.WAITING
        }
        if not waiting:  # asked in every turn
            return []
        slots, taken, bound = self.slots.values(), self.roster.taken(), self.roster.bound
        missing = [
            cell
            for cell, home in self.roster.homes().items()
            if cell in waiting and home is None and best_slot(cell, slots, taken, bound) is None
        ]
        return [next((t for t in cell if t in bound), cell[0]) for cell in missing]

    @property
    def is_restoring(self) -> bool:
        """Whether some task is reading its layers."""
        return any(t.phase is TaskPhase.RESTORING for t in self.tasks.values())

    @property
    def term(self) -> int:
        """How often this job was started or restarted."""
        return self.roster.term

    @property
    def failed(self) -> bool:
        """Whether the job cannot go on."""
        return self.roster.failed

    def machines(self) -> list[Machine[Any, Any]]:
        """Its state machines, for reports of errors."""
        tasks = (task.machine for task in self.tasks.values())
        return [
            *self.checkpoints.machines(),
            *tasks,
            *self.blame.machines(),
            self.moves.machine,
        ]

    def check(self) -> None:
        """Assertions over the whole state."""
        self.keeper.check()
        self.roster.check()
        self.checkpoints.check()
        self.holdings.check()

    # --- events -----------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """Begin a term: every task of an earlier one is fenced, its log cut to what is held."""
        self.keeper.begin_term(self.term)
        if self.keeper.complete:
            self.done = True
            self.roster.do(Done())
        else:
            self.recoveries.start()
            self._settle_holdings()
        return self.roster.take_actions()

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take one event."""
        self.roster.now_ms = now_ms
        if self.failed or self.done:
            return []
        try:
            self._handle(event)
            self._settle_holdings()
        except ProtocolError as error:
            with_stories(error, self.machines())
            raise
        return self.roster.take_actions()

    def _handle(self, event: Event) -> None:
        match event:
            case SlotReady():
                self._on_slot_ready(event)
            case SlotLost():
                self._on_slot_lost(event)
            case Reported(slot=slot, report=report):
                if slot in self.slots:
                    self._reports[type(report)](slot, report)
            case Compacted():
                self.checkpoints.compacted(event)
            case MoveAsked(task=task, overtakes=overtakes):
                self.moves.ask(task, overtakes=overtakes)
            case Leaving(group=group, ends=ends):
                self.moves.leaving(group, ends=ends)

    def tick(self, now_ms: int) -> list[Action]:
        """Time passes: a slot that does not answer a fence is given up, and so is one that other
        slots cannot reach."""
        self.roster.now_ms = now_ms
        if self.failed or self.done:
            return []
        for slot in self.recoveries.overdue():
            self._expel(slot)
        for slot in (*self.reach.due(), *self.moves.emptied()):
            self._expel(slot)
        self.blame.tick()
        self.checkpoints.moving = self.moves.sealing
        self.checkpoints.tick()
        self._settle_holdings()
        is_held = self.checkpoints.is_settling or self.checkpoints.needs_rest
        self.throttle.hold(is_held=is_held)
        self.checkpoints.ask()
        self.standbys.tick()
        self.moves.tick()
        return self.roster.take_actions()

    def begin_epoch(self) -> list[Action]:
        """Inject a marker, unless a marker or a recovery is under way. Without markers each task
        seals by its own timer, and is only told to if that cannot wait."""
        if not self.failed and not self.done:
            self.checkpoints.begin(hurry=self.wants_floor)
        return self.roster.take_actions()

    @property
    def wants_floor(self) -> bool:
        """Whether layers should be sealed at once: logs are long, or a cell is about to move."""
        return self.throttle.wants_floor or self.moves.wants_floor

    def counted(self, task: int, counters: Mapping[str, int], is_current: bool) -> list[Action]:
        """A life of a task tells its statistics. If it keeps too many bytes of items or logs,
        sources wait; if the current life is slow, another slot may overtake it."""
        self.throttle.pressure(
            task, counters.get("inflight_bytes", 0), counters.get("log_bytes", 0)
        )
        if self._rivals is not None and is_current and self._rivals.told(task, counters):
            self.moves.ask(task, overtakes=True)
        return self.roster.take_actions()

    # --- slots --------------------------------------------------------------------------------

    def _on_slot_ready(self, event: SlotReady) -> None:
        slot = Slot(event.slot, event.address, event.group, event.bound, disk=event.disk)
        slot.standbys.update(event.copies)
        self.slots[event.slot] = slot
        self.holdings.joined(slot)
        self.moves.joined(slot)
        self.recoveries.activate_waiting()
        if event.slot not in self.roster.homes().values():
            self.standbys.drop(slot)  # copies of single tasks are no copy of a cell
        self.standbys.fill()

    def _expel(self, slot: int) -> None:
        self.roster.do(Expel(slot))
        self._on_slot_lost(SlotLost(slot, is_death=False))

    def _on_slot_lost(self, event: SlotLost) -> None:
        slot = self.slots.pop(event.slot, None)
        if slot is None:
            return
        self.blame.lost(slot, is_death=event.is_death, is_heard=event.is_heard)
        self.holdings.lost(event.slot)
        tasks = [task for task in self.tasks.values() if task.slot == event.slot]
        self.recoveries.lost(tasks)
        self.standbys.fill()

    def _settle_holdings(self) -> None:
        """Slots have, or should have, other layers than before; or layers are lost."""
        if self.done or self.failed:
            return
        match self.holdings.tick():
            case Loss.STATE:
                return
            case Loss.BEYOND_HARD:
                self._fall_back()
        for merge in self.holdings.settle():
            self.checkpoints.compacted(merge)

    def _fall_back(self) -> None:
        """Layers beyond the hard floors are lost. All tasks repeat what they have done since, as
        after the death of all processes; output that was delivered stays as it is."""
        self.checkpoints.fall_back()
        self.standbys.forget()
        self.recoveries.all_again()
        self.roster.do(notes.Back(self.keeper.epoch))

    def _on_level_in_use(self, slot: int, report: levels.LevelInUse) -> None:
        task, life = report.task, report.incarnation
        if life == self.tasks[task].incarnation:
            self.roster.do(notes.Level(task, report.level, report.why))

    def _on_held(self, slot: int, report: levels.Held) -> None:
        self.holdings.held(slot, report)
        self.recoveries.activate_waiting()

    def _on_lacks(self, slot: int, report: levels.Lacks) -> None:
        self.holdings.lacks(slot, report)
        if self.holdings.is_void(report.task):  # no floor would ever move: seal again
            self.recoveries.again(self.tasks[report.task])

    # --- tasks --------------------------------------------------------------------------------

    def _on_live(self, slot: int, report: msg.Live) -> None:
        task = self.tasks[report.task]
        if report.incarnation != task.incarnation or task.phase is not TaskPhase.REPLAYING:
            return
        task.machine.on(TaskEvent.REPLAYED)
        self.roster.do(notes.Live(task.id, task.incarnation, report.position))
        self.checkpoints.live(task)
        self.holdings.moved(task.id)
        self.standbys.fill()

    def _on_finished(self, slot: int, report: msg.Finished) -> None:
        task = self.tasks[report.task]
        if report.incarnation != task.incarnation or task.phase is not TaskPhase.LIVE:
            return
        task.machine.on(TaskEvent.FINISHED)
        if all(task.phase is TaskPhase.FINISHED for task in self.tasks.values()):
            self.done = True
            self.keeper.finish()
            self.roster.do(Done())

    def _on_claim(self, slot: int, report: msg.Claim) -> None:
        if report.incarnation == self.tasks[report.task].incarnation:
            self.keeper.claim(report)
            self.roster.command(report.task, msg.Granted(report.position))

    def _on_last_words(self, slot: int, report: msg.LastWords) -> None:
        if report.incarnation == self.tasks[report.task].incarnation:
            self.keeper.hear(report)

    def _on_task_error(self, slot: int, report: msg.TaskError) -> None:
        task = self.tasks[report.task]
        if report.incarnation == task.incarnation:
            self.roster.fail(
                report.error, report.message, task.id, report.where, report.remedy, report.trace
            )
