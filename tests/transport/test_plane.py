"""Streams between planes, in one process and (where something is killed) in two."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from clonos.core.messages import Credit, Data, Hello, Item, Kind, Live, Stop
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.errors import MalformedMessage
from clonos.transport import (
    AuthenticationFailed,
    CannotConnect,
    ChannelClosed,
    ChannelOpened,
    ControlLost,
    ControlOpened,
    Heartbeat,
    Identity,
    Inbox,
    Incoming,
    JobSecret,
    Outgoing,
    PeerUnreachable,
    PlaintextRefused,
    Plane,
    Register,
    SchemaMismatch,
)
from clonos.transport.certificates import Authority
from clonos.transport.events import WIRE, Refused
from clonos.transport.frames import HEAD, FrameReader, fingerprint
from clonos.transport.secret import Greeting, Purpose

LOOPBACK = "127.0.0.1"
WAIT_S = 10.0
A, B = Incarnation(1, 1), Incarnation(1, 2)
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.dictionary(pa.int32(), pa.string()))])
SECRET = JobSecret.new()
AUTHORITY = Authority("job")
CHANNEL = 5


class Node:
    """A plane whose loop is a thread of the test."""

    def __init__(
        self, secret: JobSecret = SECRET, job: str = "job", identity: Identity | None = None
    ) -> None:
        self.events: SimpleQueue[Any] = SimpleQueue()
        self.plane = Plane(LOOPBACK, secret, job, inbox := Inbox(), identity=identity)
        self.plane.pin(CHANNEL, SCHEMA)
        self._inbox = inbox
        self._stop = False
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop:
            for thing in self.plane.poll(1.0):
                thing() if callable(thing) else self.events.put(thing)

    def do(self, act: Callable[[], Any]) -> Any:
        """Let the loop's thread do something."""
        done: SimpleQueue[Any] = SimpleQueue()

        def run() -> None:
            try:
                done.put((act(), None))
            except Exception as error:  # noqa: BLE001 - raised in the test
                done.put((None, error))

        self._inbox.put(run)
        result, error = done.get(timeout=WAIT_S)
        if error is not None:
            raise error
        return result

    def connect(self, peer: Node, channel: int = CHANNEL, schema: Any = SCHEMA) -> Outgoing:
        return self.connect_to(peer.plane.address, channel, schema)

    def connect_to(self, address: str, channel: int = CHANNEL, schema: Any = SCHEMA) -> Outgoing:
        outgoing: Outgoing = self.do(lambda: self.plane.connect(address, channel, A, B, schema))
        return outgoing

    def send(self, outgoing: Outgoing, *messages: Any) -> None:
        self.do(lambda: deque(map(outgoing.send, messages), 0))

    def reply(self, incoming: Incoming, *messages: Any) -> None:
        self.do(lambda: deque(map(incoming.reply, messages), 0))

    def take(self, kind: type, count: int = 1) -> list[Any]:
        """The next `count` events or messages, all of this kind."""
        found = []
        for _ in range(count):
            entry = self.events.get(timeout=WAIT_S)
            found.append(entry[1] if isinstance(entry, tuple) else entry)
        assert [type(entry) for entry in found] == [kind] * count
        return found

    def next(self, kind: type) -> Any:
        return self.take(kind)[0]

    def stop(self) -> None:
        """End the loop: from now on this plane does nothing."""
        self._stop = True
        self._inbox.ring()
        self._thread.join()

    def shutdown(self, deadline_s: float = 3.0) -> None:
        self.stop()
        self.plane.shutdown(deadline_s)


@pytest.fixture
def plain() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(*args: Any, **settings: Any) -> Node:
        nodes.append(Node(*args, **settings))
        return nodes[-1]

    yield make
    for made in nodes:
        made.shutdown(deadline_s=0.2)


@pytest.fixture(params=["plain", "tls"])
def node(plain: Callable[..., Node], request: pytest.FixtureRequest) -> Callable[..., Node]:
    """Makes nodes whose streams are encrypted, or not."""
    return plain if request.param == "plain" else partial(plain, identity=AUTHORITY.issue("slot-3"))


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
    receiver.reply(incoming, Hello(CHANNEL, B, 1, 0, {}))
    assert sender.next(Hello) == Hello(CHANNEL, B, 1, 0, {})
    empty = batch_of([], [])
    whole = batch_of([1, 2, 3], ["a", "b", "a"])
    other_words = batch_of([4], ["z"])
    said = [data(1, whole), data(2), data(3), data(4, empty), data(5, other_words)]
    said += [Data(CHANNEL, A, None, ()), data(6, whole.slice(1, 1)), data(7)]
    sender.send(outgoing, *said)
    assert receiver.take(Data, len(said)) == said
    assert sender.do(lambda: outgoing.unsent_bytes) == 0
    receiver.reply(incoming, Credit(CHANNEL, 7))
    assert sender.next(Credit) == Credit(CHANNEL, 7)
    sender.do(outgoing.close)
    assert sender.next(ChannelClosed) == ChannelClosed(CHANNEL, outgoing.conn_id, "sender")
    assert receiver.next(ChannelClosed) == ChannelClosed(CHANNEL, incoming.conn_id, "receiver")


def test_order_is_kept_whatever_the_sizes(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, _ = opened(sender, receiver)
    small, large = batch_of([1], ["x"]), batch_of(list(range(50_000)), ["x"] * 50_000)
    said = [data(n, large if n % 100 == 0 else small if n % 7 == 0 else None) for n in range(2000)]
    sender.send(outgoing, *said)
    assert receiver.take(Data, 2000) == said


def test_a_large_batch_is_received_where_it_stays(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, _ = opened(sender, receiver)
    payload = batch_of(list(range(100_000)), ["x"] * 100_000)
    sender.send(outgoing, data(1, payload))
    received = receiver.next(Data).item.batch.payload
    assert received.column(0).buffers()[1].address % 8 == 0
    assert received.equals(payload)


def test_a_large_message(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, _ = opened(sender, receiver)
    refusal = Refused("x", "y" * 3_000_000)
    sender.send(outgoing, refusal, data(1))
    assert receiver.next(Refused) == refusal
    assert receiver.next(Data) == data(1)


def send_and_close(outgoing: Outgoing, messages: list[Data]) -> None:
    for message in messages:
        outgoing.send(message)
    outgoing.close()


def answer_and_close(incoming: Incoming, message: Credit) -> None:
    incoming.reply(message)
    incoming.close()


def test_what_is_queued_is_written_before_the_end(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, incoming = opened(sender, receiver)
    payload = batch_of(list(range(10_000)), ["x"] * 10_000)
    sender.do(lambda: send_and_close(outgoing, [data(seq, payload) for seq in range(500)]))
    assert len(receiver.take(Data, 500)) == 500
    receiver.next(ChannelClosed)
    receiver.reply(incoming, Credit(CHANNEL, 1))  # nobody is there: dropped
    sender.send(outgoing, data(500))


def test_receiver_ends_the_stream(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    _, incoming = opened(sender, receiver)
    receiver.do(lambda: answer_and_close(incoming, Credit(CHANNEL, 9)))
    assert sender.next(Credit).processed == 9
    assert isinstance(sender.next(ChannelClosed).error, PeerUnreachable)
    assert receiver.next(ChannelClosed).error is None


def test_what_is_sent_early_waits_for_the_proof(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing = sender.connect(receiver)
    sender.send(outgoing, data(1), data(2))
    receiver.next(ChannelOpened)
    assert receiver.take(Data, 2) == [data(1), data(2)]


def test_sender_refuses_another_schema(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    outgoing, _ = opened(sender, receiver)
    with pytest.raises(SchemaMismatch, match="pinned"):
        sender.send(outgoing, data(1, pa.record_batch({"other": [1]})))


@pytest.mark.parametrize("channel", [CHANNEL, CHANNEL + 1])
def test_receiver_refuses_another_schema(node: Callable[..., Node], channel: int) -> None:
    sender, receiver = node(), node()
    sender.connect(receiver, channel, pa.schema([("other", pa.int64())]))
    assert isinstance(receiver.next(ChannelClosed).error, SchemaMismatch)
    assert "SchemaMismatch" in str(sender.next(ChannelClosed).error)


@pytest.mark.parametrize("stranger", [(JobSecret.new(),), (SECRET, "another job")])
def test_strangers_are_refused(node: Callable[..., Node], stranger: tuple[Any, ...]) -> None:
    receiver, outsider = node(), node(*stranger)
    outsider.connect(receiver)
    event = outsider.next(ChannelClosed)
    assert isinstance(event.error, PeerUnreachable)
    assert "secret" in str(event.error)
    assert receiver.events.empty()


def test_an_impostor_gets_nothing(plain: Callable[..., Node]) -> None:
    sender = plain()
    with socket.create_server((LOOPBACK, 0)) as impostor:
        outgoing = sender.connect_to(f"tcp://{LOOPBACK}:{impostor.getsockname()[1]}")
        sender.send(outgoing, data(1))
        connection, _ = impostor.accept()
        with connection:
            connection.settimeout(WAIT_S)
            size, body = HEAD.unpack(connection.recv(HEAD.size))
            connection.recv(size)
            connection.sendall(frame(b"x" * 32))
            assert isinstance(sender.next(ChannelClosed).error, AuthenticationFailed)
            assert connection.recv(1) == b""
            assert body == 0


def frame(message: bytes, body: bytes = b"") -> bytes:
    return HEAD.pack(len(message), len(body)) + message + body


class Client:
    """Somebody who speaks, frame by frame, whatever they like."""

    def __init__(self, address: str, *said: bytes) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.connection = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self._reader, self._frames = FrameReader(), []  # type: ignore[var-annotated]
        for message in said:
            self.connection.sendall(frame(message))

    def hear(self) -> bytes | None:
        while not self._frames:
            frames = self._reader.receive(self.connection)
            if frames is None:
                return None
            self._frames += frames
        message: bytes = self._frames.pop(0)[0]
        return message

    def is_refused(self, error: str) -> bool:
        refusal = WIRE.decode(self.hear() or b"")
        over = self.hear() is None
        self.connection.close()
        return isinstance(refusal, Refused) and refusal.error == error and over


def sealed_for(address: str) -> bytes:
    return SECRET.seal(
        Greeting("job", address, Purpose.CHANNEL, CHANNEL, A, B, fingerprint(SCHEMA))
    )


def test_a_greeting_opens_one_stream_at_one_server(plain: Callable[..., Node]) -> None:
    receiver, elsewhere = plain(), plain()
    sealed = sealed_for(receiver.plane.address)
    client = Client(receiver.plane.address, sealed)
    assert SECRET.is_answer(sealed, client.hear() or b"")
    receiver.next(ChannelOpened)
    for address in (receiver.plane.address, elsewhere.plane.address):
        assert Client(address, sealed).is_refused("AuthenticationFailed")
    client.connection.close()


@pytest.mark.parametrize("sealed", [b"", b"\x00", b"\x92\xc4\x00\xc4\x00", b"\xc0"])
def test_garbage_for_a_greeting(plain: Callable[..., Node], sealed: bytes) -> None:
    assert Client(plain().plane.address, sealed).is_refused("AuthenticationFailed")


def test_a_stranger_cannot_make_us_allocate(plain: Callable[..., Node]) -> None:
    assert Client(plain().plane.address, b"x" * 5000).is_refused("MalformedMessage")


def test_too_many_strangers_push_each_other_out(
    plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos.transport.plane.STRANGERS_MAX", 3)
    receiver = plain()
    clients = [Client(receiver.plane.address) for _ in range(5)]
    assert [client.hear() for client in clients[:2]] == [None, None]
    sealed = sealed_for(receiver.plane.address)
    clients[4].connection.sendall(frame(sealed))
    assert SECRET.is_answer(sealed, clients[4].hear() or b"")
    for client in clients:
        client.connection.close()


@pytest.mark.parametrize("said", [b"\x91\xc4\x01\x00", b"", b"\x90", b"\xc1", b"\x80"])
def test_garbage_for_a_message(plain: Callable[..., Node], said: bytes) -> None:
    receiver = plain()
    client = Client(receiver.plane.address, sealed_for(receiver.plane.address))
    client.hear()
    receiver.next(ChannelOpened)
    client.connection.sendall(frame(said))
    assert isinstance(receiver.next(ChannelClosed).error, MalformedMessage)
    assert client.is_refused("MalformedMessage")


def test_garbage_for_a_batch(plain: Callable[..., Node]) -> None:
    receiver = plain()
    client = Client(receiver.plane.address, sealed_for(receiver.plane.address))
    client.hear()
    receiver.next(ChannelOpened)
    client.connection.sendall(frame(WIRE.encode(data(1, batch_of([1], ["x"]))), b"x" * 100))
    assert isinstance(receiver.next(ChannelClosed).error, MalformedMessage)
    assert client.is_refused("MalformedMessage")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost"])
def test_plaintext_stays_on_loopback(node: Callable[..., Node], host: str) -> None:
    inbox = Inbox()
    with pytest.raises(PlaintextRefused):
        Plane(host, SECRET, "job", inbox)
    inbox.close()
    with pytest.raises(PlaintextRefused):
        node().connect_to(f"tcp://{host}:1")


def test_nobody_there(plain: Callable[..., Node]) -> None:
    sender = plain()
    sender.connect_to(f"tcp://{LOOPBACK}:1")
    assert isinstance(sender.next(ChannelClosed).error, PeerUnreachable)


def test_the_secret_is_not_shown() -> None:
    assert SECRET.key.hex() not in repr(SECRET)
    assert repr(SECRET.key) not in repr(SECRET)
    with pytest.raises(ValueError, match="32 bytes"):
        JobSecret(b"short")


# --- encrypted ---


@pytest.mark.parametrize(
    "identity", [Authority("job").issue("slot-3"), None], ids=["other authority", "none"]
)
@pytest.mark.parametrize("stranger_serves", [True, False])
def test_only_certificates_of_the_job_are_taken(
    plain: Callable[..., Node], identity: Identity | None, stranger_serves: bool
) -> None:
    """... and the others, who hold the secret, go on among themselves."""
    mine, other = (plain(identity=AUTHORITY.issue(name)) for name in ("slot-3", "slot-4"))
    stranger = plain(identity=identity)
    sender, receiver = (mine, stranger) if stranger_serves else (stranger, mine)
    name = "slot-3@" if receiver.plane.address.startswith("tls") else ""
    port = receiver.plane.address.rpartition(":")[2]
    sender.connect_to(f"tls://{name or 'slot-3@'}{LOOPBACK}:{port}")
    error = sender.next(ChannelClosed).error
    assert isinstance(error, AuthenticationFailed if sender.plane._keys else PeerUnreachable)
    assert receiver.events.empty()
    if receiver is mine:
        wait_for(lambda: mine.plane.strangers_refused == 1)
    outgoing, _ = opened(other, mine)
    other.send(outgoing, data(1))
    assert mine.next(Data) == data(1)


def test_a_client_checks_whom_it_has_reached(plain: Callable[..., Node]) -> None:
    sender, receiver = (plain(identity=AUTHORITY.issue(name)) for name in ("slot-3", "slot-4"))
    sender.connect_to(receiver.plane.address.replace("slot-4", "driver"))
    error = sender.next(ChannelClosed).error
    assert isinstance(error, AuthenticationFailed)
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    wait_for(lambda: receiver.plane.strangers_refused == 1)


def test_a_slot_registers_under_the_name_in_its_certificate(plain: Callable[..., Node]) -> None:
    driver = plain(identity=AUTHORITY.issue("driver"))
    slot = plain(identity=AUTHORITY.issue("slot-3"))
    for number, kind in ((4, ControlLost), (3, type(None))):
        register = register_of(number, slot.plane.address)
        slot.do(partial(slot.plane.control, driver.plane.address, register, lambda: (0, None)))
        assert kind is type(None) or "secret" in str(slot.next(kind).error)
    assert driver.next(ControlOpened).register.slot == 3


def test_what_is_said_is_not_seen(
    plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tap between the two hears neither their greetings nor their rows."""
    sender, receiver = (plain(identity=AUTHORITY.issue(name)) for name in ("slot-3", "slot-4"))
    outgoing, _ = opened(sender, receiver)
    sealed = bytearray()
    append = outgoing._append

    def overhear(piece: Any) -> None:
        sealed.extend(piece)
        append(piece)

    monkeypatch.setattr(outgoing, "_append", overhear)
    payload = batch_of([1], ["confidential"])
    sender.send(outgoing, data(1, payload))
    assert receiver.next(Data) == data(1, payload)
    assert len(sealed) > 100
    assert b"confidential" not in sealed


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
def test_whoever_shakes_no_hands_is_sent_away(
    plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr("clonos.transport.plane.STRANGER_S", 0.3)
    receiver = plain(identity=AUTHORITY.issue("slot-4"))
    host, _, port = receiver.plane.address.rpartition("@")[2].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as client:
        client.sendall(said)
        while client.recv(4096):  # an alert
            pass
        sender = plain(identity=AUTHORITY.issue("slot-3"))
        outgoing, _ = opened(sender, receiver)
        sender.send(outgoing, data(1))
        assert receiver.next(Data) == data(1)


def test_the_key_is_not_shown() -> None:
    identity = AUTHORITY.issue("slot-3")
    assert "KEY" not in repr(identity)
    assert b"PRIVATE KEY" in identity.key


# --- machines that do not answer ---


def test_a_silent_machine_is_not_waited_for(
    plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos.transport.plane.CONNECT_S", 0.3)
    sender = plain()
    with socket.socket() as silent:  # its queue is full: the system answers nobody any more
        silent.bind((LOOPBACK, 0))
        silent.listen(0)
        with socket.create_connection(silent.getsockname()):
            port = silent.getsockname()[1]
            sender.connect_to(f"tcp://{LOOPBACK}:{port}")
            error = sender.next(ChannelClosed).error
    assert isinstance(error, CannotConnect)
    assert sender.plane.address in error.what
    assert f":{port}" in error.what
    assert "ports" in error.remedy or "port" in error.remedy


# --- control ---


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def register_of(slot: int, address: str) -> Register:
    return Register(slot, 1, "nonce", LOOPBACK, "0", 1, os.getpid(), address, {"Python": "3"})


def test_control(node: Callable[..., Node]) -> None:
    driver, slot = node(), node()
    register = register_of(3, slot.plane.address)
    link = slot.do(
        lambda: slot.plane.control(driver.plane.address, register, lambda: (7, 99), 0.01)
    )
    event = driver.next(ControlOpened)
    assert event.register == register
    assert driver.next(Heartbeat) == Heartbeat("nonce", 7, 99)
    driver.reply(event.incoming, Stop("done"))
    assert slot.next(Stop) == Stop("done")
    slot.send(link, Live(0, A, 12))
    while (message := driver.events.get(timeout=WAIT_S)[1]) != Live(0, A, 12):
        assert isinstance(message, Heartbeat)
    slot.do(link.close)
    assert slot.next(ControlLost) == ControlLost(3, link.conn_id)
    while not isinstance(lost := driver.events.get(timeout=WAIT_S), ControlLost):
        pass
    assert lost.conn_id == event.conn_id


def test_a_heart_beats_while_the_loop_is_busy(plain: Callable[..., Node]) -> None:
    driver, slot = plain(), plain()
    register = register_of(3, slot.plane.address)
    slot.do(lambda: slot.plane.control(driver.plane.address, register, lambda: (1, None), 0.02))
    driver.next(ControlOpened)
    driver.next(Heartbeat)  # the stream is open
    slot.stop()
    assert driver.take(Heartbeat, 5)


# --- two processes ---


def _slot(driver: str, key: bytes, pipe: Connection, *, has_child: bool) -> None:
    plane = Plane(LOOPBACK, JobSecret(key), "job", Inbox())
    plane.pin(CHANNEL, SCHEMA)
    plane.control(driver, register_of(1, plane.address), lambda: (0, None), heartbeat_s=0.1)
    pipe.send(plane.address)
    if has_child and not os.fork():  # it holds all that is open until it is killed, too
        pipe.send(os.getpid())
        signal.pause()
    while not any(isinstance(thing, ControlLost) for thing in plane.poll(1.0)):
        pass
    pipe.send("lost")


@contextmanager
def other_process(
    driver: Node, *, has_child: bool = False
) -> Iterator[tuple[int, str, Connection]]:
    mine, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(
        target=_slot,
        args=(driver.plane.address, SECRET.key, theirs),
        kwargs={"has_child": has_child},
        daemon=True,
    )
    process.start()
    try:
        assert process.pid is not None
        yield process.pid, mine.recv(), mine
    finally:
        process.kill()
        process.join()


def test_a_killed_process_is_noticed_at_once(plain: Callable[..., Node]) -> None:
    driver = plain()
    with other_process(driver) as (pid, address, _):
        driver.next(ControlOpened)
        outgoing = driver.connect_to(address)
        driver.send(outgoing, data(1))
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        events: set[type] = set()
        while not {ControlLost, ChannelClosed} <= events:
            events.add(type(driver.events.get(timeout=WAIT_S)))
        assert time.monotonic() - killed < 1


def test_a_killed_process_is_noticed_although_its_child_holds_its_files(
    plain: Callable[..., Node],
) -> None:
    driver = plain()
    with other_process(driver, has_child=True) as (pid, _, pipe):
        driver.next(ControlOpened)
        child = pipe.recv()
        try:
            driver.take(Heartbeat, 2)
            os.kill(pid, signal.SIGKILL)
            while type(driver.events.get(timeout=WAIT_S)) is not ControlLost:
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_pulse_ends_with_its_control_stream(node: Callable[..., Node]) -> None:
    before = pulses()
    driver, slot = node(), node()
    register = register_of(3, slot.plane.address)
    link = slot.do(lambda: slot.plane.control(driver.plane.address, register, lambda: (1, None)))
    driver.next(ControlOpened)
    mine = pulses() - before
    assert len(mine) == 1
    slot.do(link.close)
    mine.pop().join(WAIT_S)
    assert not pulses() - before


def pulses() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "clonos-pulse"}


def test_a_frozen_process_blocks_nobody(plain: Callable[..., Node]) -> None:
    driver = plain()
    with other_process(driver) as (pid, address, _):
        driver.next(ControlOpened)
        outgoing = driver.connect_to(address)
        time.sleep(0.2)
        os.kill(pid, signal.SIGSTOP)
        payload = batch_of(list(range(10_000)), ["x"] * 10_000)
        driver.send(outgoing, *[data(seq, payload) for seq in range(300)])
        assert outgoing.unsent_bytes > 10_000_000
        started = time.monotonic()
        driver.shutdown(deadline_s=1.0)
        assert time.monotonic() - started < 1.5


def test_a_slot_notices_the_end_of_its_coordinator() -> None:
    driver = Node()
    with other_process(driver) as (_, _, pipe):
        driver.next(ControlOpened)
        driver.shutdown()
        assert pipe.poll(WAIT_S)
        assert pipe.recv() == "lost"
