"""Deliberate mistakes in the protocol: a simulator that does not find them proves nothing.

Each mutation replaces one function of the core (or of the simulated runtime) by a wrong one. The
names say what is done wrong; :data:`MUTATIONS` says which invariant it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import getattr_static
from typing import Any

from clonos.core import messages as msg
from clonos.core import rounds as rounds_module
from clonos.core import task as task_module
from clonos.core.channels import Inbound
from clonos.core.checkpoints import Checkpoints, EpochState
from clonos.core.coordinator import Coordinator, TaskState
from clonos.core.determinants import Clock, Determinant, Timer
from clonos.core.fences import Fences, Trust
from clonos.core.housekeeper import HouseKeeper
from clonos.core.inflight import InFlightLog
from clonos.core.log import LogBook
from clonos.core.messages import Dependencies, Item
from clonos.core.outbounds import Outbounds
from clonos.core.placement import Slot
from clonos.core.rounds import Rounds
from clonos.core.step import RunningStep, TaskTime
from clonos.core.task import TaskMachine
from clonos.nodes.commits import Commits, Group
from clonos.simulator.programs import Job

Patch = tuple[Any, str, Callable[[Any], Any]]
"""The owner and the name of a function, and what makes the wrong function of the right one."""


@dataclass(frozen=True)
class Mutation:
    """What is done wrong.

    ``near``: a seed from which on the simulator soon finds it, among the ``harsh`` ones or not,
    where orphans are forgiven (``availability``) or not, or as the seed says.
    """

    breaks: str
    patches: tuple[Patch, ...]
    near: int = 0
    harsh: bool = False
    availability: bool | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        originals = [getattr_static(owner, name) for owner, name, _ in self.patches]
        for owner, name, make in self.patches:
            setattr(owner, name, make(getattr(owner, name)))
        try:
            yield
        finally:
            for (owner, name, _), original in zip(self.patches, originals, strict=True):
                setattr(owner, name, original)


def mutation(
    breaks: str,
    owner: Any,
    name: str,
    make: Callable[[Any], Any],
    *more: Patch,
    near: int = 0,
    harsh: bool = False,
    availability: bool | None = None,
) -> Mutation:
    """A mutation of one function, or of `more`."""
    return Mutation(breaks, ((owner, name, make), *more), near, harsh, availability)


def constant(value: Any) -> Callable[[Any], Any]:
    """Whatever is asked, the answer is `value`."""
    return lambda _: lambda *_, **__: value


def _without_delta(original: Any) -> Any:
    return lambda self, data, book: original(self, replace(data, runs=()), book)


def _enqueue_anything(_: Any) -> Any:
    def enqueue(self: Inbound, item: Item) -> None:
        self._next_seq = max(self._next_seq, item.seq + 1)
        self._chain = item.chain
        self.queue.append(item)

    return enqueue


def _start_over(original: Any) -> Any:
    def resume(self: InFlightLog, next_seq: int, known_chain: int) -> None:
        original(self, next_seq, known_chain)
        self.cursor = min(self.first, next_seq)

    return resume


def _fence_without_effect(_: Any) -> Any:
    return lambda self, task, *_: self.length(task)


def _first_answer(original: Any) -> Any:
    def read(self: Rounds, task: TaskState) -> None:
        first = dict(list(task.answers.items())[:1])
        task.answers = first
        original(self, task)

    return read


def _truncate_when_stored(original: Any) -> Any:
    def stored(self: TaskMachine, event: Any) -> None:
        seal = self.seals.get(event.ref.epoch)
        if seal is not None:
            for channel, (seq, _) in seal.layer.outs.items():
                self.outputs[channel].log.truncate(seq)
        original(self, event)

    return stored


def _nearly_complete(original: Any) -> Any:
    def complete(self: Checkpoints) -> None:
        acks, tasks = self.acks.get(self.next_epoch, {}), self._roster.tasks
        missing = tasks.keys() - acks.keys()
        if self.pending_epoch and len(missing) == 1 and len(tasks) > 2:
            (task,) = missing
            if self._keeper.layers[task]:
                acks[task] = self._keeper.layers[task][-1]
        original(self)

    return complete


def _keep_acks(original: Any) -> Any:
    def begin(self: Rounds, task: TaskState) -> None:
        checkpoints = self._checkpoints
        acks = {epoch: dict(of_epoch) for epoch, of_epoch in checkpoints.acks.items()}
        original(self, task)
        checkpoints.acks = acks

    return begin


def _live_without_inject(original: Any) -> Any:
    def live(self: Coordinator, slot: int, report: msg.Live) -> None:
        epoch = self.checkpoints.machine
        state, epoch.state = epoch.state, EpochState.IDLE
        original(self, slot, report)
        epoch.state = state

    return live


def _live_clock(original: Any) -> Any:
    def clock_ms(self: RunningStep) -> int:
        logged: int = original(self)
        if self._replayed is not None and not isinstance(self.record[0], Timer):
            self._now_ms = self.floor_clock_ms = logged + 1
            return logged + 1
        return logged

    return clock_ms


def _standing_clock(_: Any) -> Any:
    def now_ms(self: TaskTime) -> int:
        self._last_ms = max(self._world.clock_ms(), self._last_ms)
        return self._last_ms

    return now_ms


def _timer_of_now(original: Any) -> Any:
    def run(
        self: TaskMachine, cause: Determinant, items: list[Item], logged: list[Determinant] | None
    ) -> None:
        if logged is not None and isinstance(cause, Timer):
            cause = Timer(cause.now_ms + 7)
        original(self, cause, items, logged)

    return run


def _unlogged_clock(original: Any) -> Any:
    return lambda determinants: original([d for d in determinants if not isinstance(d, Clock)])


def _call_again(original: Any) -> Any:
    def call(self: RunningStep, fn: Any, args: Any, kwargs: Any) -> Any:
        if self._replayed is not None:
            with suppress(ValueError):
                self._world.call(fn, args, kwargs)
        return original(self, fn, args, kwargs)

    return call


def _direct_dependency_only(original: Any) -> Any:
    def take(self: TaskMachine, step: Any, channel: int, items: list[Item]) -> Any:
        sender = self.plan.channels[channel].sender
        direct = [replace(item, dep={sender: item.dep[sender]}) for item in items]
        return original(self, step, channel, direct)

    return take


def _never_unknown(original: Any) -> Any:
    def judge(self: Fences, dep: Dependencies) -> Trust:
        trust: Trust = original(self, dep)
        return Trust.VALID if trust is Trust.UNKNOWN else trust

    return judge


def _lengths_only(_: Any) -> Any:
    return lambda _plan, _logs, fences, *_: {t: fence[1] for t, fence in fences.items()}


def _acknowledge_unsettled(original: Any) -> Any:
    def acknowledge(self: TaskMachine) -> None:
        settled = {c: o.settled for c, o in self.outputs.items()}
        for output in self.outputs.values():
            output.settled = output.log.last
        original(self)
        for channel, value in settled.items():
            self.outputs[channel].settled = value

    return acknowledge


def _release_at_once(original: Any) -> Any:
    def settle(self: Outbounds, output: Any) -> None:
        processed, output.log.processed = output.log.processed, output.log.last
        original(self, output)
        output.log.processed = processed

    return settle


def _wait_for_the_journal(_: Any) -> Any:
    def gate_closed(self: Outbounds, _: Any, item: Any) -> bool:
        task, stable = self._life.id, self._stable
        return self._life.spec.is_gated and item.dep[task].position > stable.get(task, 0)

    return gate_closed


def _keep_the_log(original: Any) -> Any:
    def tick(self: Outbounds) -> None:
        sinks = [o for o in self.ends.values() if o.to_world and o.carries_items]
        logs = [output.logs for output in sinks]
        for output in sinks:
            output.logs = ()
        original(self)
        for output, kept in zip(sinks, logs, strict=True):
            output.logs = kept

    return tick


def _count_no_death(original: Any) -> Any:
    def note(self: Rounds, task: TaskState, length: int) -> None:
        original(self, task, length)
        task.deaths = min(task.deaths, 2)

    return note


def _answer_before_commit(original: Any) -> Any:
    def write(self: Commits, group: Group, *rest: Any) -> None:
        self._let_out(replace(group, actions=[]))
        original(self, replace(group, reactions=[], outputs=[]), *rest)

    return write


def _deaf_while_away(original: Any) -> Any:
    def connect(self: Outbounds, peer: msg.Peer) -> None:
        if not self.ends[peer.channel].attempt:
            original(self, peer)

    return connect


def _floor_of_next(original: Any) -> Any:
    def floor(self: TaskMachine, command: msg.Floor) -> None:
        positions = {t: p + 1 for t, p in command.positions.items() if t != self.id}
        original(self, replace(command, positions={**command.positions, **positions}))

    return floor


def _cut_nothing(original: Any) -> Any:
    def resolve(self: LogBook, task: int, incarnation: Any, length: int) -> None:
        log = self._logs.pop(task, None)
        original(self, task, incarnation, length)
        if log is not None:
            self._logs[task] = log

    return resolve


def _continue_at_the_end(_: Any) -> Any:
    return lambda self, *_: (self.last, self.chain)


def _forget_what_was_forgiven(original: Any) -> Any:
    def needed(self: HouseKeeper) -> list[msg.Resolve]:
        newest = {cut.task: cut for cut in self.resolved}
        return [
            cut
            for cut in original(self)
            if cut is newest[cut.task] or cut.length > self.positions[cut.task]
        ]

    return needed


def _newest_layer(_: Any) -> Any:
    return staticmethod(lambda deltas, **_: deltas[-1])


def _never_opened(_: Any) -> Any:
    def on_throttle(self: TaskMachine, _: msg.Throttle) -> None:
        self.intake.is_closed = True

    return on_throttle


MUTATIONS: dict[str, Mutation] = {
    "the delta is not stored": mutation("log before effect", Inbound, "take", _without_delta),
    "dependencies are not transitive": mutation(
        "log before effect", TaskMachine, "_take_items", _direct_dependency_only
    ),
    "output is delivered before its log is held": mutation(
        "log before effect", HouseKeeper, "holds", constant(True)
    ),
    "a gated source does not wait": mutation(
        "log before effect", Outbounds, "_gate_closed", constant(False)
    ),
    "a gated source waits for what it is about to send": mutation(
        "bounded memory and liveness", Outbounds, "_gate_closed", _wait_for_the_journal, near=32
    ),
    "a sink keeps its log until it has output": mutation(
        "log before effect", Outbounds, "tick", _keep_the_log
    ),
    "answers leave before the commit": mutation(
        "stable output", Commits, "_write", _answer_before_commit
    ),
    "deliveries are not in the journal": mutation(
        "stable output", HouseKeeper, "_write_item", constant(None)
    ),
    "output is released before it is acknowledged": mutation(
        "stable output", Outbounds, "settle", _release_at_once
    ),
    "items sent again are taken again": mutation(
        "gap-free FIFO",
        Inbound,
        "_enqueue",
        _enqueue_anything,
        (InFlightLog, "resume", _start_over),
    ),
    "what is merely held is said to be stable": mutation(
        "bounded memory and liveness", HouseKeeper, "_rests_on_stable", constant(True)
    ),
    "deliveries wait for nothing on resolution": mutation(
        "log before effect", HouseKeeper, "_journal_new", constant(None)
    ),
    "a receiver's move is not heard": mutation(
        "gap-free FIFO", Outbounds, "connect", _deaf_while_away
    ),
    "no life is refused": mutation("fencing", Fences, "refuses", constant(False)),
    "a fence is answered and forgotten": mutation(
        "fencing",
        LogBook,
        "fence",
        _fence_without_effect,
        (Fences, "judge", _never_unknown),
        near=3500,
        harsh=True,
    ),
    "acknowledgements outlive their task": mutation(
        "no early truncation", Rounds, "_begin_recovery", _keep_acks
    ),
    "in-flight items go when the layer is stored": mutation(
        "no early truncation", TaskMachine, "_on_layer_stored", _truncate_when_stored
    ),
    "a checkpoint lacks one layer": mutation(
        "no early truncation", Checkpoints, "_complete", _nearly_complete
    ),
    "a layer does not wait for delivery": mutation(
        "no early truncation", TaskMachine, "_if_acknowledged", _acknowledge_unsettled
    ),
    "logs are truncated past the floor": mutation(
        "no early truncation", TaskMachine, "_on_floor", _floor_of_next
    ),
    "the first answer counts, not the longest": mutation(
        "log before effect", Rounds, "_read_longest", _first_answer
    ),
    "orphans are left alone": mutation("log before effect", Rounds, "_orphans", constant([])),
    "logs are not cut to what is consistent": mutation(
        "equivalence", rounds_module, "consistent_cut", _lengths_only, near=130, harsh=True
    ),
    "who starts over misses what was made meanwhile": mutation(
        "equivalence", InFlightLog, "made_until", _continue_at_the_end, near=170, availability=True
    ),
    "epochs from before and after a reset make a floor": mutation(
        "no early truncation",
        Checkpoints,
        "_newest_epoch",
        constant(0),
        near=1500,
        harsh=True,
        availability=True,
    ),
    "a forgiven loss is forgotten at the floor": mutation(
        "bounded memory and liveness",
        HouseKeeper,
        "_cuts_still_needed",
        _forget_what_was_forgiven,
        near=144_205,
    ),
    "merging keeps the newest layer only": mutation("equivalence", Job, "merge", _newest_layer),
    "sources that wait are forgotten": mutation(
        "bounded memory and liveness", TaskMachine, "_on_throttle", _never_opened
    ),
    "any slot runs any task": mutation("placement", Slot, "serves", constant(True)),
    "lost entries are kept": mutation("equivalence", LogBook, "resolve", _cut_nothing),
    "received orphans are kept": mutation(
        "equivalence", Inbound, "drop_orphans", constant(False), near=1400
    ),
    "the clock is read on replay": mutation("equivalence", RunningStep, "clock_ms", _live_clock),
    "the clock is not logged": mutation(
        "equivalence",
        task_module,
        "encode_record",
        _unlogged_clock,
    ),
    "the clock stands still when it was set back": mutation(
        "bounded memory and liveness", TaskTime, "now_ms", _standing_clock
    ),
    "a timer's time is not logged": mutation("equivalence", TaskMachine, "_run", _timer_of_now),
    "calls are made again on replay": mutation("equivalence", RunningStep, "call", _call_again),
    "a lost marker is not injected again": mutation(
        "bounded memory and liveness", Coordinator, "_on_live", _live_without_inject
    ),
    "backlog is not bounded": mutation(
        "bounded memory and liveness", Outbounds, "blocked", constant(False)
    ),
    "deaths are not counted": mutation(
        "bounded memory and liveness", Rounds, "_note_death", _count_no_death
    ),
}
