"""A slot: the process around the automata of its tasks, or around passive standbys.

Every decision of a slot is made here, and nothing here touches the world: events come in, and all
effects go out through the ports. Production and simulator run this class.

The slot passes each event and command to its resident, and lets the residents run in turn. What
concerns only one task is in :mod:`clonos.nodes.resident`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from typing import Any, Final

from clonos.core import events as ev
from clonos.core import levels
from clonos.core import messages as msg
from clonos.core.dial import Dial, ladder
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.log import LOG_BYTES
from clonos.core.mandate import MANDATE_S, Mandate, MandateGiven
from clonos.core.plan import Incarnation, Plan, TaskSpec
from clonos.core.task import TaskMachine
from clonos.errors import AuthenticationFailed, CannotConnect, ClonosError, MalformedMessage
from clonos.nodes import events as node_events
from clonos.nodes.events import Heard
from clonos.nodes.keeping import Keeping
from clonos.nodes.links import Links
from clonos.nodes.local import Local
from clonos.nodes.one_by_one import OneByOne
from clonos.nodes.ports import SlotPorts
from clonos.nodes.resident import IDLE_S, TOLD_SHARE, Home, Resident
from clonos.nodes.seal_times import SealSettings
from clonos.nodes.standby import Copies, Standby
from clonos.transport.errors import SchemaMismatch
from clonos.transport.events import ChannelClosed, ChannelOpened, Connection, ControlLost

STEPS_PER_TURN: Final = 32
"""Steps of a task per turn, however many are ready: a message may be waiting."""
TURN_S: Final = 0.01
"""The same in time: a fence waits for one long step, not for many."""
SLICE_S: Final = 0.002
"""Several tasks share that time; each gets at least this much."""
DISK_BYTES: Final = 4 << 30
"""A slot with more than this on its local disk writes no more, so that sources wait in the end."""
ROOM_S: Final = 0.02
"""How often a slot checks whether it keeps too much in memory."""
DISK_RETRY_S: Final = 1.0
"""After a failed write (say, the disk is full) it checks again only after this time."""
SLEEP_MIN_S: Final = 0.0005
"""Shorter waits are not worth a sleep."""
_NOBODY_ELSE_KNOWS: Final = (CannotConnect, AuthenticationFailed)
"""Errors that keep us from the driver: the process has to end with them, to tell Spark."""


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
    seals
        Without markers: how often a task that has done something seals a layer.
    unreachable_s
        How long a task tries to connect to a peer before it complains to the coordinator.
    steps_per_turn
        See :data:`STEPS_PER_TURN`.
    memory_bytes, disk_bytes, log_bytes
        See :data:`~clonos.core.throttle.INFLIGHT_BYTES`, :data:`DISK_BYTES`,
        :data:`~clonos.core.throttle.LOG_BYTES`.
    mandate_s
        See :data:`~clonos.core.mandate.MANDATE_S`.
    machines
        Makes the automaton of a task (in the simulator, one that is checked).

    Attributes
    ----------
    is_over
        Whether the process should end.
    lost
        Why it lost the driver, if only Spark can tell the driver.
    """

    def __init__(
        self,
        plan: Plan,
        ports: SlotPorts,
        *,
        share_s: float,
        seals: SealSettings,
        unreachable_s: float,
        steps_per_turn: int = STEPS_PER_TURN,
        machines: Callable[..., TaskMachine] = TaskMachine,
        memory_bytes: int = INFLIGHT_BYTES,
        disk_bytes: int = DISK_BYTES,
        log_bytes: int = LOG_BYTES,
        dials: Callable[[], Dial] = lambda: Dial(ladder(0)),
        mandate_s: float = MANDATE_S,
    ) -> None:
        self.is_over = False
        self.lost: ClonosError | None = None
        self._plan, self._ports = plan, ports
        self._steps_per_turn, self._room_at = steps_per_turn, 0.0
        self._memory_bytes, self._disk_bytes = memory_bytes, disk_bytes
        self._control: Connection | None = None
        self._came: deque[Heard] = deque()
        self._layers: list[Heard] = []  # that came while the track was busy
        self._links = Links(ports.network, unreachable_s, self._complain, Local(self._came.append))
        self._calls = OneByOne(ports.calls, ports.clock)
        self._mandate = Mandate(mandate_s)
        if plan.needs_mandates:
            ports.calls.may_begin(self._mandate.until_s)
        self._home = Home(
            plan, ports, self._links, self._calls, share_s, seals, log_bytes // TOLD_SHARE,
            dials, machines, self._send, self._has_room,
        )  # fmt: skip
        self._residents: dict[int, Resident] = {}  # by task
        self._lives = count(1)
        self._tickets = count(1)
        self._restoring: dict[int, Resident] = {}  # by ticket
        self._keeping = Keeping(ports, self._tickets, self._send, self._on_fetch_failed)
        self._copies = Copies(plan, ports, self._tickets, self._send, self._keeping.fetch)
        self._pieces: list[msg.LogPiece] = []  # of the logs that next lives here replay
        self._on_event: dict[type[Any], Callable[[Any], None]] = {
            ChannelOpened: self._on_channel_opened,
            ChannelClosed: self._on_channel_closed,
            ControlLost: self._on_control_lost,
            node_events.Fetched: self._on_fetched,
            node_events.FetchFailed: self._on_fetch_failed,
            node_events.Stored: self._on_stored,
            node_events.Looked: self._keeping.looked,
            node_events.Kept: self._keeping.kept,
            node_events.PartRead: self._keeping.read,
            node_events.MergedHere: self._on_merged,
            node_events.Wrote: self._on_wrote,
            node_events.CallsOver: self._on_calls_over,
            node_events.WorkFailed: self._on_work_failed,
            node_events.Ran: self._on_ran,
            node_events.DiskAnswered: self._on_disk_answered,
            node_events.RowsReady: self._on_rows_ready,
        }
        self._on_command: dict[type[Any], Callable[[Any], None]] = {
            msg.ToTask: self._on_to_task,
            msg.LogPiece: self._on_log_piece,
            msg.Activate: self._on_activate,
            msg.Follow: self._copies.follow,
            msg.Drop: self._on_drop,
            msg.Stop: self._on_stop,
            levels.Hold: self._keeping.hold,
            levels.Discard: self._keeping.discard,
            levels.MergeLayers: self._on_merge,
            MandateGiven: self._on_mandate,
        }

    @property
    def machines(self) -> list[TaskMachine]:
        """The automata of the tasks that run here."""
        return [r.machine for r in list(self._residents.values()) if r.machine is not None]

    @property
    def standbys(self) -> dict[int, Standby]:
        """The copies that are kept here, by task."""
        return self._copies.standbys

    @property
    def progress(self) -> int:
        """How many steps the tasks here have done; any thread may ask."""
        return sum(machine.position for machine in self.machines)

    def name_of(self, life: int) -> str:
        """The name of the task with this life; any thread may ask."""
        residents = list(self._residents.values())
        return next((r.spec.name for r in residents if r.number == life), "a task that is over")

    # --- turns ------------------------------------------------------------------------------

    def join(self, control: Connection) -> None:
        """Commands come on this connection, and reports are sent on it."""
        self._control = control

    def turn(self, events: Iterable[Heard]) -> float:
        """Handle what has arrived, then let the tasks run for a while.

        Returns
        -------
        float
            Seconds until the next turn is wanted, if nothing comes before.
        """
        self._came.extend(self._layers)
        self._layers.clear()
        self._came.extend(events)
        self._hear_all()
        has_news = False
        for resident in self._order():
            self._let(resident, self._run, resident)
            has_news |= bool(self._came)
            self._hear_all()
        self._tell_reached()
        self._make_room()
        self._keeping.tick()
        asks_in_s = self._ask_for_mandate() if self._plan.needs_mandates else None
        if self._ports.track.is_free:
            self._calls.go_on()
            has_news |= bool(self._layers) or any(r.is_busy for r in self._residents.values())
        if has_news:
            return 0.0
        waits = [resident.wait_s() for resident in self._residents.values()]
        if (wait_s := self._keeping.wait_s) is not None:
            waits.append(wait_s)
        if (wait_s := self._calls.wait_s) > 0:
            waits.append(wait_s)
        if asks_in_s is not None:
            waits.append(asks_in_s)
        return max(min(waits, default=IDLE_S), SLEEP_MIN_S)

    def _order(self) -> list[Resident]:
        """The order of the residents' turns. It is in no log, so any order will do: with senders
        before receivers, an item crosses the slot in one turn."""
        return [self._residents[task] for task in sorted(self._residents)]

    def _run(self, resident: Resident) -> None:
        if resident.is_over:
            return
        slice_s = max(SLICE_S, TURN_S / len(self._residents))
        if self._ports.track.is_free:
            resident.run(slice_s, self._steps_per_turn)
        if not resident.is_over:
            resident.tick()

    def _has_room(self, sender: TaskSpec) -> bool:
        """See :attr:`Home.has_room`."""
        for channel in sender.outputs:
            receiver = self._residents.get(self._plan.channels[channel].receiver)
            machine = receiver.machine if receiver is not None else None
            if machine is not None and not machine.inbounds.has_room(channel):
                return False
        return True

    def _make_room(self) -> None:
        now = self._ports.clock.ticks_s()
        if now < self._room_at:
            return
        self._room_at = now + ROOM_S
        ends = [machine.outbounds for machine in self.machines]
        if sum(end.held_bytes for end in ends) <= self._memory_bytes:
            return
        if sum(end.spilled_bytes for end in ends) < self._disk_bytes:
            for resident in list(self._residents.values()):
                self._let(resident, resident.hear, ev.MakeRoom())

    def _ask_for_mandate(self) -> float | None:
        """Ask if it is time. Return how long until the next question; None: no task here has
        effects that need a mandate."""
        specs = (resident.spec for resident in self._residents.values())
        if not any(spec.has_effects and not spec.is_recognised for spec in specs):
            return None
        now_s = self._ports.clock.ticks_s()
        if self._mandate.wait_s(now_s) == 0.0:
            self._send(self._mandate.question(now_s))
        return self._mandate.wait_s(now_s)

    def _on_mandate(self, answer: MandateGiven) -> None:
        self._mandate.given(answer)
        self._ports.calls.may_begin(self._mandate.until_s)

    def close(self) -> None:
        """The process ends: stop reading."""
        for resident in self._residents.values():
            resident.close()
        self._copies.close()

    def _let(self, resident: Resident, act: Callable[..., None], *arguments: Any) -> None:
        """Let a resident act. An error is reported with the task's name; the slot itself goes
        on."""
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001 - reported, and the job ends with it
            self._failed(resident, error)

    def _failed(self, resident: Resident, error: Exception) -> None:
        if not resident.is_over:
            del self._residents[resident.task]
            with suppress(Exception):  # the error itself is told in any case
                for words in resident.last_words():
                    self._send(words)
            self._send(resident.complaint(error))
            resident.close()

    # --- what comes in ------------------------------------------------------------------------

    def _hear_all(self) -> None:
        while self._came:
            self._hear(self._came.popleft())

    def _hear(self, heard: Heard) -> None:
        if not isinstance(heard, tuple):
            self._on_event[type(heard)](heard)
            return
        conn, message = heard
        if self._control is not None and conn == self._control.conn_id:
            self._on_command[type(message)](message)
        elif not self._keeping.heard(conn, message):
            self._feed(self._links.heard(conn, message))

    def _feed(self, event: ev.ChannelEvent | None) -> None:
        """Pass an event of a channel to the resident at the end that is here."""
        if event is None:
            return
        channel = self._plan.channels[event.channel]
        is_receiver = isinstance(event, (ev.Opened, ev.Received, ev.InputClosed))
        resident = self._residents.get(channel.receiver if is_receiver else channel.sender)
        if resident is not None:
            self._let(resident, resident.hear, event)

    def _send(self, report: Any) -> None:
        assert self._control is not None
        self._control.send(report)

    def _on_to_task(self, command: msg.ToTask) -> None:
        resident = self._residents.get(command.task)
        if resident is not None:
            self._let(resident, resident.command, command.command)

    def _on_stop(self, command: msg.Stop) -> None:
        for resident in self._residents.values():
            resident.tell_statistics()
        if command.is_complete:
            self._ports.store.clear()
        self.is_over = True

    def _on_control_lost(self, event: ControlLost) -> None:
        self.is_over = True  # without a coordinator we may be fenced already
        self.lost = event.error if isinstance(event.error, _NOBODY_ELSE_KNOWS) else None

    def _on_channel_opened(self, event: ChannelOpened) -> None:
        if event.channel == levels.SHELF:
            self._keeping.opened(event)
            return
        resident = self._residents.get(self._plan.channels[event.channel].receiver)
        self._feed(self._links.opened(event, resident.machine if resident else None))

    def _on_channel_closed(self, event: ChannelClosed) -> None:
        if event.channel == levels.SHELF:
            self._keeping.closed(event)
            return
        self._feed(self._links.closed(event))
        if isinstance(event.error, (MalformedMessage, SchemaMismatch)):
            # The same message would be sent and refused again and again.
            channel = self._plan.channels[event.channel]
            end = channel.receiver if event.side == "receiver" else channel.sender
            resident = self._residents.get(end)
            if resident is not None:
                self._failed(resident, event.error)

    def _of(self, life: int) -> Resident | None:
        """The resident with this life; None if the life is over, so that results for it are
        void."""
        return next((r for r in self._residents.values() if r.number == life), None)

    def _on_stored(self, event: node_events.Stored) -> None:
        resident = self._of(event.life)
        is_new = resident is not None and resident.stored(event.ref, event.cpu_s)
        self._keeping.stored(event.ref, is_over=not is_new)
        if resident is not None and is_new:
            self._let(resident, resident.hear, ev.LayerStored(event.ref))

    def _on_merge(self, command: levels.MergeLayers) -> None:
        self._keeping.merge(command)
        if (resident := self._residents.get(command.task)) is not None:
            resident.merges(command)

    def _on_merged(self, event: node_events.MergedHere) -> None:
        command = self._keeping.merged(event)
        if (resident := self._residents.get(command.task)) is not None:
            resident.merges(command, is_over=True)

    def _on_wrote(self, event: node_events.Wrote) -> None:
        if (resident := self._of(event.life)) is not None:
            self._let(resident, resident.hear, ev.Written(event.channel, event.seq))

    def _on_calls_over(self, event: node_events.CallsOver) -> None:
        self._calls.over(event.life, event.outcomes)
        if (resident := self._of(event.life)) is not None:
            self._let(resident, resident.hear, ev.CallsOver(event.outcomes))

    def _on_work_failed(self, event: node_events.WorkFailed) -> None:
        if (resident := self._of(event.life)) is not None:
            self._failed(resident, event.error)

    def _on_ran(self, event: node_events.Ran) -> None:
        if (resident := self._of(event.life)) is not None:
            self._let(resident, resident.ran, event.error)

    def _on_disk_answered(self, event: node_events.DiskAnswered) -> None:
        outcome = event.outcome
        if isinstance(outcome, ev.Spilled) and not outcome.is_written:
            self._room_at = self._ports.clock.ticks_s() + DISK_RETRY_S
        if (resident := self._of(event.life)) is not None:
            self._let(resident, resident.hear, outcome)

    def _on_rows_ready(self, event: node_events.RowsReady) -> None:
        """Nothing to do: every turn checks for rows."""

    def _on_fetched(self, event: node_events.Fetched) -> None:
        self._keeping.fetched(event.ticket)
        if not self._ports.track.is_free:  # only the thread of user code makes programs
            self._layers.append(event)
            return
        resident = self._restoring.pop(event.ticket, None)
        if resident is None:
            self._copies.fetched(event.ticket, event.layers)
        elif self._of(resident.number) is not None:
            self._let(resident, resident.begin, event.layers)

    def _on_fetch_failed(self, event: node_events.FetchFailed) -> None:
        if self._keeping.fetch_failed(event):
            return
        resident = self._restoring.pop(event.ticket, None)
        if resident is None:
            self._copies.fetch_failed(event.ticket)
        elif self._of(resident.number) is not None:
            self._failed(resident, event.error)

    # --- becoming a task ------------------------------------------------------------------------

    def _on_log_piece(self, piece: msg.LogPiece) -> None:
        self._pieces.append(piece)

    def _on_activate(self, command: msg.Activate) -> None:
        """Begin a life of a task here, and drop the standbys of other cells."""
        task, life = command.task, command.incarnation
        pieces = [p.runs for p in self._pieces if (p.task, p.incarnation) == (task, life)]
        self._pieces = [p for p in self._pieces if p.task != task]
        if pieces:
            command = replace(command, log=(*chain(*pieces), *command.log))
        if task in self._residents:
            self._residents.pop(task).close()
        standby, warm = self._copies.take(task)
        self._copies.keep_only(self._plan.cell_of[task])
        resident = Resident(self._home, next(self._lives), command, standby, warm)
        self._residents[task] = resident
        self._let(resident, self._restore, resident)

    def _on_drop(self, command: msg.Drop) -> None:
        """A standby is no longer wanted, or a task has moved away."""
        if (resident := self._residents.pop(command.task, None)) is not None:
            resident.close()
        else:
            self._copies.drop(command.task)

    def _restore(self, resident: Resident) -> None:
        missing, ticket = resident.missing(), next(self._tickets)
        self._restoring[ticket] = resident
        is_kept = any(ref.level != levels.STORE for ref in resident.layers)
        if missing or is_kept:
            self._keeping.fetch(ticket, resident.layers, missing)
        else:
            self._on_fetched(node_events.Fetched(ticket, ()))

    def _tell_reached(self) -> None:
        """Tell the coordinator which receivers were reached, so that it can distinguish an outage
        that heals from a channel that never connects."""
        if not self._links.reached:
            return
        reached, self._links.reached = self._links.reached, {}
        for machine in self.machines:
            peers = {c: life for c, life in reached.items() if c in machine.spec.outputs}
            if peers:
                self._send(msg.Reached(machine.id, machine.incarnation, peers))

    def _complain(self, channel: int, peer: Incarnation, why: str, is_silent: bool) -> None:
        resident = self._residents.get(self._plan.channels[channel].sender)
        machine = resident.machine if resident is not None else None
        if machine is not None:
            life = machine.incarnation
            self._send(msg.Unreachable(machine.id, life, channel, peer, why, is_silent))
