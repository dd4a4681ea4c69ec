"""Streams between planes: what they carry, and whom they refuse."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from clonos.core.messages import Credit, Data, Hello
from clonos.errors import (
    AuthenticationFailed,
    CannotConnect,
    MalformedMessage,
    PeerUnreachable,
    PlaintextRefused,
)
from clonos.transport import frames
from clonos.transport.errors import SchemaMismatch
from clonos.transport.events import WIRE, ChannelClosed, ChannelOpened, Refused
from clonos.transport.frames import HEAD, FrameReader, fingerprint
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import Greeting, JobSecret, Purpose
from clonos.transport.sockets import SystemSockets
from clonos.transport.states import State
from clonos.transport.streams import Incoming, Outgoing
from clonos.transport.tls import Identity
from tests.processes import no_more_files

from .conftest import (
    AUTHORITY,
    CHANNEL,
    LOOPBACK,
    SCHEMA,
    SECRET,
    WAIT_S,
    A,
    B,
    Node,
    batch_of,
    data,
    opened,
    wait_for,
)


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


def test_columns_are_sent_from_where_they_lie(node: Callable[..., Node]) -> None:
    sender, receiver = node(), node()
    large = pa.record_batch({"n": pa.array(range(300_000)), "s": pa.array(["word"] * 300_000)})
    receiver.do(lambda: receiver.plane.pin(6, large.schema))
    outgoing = sender.connect(receiver, 6, large.schema)
    receiver.next(ChannelOpened)
    pieces = [large, large.slice(7, 20), large.slice(100_000, 150_000), large.slice(0, 0), large]
    said = [replace(data(n, piece), channel=6) for n, piece in enumerate(pieces)]
    sender.send(outgoing, *said)
    assert receiver.take(Data, len(said)) == said


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
    incoming.send(message)
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


@pytest.mark.parametrize("head", [HEAD.pack(1 << 20, 0), HEAD.pack(32, 1 << 30)])
def test_an_impostor_cannot_make_us_allocate(plain: Callable[..., Node], head: bytes) -> None:
    sender = plain()
    with socket.create_server((LOOPBACK, 0)) as impostor:
        sender.connect_to(f"tcp://{LOOPBACK}:{impostor.getsockname()[1]}")
        connection, _ = impostor.accept()
        with connection:
            connection.sendall(head)
            assert isinstance(sender.next(ChannelClosed).error, MalformedMessage)


def test_what_comes_with_the_proof_may_be_large(plain: Callable[..., Node]) -> None:
    sender = plain()
    with socket.create_server((LOOPBACK, 0)) as server:
        sender.connect_to(f"tcp://{LOOPBACK}:{server.getsockname()[1]}")
        connection, _ = server.accept()
        with connection:
            reader, sealed = FrameReader(), b""
            while not sealed:
                ((sealed, _),) = reader.receive(connection) or [(b"", None)]
            large = frame(WIRE.encode(Refused("x", "y" * 100_000)))
            connection.sendall(frame(SECRET.answer(sealed)) + large)
            assert "y" * 1000 in str(sender.next(ChannelClosed).error)


def test_nothing_large_is_accepted_before_the_proof_is_judged(
    plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(frames, "_Apart", lambda *announced: made.append(announced))
    sender = plain()
    with socket.create_server((LOOPBACK, 0)) as impostor:
        sender.connect_to(f"tcp://{LOOPBACK}:{impostor.getsockname()[1]}")
        connection, _ = impostor.accept()
        with connection:
            connection.sendall(frame(b"no proof") + HEAD.pack(200 << 20, 0))
            assert isinstance(sender.next(ChannelClosed).error, AuthenticationFailed)
    assert not made


def frame(message: bytes, body: bytes = b"") -> bytes:
    return HEAD.pack(len(message), len(body)) + message + body


class Client:
    """Somebody who speaks, frame by frame, whatever they like."""

    def __init__(self, address: str, *said: bytes) -> None:
        peer = urlsplit(address)
        where = peer.hostname, peer.port or 0
        self.connection = socket.create_connection(where, timeout=WAIT_S)
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


def test_greetings_are_remembered_within_a_limit(
    plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos.transport.plane.NONCES_MAX", 2)
    receiver = plain()
    address = receiver.plane.address
    greetings = [sealed_for(address) for _ in range(4)]
    for sealed in greetings:
        client = Client(address, sealed)
        assert SECRET.is_answer(sealed, client.hear() or b"")
        client.connection.close()
    assert len(receiver.plane._nonces) == len(receiver.plane._newest_nonces) == 2
    for sealed in greetings[2:]:
        assert Client(address, sealed).is_refused("AuthenticationFailed")


@pytest.mark.parametrize("sealed", [b"", b"\x00", b"\x92\xc4\x00\xc4\x00", b"\xc0"])
def test_garbage_for_a_greeting(plain: Callable[..., Node], sealed: bytes) -> None:
    assert Client(plain().plane.address, sealed).is_refused("AuthenticationFailed")


def test_a_stranger_cannot_make_us_allocate(plain: Callable[..., Node]) -> None:
    assert Client(plain().plane.address, b"x" * 5000).is_refused("MalformedMessage")


def test_a_stranger_cannot_make_us_answer_more_than_once() -> None:
    """... and have us keep the answers, by not reading them."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    host: Any = SimpleNamespace(changed=lambda _: None, gone=lambda _: None)
    refused: list[None] = []
    stranger = Incoming(
        host, 1, ours, "peer", lambda *_: [], lambda: refused.append(None), tls=None
    )
    sizes = set()
    for _ in range(3):
        theirs.sendall(frame(b"x" * 5000))
        stranger.read()
        sizes.add(stranger.unsent_bytes)
    assert len(sizes) == len(refused) == 1
    ours.close()
    theirs.close()


@pytest.fixture
def small(plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> Node:
    """A plane that lets in three strangers."""
    monkeypatch.setattr("clonos.transport.plane.STRANGERS_MAX", 3)
    return plain()


def greet(client: Client, receiver: Node) -> None:
    """Show who it is, and be answered."""
    sealed = sealed_for(receiver.plane.address)
    client.connection.sendall(frame(sealed))
    assert SECRET.is_answer(sealed, client.hear() or b"")


def test_many_strangers_wait_for_each_other(small: Node) -> None:
    """... and nobody who may be one of us is sent away."""
    clients = [Client(small.plane.address) for _ in range(5)]
    wait_for(lambda: len(small.plane._strangers) == 3)
    clients[4].connection.sendall(frame(sealed_for(small.plane.address)))
    assert small.events.empty()
    for client in clients[:3]:
        greet(client, small)
    assert clients[4].hear() is not None
    greet(clients[3], small)
    small.take(ChannelOpened, 5)
    for client in clients:
        client.connection.close()


def test_who_has_been_a_stranger_for_long_makes_room(
    small: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos.transport.plane.STRANGER_S", 0.0)
    clients = [Client(small.plane.address) for _ in range(5)]
    assert [client.hear() for client in clients[:2]] == [None, None]
    greet(clients[4], small)
    for client in clients:
        client.connection.close()


def test_strangers_take_nobody_their_last_words(
    small: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clonos.transport.plane.LINGER_S", 60.0)
    ours = Client(small.plane.address)
    greet(ours, small)
    incoming = small.next(ChannelOpened).incoming
    small.reply(incoming, Refused("x", "y" * 30_000_000))
    small.do(incoming.close)
    strangers = [Client(small.plane.address) for _ in range(5)]
    wait_for(lambda: len(small.plane._strangers) == 3)
    assert len(ours.hear() or b"") > 30_000_000
    for client in (ours, *strangers):
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


def test_nobody_there(node: Callable[..., Node]) -> None:
    sender = node()
    name = "" if sender.plane._keys is None else "slot-4@"
    outgoing = sender.connect_to(f"tcp://{name}{LOOPBACK}:1")
    assert isinstance(sender.next(ChannelClosed).error, PeerUnreachable)
    assert not outgoing.stood


def test_somebody_there_who_dies(node: Callable[..., Node]) -> None:
    sender = node()
    name = "" if sender.plane._keys is None else "slot-4@"
    with socket.create_server((LOOPBACK, 0)) as busy:  # the system answers for it
        outgoing = sender.connect_to(f"tcp://{name}{LOOPBACK}:{busy.getsockname()[1]}")
        wait_for(lambda: outgoing.stood)
    assert isinstance(sender.next(ChannelClosed).error, PeerUnreachable)
    assert outgoing.stood


@pytest.mark.parametrize("says", [True, False], ids=["with last words", "without"])
def test_a_stream_that_is_closed_before_it_is_open_tells_its_story(says: bool) -> None:
    planes = sender, receiver = [Plane(LOOPBACK, SECRET, "job", Inbox()) for _ in range(2)]
    for plane in planes:
        plane.pin(CHANNEL, SCHEMA)
    outgoing = sender.connect(receiver.address, CHANNEL, A, B)
    if says:
        outgoing.send(data(1))
    outgoing.close()
    outgoing.close()
    came: list[Any] = []
    while outgoing.state is not State.ENDED:
        sender.poll(0.01)
        came += receiver.poll(0.01)
    assert [thing[1] for thing in came if type(thing) is tuple] == [data(1)] * says
    way = " -close, with something to say-> PARTING -proved->" if says else " -close->"
    expected = f"OPENING{way} LEAVING -flushed-> LEFT -error, deadline or the other's end-> ENDED"
    assert outgoing.story() == f"the stream with {receiver.address}: {expected}"
    for plane in planes:
        plane.shutdown(0.0)


def test_the_secret_is_not_shown() -> None:
    assert SECRET.key.hex() not in repr(SECRET)
    assert repr(SECRET.key) not in repr(SECRET)
    with pytest.raises(ValueError, match="32 bytes"):
        JobSecret(b"short")


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


@pytest.mark.parametrize("steps_s", [(70.0, 0.1), (0.1, 70.0), (70.0, 70.0)])
@pytest.mark.parametrize("identity", [None, AUTHORITY.issue("slot-3")], ids=["plain", "tls"])
def test_steps_may_take_long(
    monkeypatch: pytest.MonkeyPatch, steps_s: tuple[float, float], identity: Identity | None
) -> None:
    """A stream is opened between processes whose loops look at it only now and then."""
    now = 0.0
    monkeypatch.setattr("clonos.transport.sockets.time", SimpleNamespace(monotonic=lambda: now))
    planes = [Plane(LOOPBACK, SECRET, "job", Inbox(), identity=identity) for _ in range(2)]
    sender, receiver = planes
    for plane in planes:
        plane.pin(CHANNEL, SCHEMA)
    events: list[Any] = []

    def dial() -> Outgoing:
        return sender.connect(receiver.address, CHANNEL, A, B)

    outgoing, due = dial(), list(steps_s)
    while outgoing.state is not State.OPEN and now < 1000:
        now = min(due)
        for number, plane in enumerate(planes):
            if due[number] <= now:
                due[number] += steps_s[number]
                events += (came := plane.poll(0.001))
                if ChannelClosed in map(type, came) and plane is sender:
                    outgoing = dial()
    assert outgoing.state is State.OPEN
    for plane in planes:
        plane.shutdown(0.0)


class AtPort(SystemSockets):
    """They listen where somebody has listened before."""

    def __init__(self, port: int) -> None:
        self._port = port

    def listen(self, host: str) -> socket.socket:
        listener = socket.create_server((host, self._port))
        listener.setblocking(False)
        return listener


def test_what_was_said_to_another_process_at_this_port_opens_nothing() -> None:
    """A greeting that somebody has overheard is meant for one life of one process."""
    before = Plane(LOOPBACK, SECRET, "job", Inbox())
    greeting = Greeting("job", before.address, Purpose.CHANNEL, CHANNEL, A, B, fingerprint(SCHEMA))
    sealed = SECRET.seal(greeting)
    port = before._listener.getsockname()[1]
    before.shutdown()
    after = Plane(LOOPBACK, SECRET, "job", Inbox(), sockets=AtPort(port))
    after.pin(CHANNEL, SCHEMA)
    with socket.create_connection((LOOPBACK, port)) as stranger:
        stranger.sendall(HEAD.pack(len(sealed), 0) + sealed)
        heard: list[Any] = []
        until = time.monotonic() + WAIT_S
        while not (heard or after.strangers_refused) and time.monotonic() < until:
            heard += after.poll(0.1)
    assert heard == []
    assert after.strangers_refused == 1
    after.shutdown()


def test_without_files_to_open_it_waits_and_does_not_spin(caplog) -> None:
    plane = Plane(LOOPBACK, SECRET, "job", Inbox())
    where = urlsplit(plane.address)
    with socket.socket() as caller:
        with no_more_files():
            caller.connect((where.hostname, where.port))
            until, turns = time.monotonic() + 1.5, 0
            while time.monotonic() < until:
                plane.poll(0.1)
                turns += 1
        assert 10 < turns < 40
        (said,) = caplog.messages
        assert "no connection can be accepted: Too many open files" in said
        wait_for(lambda: (plane.poll(0.1), len(plane._strangers))[1] == 1)
    plane.shutdown(0.1)
