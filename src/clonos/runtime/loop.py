"""The loop of a slot: one thread that takes what happened and lets the automaton go on.

It sleeps on its streams. The source's reader and the layer store have threads of their own that
only put things into the inbox. Whatever changes the task happens here, one thing at a time.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.connections import Phase
from clonos.core.layer import encode_layer, layer_path
from clonos.core.messages import LayerRef
from clonos.core.task import TaskMachine
from clonos.errors import ClonosError, MalformedMessage, OperatorError
from clonos.runtime.feeder import Feeder
from clonos.runtime.links import Links
from clonos.runtime.shipment import OutputWriter, Shipment
from clonos.runtime.standby import Standbys
from clonos.runtime.world import RealWorld
from clonos.storage.layers import LayerStore
from clonos.transport.errors import AuthenticationFailed, CannotConnect, SchemaMismatch
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    ControlLost,
    Register,
    TaskStatistics,
)
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane

STEPS_PER_TURN: Final = 32
"""After so many steps the loop looks into its inbox again, however much there is to do."""
TURN_S: Final = 0.01
"""The same in time: a fence waits for one long step, not for many."""
STATISTICS_S: Final = 0.25
"""How often a running task tells how it is doing."""
SWITCH_S: Final = 0.0005
"""Interpreter switch interval in a slot: bounds what a long step adds to a stream's latency."""
FLUSH_S: Final = 0.002
"""What steps send is written after so long at the latest, while there are more steps to do."""
IDLE_S: Final = 0.25
"""The longest wait for something to happen."""
_NOBODY_ELSE_KNOWS: Final = (CannotConnect, AuthenticationFailed)
"""Why the driver never heard of us: Spark's job has to tell it."""


class SlotLoop:
    """One slot, from registration to the end of the job.

    Parameters
    ----------
    shipment
        The job.
    slot
        Which one.
    host
        Address of the interface to listen on.
    batches
        Rows of the DataFrame partition that Spark reads for this slot, if it is such a slot.
    """

    def __init__(self, shipment: Shipment, slot: int, host: str, batches: Any = None) -> None:
        self._shipment = shipment
        self._batches = batches
        self._inbox = Inbox()
        self._came: deque[Any] = deque()
        self._plane = Plane(
            host,
            shipment.secret,
            shipment.job_id,
            self._inbox,
            identity=shipment.identities.get(slot),
            allow_plaintext=shipment.allow_plaintext,
        )
        for channel, schema in shipment.schemas.items():
            self._plane.pin(channel, schema)
        self._store = LayerStore(shipment.layers_uri, shipment.layers_durability)  # type: ignore[arg-type]
        self._standbys = Standbys(self._store, lambda task: shipment.programs[task]())
        self._links = Links(self._plane, shipment.schemas, shipment.unreachable_s)
        self._world = RealWorld()
        self._machine: TaskMachine | None = None
        self._life = 0  # of the machine in this slot: what background work was for another is void
        self._feeder: Feeder | None = None
        self._warm: dict[int, Feeder] = {}  # of the source tasks whose standbys are here
        self._writer: OutputWriter | None = None
        # One thread each: files of output, in their order, do not wait for a large layer.
        self._storing = ThreadPoolExecutor(1, thread_name_prefix="clonos-store")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="clonos-write")
        self._stopped = False
        self._lost: ClonosError | None = None
        self._latency_ms = 0
        self._busy = False
        self._next_tick = 0.0
        self._next_flush = 0.0
        self._next_statistics = 0.0
        self._actions: dict[type[Any], Callable[[Any], None]] = {
            ev.Dial: self._dial,
            ev.Hang: self._links.hang,
            ev.Send: self._links.send,
            ev.Reply: self._links.reply,
            ev.Refuse: self._links.refuse,
            ev.Tell: lambda action: self._control.send(action.report),
            ev.StoreLayer: self._store_layer,
            ev.Release: self._release,
            ev.NeedRows: self._need_rows,
        }

    @property
    def address(self) -> str:
        """Of this slot's plane."""
        return self._plane.address

    # --- the loop ---------------------------------------------------------------------------

    def run(self, register: Register) -> None:
        """Serve the job until it stops or the coordinator is gone."""
        # A thread that waits for the interpreter while another computes gets it sooner.
        sys.setswitchinterval(SWITCH_S)
        self._control = self._plane.control(self._shipment.coordinator, register, self._progress)
        try:
            while not self._stopped:
                self._guard(self._turn)
        finally:
            self._close_feeder(self._feeder)
            self._cool()
            for pool in (self._storing, self._writing):
                pool.shutdown(wait=False, cancel_futures=True)
            self._plane.shutdown()
        if self._lost is not None:
            raise self._lost  # the driver cannot be told otherwise than by Spark

    def _guard(self, do: Callable[..., None], *args: Any) -> None:
        """Whatever goes wrong in a task is reported with its place; the slot itself stays."""
        try:
            do(*args)
        except Exception as error:  # noqa: BLE001 - reported, and the job ends with it
            self._report(*_describe(error))

    def _report(self, kind: str, message: str) -> None:
        machine, self._machine = self._machine, None
        if machine is None:
            return
        self._control.send(
            msg.TaskError(machine.id, machine.incarnation, kind, message, machine.position)
        )

    def _turn(self) -> None:
        self._came += self._plane.poll(self._patience_s())
        while self._came:  # what goes wrong with one of them must not take the others along
            self._handle(self._came.popleft())
        machine = self._machine
        if machine is not None:
            self._offer_rows(machine)
            self._steps(machine)
        self._tick()

    def _patience_s(self) -> float:
        machine = self._machine
        if machine is None:
            return IDLE_S
        if self._busy:
            return 0.0
        until = self._next_tick - time.monotonic()
        if machine.wake_ms is not None and machine.phase is Phase.LIVE and not machine.ended:
            until = min(until, (machine.wake_ms - self._world.clock_ms()) / 1000)
        return max(until, 0.0005)

    def _steps(self, machine: TaskMachine) -> None:
        self._busy = False
        until = time.monotonic() + TURN_S
        for _ in range(STEPS_PER_TURN):
            actions = machine.step(self._world.clock_ms())
            if actions is None:
                return
            self._perform(actions)
            now = time.monotonic()
            if now >= self._next_flush:
                self._plane.flush()
                self._next_flush = now + FLUSH_S
            if machine.born_ms:
                self._latency_ms = max(self._latency_ms, self._world.clock_ms() - machine.born_ms)
            if machine.spec.is_source:
                self._offer_rows(machine)
            if now >= until:
                break
        self._busy = True

    def _offer_rows(self, machine: TaskMachine) -> None:
        feeder = self._feeder
        if feeder is None:
            return
        if machine.phase is Phase.REPLAYING:
            while (again := feeder.taken()) is not None:
                self._perform(machine.handle(again))
            return
        if machine.wants_rows:
            if not feeder.is_placed:
                # It cannot replay: what it gave before is in the log, it goes on behind that.
                feeder.advance(machine.source_rows)
            ready = feeder.take()
        else:
            return
        if ready is not None:
            self._perform(machine.handle(ready))

    def _tick(self) -> None:
        now = time.monotonic()
        if self._machine is not None and now >= self._next_tick:
            self._next_tick = now + self._shipment.share_ms / 1000
            self._perform(self._machine.handle(ev.Tick()))
        if self._machine is not None and now >= self._next_statistics:
            self._next_statistics = now + STATISTICS_S
            self._control.send(self._statistics(self._machine))

    def _statistics(self, machine: TaskMachine) -> TaskStatistics:
        counters = {
            **machine.statistics(),
            **getattr(machine.program, "statistics", {}),
            **getattr(machine.program, "traffic", {}),
            "latency_ms": self._latency_ms,
        }
        self._latency_ms = 0
        return TaskStatistics(machine.id, self._world.clock_ms(), counters)

    def _progress(self) -> tuple[int, int | None]:
        machine = self._machine
        return (machine.position if machine else 0), self._world.in_call_since_ms

    # --- what comes in ------------------------------------------------------------------------

    def _handle(self, thing: Any) -> None:
        if isinstance(thing, tuple):
            conn, message = thing
            if conn == self._control.conn_id:
                self._command(message)
            else:
                self._feed(self._links.heard(conn, message))
        elif isinstance(thing, ChannelOpened):
            self._feed(self._links.opened(thing, self._machine))
        elif isinstance(thing, ChannelClosed):
            self._feed(self._links.closed(thing))
            if isinstance(thing.error, (MalformedMessage, SchemaMismatch)):
                raise thing.error  # it would be sent again, and again be refused
        elif isinstance(thing, ControlLost):
            self._stopped = True  # without a coordinator we may be fenced already
            self._lost = thing.error if isinstance(thing.error, _NOBODY_ELSE_KNOWS) else None
        elif callable(thing):
            thing()

    def _feed(self, event: ev.Event | msg.Command | None) -> None:
        if event is not None and self._machine is not None:
            self._perform(self._machine.handle(event))

    def _perform(self, actions: list[ev.Action]) -> None:
        for action in actions:
            self._actions[type(action)](action)

    def _command(self, command: msg.Command) -> None:
        match command:
            case msg.Activate():
                self._activate_or_tell(command)
            case msg.Follow():
                self._feed_or_drop(command)
            case msg.Drop():
                self._standbys.drop(command.task)
                if self._batches is None:  # rows that Spark brings can be read only once
                    self._close_feeder(self._warm.pop(command.task, None))
            case msg.Stop():
                if self._machine is not None:
                    self._control.send(self._statistics(self._machine))
                self._stopped = True
            case _:
                self._feed(command)

    def _activate_or_tell(self, command: msg.Activate) -> None:
        try:
            self._activate(command)
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator waits for us
            self._machine = None
            name, told = _describe(error)
            self._control.send(
                msg.TaskError(command.task, command.incarnation, name, told, position=0)
            )

    def _feed_or_drop(self, command: msg.Follow) -> None:
        try:
            self._feed_standby(command)
        except Exception:  # noqa: BLE001 - a standby that cannot follow is none; it starts over
            self._standbys.drop(command.task)
            self._control.send(msg.Followed(command.task, -1))

    def _activate(self, command: msg.Activate) -> None:
        """Become a task, or another life of it."""
        self._retire()
        shipment = self._shipment
        standby = self._standbys.promote(command.task)
        missing = list(standby.missing(self._store, command.layers))
        machine = TaskMachine(
            shipment.plan, command, standby.program, missing, self._world, floor=standby.floor
        )
        if command.task in shipment.writers:
            self._writer = shipment.writers[command.task]()
        if machine.spec.is_source and not machine.source_ended:
            self._feeder = self._warm.pop(command.task, None) or self._new_feeder(command.task)
            if not machine.spec.is_gated:
                self._feeder.advance(machine.source_rows)
        self._cool()
        self._machine = machine
        self._perform(machine.start())
        for opened in self._links.waiting():
            self._feed(self._links.opened(opened, machine))

    def _new_feeder(self, task: int) -> Feeder:
        shipment = self._shipment
        return Feeder(
            shipment.readers[task](self._batches),
            lambda: self._inbox.put(_nothing),
            batch_rows_max=shipment.batch_rows_max,
            linger_s=shipment.linger_ms / 1000,
            rows_per_s=shipment.rates.get(task, 0.0),
            digests=shipment.plan.causal_log,
        )

    def _feed_standby(self, command: msg.Follow) -> None:
        """Follow a task's floor; a standby of a source has it open and in place, too."""
        standby = self._standbys.feed(command.task, command.layers)
        spec = self._shipment.plan.tasks[command.task]
        if spec.is_source and not spec.is_gated:
            if command.task not in self._warm:
                self._warm[command.task] = self._new_feeder(command.task)
            self._warm[command.task].advance(standby.floor.source_rows if standby.floor else 0)
        self._control.send(msg.Followed(command.task, standby.epoch))

    def _cool(self) -> None:
        for feeder in self._warm.values():
            feeder.close()
        self._warm.clear()

    def _retire(self) -> None:
        self._life += 1
        self._machine = None
        self._writer = None
        self._links.reset()
        self._close_feeder(self._feeder)
        self._feeder = None

    @staticmethod
    def _close_feeder(feeder: Feeder | None) -> None:
        if feeder is not None:
            feeder.close()

    # --- what the automaton asks for --------------------------------------------------------------

    def _dial(self, action: ev.Dial) -> None:
        assert self._machine is not None
        self._links.dial(action, self._machine.incarnation)

    def _need_rows(self, action: ev.NeedRows) -> None:
        assert self._feeder is not None
        self._feeder.ask(action.cuts)

    def _in_background(self, pool: ThreadPoolExecutor, work: Callable[[], ev.Event]) -> None:
        """Do slow work in another thread; its outcome comes back as an event of this life."""
        life = self._life

        def run() -> None:
            try:
                event = work()
            except Exception as error:  # noqa: BLE001 - raised again in the loop
                failure = error
                self._inbox.put(lambda: self._fail_if(life, failure))
                return
            self._inbox.put(lambda: self._feed(event) if self._life == life else None)

        pool.submit(run)

    def _fail_if(self, life: int, failure: Exception) -> None:
        if self._life == life:
            raise failure

    def _store_layer(self, action: ev.StoreLayer) -> None:
        self._in_background(self._storing, lambda: ev.LayerStored(self._put_layer(action)))

    def _put_layer(self, action: ev.StoreLayer) -> LayerRef:
        layer = replace(action.layer, delta=bytes(action.delta))
        path = layer_path(layer.task, layer.epoch, layer.incarnation)
        nbytes = self._store.put(path, encode_layer(layer))
        return LayerRef(layer.task, layer.epoch, layer.incarnation, layer.position, path, nbytes)

    def _release(self, action: ev.Release) -> None:
        writer, machine = self._writer, self._machine
        if writer is None or machine is None:
            raise OperatorError("this sink has no writer", remedy="report this as a bug")
        item, task = action.item, machine.spec.index

        def write() -> ev.Event:
            assert item.batch is not None
            writer.write(task, action.generation, item.seq, item.batch.payload)
            return ev.Written(action.channel, item.seq)

        self._in_background(self._writing, write)


def _nothing() -> None:
    """Wakes the loop."""


def _describe(error: Exception) -> tuple[str, str]:
    """Name and text of an error, with its place if it is none of ours."""
    if isinstance(error, ClonosError):
        return type(error).__name__, str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    return "InternalError", f"{type(error).__name__}: {error} ({where})"
