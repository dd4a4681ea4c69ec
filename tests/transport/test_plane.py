"""Streams between planes, in one process and (where something is killed) in two."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from clonos.core.messages import Credit, Data, Hello, Item, Kind, Live, Stop
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.errors import MalformedMessage
from clonos.transport import (
    AuthenticationFailed,
    ChannelClosed,
    ChannelOpened,
    ControlLost,
    ControlOpened,
    FlightPlane,
    Heartbeat,
    Incoming,
    JobSecret,
    Outgoing,
    PeerUnreachable,
    PlaintextRefused,
    Register,
    SchemaMismatch,
)
from clonos.transport.secret import Greeting, Purpose
from clonos.transport.streams import read_frame

LOOPBACK = "127.0.0.1"
WAIT_S = 10.0
A, B = Incarnation(1, 1), Incarnation(1, 2)
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.dictionary(pa.int32(), pa.string()))])
SECRET = JobSecret.new()
CHANNEL = 5


class Node:
    """A plane with its inbox."""

    def __init__(self, secret: JobSecret = SECRET, job: str = "job") -> None:
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.plane = FlightPlane(LOOPBACK, secret, job, self.inbox)
        self.plane.pin(CHANNEL, SCHEMA)

    def connect(self, peer: Node, channel: int = CHANNEL, schema: Any = SCHEMA) -> Outgoing:
        return self.plane.connect(peer.plane.address, channel, A, B, schema)

    def take(self, kind: type, count: int = 1) -> list[Any]:
        """The next `count` events or messages, all of this kind."""
        found = []
        for _ in range(count):
            entry = self.inbox.get(timeout=WAIT_S)
            found.append(entry[1] if isinstance(entry, tuple) else entry)
        assert [type(entry) for entry in found] == [kind] * count
        return found

    def next(self, kind: type) -> Any:
        return self.take(kind)[0]


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(*args: Any) -> Node:
        nodes.append(Node(*args))
        return nodes[-1]

    yield make
    for made in nodes:
        assert made.plane.shutdown()


def batch_of(values: list[int], words: list[str], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = [pa.array(values, pa.int64()), pa.array(words).dictionary_encode()]
    return pa.record_batch(columns, schema=schema)


def data(seq: int, payload: pa.RecordBatch | None = None) -> Data:
    if payload is None:
        return Data(CHANNEL, A, Item(seq, Kind.WATERMARK, 0, seq, None, {}, seq), ())
    batch = Batch(payload, payload.num_rows, payload.nbytes, seq)
    return Data(CHANNEL, A, Item(seq, Kind.BATCH, 0, 0, batch, {}, seq), ())


def opened(sender: Node, receiver: Node) -> tuple[Outgoing, Incoming]:
    outgoing = sender.connect(receiver)
    event = receiver.next(ChannelOpened)
    assert (event.channel, event.sender_incarnation, event.receiver_incarnation) == (CHANNEL, A, B)
    return outgoing, event.incoming


def test_a_conversation(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, incoming = opened(sender, receiver)
    incoming.reply(Hello(CHANNEL, B, 1, 0, {}))
    assert sender.next(Hello) == Hello(CHANNEL, B, 1, 0, {})
    empty = batch_of([], [])
    whole = batch_of([1, 2, 3], ["a", "b", "a"])
    other_words = batch_of([4], ["z"])
    said = [data(1, whole), data(2), data(3), data(4, empty), data(5, other_words)]
    said += [Data(CHANNEL, A, None, ()), data(6, whole.slice(1, 1)), data(7)]
    for message in said:
        outgoing.send(message)
    assert receiver.take(Data, len(said)) == said
    incoming.reply(Credit(CHANNEL, 7))
    assert sender.next(Credit) == Credit(CHANNEL, 7)
    while outgoing.unsent_items or outgoing.unsent_bytes:
        time.sleep(0.001)  # the answer may overtake the count
    outgoing.close()
    assert sender.next(ChannelClosed) == ChannelClosed(CHANNEL, outgoing.conn_id, "sender")
    assert receiver.next(ChannelClosed) == ChannelClosed(CHANNEL, incoming.conn_id, "receiver")


def test_order_is_kept_when_messages_share_frames(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, _ = opened(sender, receiver)
    payload = batch_of([1], ["x"])
    for seq in range(3000):
        outgoing.send(data(seq, payload if seq % 7 == 0 else None))
    assert [d.item.seq for d in receiver.take(Data, 3000)] == list(range(3000))


def test_columns_are_not_copied(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, _ = opened(sender, receiver)
    payload = batch_of(list(range(100_000)), ["x"] * 100_000)
    outgoing.send(data(1, payload))
    received = receiver.next(Data).item.batch.payload
    column = received.column(0).buffers()[1]
    assert not column.is_mutable  # it is gRPC's own memory, as it came
    assert received.equals(payload)


def test_lingering_close_writes_what_is_queued(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, incoming = opened(sender, receiver)
    for seq in range(500):
        outgoing.send(data(seq))
    outgoing.close(linger_s=WAIT_S)
    assert len(receiver.take(Data, 500)) == 500
    receiver.next(ChannelClosed)
    incoming.reply(Credit(CHANNEL, 1))  # nobody is there: dropped
    outgoing.send(data(500))


def test_receiver_ends_the_stream(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    _, incoming = opened(sender, receiver)
    incoming.reply(Credit(CHANNEL, 9))
    incoming.close()
    assert sender.next(Credit).processed == 9
    assert sender.next(ChannelClosed).error is None
    receiver.next(ChannelClosed)


def test_streams_that_wait_for_a_hello_do_not_block_others(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    channels = range(100, 140)
    for channel in channels:
        sender.connect(receiver, channel)
    incoming = {event.channel: event.incoming for event in receiver.take(ChannelOpened, 40)}
    last = channels[-1]
    incoming[last].reply(Hello(last, B, 1, 0, {}))
    assert sender.next(Hello).channel == last


def test_sender_refuses_another_schema(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, _ = opened(sender, receiver)
    with pytest.raises(SchemaMismatch, match="pinned"):
        outgoing.send(data(1, pa.record_batch({"other": [1]})))


@pytest.mark.parametrize("pinned", [True, False])
def test_receiver_refuses_another_schema(node: Callable[..., Node], pinned: bool) -> None:
    sender, receiver = node(), node()
    payload = pa.record_batch({"other": [1]})
    channel = CHANNEL if pinned else CHANNEL + 1
    outgoing = sender.connect(receiver, channel, payload.schema)
    receiver.next(ChannelOpened)
    outgoing.send(data(1, payload))
    assert isinstance(receiver.next(ChannelClosed).error, SchemaMismatch)
    assert "SchemaMismatch" in str(sender.next(ChannelClosed).error)


@pytest.mark.parametrize("stranger", [(JobSecret.new(),), (SECRET, "another job")])
def test_strangers_are_refused(node: Callable[..., Node], stranger: tuple[Any, ...]) -> None:
    receiver, outsider = node(), node(*stranger)
    outsider.connect(receiver)
    event = outsider.next(ChannelClosed)
    assert isinstance(event.error, PeerUnreachable)
    assert "secret" in str(event.error)
    assert receiver.inbox.empty()


def test_an_impostor_gets_nothing() -> None:
    class Impostor(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            writer.write_metadata(b"x" * 32)
            with pytest.raises(StopIteration):
                reader.read_chunk()

    node = Node()
    with Impostor(f"grpc://{LOOPBACK}:0") as impostor:
        node.plane.connect(f"grpc://{LOOPBACK}:{impostor.port}", CHANNEL, A, B, SCHEMA)
        assert isinstance(node.next(ChannelClosed).error, AuthenticationFailed)
    assert node.plane.shutdown()


def exchange(address: str, sealed: bytes) -> Any:
    client = flight.FlightClient(address)
    return client.do_exchange(flight.FlightDescriptor.for_command(sealed))


def test_a_greeting_opens_one_stream_at_one_server(node: Callable[..., Node]) -> None:
    receiver, elsewhere = node(), node()
    greeting = Greeting("job", receiver.plane.address, Purpose.CHANNEL, CHANNEL, A, B)
    sealed = SECRET.seal(greeting)
    _, reader = exchange(receiver.plane.address, sealed)
    assert SECRET.is_answer(sealed, reader.read_chunk().app_metadata.to_pybytes())
    receiver.next(ChannelOpened)
    for address in (receiver.plane.address, elsewhere.plane.address):
        with pytest.raises(flight.FlightUnauthenticatedError):
            exchange(address, sealed)[1].read_chunk()
    reader.cancel()


@pytest.mark.parametrize("sealed", [b"\x00", b"\x92\xc4\x00\xc4\x00", b"\x92" * 5000, b"\xc0"])
def test_garbage_for_a_greeting(node: Callable[..., Node], sealed: bytes) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError):
        exchange(node().plane.address, sealed)[1].read_chunk()


def test_garbage_for_a_frame(node: Callable[..., Node]) -> None:
    receiver = node()
    greeting = Greeting("job", receiver.plane.address, Purpose.CHANNEL, CHANNEL, A, B)
    writer, reader = exchange(receiver.plane.address, SECRET.seal(greeting))
    receiver.next(ChannelOpened)
    writer.write_metadata(b"\x91\xc4\x01\x00")
    assert isinstance(receiver.next(ChannelClosed).error, MalformedMessage)
    assert reader.read_chunk().app_metadata is not None  # the proof
    with pytest.raises(flight.FlightServerError):
        reader.read_chunk()


@pytest.mark.parametrize("frame", [b"", b"\x90", b"\x91\x01", b"\xc1", b"\x80"])
def test_frames_are_checked(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_frame(frame, None)


def test_other_flight_verbs_are_refused(node: Callable[..., Node]) -> None:
    client = flight.FlightClient(node().plane.address)
    with pytest.raises((flight.FlightError, NotImplementedError)):
        list(client.do_action("anything"))
    client.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost"])
def test_plaintext_stays_on_loopback(node: Callable[..., Node], host: str) -> None:
    with pytest.raises(PlaintextRefused):
        FlightPlane(host, SECRET, "job", SimpleQueue())
    with pytest.raises(PlaintextRefused):
        node().plane.connect(f"grpc://{host}:1", CHANNEL, A, B, SCHEMA)


def test_nobody_there(node: Callable[..., Node]) -> None:
    sender = node()
    sender.plane.connect(f"grpc://{LOOPBACK}:1", CHANNEL, A, B, SCHEMA)
    assert isinstance(sender.next(ChannelClosed).error, PeerUnreachable)


def test_the_secret_is_not_shown() -> None:
    assert SECRET.key.hex() not in repr(SECRET)
    assert repr(SECRET.key) not in repr(SECRET)
    with pytest.raises(ValueError, match="32 bytes"):
        JobSecret(b"short")


# --- control ---


def register_of(slot: int, address: str) -> Register:
    return Register(slot, 1, "nonce", LOOPBACK, "0", 1, os.getpid(), address, "3", "26", "0")


def test_control(node: Callable[..., Node]) -> None:
    driver, slot = node(), node()
    register = register_of(3, slot.plane.address)
    link = slot.plane.control(driver.plane.address, register, lambda: (7, 99), heartbeat_s=0.01)
    event = driver.next(ControlOpened)
    assert event.register == register
    assert driver.next(Heartbeat) == Heartbeat(3, 7, 99)
    event.incoming.reply(Stop("done"))
    assert slot.next(Stop) == Stop("done")
    link.send(Live(0, A, 12))
    while (message := driver.inbox.get(timeout=WAIT_S)[1]) != Live(0, A, 12):
        assert isinstance(message, Heartbeat)
    link.close(linger_s=1)
    assert slot.next(ControlLost) == ControlLost(3, link.conn_id)
    while not isinstance(lost := driver.inbox.get(timeout=WAIT_S), ControlLost):
        pass
    assert lost.conn_id == event.conn_id


# --- two processes ---


def _slot(driver: str, key: bytes, pipe: Connection) -> None:
    inbox: SimpleQueue[Any] = SimpleQueue()
    plane = FlightPlane(LOOPBACK, JobSecret(key), "job", inbox)
    plane.pin(CHANNEL, SCHEMA)
    plane.control(driver, register_of(1, plane.address), lambda: (0, None), heartbeat_s=60)
    pipe.send(plane.address)
    while not isinstance(inbox.get(), ControlLost):
        pass
    pipe.send("lost")


@contextmanager
def other_process(driver: Node) -> Iterator[tuple[int, str, Connection]]:
    mine, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(
        target=_slot, args=(driver.plane.address, SECRET.key, theirs), daemon=True
    )
    process.start()
    try:
        assert process.pid is not None
        yield process.pid, mine.recv(), mine
    finally:
        process.kill()
        process.join()


def test_a_killed_process_is_noticed_at_once(node: Callable[..., Node]) -> None:
    driver = node()
    with other_process(driver) as (pid, address, _):
        driver.next(ControlOpened)
        outgoing = driver.plane.connect(address, CHANNEL, A, B, SCHEMA)
        outgoing.send(data(1))
        while outgoing.unsent_items:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        events = {type(driver.inbox.get(timeout=WAIT_S)) for _ in range(2)}
        assert events == {ControlLost, ChannelClosed}
        assert time.monotonic() - killed < 1


def test_a_frozen_process_blocks_nobody(node: Callable[..., Node]) -> None:
    driver = node()
    with other_process(driver) as (pid, address, _):
        driver.next(ControlOpened)
        outgoing = driver.plane.connect(address, CHANNEL, A, B, SCHEMA)
        time.sleep(0.2)
        os.kill(pid, signal.SIGSTOP)
        payload = batch_of(list(range(10_000)), ["x"] * 10_000)
        for seq in range(300):
            outgoing.send(data(seq, payload))
        time.sleep(0.2)
        assert outgoing.unsent_bytes > 10_000_000
        started = time.monotonic()
        outgoing.close()
        assert driver.next(ChannelClosed).error is None
        assert driver.plane.shutdown(deadline_s=2.0)
        assert time.monotonic() - started < 2.5


def test_a_slot_notices_the_end_of_its_coordinator() -> None:
    driver = Node()
    with other_process(driver) as (_, _, pipe):
        driver.next(ControlOpened)
        assert driver.plane.shutdown()
        assert pipe.poll(WAIT_S)
        assert pipe.recv() == "lost"
