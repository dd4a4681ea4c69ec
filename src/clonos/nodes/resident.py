"""One task in a slot: its automaton, and what the automaton needs around it.

::

    restoring --its layers are there--> running
    any       --another life of it, an error--> gone

A resident knows nothing of the others. The slot passes events to it and lets it run for a while.
Whatever it raises is reported as an error of its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from clonos.blame import complaint_of
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.determinants import Determinant, encode_record
from clonos.core.dial import Dial
from clonos.core.handover import to_store
from clonos.core.inbounds import COALESCE_ROWS
from clonos.core.levels import AUTO, LayerRef, LevelInUse, MergeLayers
from clonos.core.life import Phase
from clonos.core.log import in_pieces
from clonos.core.plan import Incarnation, Plan, TaskSpec
from clonos.core.sealed import Layer
from clonos.core.step import RunningStep, checked
from clonos.core.task import TaskMachine
from clonos.errors import OperatorError
from clonos.nodes.levels import Levels
from clonos.nodes.links import Links
from clonos.nodes.one_by_one import OneByOne
from clonos.nodes.ports import Prefetch, SlotPorts, Writer
from clonos.nodes.seal_times import SealSettings, SealTimes
from clonos.nodes.standby import Standby
from clonos.transport.events import TaskStatistics

STATISTICS_S: Final = 0.25
"""How often a running task reports its statistics ..."""
TOLD_SHARE: Final = 16
"""... and at once if the logs that it holds have grown by this part of its slot's limit."""
FLUSH_S: Final = 0.002
"""While there are more steps to do, their output is flushed to the network this often."""
STEP_S: Final = 0.01
"""A step takes about as many rows as its task has handled in this time: what it makes of a backlog
comes out bit by bit, and fences wait no longer ..."""
STEP_ROWS: Final = 64
"""... but at least this many, because a step costs time itself."""
IDLE_S: Final = 0.25
"""Longest time between two turns."""
LAYERS_MAX: Final = 16
"""Of how many layers a task knows how much work they save: the newest."""


def rows_of_a_step(rows: int, busy_s: float) -> int:
    """How many rows a step should take, if so many have taken so long.

    Examples
    --------
    >>> [rows_of_a_step(rows, busy_s=1.0) for rows in (30_000, 10_000_000, 100)]
    [300, 4096, 64]
    >>> rows_of_a_step(0, busy_s=0.0)
    4096
    """
    in_time = STEP_S * rows / busy_s if busy_s else COALESCE_ROWS
    return int(min(max(in_time, STEP_ROWS), COALESCE_ROWS))


@dataclass(frozen=True, slots=True)
class Home:
    """What all residents of a slot share.

    Attributes
    ----------
    share_s
        Log entries that no batch has carried for this long travel by themselves.
    seals
        Without markers: how often a task that has done something seals a layer.
    log_growth
        By how many bytes logs may grow before a task reports at once.
    dials
        Makes the dial of a task.
    machines
        Makes the automaton of a task (in the simulator, one that is checked).
    send
        Takes reports for the coordinator.
    has_room
        Whether the other tasks in the slot want more of what a task sends them; else a source reads
        no new rows.
    """

    plan: Plan
    ports: SlotPorts
    links: Links
    calls: OneByOne
    share_s: float
    seals: SealSettings
    log_growth: int
    dials: Callable[[], Dial]
    machines: Callable[..., TaskMachine]
    send: Callable[[Any], None]
    has_room: Callable[[TaskSpec], bool]


class Resident:
    """One life of one task in a slot.

    Parameters
    ----------
    number
        The number of this life in this slot: results for other lives are void.
    command
        Which life of which task this is, and how it begins.
    standby
        The standby that it begins with, perhaps an empty one.
    warm
        Its source, if a standby has kept it open.

    Attributes
    ----------
    machine
        Its automaton; None while it is restored.
    is_busy
        Whether its last slice of time was too short for its work.
    is_over
        Whether it was closed.
    """

    def __init__(
        self,
        home: Home,
        number: int,
        command: msg.Activate,
        standby: Standby,
        warm: Prefetch | None,
    ) -> None:
        self.task = command.task
        self.number = number
        self.machine: TaskMachine | None = None
        self.is_busy = self.is_over = False
        self._busy_s, self._rested_at, self._has_called = 0.0, 0.0, False
        self._began_at: float | None = None  # None: not its turn
        self._home, self._ports = home, home.ports
        self._command, self._standby, self._source = command, standby, warm
        self._waiting: list[msg.TaskCommand] = []  # until it is restored
        self._writer: Writer | None = None
        self._failed_step: RunningStep | None = None
        self._latency_ms = 0
        self._counters: dict[str, int] = {}  # of the program
        self._tick_at: float | None = None  # None: nothing has happened since the last one
        self._flush_at = 0.0
        self._yields = 0  # the number of the order to yield; 0: it need not
        self._has_yielded = False
        self._at_rest: ev.StoreLayer | None = None  # what it hands over
        self._seal_times = None if home.plan.has_markers else SealTimes(home.seals)
        self._statistics_at = 0.0
        self._told_logs = 0
        chooses = self.spec.level == AUTO
        self._levels = Levels(home.dials(), self._keep, self._tell_level) if chooses else None
        self._storing: dict[int, float] = {}  # by epoch, since when; a dial finds out by itself
        self._not_counted = set[int]()  # epochs of layers for a move, whose work is not known
        self._saves_s: dict[int, float] = {}  # by epoch, the work that a new layer saves
        links = home.links
        self._on_action: dict[type[Any], Callable[[Any], None]] = {
            ev.Dial: self._dial,
            ev.Hang: links.hang,
            ev.Send: links.send,
            ev.Reply: links.reply,
            ev.Refuse: links.refuse,
            ev.Tell: self._tell,
            ev.StoreLayer: self._store_layer,
            ev.Release: self._release,
            ev.NeedRows: self._need_rows,
            ev.MakeCalls: self._make_calls,
            ev.Spill: lambda action: self._ports.scratch.write(number, action),
            ev.ReadSpilled: lambda action: self._ports.scratch.read(number, action),
            ev.DropSpilled: lambda action: self._ports.scratch.drop(number, action),
        }

    @property
    def spec(self) -> TaskSpec:
        return self._home.plan.tasks[self.task]

    @property
    def incarnation(self) -> Incarnation:
        return self._command.incarnation

    # --- lifecycle ------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[LayerRef, ...]:
        """The layers of its floor."""
        return self._command.layers

    def missing(self) -> tuple[LayerRef, ...]:
        """The layers that it needs before it can begin."""
        return self._standby.missing(self._command.layers)

    def begin(self, layers: Iterable[Layer]) -> None:
        """Its layers are there: replay, and take the senders and commands that have waited."""
        machine = self.machine = self._make(layers)
        if self._command.handed is not None:
            self._not_counted.add(machine.epoch)
        self._command = replace(self._command, log=(), handed=None)  # the automaton has them
        self._perform(machine.start())
        links = self._home.links
        for opened in links.waiting(machine.inputs):
            self.hear(links.opened(opened, machine))
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            self.command(command)

    def _make(self, layers: Iterable[Layer]) -> TaskMachine:
        ports, command, warm = self._ports, self._command, self._source
        machine = self._home.machines(
            self._home.plan,
            command,
            self._standby.program,
            layers,
            ports.worlds(self.task, command.incarnation),
            floor=self._standby.floor,
            announce=self._announce,
        )
        self._writer = ports.writers(self.task, command.incarnation)
        if machine.spec.is_source and not machine.intake.ended:
            self._source = warm or ports.sources.open(self.task)
            if not machine.spec.is_gated:
                self._source.advance(machine.intake.taken, machine.intake.cut)
        else:
            self._close_source()
        return machine

    def close(self) -> None:
        """Its life is over: close its source and its connections, and withdraw its calls."""
        self.is_over = True
        if self.machine is not None:
            self.machine.abandon()
        self._home.calls.withdraw(self.number)
        self._ports.scratch.withdraw(self.number)
        self._close_source()
        self._home.links.reset({*self.spec.inputs, *self.spec.outputs})

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def last_words(self) -> Iterator[msg.LastWords]:
        """What a life that cannot go on knows, and perhaps no other process does."""
        machine = self.machine
        if machine is None or not self._home.plan.causal_log:
            return
        life = (self.task, self._command.incarnation, machine.position)
        book, stable = machine.book, machine.holder.stable
        for task in book.lengths():
            since = max(book.base(task), stable.get(task, 0))
            for piece in in_pieces(book.runs(task, since + 1)):
                yield msg.LastWords(*life, runs=piece)
        if asked := self._failed(machine):
            position = machine.position + 1
            record = checked(encode_record(asked), position, machine.spec.name)
            yield msg.LastWords(*life[:2], position, record)

    def _failed(self, machine: TaskMachine) -> Sequence[Determinant]:
        """The beginning of the log entry of the live step that has failed."""
        step, watch = self._failed_step, machine.watch
        if step is not None:
            return step.record if step.is_live else ()
        return () if watch is None or watch.condemned is None else (watch.condemned,)

    def complaint(self, error: Exception) -> msg.TaskError:
        """The report of an error in the task, with its place."""
        kind, what, where, remedy, trace = complaint_of(error)
        position = self.machine.position if self.machine is not None else 0
        incarnation = self._command.incarnation
        return msg.TaskError(self.task, incarnation, kind, what, position, where, remedy, trace)

    # --- what comes in --------------------------------------------------------------------------

    def command(self, command: msg.TaskCommand) -> None:
        """Take a command, once the state is restored."""
        if self.machine is None:
            self._waiting.append(command)
        elif isinstance(command, msg.SealLayer) and command.when_cheap and self._seal_timer:
            self._seal_timer.wanted()
        elif isinstance(command, msg.Yield | msg.Resume):
            self._has_yielded = False
            self._yields = command.number if isinstance(command, msg.Yield) else 0
            if not self._yields:
                self.hear(command)
                self._keep_at_rest(self.machine)
        else:
            self.hear(command)

    @property
    def _seal_timer(self) -> SealTimes | None:
        """What decides when it seals, unless it is about to move."""
        is_closed = self.machine is not None and self.machine.seals.is_closed
        return None if is_closed else self._seal_times

    def hear(self, event: ev.Event | msg.TaskCommand | None) -> None:
        """Take an event; None: nothing has happened."""
        if event is not None and self.machine is not None:
            self._perform(self.machine.handle(event))

    def _perform(self, actions: list[ev.Action]) -> None:
        if self._tick_at is None:
            self._tick_at = self._ports.clock.ticks_s() + self._home.share_s
        for action in actions:
            self._on_action[type(action)](action)

    # --- turns ----------------------------------------------------------------------------------

    def run(self, slice_s: float, steps_max: int) -> None:
        """Take steps, within a limit of time and number."""
        machine = self.machine
        if machine is None:
            return
        self._began_at = self._rested_at if self.is_busy else self._ports.clock.ticks_s()
        self._offer_rows(machine)
        self._steps(machine, slice_s, steps_max)
        self._rested_at, self._began_at = self._began_at, None
        if not self.is_over:
            self._share(machine)
            if self._yields:
                self._tell_if_yielded(machine)

    def _tell_if_yielded(self, machine: TaskMachine) -> None:
        """Tell the coordinator if nothing is under way: no step, no call, no write of a sink."""
        is_at_rest = machine.under_way is None and not machine.calls
        if self._has_yielded or not is_at_rest or not machine.outbounds.is_settled:
            return
        self._has_yielded, at_rest = True, machine.rest()
        given = None
        if at_rest is not None:
            self._at_rest, given = at_rest.layer, at_rest.handed
        self._home.send(msg.Yielded(self.task, self._command.incarnation, self._yields, given))

    def _keep_at_rest(self, machine: TaskMachine) -> None:
        """It does not move after all: what it would have handed over is a layer like any other."""
        sealed, self._at_rest = self._at_rest, None
        if sealed is not None and machine.phase is not Phase.FENCED:
            self._not_counted.add(sealed.layer.epoch)
            self._store_layer(to_store(self._home.plan, sealed.layer, sealed.delta))

    def _steps(self, machine: TaskMachine, slice_s: float, steps_max: int) -> None:
        self.is_busy = False
        clock, world, network = self._ports.clock, machine.world, self._ports.network
        assert self._began_at is not None
        until = clock.ticks_s() + slice_s
        for _ in range(steps_max):
            if self._yields and not machine.calls.came:
                return
            work = machine.begin()
            if work is None:
                return
            error = None
            try:
                if not self._ports.track.run(self.number, work):
                    return
            except Exception as raised:  # noqa: BLE001 - it belongs to the step
                error = raised
            if self.is_over:  # other turns have passed meanwhile
                return
            self.ran(error)
            now = clock.ticks_s()
            self._busy_s += now - self._began_at
            self._began_at = now
            machine.inbounds.rows_max = rows_of_a_step(machine.rows, self._busy_s)
            if machine.is_urgent or now >= self._flush_at:
                self._share(machine)
                network.flush()
                self._flush_at = now + FLUSH_S
            if machine.born_ms:
                self._latency_ms = max(self._latency_ms, world.clock_ms() - machine.born_ms)
            if machine.spec.is_source:
                self._offer_rows(machine)
            if now >= until:
                break
        self.is_busy = True

    def ran(self, error: Exception | None) -> None:
        """The work of the step under way is done; `error`: what it raised."""
        assert self.machine is not None
        step = self.machine.under_way
        self._has_called |= step is not None and step.has_called
        if error is not None:
            self._failed_step = step
        self._perform(self.machine.end(error))

    def _share(self, machine: TaskMachine) -> None:
        """Send logs that travel with no item to the house-keeper, once for many steps."""
        actions = machine.flush()
        if actions:
            self._perform(actions)

    def _offer_rows(self, machine: TaskMachine) -> None:
        source = self._source
        if source is None or self._yields:
            return
        ready = None
        if machine.phase is Phase.REPLAYING:
            if machine.intake.is_empty:  # else rows that are read again stay with the reader
                ready = source.taken()
        elif machine.wants_rows and self._home.has_room(self.spec):
            if not source.is_placed:
                # It cannot be read again: earlier rows are in the log, and it goes on after them.
                source.advance(machine.intake.taken, machine.intake.cut)
            ready = source.take()
        if ready is not None:
            self._perform(machine.handle(ready))

    def tick(self) -> None:
        """Do what is due by the clock."""
        machine, now = self.machine, self._ports.clock.ticks_s()
        if machine is None:
            return
        if self._tick_at is not None and now >= self._tick_at:
            self._perform(machine.handle(ev.Tick()))
            self._tick_at = None  # its effects will bring the next event
        if (timer := self._seal_timer) is not None:
            self._seal_in_time(machine, timer, now)
        if self._levels is not None:
            self._levels.look(now)
        grown = machine.book.nbytes - self._told_logs
        if now >= self._statistics_at or grown > self._home.log_growth:
            self._statistics_at = now + STATISTICS_S
            self.tell_statistics()

    def _seal_in_time(self, machine: TaskMachine, times: SealTimes, now: float) -> None:
        times.look(now, has_news=machine.seals.has_news)
        if now >= self._seal_at(machine, times, now):
            times.sealed(now, busy_s=self._busy_s)
            self.hear(msg.SealLayer())

    def _seal_at(self, machine: TaskMachine, times: SealTimes, now: float) -> float:
        return times.due_s(now, busy_s=self._busy_s, beyond_floor=machine.seals.beyond_floor)

    def tell_statistics(self) -> None:
        """Report the counters."""
        machine = self.machine
        if machine is None:
            return
        if machine.under_way is None:  # else the program is changing them
            self._counters = {
                **getattr(machine.program, "statistics", {}),
                **getattr(machine.program, "traffic", {}),
            }
            if machine.calls:
                self._counters["waiting_bytes"] = getattr(machine.program, "waiting_bytes", 0)
        kept, left = self._ports.memory()
        counters = {
            "position": machine.position,
            "rows": machine.rows,
            "entry_bytes": machine.entry_bytes,
            "epoch": machine.epoch,
            "replay_to": machine.replay_to,
            "queued": sum(len(i.queue) for i in machine.inputs.values()),
            "calls": len(machine.calls),
            "busy_ms": self._busy_ms(machine),
            "step_ms": self._step_ms(machine),
            "log_bytes": machine.book.nbytes,
            "memory_kept": kept,
            "memory_left": left,
            **machine.outbounds.statistics(),
            **self._counters,
            "latency_ms": self._latency_ms,
        }
        if self._source is not None:
            counters |= self._source.counters
        if self._writer is not None and (away_s := self._writer.away_s):
            counters["store_away_s"] = round(away_s)
        if waits_s := self._layer_waits_s():
            counters["layer_waits_s"] = waits_s
        counters["inflight_bytes"] += self._counters.get("waiting_bytes", 0)
        self._told_logs = counters["log_bytes"]
        self._latency_ms = 0
        away = dict(self._ports.calls.away(self.number))
        self._home.send(TaskStatistics(self.task, machine.world.clock_ms(), counters, away))

    def _layer_waits_s(self) -> int:
        """How long its oldest layer has been waiting to be stored."""
        if not self._storing:
            return 0
        return int(self._ports.clock.ticks_s() - min(self._storing.values()))

    def _busy_ms(self, machine: TaskMachine) -> int:
        """How long it has been busy; -1: unknown, because it calls services in the middle of
        steps."""
        step = machine.under_way
        if self._has_called or (step is not None and step.has_called):
            return -1
        return int(self._busy_s * 1000) + self._step_ms(machine)

    def _step_ms(self, machine: TaskMachine) -> int:
        """How long of that it has been in the step under way, whose rows are not counted yet."""
        if machine.under_way is None or self._began_at is None:
            return 0
        return int((self._ports.clock.ticks_s() - self._began_at) * 1000)

    def wait_s(self) -> float:
        """How long it may sleep if nothing comes (it is not busy)."""
        machine = self.machine
        if machine is None:
            return IDLE_S
        until, now = IDLE_S, self._ports.clock.ticks_s()
        if self._tick_at is not None:
            until = min(until, self._tick_at - now)
        if (timer := self._seal_timer) is not None:
            until = min(until, self._seal_at(machine, timer, now) - now)
        if (wait_ms := machine.wait_ms) is not None:
            until = min(until, wait_ms / 1000)
        if self._levels is not None and (due_s := self._levels.due_s()) is not None:
            until = min(until, due_s - now)
        return until

    # --- what the automaton asks for ------------------------------------------------------------

    def _dial(self, action: ev.Dial) -> None:
        self._home.links.dial(action, self._command.incarnation)

    def _tell(self, action: ev.Tell) -> None:
        if type(action.report) is msg.Finished:
            self.tell_statistics()  # what it has counted is part of the job's result
        self._home.send(action.report)

    def _announce(self, report: msg.Report) -> None:
        """Send a report at once, in the middle of a step that the process may not survive."""
        self._home.send(report)
        self._ports.network.flush()

    def _need_rows(self, action: ev.NeedRows) -> None:
        assert self._source is not None
        self._source.ask(action.cuts)

    def _make_calls(self, action: ev.MakeCalls) -> None:
        assert self.machine is not None
        self._home.calls.make(self.number, self.machine, action.calls)

    def _store_layer(self, action: ev.StoreLayer) -> None:
        epoch = action.layer.epoch
        if self._seal_times is not None and epoch not in self._not_counted:
            self._saves_s[epoch] = self._seal_times.saves_s
            if len(self._saves_s) > LAYERS_MAX:
                del self._saves_s[min(self._saves_s)]
        if self._levels is None:
            self._storing[epoch] = self._ports.clock.ticks_s()
            self._ports.store.put(self.number, action, self.spec.level)
        else:
            self._levels.put(action, self._ports.clock.ticks_s())

    def _keep(self, action: ev.StoreLayer, level: str) -> None:
        self._ports.store.put(self.number, action, level)

    def _tell_level(self, level: str, why: str) -> None:
        self._home.send(LevelInUse(self.task, self._command.incarnation, level, why))

    def stored(self, ref: LayerRef, cpu_s: float) -> bool:
        """A layer is kept now, which took `cpu_s`. Return whether it was not kept at another level
        before."""
        now = self._ports.clock.ticks_s()
        since = self._storing.pop(ref.epoch, now)
        if self._seal_times is not None and ref.epoch in self._saves_s:
            self._seal_times.stored(self._saves_s[ref.epoch], cpu_s, now - since)
        return self._levels is None or self._levels.stored(ref, now)

    def merges(self, command: MergeLayers, *, is_over: bool = False) -> None:
        """Layers of the task are being merged here, or were: how long that takes shows how fast the
        store is."""
        if self._levels is not None:
            self._levels.merges(command, self._ports.clock.ticks_s(), is_over=is_over)

    def _release(self, action: ev.Release) -> None:
        if self._writer is None:
            raise OperatorError("this sink has no writer", remedy="report this as a bug")
        self._writer.write(self.number, action)
