"""A slot: the process around one task's automaton, or around passive standbys.

Every decision of a slot is made here, and nothing here touches the world: what happens comes in as
events, and what is to happen goes out through the ports. Production and simulator run this class.

::

    idle --Activate--> restoring --its layers are there--> running
    any  --Activate: another task, or another life of it--> restoring
    any  --Stop, or the driver is lost--> over
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from clonos.blame import complaint_of
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.life import Phase
from clonos.core.messages import Layer
from clonos.core.plan import Incarnation, Plan
from clonos.core.task import TaskMachine
from clonos.errors import ClonosError, MalformedMessage, OperatorError
from clonos.nodes import events as node_events
from clonos.nodes.events import Heard
from clonos.nodes.links import Links
from clonos.nodes.ports import Prefetch, SlotPorts, Writer
from clonos.nodes.standby import Standby
from clonos.transport.errors import AuthenticationFailed, CannotConnect, SchemaMismatch
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    Connection,
    ControlLost,
    TaskStatistics,
)

STEPS_PER_TURN: Final = 32
"""Steps per turn, however many are ready: a message may be waiting."""
TURN_S: Final = 0.01
"""The same in time: a fence waits for one long step, not for many."""
STATISTICS_S: Final = 0.25
"""How often a running task reports its statistics."""
FLUSH_S: Final = 0.002
"""While there are more steps to do, their output is flushed to the network this often."""
IDLE_S: Final = 0.25
"""Longest time between two turns."""
SLEEP_MIN_S: Final = 0.0005
"""Shorter waits are not worth a sleep."""
_NOBODY_ELSE_KNOWS: Final = (CannotConnect, AuthenticationFailed)
"""Errors that keep us from the driver: the process has to end with them, to tell Spark."""


@dataclass(frozen=True, slots=True)
class _Restoring:
    """A task whose layers are being fetched. Its messages wait meanwhile."""

    command: msg.Activate
    standby: Standby
    ticket: int
    waiting: list[msg.Command]


class SlotNode:
    """One slot, from its registration to the end of the job.

    Parameters
    ----------
    plan
        The job.
    ports
        The world.
    share_s
        Log entries that no batch has carried for this long travel by themselves.
    unreachable_s
        How long a task tries to connect to a peer before it complains to the coordinator.
    steps_per_turn
        See :data:`STEPS_PER_TURN`.
    machines
        Makes the automaton of a task; the simulator's watches what it does.

    Attributes
    ----------
    is_over
        The process should end.
    lost
        Why it lost the driver, if only Spark can tell the driver.
    machine
        The task that runs here.
    """

    def __init__(
        self,
        plan: Plan,
        ports: SlotPorts,
        *,
        share_s: float,
        unreachable_s: float,
        steps_per_turn: int = STEPS_PER_TURN,
        machines: Callable[..., TaskMachine] = TaskMachine,
    ) -> None:
        self.is_over = False
        self.lost: ClonosError | None = None
        self.machine: TaskMachine | None = None
        self._plan, self._ports = plan, ports
        self._share_s, self._steps_per_turn = share_s, steps_per_turn
        self._machines = machines
        self._control: Connection | None = None
        self._links = Links(ports.network, unreachable_s, self._complain)
        self._came: deque[Heard] = deque()
        self._life = 0  # of the machine in this slot: what was begun for another one is void
        self._tickets = 0
        self._restoring: _Restoring | None = None
        self._standbys: dict[int, Standby] = {}
        self._pieces: list[msg.LogPiece] = []  # of the log of the next life here
        self._to_follow: dict[int, msg.Follow] = {}  # by task, the newest of each; in order
        self._following: tuple[int, msg.Follow] | None = None  # with its ticket
        self._source: Prefetch | None = None
        self._warm: dict[int, Prefetch] = {}  # of the source tasks whose standbys are here
        self._writer: Writer | None = None
        self._latency_ms = 0
        self._is_busy = False
        self._tick_at: float | None = None  # None: nothing has happened since the last one
        self._flush_at = 0.0
        self._statistics_at = 0.0
        self._on_action: dict[type[Any], Callable[[Any], None]] = {
            ev.Dial: self._dial,
            ev.Hang: self._links.hang,
            ev.Send: self._links.send,
            ev.Reply: self._links.reply,
            ev.Refuse: self._links.refuse,
            ev.Tell: self._tell,
            ev.StoreLayer: self._store_layer,
            ev.Release: self._release,
            ev.NeedRows: self._need_rows,
        }
        self._on_event: dict[type[Any], Callable[[Any], None]] = {
            ChannelOpened: self._on_channel_opened,
            ChannelClosed: self._on_channel_closed,
            ControlLost: self._on_control_lost,
            node_events.Fetched: self._on_fetched,
            node_events.FetchFailed: self._on_fetch_failed,
            node_events.Stored: self._on_stored,
            node_events.Wrote: self._on_wrote,
            node_events.WorkFailed: self._on_work_failed,
            node_events.RowsReady: self._on_rows_ready,
        }
        self._on_command: dict[type[Any], Callable[[Any], None]] = {
            msg.LogPiece: self._on_log_piece,
            msg.Activate: self._on_activate,
            msg.Follow: self._on_follow,
            msg.Drop: self._on_drop,
            msg.Stop: self._on_stop,
        }

    @property
    def standbys(self) -> dict[int, Standby]:
        """The copies that are kept here, by task."""
        return self._standbys

    @property
    def progress(self) -> int:
        """Steps that the task has done; any thread may ask."""
        machine = self.machine
        return machine.position if machine is not None else 0

    # --- turns ------------------------------------------------------------------------------

    def join(self, control: Connection) -> None:
        """Commands come on this connection, reports go there."""
        self._control = control

    def turn(self, events: Iterable[Heard]) -> float:
        """Handle what has arrived, then let the task run for a while.

        Returns
        -------
        float
            Seconds until the next turn is wanted, if nothing comes before.
        """
        self._came.extend(events)
        try:
            while self._came:  # what goes wrong with one of them must not take the others along
                self._hear(self._came.popleft())
            if self.machine is not None:
                self._offer_rows(self.machine)
                self._steps(self.machine)
                self._share(self.machine)
                self._tick()
        except Exception as error:  # noqa: BLE001 - reported, and the job ends with it
            self._failed(error)
            return 0.0
        return self._wait_s()

    def close(self) -> None:
        """The process ends: stop reading."""
        for prefetch in (self._source, *self._warm.values()):
            if prefetch is not None:
                prefetch.close()

    def _wait_s(self) -> float:
        machine = self.machine
        if machine is None:
            return IDLE_S
        if self._is_busy:
            return 0.0
        until = IDLE_S
        if self._tick_at is not None:
            until = min(until, self._tick_at - self._ports.clock.ticks_s())
        if (wait_ms := machine.wait_ms) is not None:
            until = min(until, wait_ms / 1000)
        return max(until, SLEEP_MIN_S)

    def _steps(self, machine: TaskMachine) -> None:
        self._is_busy = False
        clock, world, network = self._ports.clock, machine.world, self._ports.network
        until = clock.ticks_s() + TURN_S
        for _ in range(self._steps_per_turn):
            actions = machine.step()
            if actions is None:
                return
            self._perform(actions)
            now = clock.ticks_s()
            if now >= self._flush_at:
                self._share(machine)
                network.flush()
                self._flush_at = now + FLUSH_S
            if machine.born_ms:
                self._latency_ms = max(self._latency_ms, world.clock_ms() - machine.born_ms)
            if machine.spec.is_source:
                self._offer_rows(machine)
            if now >= until:
                break
        self._is_busy = True

    def _share(self, machine: TaskMachine) -> None:
        """Logs that travel with no item go to the house-keeper, once for many steps."""
        actions = machine.flush()
        if actions:
            self._perform(actions)

    def _offer_rows(self, machine: TaskMachine) -> None:
        source = self._source
        if source is None:
            return
        ready = None
        if machine.phase is Phase.REPLAYING:
            if machine.intake.is_empty:  # else what is read again waits with the reader
                ready = source.taken()
        elif machine.wants_rows:
            if not source.is_placed:
                # It cannot replay: what it gave before is in the log, it goes on behind that.
                source.advance(machine.source_rows)
            ready = source.take()
        if ready is not None:
            self._perform(machine.handle(ready))

    def _tick(self) -> None:
        machine, now = self.machine, self._ports.clock.ticks_s()
        if machine is None:
            return
        if self._tick_at is not None and now >= self._tick_at:
            self._tick_at = None
            self._perform(machine.handle(ev.Tick()))
        if now >= self._statistics_at:
            self._statistics_at = now + STATISTICS_S
            self._send(self._statistics(machine))

    def _statistics(self, machine: TaskMachine) -> TaskStatistics:
        counters = {
            **machine.statistics(),
            **getattr(machine.program, "statistics", {}),
            **getattr(machine.program, "traffic", {}),
            "latency_ms": self._latency_ms,
        }
        self._latency_ms = 0
        return TaskStatistics(machine.id, machine.world.clock_ms(), counters)

    def _failed(self, error: Exception) -> None:
        """Whatever goes wrong in a task is reported with its place; the slot itself stays."""
        machine, self.machine = self.machine, None
        if machine is not None:
            self._send(_task_error(machine.id, machine.incarnation, error, machine.position))

    # --- what comes in ------------------------------------------------------------------------

    def _hear(self, heard: Heard) -> None:
        if not isinstance(heard, tuple):
            self._on_event[type(heard)](heard)
            return
        conn, message = heard
        if self._control is not None and conn == self._control.conn_id:
            self._on_command.get(type(message), self._on_task_command)(message)
        else:
            self._feed(self._links.heard(conn, message))

    def _feed(self, event: ev.Event | msg.Command | None) -> None:
        if event is not None and self.machine is not None:
            self._perform(self.machine.handle(event))

    def _perform(self, actions: list[ev.Action]) -> None:
        if self._tick_at is None:
            self._tick_at = self._ports.clock.ticks_s() + self._share_s
        for action in actions:
            self._on_action[type(action)](action)

    def _send(self, report: Any) -> None:
        assert self._control is not None
        self._control.send(report)

    def _announce(self, report: msg.Report) -> None:
        """Say something in the midst of a step that the process may not survive."""
        self._send(report)
        self._ports.network.flush()

    def _on_task_command(self, command: msg.Command) -> None:
        if self._restoring is not None:
            self._restoring.waiting.append(command)
        else:
            self._feed(command)

    def _on_stop(self, command: msg.Stop) -> None:
        if self.machine is not None:
            self._send(self._statistics(self.machine))
        self.is_over = True

    def _on_control_lost(self, event: ControlLost) -> None:
        self.is_over = True  # without a coordinator we may be fenced already
        self.lost = event.error if isinstance(event.error, _NOBODY_ELSE_KNOWS) else None

    def _on_channel_opened(self, event: ChannelOpened) -> None:
        self._feed(self._links.opened(event, self.machine))

    def _on_channel_closed(self, event: ChannelClosed) -> None:
        self._feed(self._links.closed(event))
        if isinstance(event.error, (MalformedMessage, SchemaMismatch)):
            raise event.error  # it would be sent again, and again be refused

    def _on_stored(self, event: node_events.Stored) -> None:
        if event.life == self._life:
            self._feed(ev.LayerStored(event.ref))

    def _on_wrote(self, event: node_events.Wrote) -> None:
        if event.life == self._life:
            self._feed(ev.Written(event.channel, event.seq))

    def _on_work_failed(self, event: node_events.WorkFailed) -> None:
        if event.life == self._life:
            raise event.error

    def _on_rows_ready(self, event: node_events.RowsReady) -> None:
        """Nothing to do: every turn checks for rows."""

    # --- standbys -----------------------------------------------------------------------------

    def _on_follow(self, command: msg.Follow) -> None:
        """Follow a task's floor, one task at a time; per task only the newest request counts."""
        self._to_follow[command.task] = command
        self._follow_next()

    def _follow_next(self) -> None:
        while self._to_follow and self._following is None:
            command = self._to_follow.pop(next(iter(self._to_follow)))
            missing = self._standby(command.task).missing(command.layers)
            self._tickets += 1
            self._following = self._tickets, command
            if missing:
                self._ports.store.fetch(self._tickets, missing)
            else:
                self._follow(command, ())

    def _follow(self, command: msg.Follow, layers: Iterable[Layer]) -> None:
        self._following = None
        try:
            standby = self._standby(command.task)
            standby.apply(layers)
            self._warm_up(command.task, standby)
        except Exception:  # noqa: BLE001 - a standby that cannot follow is none; it starts over
            self._forget_standby(command.task)
        else:
            self._send(msg.Followed(command.task, standby.epoch))

    def _forget_standby(self, task: int) -> None:
        self._standbys.pop(task, None)
        self._send(msg.Followed(task, -1))

    def _standby(self, task: int) -> Standby:
        known = self._standbys.get(task)
        if known is None:
            known = self._standbys[task] = Standby(lambda: self._ports.programs(task))
        return known

    def _warm_up(self, task: int, standby: Standby) -> None:
        """Keep a source's standby open at the right position, too."""
        spec = self._plan.tasks[task]
        if spec.is_source and not spec.is_gated:
            if task not in self._warm:
                self._warm[task] = self._ports.sources.open(task)
            self._warm[task].advance(standby.floor.source_rows if standby.floor else 0)

    def _on_drop(self, command: msg.Drop) -> None:
        task = command.task
        self._standbys.pop(task, None)
        self._to_follow.pop(task, None)
        if self._following is not None and self._following[1].task == task:
            self._following = None
            self._follow_next()
        if self._ports.sources.can_reopen and task in self._warm:
            self._warm.pop(task).close()

    def _on_fetched(self, event: node_events.Fetched) -> None:
        if self._restoring is not None and event.ticket == self._restoring.ticket:
            self._restored(event.layers)
        elif self._following is not None and event.ticket == self._following[0]:
            self._follow(self._following[1], event.layers)
            self._follow_next()

    def _on_fetch_failed(self, event: node_events.FetchFailed) -> None:
        if self._restoring is not None and event.ticket == self._restoring.ticket:
            self._cannot_restore(event.error)
        elif self._following is not None and event.ticket == self._following[0]:
            task, self._following = self._following[1].task, None
            self._forget_standby(task)
            self._follow_next()

    # --- becoming a task ------------------------------------------------------------------------

    def _on_log_piece(self, piece: msg.LogPiece) -> None:
        self._pieces.append(piece)

    def _on_activate(self, command: msg.Activate) -> None:
        """Become a task, or another life of it; all other standbys are given up."""
        life = command.task, command.incarnation
        pieces = [p.runs for p in self._pieces if (p.task, p.incarnation) == life]
        self._pieces.clear()
        if pieces:
            command = replace(command, log=(*chain(*pieces), *command.log))
        self._life += 1
        self.machine = self._writer = None
        self._links.reset()
        if self._source is not None:
            self._source.close()
            self._source = None
        standby = self._standby(command.task)
        self._standbys.clear()
        self._to_follow.clear()
        self._following = None
        missing = standby.missing(command.layers)
        self._tickets += 1
        self._restoring = _Restoring(command, standby, self._tickets, [])
        if missing:
            self._ports.store.fetch(self._tickets, missing)
        else:
            self._restored(())

    def _cannot_restore(self, error: Exception) -> None:
        """Report any failure: the coordinator waits for us."""
        assert self._restoring is not None
        command, self._restoring, self.machine = self._restoring.command, None, None
        self._send(_task_error(command.task, command.incarnation, error, position=0))

    def _restored(self, layers: tuple[Layer, ...]) -> None:
        restoring = self._restoring
        assert restoring is not None
        try:
            machine = self._begin(restoring.command, restoring.standby, layers)
        except Exception as error:  # noqa: BLE001 - reported, and the job ends with it
            self._cannot_restore(error)
            return
        self._restoring, self.machine = None, machine
        self._perform(machine.start())
        for opened in self._links.waiting():
            self._feed(self._links.opened(opened, machine))
        for command in restoring.waiting:
            self._feed(command)

    def _begin(
        self, command: msg.Activate, standby: Standby, layers: tuple[Layer, ...]
    ) -> TaskMachine:
        ports, task = self._ports, command.task
        machine = self._machines(
            self._plan,
            command,
            standby.program,
            layers,
            ports.worlds(task, command.incarnation),
            floor=standby.floor,
            announce=self._announce,
        )
        self._writer = ports.writers(task)
        if machine.spec.is_source and not machine.source_ended:
            self._source = self._warm.pop(task, None) or ports.sources.open(task)
            if not machine.spec.is_gated:
                self._source.advance(machine.source_rows)
        for prefetch in self._warm.values():
            prefetch.close()
        self._warm.clear()
        return machine

    # --- what the automaton asks for --------------------------------------------------------------

    def _complain(self, channel: int, peer: Incarnation, why: str) -> None:
        machine = self.machine
        if machine is not None:
            self._send(msg.Unreachable(machine.id, machine.incarnation, channel, peer, why))

    def _dial(self, action: ev.Dial) -> None:
        assert self.machine is not None
        self._links.dial(action, self.machine.incarnation)

    def _tell(self, action: ev.Tell) -> None:
        self._send(action.report)

    def _need_rows(self, action: ev.NeedRows) -> None:
        assert self._source is not None
        self._source.ask(action.cuts)

    def _store_layer(self, action: ev.StoreLayer) -> None:
        self._ports.store.put(self._life, action)

    def _release(self, action: ev.Release) -> None:
        if self._writer is None:
            raise OperatorError("this sink has no writer", remedy="report this as a bug")
        self._writer.write(self._life, action)


def _task_error(
    task: int, incarnation: Incarnation, error: Exception, position: int
) -> msg.TaskError:
    kind, what, where, remedy, trace = complaint_of(error)
    return msg.TaskError(task, incarnation, kind, what, position, where, remedy, trace)
