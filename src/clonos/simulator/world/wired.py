"""Channels as bytes: production's planes on simulated sockets.

Everything between a node's ``send`` and another node's event is production code: greetings, codec,
frames, Arrow's format, queues, and how a plane handles sockets that fill up, break or fall silent
(:mod:`clonos.simulator.world.sockets`). Each message that arrives is compared with the one that was
sent. The faults are the same as in the network of messages, which this replaces.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

import msgpack
import pyarrow as pa

from clonos.core import messages as msg
from clonos.core.levels import SHELF
from clonos.core.plan import Incarnation
from clonos.errors import CannotConnect
from clonos.simulator.checks.wire import arrives_as_sent, comes_from_the_job
from clonos.simulator.world.network import Host, Network, Stream
from clonos.simulator.world.sockets import SCALE, SimSocket, SimSockets, World
from clonos.transport.events import WIRE, ChannelClosed, ChannelOpened
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import JobSecret

if TYPE_CHECKING:
    from clonos.simulator.jobs.programs import AnyJob
    from clonos.simulator.world.virtual import Scheduler
    from clonos.transport.streams import Incoming, Outgoing

ROWS: Final = pa.schema([("row", pa.binary())])
"""The schema of toy jobs, whose rows are tuples."""
SECRET: Final = JobSecret(bytes(32))
JOB: Final = "simulation"
STRANGE_MS: Final = 15.0
"""The average time between strangers."""


class Silent(Inbox):
    """An inbox without other threads."""

    def __init__(self) -> None:
        self._things = deque()

    def may_sleep(self) -> bool:
        return False

    def awake(self) -> None:
        """It never sleeps."""

    def close(self) -> None:
        """Nothing is open."""


class Wire(Stream):
    """One end of a stream, as its process knows it: the plane's stream, and a number.

    Attributes
    ----------
    sent
        Encoded messages that this end has sent and the other has not received.
    other
        The other end, once both know of each other.
    """

    __slots__ = ("end", "home", "other", "sent")

    def __init__(
        self,
        home: Host,
        sender: Host,
        channel: int,
        incarnation: Incarnation,
        receiver_incarnation: Incarnation,
        conn: int,
        end: Outgoing | Incoming,
    ) -> None:
        super().__init__(sender, channel, incarnation, receiver_incarnation, conn)
        self.home, self.end = home, end
        self.sent: deque[bytes] = deque()
        self.other: Wire | None = None

    @property
    def stood(self) -> bool:
        return self.end.stood

    @property
    def socket(self) -> SimSocket:
        return cast("SimSocket", self.end.connection)


class Wired(Network):
    """All streams of the cluster, each between two planes.

    Attributes
    ----------
    told
        Messages that have arrived.
    """

    def __init__(self, scheduler: Scheduler, random: Random, job: AnyJob) -> None:
        super().__init__(scheduler, random)
        self.world = World(scheduler, Random(random.random()), self)
        self._strangers = Random(random.random())
        self._schemas = _schemas(job)
        self._is_toy = not hasattr(job, "compiled")
        self._planes: dict[Host, Plane] = {}
        self._ends: dict[Host, dict[int, Wire]] = {}
        self._by_socket: dict[SimSocket, Wire] = {}
        self.told = 0
        scheduler.after(STRANGE_MS, self._strange)

    # --- processes ------------------------------------------------------------------------------

    def joins(self, host: Host) -> None:
        plane = self._planes[host] = Plane(
            "127.0.0.1", SECRET, JOB, Silent(), sockets=SimSockets(self.world, host)
        )
        for channel, schema in self._schemas.items():
            plane.pin(channel, schema)
        self._ends[host] = {}

    def poll(self, host: Host) -> None:
        """The loop of a process polls its plane."""
        for thing in self._planes[host].poll(0.0):
            self._heard(host, thing)

    def flush(self, host: Host) -> None:
        """... and flushes it."""
        if (plane := self._planes.get(host)) is not None:
            plane.flush()

    def listened_s(self, host: Host) -> float:
        return self._planes[host].listened_s / SCALE

    def rouse(self, machine: Any) -> None:
        if machine.alive:
            machine.rouse()

    def host_died(self, host: Host, *, is_silent: bool = False) -> None:
        self.world.ends(host, silently=is_silent)
        self._planes.pop(host, None)
        for wire in self._ends.pop(host, {}).values():
            wire.sender_open = wire.receiver_open = False
            self.streams.discard(wire)

    def carried(self, message: Any) -> Any:
        """A message of a control stream, encoded and decoded."""
        return WIRE.decode(WIRE.encode(message))

    # --- incoming events ------------------------------------------------------------------------

    def _heard(self, host: Host, thing: Any) -> None:
        if isinstance(thing, ChannelOpened):
            self._opened(host, thing)
        elif isinstance(thing, ChannelClosed):
            self._closed(host, thing)
        else:
            conn, message = thing
            wire = self._ends[host][conn]
            self._compare(wire, message)
            if host is wire.sender:
                host.answered(wire, message)
            else:
                host.received(wire, self._with_rows(message))

    def _opened(self, host: Host, event: ChannelOpened) -> None:
        end: Any = event.incoming
        comes_from_the_job(end.connection.is_stranger)
        self.world.overheard.append(end.connection.into.sender.first)
        far = self._by_socket.get(end.connection.into.sender)
        sender = end.connection.into.sender.machine
        self._conns += 1
        wire = Wire(
            host, sender, event.channel, event.sender_incarnation, event.receiver_incarnation,
            self._conns, end,
        )  # fmt: skip
        wire.receiver, wire.receiver_open = host, True
        self._ends[host][end.conn_id] = wire
        if far is not None:
            wire.other, far.other = far, wire
            far.receiver, far.receiver_open = host, True
        host.opened(wire)

    def _closed(self, host: Host, event: ChannelClosed) -> None:
        wire = self._ends[host].pop(event.conn_id, None)
        if wire is None:
            return
        self._forget(wire)
        if event.side == "receiver":
            if wire.receiver_open:
                wire.receiver_open = False
                host.input_closed(wire)
        elif wire.sender_open:
            wire.sender_open = False
            wire.is_silent = isinstance(event.error, CannotConnect)
            host.output_closed(wire)

    def _forget(self, wire: Wire) -> None:
        self.streams.discard(wire)
        self._by_socket.pop(wire.socket, None)
        if wire.other is not None and wire.home is wire.receiver:
            wire.other.receiver_open = False

    def _compare(self, wire: Wire, message: Any) -> None:
        """Check that this is the next message that the other end has sent, bit by bit."""
        self.told += 1
        if wire.other is not None:
            sent = wire.other.sent.popleft() if wire.other.sent else None
            arrives_as_sent(sent, _fingerprint(message))

    # --- the sender's end -----------------------------------------------------------------------

    def dial(
        self,
        sender: Host,
        channel: int,
        incarnation: Incarnation,
        receiver_incarnation: Incarnation,
        address: str,
    ) -> Stream:
        end = self._planes[sender].connect(
            self._on_the_wire(address), channel, incarnation, receiver_incarnation
        )
        self._conns += 1
        wire = Wire(sender, sender, channel, incarnation, receiver_incarnation, self._conns, end)
        self._ends[sender][end.conn_id] = wire
        self._by_socket[wire.socket] = wire
        self.streams.add(wire)
        return wire

    def _on_the_wire(self, address: str) -> str:
        host = self.hosts.get(address)
        if host is not None and host in self._planes:
            return self._planes[host].address
        return "tcp://{}:{}/gone".format(*self.world.name(address))

    def send(self, stream: Any, data: msg.Data | msg.Welcome) -> None:
        if stream.sender_open:
            self._say(stream, self._with_payload(data))

    def hang(self, stream: Any) -> None:
        self._hang_up(stream)
        stream.sender_open = False

    # --- the receiver's end ---------------------------------------------------------------------

    def reply(self, stream: Any, message: msg.ChannelMessage) -> None:
        if stream.receiver_open:
            self._say(stream, message)

    def refuse(self, stream: Any) -> None:
        stream.receiver_open = False
        self._hang_up(stream)

    def _say(self, wire: Wire, message: Any) -> None:
        wire.sent.append(_fingerprint(message))
        wire.end.send(message)

    def _hang_up(self, wire: Wire) -> None:
        self._forget(wire)
        if wire.home.alive:
            wire.end.close()

    # --- rows -----------------------------------------------------------------------------------

    def _with_payload(self, data: Any) -> Any:
        """Convert rows of toy jobs to Arrow for the wire."""
        return self._converted(data, _to_arrow)

    def _with_rows(self, data: Any) -> Any:
        return self._converted(data, _to_tuples)

    def _converted(self, data: Any, convert: Callable[[Any], Any]) -> Any:
        item = data.item if isinstance(data, msg.Data) else None
        if not self._is_toy or item is None or item.batch is None:
            return data
        batch = item.batch._replace(payload=convert(item.batch.payload))
        return replace(data, item=replace(item, batch=batch))

    # --- paths ----------------------------------------------------------------------------------

    def delay_between(self, one: Any, other: Any) -> float:
        return self.delay(one, other)

    def opens_at(self, one: Any, other: Any) -> float:
        return self.parted.get((one.group, other.group), 0.0)

    def is_refused(self, one: Any, other: Any) -> bool:
        return not self.reaches(one, other)

    # --- faults ---------------------------------------------------------------------------------

    def lose(self, stream: Any) -> None:
        out, into = stream.socket.out, stream.socket.into
        if out is None or into is None:
            stream.socket.broken(errno.ECONNRESET)
            return
        out.reset()
        into.reset()

    def give_up(self, stream: Stream) -> None:
        wire: Any = stream
        out = wire.socket.out
        wire.socket.broken(errno.ECONNRESET)
        if out is not None:
            self.scheduler.after(30.0, out.reset)

    def delay_stream(self, stream: Any, ms: float) -> None:
        if (out := stream.socket.out) is not None:
            out.not_before = max(out.not_before, self.scheduler.now + ms)

    def part(self, one: Host, other: Host, lasts: float, *, one_way: bool = False) -> None:
        until = self.scheduler.now + lasts
        self.parted[one.group, other.group] = until
        if not one_way:
            self.parted[other.group, one.group] = until

    def _of(self, host: Host) -> list[Stream]:
        found = [s for s in self.streams if host in (s.sender, s.receiver)]
        return sorted(found, key=lambda s: s.conn)

    # --- strangers ------------------------------------------------------------------------------

    def _strange(self) -> None:
        """A stranger without the job's secret connects to some process and sends something."""
        random = self._strangers
        self.scheduler.after(2 * STRANGE_MS * random.random(), self._strange)
        hosts = [host for host in self._planes if host.alive]
        if not hosts:
            return
        target = random.choice(hosts)
        listener = self.world.listeners.get(self.world.name_of(target))
        if listener is not None:
            Stranger(self.world, random, target).comes()


class Stranger:
    """A process outside the job that reaches a port: it repeats overheard bytes, or sends any."""

    alive = True
    slowness = 0.0
    group = "elsewhere"

    def __init__(self, world: World, random: Random, target: Host) -> None:
        self.address = f"stranger {next(world.numbers)}"
        self._world, self._random, self._target = world, random, target
        self._socket = SimSocket(world, self)
        self._socket.is_stranger = True

    def comes(self) -> None:
        self._socket.dial(*self._world.name_of(self._target))

    def rouse(self) -> None:
        """Its connection has changed: once connected, it sends; it reads nothing."""
        out = self._socket.out
        if out is None or self._socket.error or self._socket.is_closed:
            return
        for content in self._words():
            if (size := min(len(content), out.room)) > 0:
                out.send(content[:size])
        if self._random.random() < 0.5:
            self._socket.close()

    def _words(self) -> Iterator[bytes]:
        random = self._random
        if self._world.overheard and random.random() < 0.6:
            yield random.choice(self._world.overheard)
        yield random.randbytes(random.choice((1, 8, 300, 5000)))


def _schemas(job: AnyJob) -> dict[int, pa.Schema]:
    compiled = getattr(job, "compiled", None)
    known = compiled.schemas if compiled is not None else {}
    of_plan = {channel.id: known.get(channel.id, ROWS) for channel in job.plan.channels}
    return {**of_plan, SHELF: pa.schema([])}


def _fingerprint(message: Any) -> bytes:
    """The bytes of a whole message, rows included."""
    encoded: bytes = WIRE.encode(message)
    item = message.item if isinstance(message, msg.Data) else None
    if item is None or item.batch is None:
        return encoded
    rows: bytes = item.batch.payload.serialize().to_pybytes()
    return encoded + rows


def _to_arrow(rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.record_batch({"row": [msgpack.packb(row) for row in rows]}, schema=ROWS)


def _to_tuples(batch: pa.RecordBatch) -> tuple[Any, ...]:
    return tuple(_tuples(msgpack.unpackb(row)) for row in batch.column(0).to_pylist())


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
