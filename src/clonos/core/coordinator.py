"""The coordinator: places tasks on slots, runs recovery, orders the completion of checkpoints.

A sans-I/O machine like the tasks. It owns the :class:`~clonos.core.housekeeper.HouseKeeper`; its
host makes the journal durable *before* it carries out the actions of the same call.

Recovery of any number of tasks is one *round*::

    FENCING   every live task and the house-keeper fence the failed ones and say how much they hold
    READING   the longest prefixes are fetched into the house-keeper
    resolved  logs are cut to what is consistent; orphans join the round (consistency) or are
              forgiven (availability); everybody hears the lengths; the tasks are activated

A failure during a round joins it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from clonos.core import messages as msg
from clonos.core.cuts import consistent_cut
from clonos.core.decisions import (
    Action,
    Command,
    Compacted,
    Done,
    Event,
    Expel,
    Fail,
    Note,
    Reported,
    SlotLost,
    SlotReady,
)
from clonos.core.determinants import Marker, decode_record
from clonos.core.fences import depends_on_lost
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import LayerRef
from clonos.core.placement import Slot, best_slot, misplaced_standby, place_standbys
from clonos.core.plan import HOUSE_KEEPER, Incarnation, Plan

__all__ = [
    "Action", "Command", "Compacted", "Coordinator", "Done", "Event", "Expel", "Fail", "Note",
    "Reported", "SlotLost", "SlotReady", "TaskPhase", "TaskState",
]  # fmt: skip

POISON_DEATHS = 4
"""A task that dies so often in a row, at nearly the same place, dies of its input."""
POISON_STEPS = 8
"""Nearly the same place: timers and other inputs may add some log entries before each death."""
POISON_WINDOW_MS = 30_000
"""... if each death came so soon after its activation (an idle task may be killed at leisure)."""

INFLIGHT_BYTES_HIGH = 512 << 20
"""A task that keeps so much for its receivers (one is away, or replays) makes the sources wait."""
INFLIGHT_BYTES_LOW = 256 << 20
"""... until it is down to this again: floors have passed its items."""


class TaskPhase(Enum):
    """Of a task, as the coordinator sees it."""

    FENCING = "fencing"
    WAITING = "waiting for a slot"
    RESTORING = "restoring"
    REPLAYING = "replaying"
    LIVE = "live"
    FINISHED = "finished"


ACTIVE = frozenset({TaskPhase.RESTORING, TaskPhase.REPLAYING, TaskPhase.LIVE, TaskPhase.FINISHED})
RUNNING = frozenset({TaskPhase.LIVE, TaskPhase.FINISHED})


@dataclass(slots=True)
class TaskState:
    """What the coordinator knows of one task."""

    id: int
    incarnation: Incarnation
    phase: TaskPhase = TaskPhase.WAITING
    slot: int | None = None
    activated_ms: int = 0
    died: bool = False
    deaths: int = 0
    died_at: int = -1
    # of the current round:
    awaited: set[int] = field(default_factory=set)
    answers: dict[int, msg.FenceAnswer] = field(default_factory=dict)


class Coordinator:
    """The coordinator of one job in one term.

    Parameters
    ----------
    standbys
        Passive copies per task.
    availability
        What happens to orphans: False: roll them back to a floor; True: go on at-least-once in
        a new generation.
    address
        Of the house-keeper, for the channels that lead to it.
    bound
        Tasks that can only live in slots of their own (they read a DataFrame's partition).
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
        fence_timeout_ms: int = 5_000,
    ) -> None:
        self.plan = plan
        self.keeper = keeper
        self.address = address
        self.standbys = standbys
        self.availability = availability or not plan.causal_log
        self.fence_timeout_ms = fence_timeout_ms
        self.bound = frozenset(bound)
        self.term = keeper.term + 1
        self.slots: dict[int, Slot] = {}
        self.tasks = {t.id: TaskState(t.id, Incarnation(self.term, 0)) for t in plan.tasks}
        self.pending_epoch = 0
        self.next_epoch = keeper.epoch + 1
        self.acks: dict[int, dict[int, LayerRef]] = {}  # by epoch, then by task
        self._pressed: dict[int, int] = {}  # bytes in flight, by task
        self._throttled = False
        self._mixed_until = 0  # epochs with layers from before and after a reset: no floors
        self.failed = False
        self.done = False
        self.reading: set[int] = set()
        self._in_round = False
        self._round_since_ms = 0
        self._now_ms = 0
        self._actions: list[Action] = []
        self._reports: dict[type[Any], Callable[[int, Any], None]] = {
            msg.FenceAnswer: self._on_fence_answer,
            msg.LogPrefix: self._on_log_prefix,
            msg.Restored: self._on_restored,
            msg.Live: self._on_live,
            msg.LayerAck: self._on_layer_ack,
            msg.Finished: self._on_finished,
            msg.TaskError: self._on_task_error,
            msg.Followed: self._on_followed,
        }

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _order(self, task: int, command: msg.Command) -> None:
        slot = self.tasks[task].slot
        if slot is not None and slot in self.slots:
            self._do(Command(slot, command))

    def _active(self) -> list[TaskState]:
        return [t for t in self.tasks.values() if t.phase in ACTIVE]

    # --- events -----------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """Begin a term: every task of an earlier one is fenced, its log cut to what is held."""
        keeper = self.keeper
        keeper.begin_term(self.term)
        if keeper.complete:
            self.done = True
            self._do(Done())
            return self._take_actions()
        for task in self.tasks.values():
            keeper.fence(task.id, task.incarnation)
            task.phase = TaskPhase.FENCING
        self._in_round = True
        self._advance_round()
        return self._take_actions()

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take one event."""
        self._now_ms = now_ms
        if self.failed or self.done:
            return []
        match event:
            case SlotReady():
                self._on_slot_ready(event)
            case SlotLost(slot=slot):
                self._on_slot_lost(slot)
            case Reported(slot=slot, report=report):
                if slot in self.slots:
                    self._reports[type(report)](slot, report)
            case Compacted():
                self._on_compacted(event)
        return self._take_actions()

    def tick(self, now_ms: int) -> list[Action]:
        """Time passes: a holder that does not answer a fence is itself declared failed."""
        self._now_ms = now_ms
        if self._in_round and now_ms - self._round_since_ms > self.fence_timeout_ms:
            self._round_since_ms = now_ms
            silent = {h for t in self.tasks.values() for h in t.awaited} | self._reading_holders()
            for holder in sorted(silent):
                slot = self.tasks[holder].slot
                if slot is not None:
                    self._do(Expel(slot))
                    self._on_slot_lost(slot)
        return self._take_actions()

    def _on_slot_ready(self, event: SlotReady) -> None:
        self.slots[event.slot] = Slot(event.slot, event.address, event.group, event.bound)
        if not self._in_round:
            self._activate_waiting()
        self._fill_standbys()

    def _on_slot_lost(self, slot_id: int) -> None:
        slot = self.slots.pop(slot_id, None)
        if slot is None:
            return
        for task in self.tasks.values():
            if task.slot == slot_id:
                task.slot = None
                task.died = task.phase in ACTIVE
                self._begin_recovery(task)
                self._advance_round()
        self._fill_standbys()

    def _note_death(self, task: TaskState, length: int) -> None:
        """A poison record must not burn one standby after another."""
        if not task.died or not self.plan.causal_log:
            return
        task.died = False
        soon = self._now_ms - task.activated_ms < POISON_WINDOW_MS
        is_near = abs(length - task.died_at) <= POISON_STEPS
        task.deaths = task.deaths + 1 if soon and is_near else 1
        task.died_at = length
        if task.deaths >= POISON_DEATHS:
            self._fail(
                "PoisonRecord",
                f"died {task.deaths} times in a row right after step {length}; the record or "
                "call that comes next kills the process",
                task.id,
            )

    def _fail(self, error: str, message: str, task: int) -> None:
        self.failed = True
        self._do(Fail(error, message, task))

    # --- recovery ---------------------------------------------------------------------------

    def _begin_recovery(self, task: TaskState) -> None:
        """Fence the dead life everywhere; everybody answers how much of its log they hold."""
        self._do(Note("detected", task.id, task.incarnation))
        for acks in self.acks.values():
            acks.pop(task.id, None)
        task.incarnation = Incarnation(self.term, task.incarnation.n + 1)
        task.phase = TaskPhase.FENCING
        task.answers.clear()
        self._in_round = True
        self._round_since_ms = self._now_ms
        self.reading.clear()
        self.keeper.fence(task.id, task.incarnation)
        if task.slot is None:
            for other in self.tasks.values():
                other.awaited.discard(task.id)
                other.answers.pop(task.id, None)
        # Orphans, too, are asked: they are alive, hold what they hold, and best their own log.
        task.awaited = {t.id for t in self.tasks.values() if t.slot is not None}
        for holder in sorted(task.awaited):
            self._order(holder, msg.Fence(task.id, task.incarnation))

    def _on_fence_answer(self, slot: int, report: msg.FenceAnswer) -> None:
        task = self.tasks[report.task]
        if report.incarnation != task.incarnation or report.holder not in task.awaited:
            return
        task.awaited.discard(report.holder)
        task.answers[report.holder] = report
        self._advance_round()

    def _recovering(self) -> list[TaskState]:
        """Tasks of this round: fenced, or without a slot since an earlier one."""
        return [t for t in self.tasks.values() if t.phase not in ACTIVE]

    def _advance_round(self) -> None:
        if not self._in_round or self.failed or self.reading:
            return
        fenced = [t for t in self.tasks.values() if t.phase is TaskPhase.FENCING]
        if any(t.awaited for t in fenced):
            return
        for task in fenced:
            self._do(Note("fenced", task.id, task.incarnation))
            self._read_longest(task)
        if not self.reading:
            self._resolve_round()

    def _read_longest(self, task: TaskState) -> None:
        """The longest prefix, beyond what the house-keeper has."""
        if not self.plan.causal_log:
            return
        held = self.keeper.length(task.id)
        best = max(task.answers.values(), key=lambda a: a.length, default=None)
        if best is not None and best.length > held:
            self.reading.add(task.id)
            self._order(best.holder, msg.ReadLog(task.id, held + 1))

    def _reading_holders(self) -> set[int]:
        holders = set()
        for task in self.reading:
            answers = self.tasks[task].answers.values()
            holders.add(max(answers, key=lambda a: a.length).holder)
        return holders

    def _on_log_prefix(self, slot: int, report: msg.LogPrefix) -> None:
        if report.task not in self.reading:
            return
        self.reading.discard(report.task)
        self.keeper.append(report.runs)
        if not self.reading:
            self._resolve_round()

    def _resolve_round(self) -> None:
        failed = self._recovering()
        lengths = self._surviving(failed)
        orphans = self._orphans(failed, lengths)
        lost_output = [
            t for t in failed if self.keeper.depends_on_lost(t.id, t.incarnation, lengths[t.id])
        ]
        if lost_output and not self.availability:
            self._fail(
                "OrphanedOutput",
                "output that has left the job depends on log entries that nobody holds any "
                "more, and the policy is consistency",
                lost_output[0].id,
            )
            return
        roll_back = [  # availability spares who is alive; a log yet to be replayed must be true
            t for t in orphans if not self.availability or t.phase not in RUNNING
        ]
        roll_back += [  # waiting for a slot since an earlier round, and cut by this one
            t
            for t in failed
            if t.phase is TaskPhase.WAITING and lengths[t.id] < self.keeper.length(t.id)
        ]
        if roll_back:
            for orphan in roll_back:
                self._do(Note("orphan", orphan.id, orphan.incarnation))
                self._begin_recovery(orphan)
            self._advance_round()
            return
        for task in failed:
            self._note_death(task, lengths[task.id])
        if self.failed:
            return
        reset = bool(self.availability and (orphans or lost_output))
        generation = self.keeper.generation + reset
        if reset:
            self._mixed_until = max(self._mixed_until, self._newest_epoch())
            self._do(Note("generation", value=generation))
        self._in_round = False
        for task in failed:
            self._settle(task, lengths[task.id], generation, reset=reset)
        self._activate_waiting()
        self._fill_standbys()

    def _newest_epoch(self) -> int:
        """The newest that anybody may have begun: of an earlier term, its marker is in a log."""
        runs = (run for task in self.plan.tasks for run in self.keeper.book.runs(task.id, 1))
        causes = (decode_record(record)[0] for run in runs for record in run.records)
        markers = (cause.epoch for cause in causes if isinstance(cause, Marker))
        return max([self.pending_epoch, *self.acks, *markers])

    def _surviving(self, failed: list[TaskState]) -> dict[int, int]:
        keeper = self.keeper
        if not self.plan.causal_log:
            return {t.id: keeper.positions[t.id] for t in failed}
        return consistent_cut(
            self.plan,
            {t.id: keeper.book.runs(t.id, 1) for t in failed},
            {t.id: (t.incarnation, keeper.length(t.id)) for t in failed},
            keeper.resolved,
        )

    def _orphans(self, failed: list[TaskState], lengths: dict[int, int]) -> list[TaskState]:
        """Live tasks that depend on what is lost."""
        result: dict[int, TaskState] = {}
        for task in failed:
            for holder, answer in task.answers.items():
                if self.tasks[holder].phase not in ACTIVE or answer.dep is None:
                    continue
                dep = {task.id: answer.dep}
                if depends_on_lost(task.id, task.incarnation, lengths[task.id], dep):
                    result[holder] = self.tasks[holder]
        return list(result.values())

    def _settle(self, task: TaskState, length: int, generation: int, *, reset: bool) -> None:
        """The round's outcome for one task: everybody hears it before the task lives again."""
        self._do(Note("fetched", task.id, task.incarnation, length))
        resolve = msg.Resolve(task.id, task.incarnation, length, generation, reset)
        if task.phase is TaskPhase.FENCING:
            self.keeper.resolve(resolve)
            for other in self._active():
                self._order(other.id, resolve)
        task.phase = TaskPhase.WAITING
        task.answers.clear()

    def _activate_waiting(self) -> None:
        waiting = [t for t in self.tasks.values() if t.phase is TaskPhase.WAITING]
        for task in waiting:
            if task.slot is None:
                running = {t.slot for t in self.tasks.values() if t.slot is not None}
                slot = best_slot(task.id, self.slots.values(), running, self.bound)
                if slot is None:
                    continue
                task.slot = slot.id
            self._activate(task)

    def _activate(self, task: TaskState) -> None:
        assert task.slot is not None
        keeper, slot = self.keeper, self.slots[task.slot]
        task.phase = TaskPhase.RESTORING
        task.activated_ms = self._now_ms
        activate = msg.Activate(
            task.id,
            task.incarnation,
            keeper.epoch,
            keeper.layers[task.id],
            tuple(keeper.book.runs(task.id, keeper.positions[task.id] + 1))
            if self.plan.causal_log
            else (),
            tuple(keeper.resolved),
            tuple(self._peers_of(task.id)),
            keeper.generation,
        )
        slot.standbys.clear()
        self._do(Command(slot.id, activate))
        self._do(Note("activated", task.id, task.incarnation))
        for channel in self.plan.tasks[task.id].inputs:
            sender = self.tasks[self.plan.channels[channel].sender]
            if sender.phase in ACTIVE and sender is not task:
                self._order(sender.id, msg.Connect(self._peer(channel)))

    def _peer(self, channel: int) -> msg.Peer:
        receiver = self.tasks[self.plan.channels[channel].receiver]
        assert receiver.slot is not None
        return msg.Peer(channel, receiver.incarnation, self.slots[receiver.slot].address)

    def _peers_of(self, task: int) -> list[msg.Peer]:
        peers = []
        for channel in self.plan.tasks[task].outputs:
            receiver = self.plan.channels[channel].receiver
            if receiver == HOUSE_KEEPER:
                peers.append(msg.Peer(channel, self.keeper.incarnation, self.address))
            elif self.tasks[receiver].phase in ACTIVE:
                peers.append(self._peer(channel))
        return peers

    def _on_restored(self, slot: int, report: msg.Restored) -> None:
        task = self.tasks[report.task]
        if report.incarnation == task.incarnation and task.phase is TaskPhase.RESTORING:
            task.phase = TaskPhase.REPLAYING
            self._do(Note("restored", task.id, task.incarnation))

    def _on_live(self, slot: int, report: msg.Live) -> None:
        task = self.tasks[report.task]
        if report.incarnation != task.incarnation or task.phase is not TaskPhase.REPLAYING:
            return
        task.phase = TaskPhase.LIVE
        self._do(Note("live", task.id, task.incarnation, report.position))
        if self.pending_epoch:
            self._order(task.id, msg.Inject(self.pending_epoch))
        if self._throttled and self.plan.tasks[task.id].is_source:
            self._order(task.id, msg.Throttle(closed=True))
        self._fill_standbys()

    # --- checkpoints ------------------------------------------------------------------------

    def begin_epoch(self) -> list[Action]:
        """Inject a marker, unless one is under way or a recovery is."""
        if self.pending_epoch or self.failed or self.done or self._in_round:
            return []
        if any(t.phase not in RUNNING for t in self.tasks.values()):
            return []
        self.pending_epoch = self.next_epoch
        for task in self.tasks.values():
            self._order(task.id, msg.Inject(self.pending_epoch))
        return self._take_actions()

    def _on_layer_ack(self, slot: int, report: msg.LayerAck) -> None:
        """Acknowledgements of a superseded life are void."""
        task = self.tasks[report.task]
        if report.epoch <= self.keeper.epoch or report.incarnation != task.incarnation:
            return
        if task.phase not in ACTIVE:
            return
        if report.generation < self.keeper.generation:  # it had not heard of the reset
            self._mixed_until = max(self._mixed_until, report.epoch)
        # The marker may be in the logs from an earlier term: no matter who has injected it.
        self.acks.setdefault(report.epoch, {})[task.id] = report.ref
        self._complete_epoch()

    def _complete_epoch(self) -> None:
        """Deltas build on each other: every layer since the last floor is needed."""
        epoch = self.next_epoch
        acks = [self.acks.get(e, {}) for e in range(self.keeper.epoch + 1, epoch + 1)]
        if any(len(of_epoch) < len(self.tasks) for of_epoch in acks):
            return
        self.next_epoch += 1
        self.pending_epoch = 0
        if epoch > self._mixed_until:  # else channels may have other numbers at their two ends
            self._advance_floor(epoch, acks)
        self._complete_epoch()  # of an earlier term, the next may have waited for the same layer

    def _advance_floor(self, epoch: int, acks: list[dict[int, LayerRef]]) -> None:
        positions = {task: ref.position for task, ref in acks[-1].items()}
        layers = {t: (*self.keeper.layers[t], *(a[t] for a in acks)) for t in self.tasks}
        self.acks = {e: of_epoch for e, of_epoch in self.acks.items() if e > epoch}
        self.keeper.advance(epoch, positions, layers)
        self._do(Note("floor", value=epoch))
        for task in self._active():
            self._order(task.id, msg.Floor(epoch, positions))
        for slot in self.slots.values():
            for task_id in slot.standbys:
                self._do(Command(slot.id, msg.Follow(task_id, epoch, layers[task_id])))

    def pressure(self, task: int, inflight_bytes: int) -> list[Action]:
        """A task says how much it keeps for its receivers: past the high mark, sources wait."""
        self._pressed[task] = inflight_bytes
        most = max(self._pressed.values())
        closed = most > (INFLIGHT_BYTES_LOW if self._throttled else INFLIGHT_BYTES_HIGH)
        if closed is not self._throttled:
            self._throttled = closed
            for source in self.plan.tasks:
                if source.is_source:
                    self._order(source.id, msg.Throttle(closed))
        return self._take_actions()

    def _on_compacted(self, event: Compacted) -> None:
        keeper = self.keeper
        chain, count = keeper.layers[event.merged.task], len(event.replaced)
        start = chain.index(event.replaced[0]) if event.replaced[0] in chain else len(chain)
        if chain[start : start + count] == event.replaced:
            shorter = (*chain[:start], event.merged, *chain[start + count :])
            layers = {**keeper.layers, event.merged.task: shorter}
            keeper.advance(keeper.epoch, keeper.positions, layers)

    # --- standbys ---------------------------------------------------------------------------

    def _fill_standbys(self) -> None:
        """Give every task its passive copies again, away from the executor it runs on.

        Not while one recovers: to fill a copy takes what its recovery needs.
        """
        if self._in_round or any(t.phase not in RUNNING for t in self.tasks.values()):
            return
        homes = {t.id: t.slot for t in self.tasks.values()}
        for slot, task in place_standbys(self.slots, homes, self.standbys, self.bound):
            self._follow(slot, task)
        while (move := misplaced_standby(self.slots, homes, self.bound)) is not None:
            keeper, better, task = move
            del keeper.standbys[task]
            self._do(Command(keeper.id, msg.Drop(task)))
            self._follow(better, task)

    def _follow(self, slot: Slot, task: int) -> None:
        slot.standbys[task] = -1
        follow = msg.Follow(task, self.keeper.epoch, self.keeper.layers[task])
        self._do(Command(slot.id, follow))

    def _on_followed(self, slot: int, report: msg.Followed) -> None:
        standbys = self.slots[slot].standbys
        if report.task in standbys:
            standbys[report.task] = report.epoch
            self._do(Note("standby", report.task, value=report.epoch))

    # --- the end ----------------------------------------------------------------------------

    def _on_finished(self, slot: int, report: msg.Finished) -> None:
        task = self.tasks[report.task]
        if report.incarnation != task.incarnation or task.phase is not TaskPhase.LIVE:
            return
        task.phase = TaskPhase.FINISHED
        sinks = [t.id for t in self.plan.tasks if t.is_sink]
        if all(self.tasks[t].phase is TaskPhase.FINISHED for t in sinks):
            self.done = True
            self.keeper.finish()
            self._do(Done())

    def _on_task_error(self, slot: int, report: msg.TaskError) -> None:
        task = self.tasks[report.task]
        if report.incarnation == task.incarnation:
            self._fail(report.error, report.message, task.id)
