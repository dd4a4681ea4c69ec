"""Deliberate mistakes in the protocol: each wrong function is made from the right one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

from clonos.core import messages as msg
from clonos.core.channels import Inbound, Outbound
from clonos.core.coordinator import Coordinator
from clonos.core.decisions import Done, SlotLost
from clonos.core.determinants import Clock, Determinant, Outcomes, Timer
from clonos.core.events import Trial
from clonos.core.fences import Fences, Trust, merge
from clonos.core.holder import Holder
from clonos.core.housekeeper import HouseKeeper
from clonos.core.inbounds import Inbounds
from clonos.core.inflight import InFlightLog
from clonos.core.intake import Intake
from clonos.core.life import Phase
from clonos.core.markers import EpochState, Markers
from clonos.core.messages import Dependencies, Item
from clonos.core.outbounds import Outbounds
from clonos.core.plan import HOUSE_KEEPER, Plan
from clonos.core.recovery import Recoveries
from clonos.core.roster import TaskPhase, TaskState
from clonos.core.seals import Seals
from clonos.core.step import RunningStep, TaskTime
from clonos.core.task import TaskMachine
from clonos.core.watch import Rehearsal
from clonos.nodes.commits import Commits, Group
from clonos.nodes.layers import LayerCare, Unused
from clonos.nodes.places import Places
from clonos.nodes.resident import Resident
from clonos.nodes.slot import SlotNode
from clonos.simulator.jobs.programs import Toy
from clonos.simulator.world.virtual import NoWorld
from clonos.storage.layers import LayerStore


def constant(value: Any) -> Callable[[Any], Any]:
    """Whatever is asked, the answer is `value`."""
    return lambda _: lambda *_, **__: value


def without_delta(original: Any) -> Any:
    def take(self: Inbound, data: msg.Data, holder: Holder) -> Any:
        is_task = self.spec.receiver != HOUSE_KEEPER
        return original(self, replace(data, runs=()) if is_task else data, holder)

    return take


def enqueue_anything(_: Any) -> Any:
    def enqueue(self: Inbound, item: Item) -> None:
        self._next_seq = max(self._next_seq, item.seq + 1)
        self._chain = item.chain
        self.queue.append(item)

    return enqueue


def start_over(original: Any) -> Any:
    def resume(self: InFlightLog, next_seq: int, known_chain: int) -> None:
        original(self, next_seq, known_chain)
        self.cursor = min(self.first, next_seq)

    return resume


def fence_without_effect(original: Any) -> Any:
    """Whatever a fenced life wrote goes on to be held."""

    def announce(self: Fences, task: int, incarnation: Any, _: int, known: int) -> None:
        original(self, task, incarnation, sys.maxsize, known)

    return announce


def first_answer(original: Any) -> Any:
    def read(self: Recoveries, task: TaskState) -> None:
        answers = task.answers
        task.answers = dict(list(answers.items())[:1])
        original(self, task)
        task.answers = answers

    return read


def resolve_before_ancestors(original: Any) -> Any:
    def resolvable(self: Recoveries) -> list[TaskState]:
        ready: list[TaskState] = original(self)
        return ready or ([] if self.availability else self._in(TaskPhase.READY))

    return resolvable


def with_its_torn_tail(_: Any) -> Any:
    return lambda content, _: content.to_pybytes()


def truncate_when_stored(original: Any) -> Any:
    def stored(self: Seals, event: Any) -> None:
        seal = self.get(event.ref.epoch)
        if seal is not None:
            for channel, (seq, _) in seal.layer.outs.items():
                self._task.outputs[channel].log.truncate(seq)
        original(self, event)

    return stored


def nearly_complete(original: Any) -> Any:
    def complete(self: Markers, sealed: Any, may_pass: Any) -> Any:
        there = {
            t for t, layers in sealed.items() for a in layers if a.ref.epoch == self.next_epoch
        }
        missing = sealed.keys() - there
        if self.pending_epoch and len(missing) == 1 and len(sealed) > 2:
            sealed = {t: layers for t, layers in sealed.items() if t in there}
        return original(self, sealed, may_pass)

    return complete


def live_without_inject(original: Any) -> Any:
    def live(self: Coordinator, slot: int, report: msg.Live) -> None:
        if self.checkpoints.markers is None:
            original(self, slot, report)
            return
        epoch = self.checkpoints.markers.machine
        state, epoch.state = epoch.state, EpochState.IDLE
        original(self, slot, report)
        epoch.state = state

    return live


def without_end_on_replay(original: Any) -> Any:
    def put_out(
        self: Outbounds, step: RunningStep, epoch: int, marker: int, dep: Any, born_ms: int,
        ends: bool, probes: Any = (),
    ) -> None:  # fmt: skip
        ends &= step._replayed is None
        original(self, step, epoch, marker, dep, born_ms, ends, probes)

    return put_out


def live_clock(original: Any) -> Any:
    def clock_ms(self: RunningStep) -> int:
        logged: int = original(self)
        if self._replayed is not None and not isinstance(self.record[0], Timer):
            self._now_ms = self.floor_clock_ms = logged + 1
            return logged + 1
        return logged

    return clock_ms


def standing_clock(_: Any) -> Any:
    def now_ms(self: TaskTime) -> int:
        self._last_ms = max(self._world.clock_ms(), self._last_ms)
        return self._last_ms

    return now_ms


def timer_of_now(original: Any) -> Any:
    def begin(self: TaskMachine, cause: Determinant, items: Any, logged: Any, *rest: Any) -> Any:
        if logged is not None and isinstance(cause, Timer):
            cause = Timer(cause.now_ms + 7)
        return original(self, cause, items, logged, *rest)

    return begin


def unlogged_clock(original: Any) -> Any:
    return lambda determinants: original([d for d in determinants if not isinstance(d, Clock)])


def call_again(original: Any) -> Any:
    """The service is asked again (not in the re-run at the end)."""

    def call(self: RunningStep, fn: Any, args: Any, kwargs: Any) -> Any:
        if self._replayed is not None and not isinstance(self._world, NoWorld):
            with suppress(ValueError):
                self._world.call(fn, args, kwargs)
        return original(self, fn, args, kwargs)

    return call


def direct_dependency_only(original: Any) -> Any:
    def take(self: TaskMachine, step: Any, channel: int, items: list[Item]) -> Any:
        sender = self.plan.channels[channel].sender
        direct = [replace(item, dep={sender: item.dep[sender]}) for item in items]
        return original(self, step, channel, direct)

    return take


def depend_on_nothing(original: Any) -> Any:
    def take(self: TaskMachine, step: Any, channel: int, items: list[Item]) -> Any:
        before, self.dep = self.dep, dict(self.dep)
        job = original(self, step, channel, items)
        step.taken, self.dep = self.dep, before
        return job

    return take


def depend_at_the_end(original: Any) -> Any:
    def end(self: TaskMachine, error: Exception | None = None) -> Any:
        merge(self.dep, getattr(self.under_way, "taken", {}))
        return original(self, error)

    return end


def end_although_fenced(original: Any) -> Any:
    def end(self: Any, error: Exception | None = None) -> Any:
        life = self.life.machine
        state = life.state
        if state is Phase.FENCED:
            life.state = Phase.LIVE
            self.under_way.is_abandoned = False
        try:
            return original(self, error)
        finally:
            if state is Phase.FENCED:
                life.state = state

    return end


def own_log_only(original: Any) -> Any:
    """Output that leaves the job names no dependency on other tasks."""

    def put_out(
        self: Outbounds,
        step: Any,
        epoch: int,
        marker: int,
        dep: Dependencies,
        *rest: Any,
    ) -> None:
        own = self._life.id
        dep = {own: dep[own]} if self._life.spec.is_sink else dep
        original(self, step, epoch, marker, dep, *rest)

    return put_out


def ask_on_replay(original: Any) -> Any:
    def take_calls(self: TaskMachine, step: RunningStep, cause: Determinant) -> None:
        is_live, step.is_live = step.is_live, not isinstance(self.world, NoWorld)
        original(self, step, cause)
        step.is_live = is_live

    return take_calls


def end_with_calls_open(_: Any) -> Any:
    return lambda self: self._inputs_are_over


def never_full(_: Any) -> Any:
    return property(lambda self: False)  # noqa: ARG005 - a property's


def reversed_on_replay(original: Any) -> Any:
    def work_of(program: Any, step: RunningStep, cause: Determinant, *rest: Any) -> Any:
        if isinstance(cause, Outcomes) and not step.is_live:
            cause = Outcomes(cause.outcomes[::-1])
        return original(program, step, cause, *rest)

    return work_of


def never_unknown(original: Any) -> Any:
    def judge(self: Fences, dep: Dependencies) -> Trust:
        trust: Trust = original(self, dep)
        return Trust.VALID if trust is Trust.UNKNOWN else trust

    return judge


def lengths_only(_: Any) -> Any:
    return lambda _plan, _logs, fences, *_: {t: fence[1] for t, fence in fences.items()}


def acknowledge_unsettled(original: Any) -> Any:
    def acknowledge(self: Seals) -> None:
        outputs = self._task.outputs
        settled = {c: o.settled for c, o in outputs.items()}
        for output in outputs.values():
            output.settled = output.log.last
        original(self)
        for channel, value in settled.items():
            outputs[channel].settled = value

    return acknowledge


def release_at_once(original: Any) -> Any:
    def settle(self: Outbounds, output: Any) -> None:
        if not self._life.spec.writes_itself:
            original(self, output)
            return
        processed, output.log.processed = output.log.processed, output.log.last
        original(self, output)
        output.log.processed = processed

    return settle


def wait_for_the_journal(_: Any) -> Any:
    def gate_closed(self: Outbounds, _: Any, item: Any) -> bool:
        task, stable = self._life.id, self._stable
        return self._life.spec.is_gated and item.dep[task].position > stable.get(task, 0)

    return gate_closed


def keep_the_log(original: Any) -> Any:
    def tick(self: Outbounds) -> None:
        sinks = [o for o in self.ends.values() if o.to_world and o.carries_items]
        logs = [output.logs for output in sinks]
        for output in sinks:
            output.logs = ()
        original(self)
        for output, kept in zip(sinks, logs, strict=True):
            output.logs = kept

    return tick


def look_away(_: Any) -> Any:
    return lambda *_: (0, ())


def hasty_verdict(_: Any) -> Any:
    def narrow_down(self: Rehearsal, rows: Sequence[int]) -> tuple[Sequence[int], bool]:
        setattr(self, "attempt", lambda _: Trial.DIED)  # noqa: B010 - it is a method
        return rows[:1], True

    return narrow_down


def leave_out_silently(original: Any) -> Any:
    def leave_out(self: RunningStep, *given: Any) -> Any:
        rest = original(self, *given)
        if self.is_live:
            self.record.pop()
        return rest

    return leave_out


def answer_before_commit(original: Any) -> Any:
    def write(self: Commits, group: Group, *rest: Any) -> None:
        self._let_out(replace(group, actions=[]))
        original(self, replace(group, reactions=[], outputs=[]), *rest)

    return write


def deaf_while_away(original: Any) -> Any:
    def connect(self: Outbounds, peer: msg.Peer) -> None:
        if not self.ends[peer.channel].attempt:
            original(self, peer)

    return connect


def floor_of_next(original: Any) -> Any:
    def floor(self: TaskMachine, command: msg.Floor) -> None:
        positions = {t: p + 1 for t, p in command.positions.items() if t != self.id}
        original(self, replace(command, positions={**command.positions, **positions}))

    return floor


def continue_at_the_end(_: Any) -> Any:
    return lambda self, *_: (self.last, self.chain)


def drop_what_waits(original: Any) -> Any:
    def deliver(self: HouseKeeper) -> None:
        original(self)
        for end in self.inputs.values():
            end.queue.clear()

    return deliver


def truncate_further(original: Any) -> Any:
    def advance(self: HouseKeeper, epoch: int, positions: dict[int, int], *rest: Any) -> None:
        original(self, epoch, positions, *rest)
        for task, position in positions.items():
            self.book.truncate(task, position + 1)

    return advance


def as_if_we_had_written_it(original: Any) -> Any:
    def make(self: Resident, layers: Any) -> TaskMachine:
        life = self._command.incarnation
        ours = tuple(replace(run, incarnation=life) for run in self._command.log)
        self._command = replace(self._command, log=ours)
        machine: TaskMachine = original(self, layers)
        return machine

    return make


def done_with_the_first(original: Any) -> Any:
    def finished(self: Coordinator, slot: int, report: msg.Finished) -> None:
        original(self, slot, report)
        if self.plan.tasks[report.task].is_sink and not self.done:
            self.done = True
            self.keeper.finish()
            self.roster.do(Done())

    return finished


def need_none(_: Any) -> Any:
    return lambda *_: []


def newest_layer(_: Any) -> Any:
    return staticmethod(lambda deltas, **_: deltas[-1])


def never_opened(_: Any) -> Any:
    def on_throttle(self: Intake, _: msg.Throttle) -> None:
        self.is_closed = True

    return on_throttle


def never_relaxed(original: Any) -> Any:
    return lambda self, *, relaxed, force=False: original(self, relaxed=False, force=force)  # noqa: ARG005


def other_rows_on_replay(original: Any) -> Any:
    """User code does something else when it is replayed (but not in the re-run at the end)."""

    def process(self: Toy, step: Any, rows: Any) -> None:
        is_replay = step._replayed is not None and not isinstance(step._world, NoWorld)
        original(self, step, [(row_id, value + is_replay) for row_id, value in rows])

    return process


def forget_what_is_expected(_: Any) -> Any:
    def verify(self: InFlightLog, _: int) -> None:
        self._expected = None

    return verify


def cut_elsewhere(original: Any) -> Any:
    def cuts(causes: Any) -> tuple[tuple[int, bytes], ...]:
        (first, cut), *others = original(causes) or ((0, b""),)
        return ((first + 1, cut), *others) if first else ()

    return cuts


def finish_unwritten(original: Any) -> Any:
    return property(lambda self: self._life.spec.writes_itself or original.fget(self))


def delivered_is_written(original: Any) -> Any:
    def greet(self: Outbound, hello: msg.Hello) -> None:
        original(self, hello)
        if self.to_world and self.carries_items:
            self.released = self.settled = max(self.settled, hello.next_seq - 1)

    return greet


def wall_clock(_: Any) -> Any:
    return lambda self: self._world.clock_ms()


def first_marker_counts(_: Any) -> Any:
    return lambda self, epoch: epoch if any(i.aligned for i in self.ends.values()) else 0


def past_the_marker(original: Any) -> Any:
    def available(self: Inbounds, inbound: Inbound) -> int:
        aligned, inbound.aligned = inbound.aligned, False
        count: int = original(self, inbound)
        inbound.aligned = aligned
        return count

    return available


def for_the_process_only(original: Any) -> Any:
    def init(self: LayerStore, uri: str, **rest: Any) -> None:
        original(self, uri, "process", **rest)

    return init


def never_lost(_: Any) -> Any:
    return property(lambda _: False)


def whatever_is_used(original: Any) -> Any:
    return lambda self, *args, **named: original(self, *args[:-1], (), **named)


def delete_what_is_used(original: Any) -> Any:
    def merged(self: LayerCare, event: Any, chain: Any) -> Unused:
        unused: Unused = original(self, event, chain)
        return Unused((*unused.paths, *(ref.path for ref in chain)))

    return merged


# --- cells ----------------------------------------------------------------------------------------


def every_hop_counts(original: Any) -> Any:
    """As if every task had a slot of its own."""

    def distances(self: Plan) -> Any:
        if "_apart" not in self.__dict__:
            tasks = tuple(replace(task, cell=None) for task in self.tasks)
            self.__dict__["_apart"] = original.func(replace(self, tasks=tasks))
        return self.__dict__["_apart"]

    return property(distances)


def answer_for_each_other(original: Any) -> Any:
    def to_task(self: SlotNode, command: msg.ToTask) -> None:
        task, fence = command.task, command.command
        others = [m for m in self.machines if m.id != task]
        if isinstance(fence, msg.Fence) and fence.task != task and others:
            known = others[0].book.length(fence.task), others[0].dep.get(fence.task)
            self._send(msg.FenceAnswer(task, fence.task, fence.incarnation, *known))
        else:
            original(self, command)

    return to_task


def recover_the_first(original: Any) -> Any:
    def lost(self: Coordinator, event: SlotLost) -> None:
        for task in [t for t in self.tasks.values() if t.slot == event.slot][1:]:
            task.slot = None
        original(self, event)

    return lost


# --- mistakes that show only in the state of a machine --------------------------------------------


def unchanged(*names: str) -> Callable[[Any], Any]:
    """The function works, but leaves these attributes unchanged."""

    def make(original: Any) -> Any:
        def do(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = {name: copy(getattr(self, name)) for name in names}
            result = original(self, *args, **kwargs)
            for name, value in before.items():
                setattr(self, name, value)
            return result

        return do

    return make


def only_the_slot_goes(_: Any) -> Any:
    def lost(self: Coordinator, event: SlotLost) -> None:
        self.slots.pop(event.slot, None)

    return lost


def only_the_seat_goes(_: Any) -> Any:
    def lost(self: Places, slot: int, _: float) -> None:
        self.seats.pop(slot, None)

    return lost
