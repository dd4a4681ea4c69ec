"""A slot: the process around one automaton, or around passive standbys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.layer import encode_layer, layer_path, open_layer, refer_to
from clonos.core.messages import Layer
from clonos.core.program import Program
from clonos.core.task import TaskMachine
from clonos.simulator.invariants import backlogs as backlogs_of
from clonos.simulator.invariants import log_leaves, require, timer_in_time
from clonos.simulator.network import Stream
from clonos.simulator.programs import Poisoned
from clonos.simulator.world import TaskWorld

if TYPE_CHECKING:
    from clonos.simulator.cluster import Cluster

LINGER_MS = 2.0
LOOK_MS = 50.0
"""A loop that waits for a time looks at the clock again after so long: somebody may have set it."""


@dataclass(slots=True)
class Standby:
    """A passive copy: a program with all layers up to `applied`."""

    program: Program
    applied: Layer | None = None


class Slot:
    """One process. ``life`` counts the tasks it has been; what belongs to an older one is stale."""

    def __init__(
        self, cluster: Cluster, number: int, address: str, group: str, bound: int | None = None
    ) -> None:
        self.cluster = cluster
        self.number = number
        self.address = address
        self.group = group
        self.bound = bound
        self.alive = True
        self.slowness = 0.0
        self.stalled_until = 0.0
        self.life = 0
        self.machine: TaskMachine | None = None
        self.standbys: dict[int, Standby] = {}
        self.is_controlled = True
        self._restoring: msg.Activate | None = None
        self._waiting: list[Any] = []
        self._dialled: dict[int, Stream] = {}  # attempts and channels: the newest of each channel
        self._accepted: dict[int, Stream] = {}
        self._turn_due = False
        self._tick_due = False
        self._wake_at = 0.0
        self._timer: tuple[tuple[int, int | None], float] | None = None  # and since when it waits
        self._rows_due = False
        self._loading = False
        self._feeds: list[msg.Follow] = []
        self._written_at = 0.0

    # --- control ----------------------------------------------------------------------------------

    def tell(self, report: msg.Report) -> None:
        self.cluster.report(self, report)

    def command(self, command: msg.Command) -> None:
        if not self.alive:
            return
        if isinstance(command, msg.Stop):
            self.cluster.kill(self, "stopped")
        elif isinstance(command, msg.Follow):
            self._feeds.append(command)
            self._feed_next()
        elif isinstance(command, msg.Drop):
            self.standbys.pop(command.task, None)
        elif isinstance(command, msg.Activate):
            self._activate(command)
        elif self._restoring is not None:
            self._waiting.append(command)
        elif self.machine is not None:
            self.handle(command)

    # --- standbys ---------------------------------------------------------------------------------

    def _feed_next(self) -> None:
        if self._feeds and not self._loading:
            self._loading = True
            self.cluster.scheduler.after(self.cluster.store_delay(), self._fed, self.life)

    def _fed(self, life: int) -> None:
        if not self.alive or life != self.life:
            return
        self._loading = False
        feed = self._feeds.pop(0)
        standby = self.standbys.get(feed.task)
        if standby is None:
            standby = self.standbys[feed.task] = Standby(self.cluster.job.program(feed.task))
        for layer in self._missing(standby, feed.layers):
            standby.program.apply(layer.delta)
            standby.applied = layer
        self.tell(msg.Followed(feed.task, feed.epoch))
        self._feed_next()

    def _missing(self, standby: Standby, refs: tuple[msg.LayerRef, ...]) -> list[Layer]:
        applied = standby.applied.epoch if standby.applied else 0
        if refs and 0 < applied < refs[0].epoch:
            # The bottom layers were merged past it: what was deleted meanwhile is not in them.
            standby.program = self.cluster.job.program(refs[0].task)
            standby.applied, applied = None, 0
        return [open_layer(self.cluster.layers[r.path], r) for r in refs if r.epoch > applied]

    # --- becoming a task --------------------------------------------------------------------------

    def _activate(self, command: msg.Activate) -> None:
        is_bound = command.task in self.cluster.options.bound
        require(
            self.bound == (command.task if is_bound else None),
            "placement",
            f"task {command.task} came to a slot that cannot run it",
        )
        for stream in self._dialled.values():
            self.cluster.network.hang(stream)
        for stream in self._accepted.values():
            self.cluster.network.refuse(stream)
        self._dialled.clear()
        self._accepted.clear()
        self._waiting.clear()
        self._feeds.clear()
        self._loading = False
        self.machine = None
        self.life += 1
        self._restoring = command
        standby = self.standbys.pop(command.task, None)
        if standby is None:
            standby = Standby(self.cluster.job.program(command.task))
        self.standbys.clear()
        delay = 0.5 + self.cluster.store_delay() * len(self._missing(standby, command.layers))
        self.cluster.scheduler.after(delay, self._restored, self.life, standby)

    def _restored(self, life: int, standby: Standby) -> None:
        command = self._restoring
        if not self.alive or life != self.life or command is None:
            return
        self._restoring = None
        cluster = self.cluster
        self.machine = TaskMachine(
            cluster.job.plan,
            command,
            standby.program,
            self._missing(standby, command.layers),
            TaskWorld(
                cluster.scheduler,
                cluster.service,
                command.task,
                command.incarnation,
                cluster.clocks[self.group],
                cluster.random.randint(-20, 20),
                cluster.decode_rows,
            ),
            floor=standby.applied,
        )
        cluster.recorder.activated(self.machine, command)
        self._perform(self.machine.start())
        waiting, self._waiting = self._waiting, []
        for late in waiting:
            self.handle(late)
        self._later()

    # --- the loop ---------------------------------------------------------------------------------

    def handle(self, event: ev.Event | msg.Command) -> None:
        if self.machine is None:
            return
        self._perform(self.machine.handle(event))
        self._later()

    def _later(self) -> None:
        """There may be something to do."""
        scheduler = self.cluster.scheduler
        if not self._turn_due:
            self._turn_due = True
            at = max(scheduler.now + self.cluster.step_cost(self), self.stalled_until)
            scheduler.at(at, self._turn, self.life)
        if not self._tick_due:
            self._tick_due = True
            scheduler.after(LINGER_MS, self._tick, self.life)

    def _tick(self, life: int) -> None:
        self._tick_due = False
        if self.alive and self.machine is not None:
            self._perform(self.machine.handle(ev.Tick()))
            if self.machine.is_live:
                log_leaves(self.machine)

    def _turn(self, life: int) -> None:
        self._turn_due = False
        machine = self.machine
        if not self.alive or machine is None:
            return
        if self.stalled_until > self.cluster.scheduler.now:
            self._later()
            return
        before = machine.position
        backlogs = backlogs_of(machine)
        try:
            actions = machine.step()
        except Poisoned:
            self.cluster.kill(self, "poisoned")
            return
        if actions is None:
            self._idle(machine)
            return
        if machine.position > before:
            self.cluster.recorder.stepped(machine, backlogs)
        self._perform(actions)
        self._later()

    def _idle(self, machine: TaskMachine) -> None:
        scheduler = self.cluster.scheduler
        if machine.wants_rows and not self._rows_due:
            self._rows_due = True
            scheduler.after(self.cluster.rows_delay(), self._offer_rows, self.life)
        wait_ms = machine.wait_ms
        if not wait_ms:  # nothing to wait for, or blocked
            self._timer = None
            return
        timer = (self.life, machine.wake_ms)
        if self._timer is None or self._timer[0] != timer:
            self._timer = timer, scheduler.now
        timer_in_time(machine, scheduler.now - self._timer[1])
        if self._wake_at <= scheduler.now:
            self._wake_at = scheduler.now + min(wait_ms, LOOK_MS)
            scheduler.at(self._wake_at, self._later)

    def _offer_rows(self, life: int) -> None:
        self._rows_due = False
        machine = self.machine
        if not self.alive or machine is None or not machine.wants_rows:
            return
        source = self.cluster.job.sources[machine.id]
        count = self.cluster.random.choice((1, 1, 2, 3)) * self.cluster.options.rows_at_once
        batch = source.read(machine.source_rows, count)
        if not batch.rows:
            if self.cluster.may_end():
                self.handle(ev.SourceEnded())
            else:
                self._rows_due = True
                self.cluster.scheduler.after(20.0, self._offer_rows, self.life)
            return
        content = None
        if machine.spec.is_gated:
            content = self.cluster.job.encode(batch)
        self.handle(ev.SourceRows(batch, content))

    # --- actions ----------------------------------------------------------------------------------

    def _perform(self, actions: list[ev.Action]) -> None:
        for action in actions:
            self._perform_one(action)

    def _perform_one(self, action: ev.Action) -> None:
        network, machine = self.cluster.network, self.machine
        assert machine is not None
        match action:
            case ev.Send():
                stream = self._dialled.get(action.data.channel)
                if stream is not None and stream.attempt == action.attempt:
                    self.cluster.recorder.sends(machine, action.data)
                    network.send(stream, action.data)
            case ev.Reply():
                accepted = self._accepted.get(action.conn)
                if accepted is not None:
                    network.reply(accepted, action.message)
            case ev.Tell():
                if isinstance(action.report, msg.Live):
                    self.cluster.recorder.live(machine)
                self.tell(action.report)
            case ev.Dial():
                self._dialled[action.channel] = network.dial(
                    self,
                    self.life,
                    action.channel,
                    action.attempt,
                    machine.incarnation,
                    action.incarnation,
                    action.address,
                )
            case ev.Hang():
                stream = self._dialled.get(action.channel)
                if stream is not None and stream.attempt == action.attempt:
                    network.hang(self._dialled.pop(action.channel))
            case ev.Refuse():
                accepted = self._accepted.pop(action.conn, None)
                if accepted is not None:
                    network.refuse(accepted)
            case ev.StoreLayer():
                self.cluster.scheduler.after(
                    self.cluster.store_delay(), self._store, self.life, action
                )
            case ev.Release():
                # One thread writes: a Written stands for all that was released before it.
                scheduler, delay = self.cluster.scheduler, self.cluster.store_delay()
                self._written_at = max(scheduler.now + delay, self._written_at)
                scheduler.at(self._written_at, self._write, self.life, machine, action)
            case ev.NeedRows():
                self.cluster.scheduler.after(
                    self.cluster.rows_delay(), self._reread, self.life, action.cuts
                )

    def _store(self, life: int, action: ev.StoreLayer) -> None:
        if not self.alive:
            return
        layer = replace(action.layer, delta=bytes(action.delta))
        path = layer_path(layer.task, layer.epoch, layer.incarnation)
        content = encode_layer(layer)
        self.cluster.layers[path] = content
        ref = refer_to(layer, content, path, len(content))
        if life == self.life:
            self.handle(ev.LayerStored(ref))

    def _write(self, life: int, machine: TaskMachine, action: ev.Release) -> None:
        if not self.alive:
            return
        self.cluster.recorder.written(machine, action)
        if life == self.life:
            self.handle(ev.Written(action.channel, action.item.seq))

    def _reread(self, life: int, cuts: tuple[int, ...]) -> None:
        if not (self.alive and life == self.life and self.machine is not None):
            return
        source, start = self.cluster.job.sources[self.machine.id], self.machine.source_rows
        for rows in cuts:
            self.handle(ev.SourceRows(source.read(start, rows)))
            start += rows

    # --- the end of streams -----------------------------------------------------------------------

    def accepts(self, stream: Stream) -> bool:
        machine = self.machine
        return (
            machine is not None
            and stream.channel in machine.inputs
            and machine.incarnation == stream.receiver_incarnation
        )

    def opened(self, stream: Stream) -> None:
        stream.receiver_life = self.life
        self._accepted[stream.conn] = stream
        self.handle(ev.Opened(stream.channel, stream.conn, stream.incarnation))

    def received(self, stream: Stream, data: msg.Data | msg.Welcome) -> None:
        if stream.receiver_life == self.life and self.machine is not None:
            self.cluster.recorder.receives(self.machine, stream, data)
            self.handle(ev.Received(stream.channel, stream.conn, data))

    def input_closed(self, stream: Stream) -> None:
        self._accepted.pop(stream.conn, None)
        if stream.receiver_life == self.life:
            self.handle(ev.InputClosed(stream.channel, stream.conn))

    def answered(self, stream: Stream, message: msg.Hello | msg.Credit) -> None:
        if stream.life == self.life:
            self.handle(ev.Answered(stream.channel, stream.attempt, message))

    def output_closed(self, stream: Stream) -> None:
        if stream.life == self.life:
            self.handle(ev.OutputClosed(stream.channel, stream.attempt))
