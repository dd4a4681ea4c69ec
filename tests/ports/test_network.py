"""What a node may rely on when it connects: the same of sockets and of the simulated network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa
import pytest

from clonos.core.messages import Credit, Data, Hello, Item, Kind
from clonos.core.plan import Incarnation
from clonos.errors import PeerUnreachable
from clonos.nodes.ports import Network
from clonos.simulator.processes.slot import Slot
from clonos.transport.events import ChannelClosed, ChannelOpened
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import JobSecret

from .common import Simulated, wait

CHANNEL, NEAR, FAR = 0, Incarnation(1, 2), Incarnation(1, 3)


class Process(Protocol):
    """A process, as its node sees it."""

    heard: list[Any]

    @property
    def network(self) -> Network: ...
    def dies(self) -> None: ...


class World(Protocol):
    """Where processes live."""

    def process(self) -> Process: ...
    def until(self, condition: Callable[[], object]) -> None: ...


class RealProcess:
    secret = JobSecret.new()

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.network = Plane("127.0.0.1", self.secret, "job", Inbox())
        self.network.pin(CHANNEL, pa.schema({"n": pa.int64()}))
        self.is_dead = False

    def dies(self) -> None:
        self.is_dead = True
        for stream in list(self.network._streams):
            stream.end(None)
        self.network.shutdown(0.0)


class Sockets:
    def __init__(self) -> None:
        self.made: list[RealProcess] = []

    def process(self) -> RealProcess:
        self.made.append(RealProcess())
        return self.made[-1]

    def until(self, condition: Callable[[], object]) -> None:
        wait(condition, self._listen)

    def _listen(self) -> None:
        for process in self.made:
            if not process.is_dead:
                process.heard += process.network.poll(0.005)

    def close(self) -> None:
        for process in self.made:
            with suppress(OSError):
                process.network.shutdown(0.0)


class SimulatedProcess(Slot):
    """A simulated process that only listens."""

    heard: list[Any]

    def post(self, heard: Any) -> None:
        self.__dict__.setdefault("heard", []).append(heard)

    @property
    def network(self) -> Network:
        return self.node._ports.network

    def dies(self) -> None:
        self.alive = False
        self.cluster.network.host_died(self)


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.made = 0

    def process(self) -> SimulatedProcess:
        self.made += 1
        name, executor = f"process {self.made}", f"executor{self.made}"
        made = SimulatedProcess(self.cluster, self.made, name, executor, self.cluster.driver.layers)
        made.heard = []
        self.cluster.network.hosts[name] = made
        return made


@pytest.fixture(params=["sockets", *range(5)])
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = Sockets() if request.param == "sockets" else InSimulation(request.param)
    yield made
    made.close()


def item(seq: int) -> Data:
    return Data(CHANNEL, NEAR, Item(seq, Kind.WATERMARK, 0, seq, None, {}, seq), ())


def events(process: Process, kind: type) -> list[Any]:
    return [thing for thing in process.heard if type(thing) is kind]


def said(process: Process, conn: int) -> list[Any]:
    return [thing[1] for thing in process.heard if type(thing) is tuple and thing[0] == conn]


def connected(world: World) -> tuple[Process, Any, Process, Any]:
    """Two processes and the two ends between them; a dial may fail for no reason."""
    near, far = world.process(), world.process()
    while True:
        outgoing = near.network.connect(far.network.address, CHANNEL, NEAR, FAR)
        world.until(lambda: events(far, ChannelOpened) or events(near, ChannelClosed))
        if opened := events(far, ChannelOpened):
            break
        near.heard.clear()
    (event,) = opened
    assert (event.channel, event.sender_incarnation, event.receiver_incarnation) == (
        CHANNEL, NEAR, FAR,
    )  # fmt: skip
    incoming = event.incoming
    assert incoming.conn_id == event.conn_id
    incoming.send(Hello(CHANNEL, FAR, 1, 0, {}))
    world.until(lambda: said(near, outgoing.conn_id))
    assert said(near, outgoing.conn_id) == [Hello(CHANNEL, FAR, 1, 0, {})]
    return near, outgoing, far, incoming


def test_what_is_sent_comes_in_its_order(world):
    near, outgoing, far, incoming = connected(world)
    for seq in range(1, 51):
        outgoing.send(item(seq))
        incoming.send(Credit(CHANNEL, seq))
    world.until(lambda: len(said(far, incoming.conn_id)) == 50)
    world.until(lambda: len(said(near, outgoing.conn_id)) == 51)
    assert [data.item.seq for data in said(far, incoming.conn_id)] == list(range(1, 51))
    assert [credit.processed for credit in said(near, outgoing.conn_id)[1:]] == list(range(1, 51))


def test_what_was_sent_before_the_end_comes_before_the_end(world):
    near, outgoing, far, incoming = connected(world)
    for seq in range(1, 11):
        outgoing.send(item(seq))
    outgoing.close()
    world.until(lambda: events(far, ChannelClosed))
    assert [data.item.seq for data in said(far, incoming.conn_id)] == list(range(1, 11))
    (closed,) = events(far, ChannelClosed)
    assert (closed.channel, closed.conn_id, closed.side) == (CHANNEL, incoming.conn_id, "receiver")
    assert far.heard[-1] is closed
    incoming.send(Credit(CHANNEL, 1))  # to nobody
    assert len(said(near, outgoing.conn_id)) == 1


def test_who_is_refused_is_told(world):
    near, outgoing, far, incoming = connected(world)
    incoming.close()
    outgoing.send(item(1))
    world.until(lambda: events(near, ChannelClosed))
    (closed,) = events(near, ChannelClosed)
    assert (closed.channel, closed.conn_id, closed.side) == (CHANNEL, outgoing.conn_id, "sender")
    assert isinstance(closed.error, PeerUnreachable)
    outgoing.send(item(2))
    outgoing.close()
    assert not said(far, incoming.conn_id)


def test_nobody_is_there(world):
    near, far = world.process(), world.process()
    address = far.network.address
    far.dies()
    outgoing = near.network.connect(address, CHANNEL, NEAR, FAR)
    assert not near.heard, "never before the call has returned"
    world.until(lambda: events(near, ChannelClosed))
    (closed,) = events(near, ChannelClosed)
    assert (closed.conn_id, closed.side) == (outgoing.conn_id, "sender")
    assert isinstance(closed.error, PeerUnreachable)


@pytest.mark.parametrize("who", ["near", "far"])
def test_a_process_dies(world, who):
    near, outgoing, far, incoming = connected(world)
    victim, other, end = (near, far, incoming) if who == "near" else (far, near, outgoing)
    victim.dies()
    world.until(lambda: events(other, ChannelClosed))
    (closed,) = events(other, ChannelClosed)
    assert closed.conn_id == end.conn_id


def test_no_two_connections_have_one_number(world):
    near, far = world.process(), world.process()
    numbers = {
        near.network.connect(far.network.address, CHANNEL, NEAR, FAR).conn_id for _ in range(20)
    }
    assert len(numbers) == 20
