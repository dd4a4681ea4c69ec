"""A simulated process: the slot node of production, on simulated ports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.content import STATE_MEMORY
from clonos.core.dial import Dial, ladder
from clonos.core.levels import AUTO, LOCAL
from clonos.core.log import LOG_BYTES
from clonos.core.plan import Incarnation
from clonos.core.program import Program
from clonos.core.step import Work, attempt, nothing
from clonos.core.task import TaskMachine
from clonos.errors import CannotConnect, ClonosError, PeerUnreachable, PoisonRecord, UnreadableLayer
from clonos.nodes.events import Heard, Ran, RowsReady, Wrote
from clonos.nodes.ports import SlotPorts
from clonos.nodes.resident import Resident
from clonos.nodes.seal_times import SealSettings
from clonos.nodes.slot import SlotNode
from clonos.nodes.standby import Standby
from clonos.operators.chain import ChainProgram
from clonos.simulator.checks.invariants import (
    restorable,
    right_place,
    timer_in_time,
)
from clonos.simulator.checks.watched import WatchedMachine
from clonos.simulator.processes.calls import MANDATE_MS, SlotCalls
from clonos.simulator.processes.durable import SlotStore
from clonos.simulator.processes.scratch import SlotScratch
from clonos.simulator.processes.shelf import SlowShelf
from clonos.simulator.processes.turns import Turns
from clonos.simulator.world.network import Stream
from clonos.simulator.world.virtual import EPOCH_MS, Poisoned, TaskWorld
from clonos.storage.layers import OPENED_BYTES
from clonos.transport.events import ChannelClosed, ChannelOpened, TaskStatistics

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster

SHARE_MS = 2.0
"""Log entries that no batch has carried for this long travel by themselves."""
UNREACHABLE_S = 0.03
"""How long a task tries to connect before it complains."""
CONTROL = 0
"""The connection to the driver."""
READY_MAX = 2
"""Batches that a source reads ahead."""


class WatchedNode(SlotNode):
    """A slot in which nothing may fail except for a poison record: user code never raises in a
    simulation. Its tasks take their turns in any order."""

    random: Random
    is_given_up: Callable[[], bool]
    """Whether the driver has given the slot up, or was replaced; layers that it is to restore may
    then be gone."""
    is_fenced: Callable[[Resident], bool]
    """Whether the driver has begun another life of the resident's task."""

    def _order(self) -> list[Resident]:
        order = super()._order()
        if len(order) > 1:
            self.random.shuffle(order)
        return order

    def who(self, life: int) -> tuple[int, Incarnation]:
        """The task and the incarnation of a life."""
        resident = self._of(life)
        assert resident is not None
        assert resident.machine is not None
        return resident.task, resident.machine.incarnation

    def _failed(self, resident: Resident, error: Exception) -> None:
        if isinstance(error, UnreadableLayer) and self.is_given_up():
            return  # floors have moved on: nobody waits for this life; other errors still count
        if isinstance(error, PeerUnreachable) and self.is_fenced(resident):
            return  # all tasks went back to other layers, and this life has not heard of it yet
        if not isinstance(error, PoisonRecord):
            restorable(error)
            if isinstance(error, ClonosError):
                error.where = error.where or resident.spec.name
            raise error
        super()._failed(resident, error)


class Slot:
    """One process: it turns its node when an event has come or is due.

    ``number`` is its name at the driver. The process may still run after the driver has given it up
    (``is_controlled`` is false).
    """

    def __init__(
        self,
        cluster: Cluster,
        number: int,
        address: str,
        group: str,
        layers: str,
        bound: int | None = None,
    ) -> None:
        self.cluster = cluster
        self.number = number
        self.address = address
        self.group, self.machine_name = group, cluster.machine_of(group)
        self.bound = bound
        self.alive = True
        self.slowness = 0.0
        self.stalled_until = 0.0
        self.is_controlled = True
        self._inbox: list[Heard] = []
        self._next_turn = Turns(
            cluster.scheduler, self._turn, lambda: self.stalled_until, lambda: self.alive
        )
        self._busy_until = 0.0
        # By task: the awaited timer, when the wait began, and how long it should take.
        self._timers: dict[int, tuple[tuple[Incarnation, int | None], float, int]] = {}
        # Drawn separately, so that the rest of a seed stays as it was.
        drawn = Random(cluster.random.getstate()[1][number % 100])
        self._shelf, self._state_memory = SlowShelf(drawn), drawn.choice((0, 2000, STATE_MEMORY))
        opened_bytes = drawn.choice((0, OPENED_BYTES))
        longest_s = cluster.options.epoch_ms / 1000
        seals = SealSettings(longest_s, drawn.choice((inf, longest_s / 4)), work_s=0.0)
        keeps_locally = any(task.level in (LOCAL, AUTO) for task in cluster.job.plan.tasks)
        machine = cluster.disks.of_machine(self.machine_name) if keeps_locally else None
        self.store = SlotStore(self, layers, opened_bytes, machine)
        self.track = SlotTrack(self)
        self.node = WatchedNode(
            cluster.job.plan,
            SlotPorts(
                network=SlotNetwork(self),
                clock=SlotClock(self),
                track=self.track,
                store=self.store,
                sources=SlotSources(self),
                programs=self._program,
                worlds=self._world,
                writers=self._writer,
                calls=SlotCalls(self),
                scratch=SlotScratch(self),
            ),
            share_s=SHARE_MS / 1000,
            seals=seals,
            unreachable_s=UNREACHABLE_S,
            steps_per_turn=cluster.options.steps_per_turn,
            machines=partial(WatchedMachine, cluster.recorder),
            memory_bytes=cluster.options.memory_bytes,
            log_bytes=cluster.options.log_bytes or LOG_BYTES,
            dials=self._dial,
            mandate_s=MANDATE_MS / 1000,
        )
        self.node.random = cluster.random
        self.node.is_given_up = lambda: not self.is_controlled or cluster.is_of_the_past(self)
        self.node.is_fenced = self._is_fenced
        self.node.join(ControlEnd(self))

    def _is_fenced(self, resident: Resident) -> bool:
        return (
            resident.incarnation < self.cluster.driver.coordinator.tasks[resident.task].incarnation
        )

    def _dial(self) -> Dial:
        options = self.cluster.options
        return Dial(ladder(options.standbys), options.late_ms / 1000, options.quiet_ms / 1000)

    @property
    def machines(self) -> list[TaskMachine]:
        return self.node.machines

    @property
    def machine(self) -> TaskMachine | None:
        """The first of them, if there is one."""
        return next(iter(self.machines), None)

    def machine_of(self, task: int) -> TaskMachine | None:
        """The automaton of a task, if it runs here."""
        return next((machine for machine in self.machines if machine.id == task), None)

    @property
    def standbys(self) -> dict[int, Standby]:
        return self.node.standbys

    # --- turns ------------------------------------------------------------------------------------

    def post(self, heard: Heard) -> None:
        """An event has come: the process handles it as soon as it is not busy."""
        if self.alive:
            self._inbox.append(heard)
            self._turn_by(self.cluster.scheduler.now)

    def rouse(self) -> None:
        """Something has come for its network."""
        self._turn_by(self.cluster.scheduler.now)

    def command(self, command: msg.Command) -> None:
        if isinstance(command, msg.Activate):
            cell = self.cluster.job.plan.cell_of[command.task]
            right_place(self.bound, cell, self.cluster.options.bound)
        self.post((CONTROL, command))
        inner = command.command if isinstance(command, msg.ToTask) else None
        if isinstance(inner, msg.Fence) and inner.incarnation > self._life_of(inner.task):
            self.track.hurry()

    def _life_of(self, task: int) -> Incarnation:
        """The incarnation of a task that runs here; above all lives if it does not."""
        machine = self.machine_of(task)
        return machine.incarnation if machine is not None else Incarnation(1 << 30, 0)

    def _turn_by(self, time: float) -> None:
        self._next_turn.by(max(time, self._busy_until))

    def _turn(self, now: float) -> None:
        self.cluster.network.poll(self)
        events, self._inbox = self._inbox, []
        before = self.cluster.recorder.steps
        try:
            wait_s = self.node.turn(events)
        except Poisoned:
            self.cluster.kill(self, "poisoned")
            return
        if self.node.is_over:
            self.cluster.kill(self, "stopped")
            return
        self.cluster.network.flush(self)
        steps = self.cluster.recorder.steps - before
        self._busy_until = max(self._busy_until, now + self.cluster.options.turn_ms)
        for _ in range(steps):
            self._busy_until = max(self._busy_until, now) + self.cluster.step_cost(self)
        if steps:
            self.cluster.stepped(self)
        self._turn_by(now + 1000 * wait_s)
        for machine in self.machines:
            self._watch_timer(machine, now)

    def _watch_timer(self, machine: TaskMachine, now: float) -> None:
        wait_ms = machine.wait_ms
        if not wait_ms:  # nothing to wait for, or blocked
            self._timers.pop(machine.id, None)
            return
        timer = machine.incarnation, machine.wake_ms
        known = self._timers.get(machine.id)
        if known is None or known[0] != timer:
            known = self._timers[machine.id] = timer, now, wait_ms
        timer_in_time(machine, now - known[1], known[2])

    # --- small ports -----------------------------------------------------------------------------

    def _program(self, task: int) -> Program:
        program = self.cluster.job.program(task)
        if isinstance(program, ChainProgram):
            program.use(self._shelf, self._state_memory)
        return program

    def _world(self, task: int, incarnation: Incarnation) -> TaskWorld:
        cluster = self.cluster
        return TaskWorld(
            cluster.scheduler,
            cluster.service,
            task,
            incarnation,
            cluster.clocks[self.machine_name],
            cluster.random.randint(-20, 20),
            cluster.decode_rows,
            cluster.trials,
        )

    def _writer(self, task: int, incarnation: Incarnation) -> SlotWriter | None:
        return SlotWriter(self, task) if self.cluster.job.plan.tasks[task].writes_itself else None

    # --- network events ------------------------------------------------------------------------

    def opened(self, stream: Stream) -> None:
        self.post(
            ChannelOpened(
                stream.channel,
                stream.conn,
                stream.incarnation,
                stream.receiver_incarnation,
                ReceiverEnd(self.cluster, stream),
            )
        )

    def received(self, stream: Stream, data: msg.Data | msg.Welcome) -> None:
        self.post((stream.conn, data))

    def input_closed(self, stream: Stream) -> None:
        self.post(ChannelClosed(stream.channel, stream.conn, "receiver"))

    def answered(self, stream: Stream, message: Any) -> None:
        self.post((stream.conn, message))

    def output_closed(self, stream: Stream) -> None:
        kind = CannotConnect if stream.is_silent else PeerUnreachable
        self.post(ChannelClosed(stream.channel, stream.conn, "sender", kind("it is gone")))


class SlotClock:
    """A :class:`~clonos.nodes.ports.Clock`."""

    def __init__(self, slot: Slot) -> None:
        self._scheduler = slot.cluster.scheduler

    def ticks_s(self) -> float:
        return self._scheduler.now / 1000


class SlotTrack:
    """A :class:`~clonos.nodes.ports.Track` on which some pieces of work take a while.

    Their effects, calls included, happen at the beginning or at the end of that time.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._under_way: tuple[int, Work, Exception | None] | None = None

    @property
    def is_free(self) -> bool:
        return self._under_way is None

    def run(self, life: int, work: Work) -> bool:
        cluster = self._slot.cluster
        duration = cluster.work_duration()
        if not duration:
            work()
            return True
        error = None
        if cluster.work_random.random() < 0.5:
            error, work = attempt(work), nothing
        self._under_way = life, work, error
        cluster.scheduler.after(duration, self._ran, self._under_way)
        cluster.under_way(self._slot, duration)
        return False

    def hurry(self) -> None:
        """The life is over: sometimes the work ends at just that moment."""
        cluster = self._slot.cluster
        if self._under_way is not None and cluster.work_random.random() < 0.5:
            cluster.scheduler.after(0.0, self._ran, self._under_way)

    def _ran(self, under_way: tuple[int, Work, Exception | None]) -> None:
        if not self._slot.alive or under_way is not self._under_way:
            return
        life, work, error = under_way
        try:
            error = error or attempt(work)
        except Poisoned:
            self._slot.cluster.kill(self._slot, "poisoned")
        self._under_way = None
        self._slot.post(Ran(life, error))


# --- connections ----------------------------------------------------------------------------------


class ControlEnd:
    """The slot's end of its control stream."""

    conn_id = CONTROL
    stood = True

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def send(self, message: Any) -> None:
        cluster = self._slot.cluster
        if cluster.options.log_bytes or not isinstance(message, TaskStatistics):
            cluster.report(self._slot, message)

    def close(self) -> None:
        raise AssertionError("a slot does not leave by itself")


class SenderEnd:
    """The dialling end of a stream."""

    def __init__(self, cluster: Cluster, stream: Stream) -> None:
        self._cluster, self._stream = cluster, stream
        self.conn_id = stream.conn

    @property
    def stood(self) -> bool:
        return self._stream.stood

    def send(self, message: Any) -> None:
        self._cluster.network.send(self._stream, message)

    def close(self) -> None:
        self._cluster.network.hang(self._stream)


class ReceiverEnd:
    """The accepting end of a stream."""

    stood = True

    def __init__(self, cluster: Cluster, stream: Stream) -> None:
        self._cluster, self._stream = cluster, stream
        self.conn_id = stream.conn

    def send(self, message: Any) -> None:
        self._cluster.network.reply(self._stream, message)

    def close(self) -> None:
        self._cluster.network.refuse(self._stream)


class SlotNetwork:
    """A :class:`~clonos.nodes.ports.Network`."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.address = slot.address

    @property
    def listened_s(self) -> float:
        return self._slot.cluster.network.listened_s(self._slot)

    def connect(
        self,
        peer_address: str,
        channel: int,
        sender_incarnation: Incarnation,
        receiver_incarnation: Incarnation,
    ) -> SenderEnd:
        cluster = self._slot.cluster
        return SenderEnd(
            cluster,
            cluster.network.dial(
                self._slot, channel, sender_incarnation, receiver_incarnation, peer_address
            ),
        )

    def flush(self) -> None:
        self._slot.cluster.network.flush(self._slot)


# --- sources, sinks -------------------------------------------------------------------------------


class SlotWriter:
    """A :class:`~clonos.nodes.ports.Writer`: one output after the other, like a single thread."""

    def __init__(self, slot: Slot, task: int) -> None:
        self._slot, self._task = slot, task
        self._free_at = 0.0

    @property
    def away_s(self) -> float:
        """Nobody looks at it here."""
        return 0.0

    def write(self, life: int, output: ev.Release) -> None:
        cluster = self._slot.cluster
        begins_at = max(self._free_at, cluster.scheduler.now, cluster.store_back_at)
        self._free_at = begins_at + cluster.about(cluster.options.store_ms)
        cluster.scheduler.at(self._free_at, self._wrote, life, output)

    def _wrote(self, life: int, output: ev.Release) -> None:
        cluster = self._slot.cluster
        if not self._slot.alive and cluster.random.random() < 0.5:
            return
        cluster.recorder.written(self._task, output)
        self._slot.post(Wrote(life, output.channel, output.item.seq))


class SlotSources:
    """The :class:`~clonos.nodes.ports.Sources` of a slot."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.can_reopen = slot.bound is None

    def open(self, task: int) -> SlotPrefetch:
        return SlotPrefetch(self._slot, task)


class SlotPrefetch:
    """A :class:`~clonos.nodes.ports.Prefetch` of a source whose rows never change."""

    def __init__(self, slot: Slot, task: int) -> None:
        self._slot, self._cluster = slot, slot.cluster
        self._source = slot.cluster.job.sources[task]
        self._is_gated = slot.cluster.job.plan.tasks[task].is_gated
        self._stand = -1
        self._ready: deque[ev.SourceRows | ev.SourceEnded] = deque()
        self._cuts: deque[tuple[int, bytes]] = deque()
        self._reads_ahead = self._is_reading = self._is_closed = False

    @property
    def is_placed(self) -> bool:
        return self._stand >= 0

    @property
    def counters(self) -> Mapping[str, int]:
        """Nothing is known."""
        return {}

    def advance(self, rows_consumed: int, cut: bytes = b"") -> None:
        self._stand = max(self._stand, rows_consumed)

    def take(self) -> ev.SourceRows | ev.SourceEnded | None:
        self._reads_ahead = True
        return self.taken()

    def ask(self, cuts: Sequence[tuple[int, bytes]]) -> None:
        self._cuts.extend(cuts)
        self._read_on()

    def taken(self) -> ev.SourceRows | ev.SourceEnded | None:
        first = self._ready.popleft() if self._ready else None
        self._read_on()
        return first

    def close(self) -> None:
        self._is_closed = True

    def _read_on(self, delay: float | None = None) -> None:
        wanted = self._cuts or (self._reads_ahead and len(self._ready) < READY_MAX)
        if wanted and not self._is_reading:
            self._is_reading = True
            delay = self._cluster.rows_delay() if delay is None else delay
            self._cluster.scheduler.after(delay, self._read)

    def _read(self) -> None:
        if self._is_closed or not self._slot.alive:
            return
        self._is_reading = False
        random = self._cluster.random
        if self._cuts:
            count, _ = self._cuts.popleft()
        else:
            count = random.choice((1, 1, 2, 3)) * self._cluster.options.rows_at_once
        batch = self._source.read(self._stand, count)
        if batch.rows:
            self._stand += batch.rows
            content = self._cluster.job.encode(batch) if self._is_gated else None
            born_ms = EPOCH_MS + int(self._cluster.scheduler.now)
            self._ready.append(ev.SourceRows(batch, content, born_ms))
        elif self._cluster.may_end():
            self._ready.append(ev.SourceEnded())
            self._is_closed = True
        else:
            self._read_on(20.0)
            return
        self._slot.post(RowsReady())
        self._read_on()
