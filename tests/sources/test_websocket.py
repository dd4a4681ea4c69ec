"""A websocket as a source: a real server, which goes away, refuses, freezes and is killed."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest

import clonos
from clonos.errors import BadSchema, ClonosError, SourceError, WrongType
from clonos.sources import inlet_feed, websocket_inlet
from clonos.sources.inlet_feed import InletFeed
from clonos.sources.offered import OFFERED
from clonos.sources.spool import Spool
from clonos.sources.spool_reader import SpoolReader
from tests.processes import free_port, kill, start

serving = pytest.importorskip("websockets.sync.server")


class Server:
    """Sends what it is told to, to whoever is connected.

    Attributes
    ----------
    subscribed
        The first text of each connection.
    status
        Instead of a connection there is this answer.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port or free_port()
        self.subscribed: list[str] = []
        self.headers: list[Any] = []
        self.status: HTTPStatus | None = None
        self.connected: list[Any] = []
        self._server = serving.serve(
            self._on_connection, "127.0.0.1", self.port, process_request=self._on_request
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _on_request(self, connection: Any, request: Any) -> Any:
        self.headers.append(request.headers)
        if self.status is None:
            return None
        answer = connection.respond(self.status, "no")
        answer.headers["Location"] = "ws://127.0.0.1:1/elsewhere"
        return answer

    def _on_connection(self, connection: Any) -> None:
        self.subscribed.append(connection.recv())
        self.connected.append(connection)
        for _ in connection:  # until it is closed
            """Nothing is expected."""

    def send(self, *messages: str | bytes) -> None:
        """... to the newest connection, once it is there."""
        wait_for(lambda: self.connected)
        for message in messages:
            self.connected[-1].send(message)

    def hang_up(self) -> None:
        self.connected.pop().close()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Bench:
    """A server, and the driver's end."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.server = folder, Server()
        self.errors: list[ClonosError] = []
        self.said: list[str] = []

    def source(self, **options: Any) -> Any:
        url = f"ws://me:word@127.0.0.1:{self.server.port}/feed?token=secret"
        given = {"value": "text", "subscribe": "all", "headers": {"X-Key": "secret"}, **options}
        return clonos.sources.websocket(given.pop("url", url), **given)

    def feed(self, **options: Any) -> InletFeed:
        at = Spool(f"{self.folder}/spool", 1)
        made = InletFeed(
            "prices", self.source(**options).inlet, at, self.errors.append, self.said.append
        )
        made.start()
        return made

    def rows(self, count: int) -> list[dict[str, Any]]:
        """What is spooled, once these are so many."""
        return spooled(f"{self.folder}/spool", count)


def spooled(uri: str, count: int) -> list[dict[str, Any]]:
    reader = SpoolReader(uri, OFFERED, 0, 1)
    reader.open(0)
    found: list[dict[str, Any]] = []
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        batch = reader.read(100_000, 0.1 if len(found) < count else 0.0)
        found += [] if batch is None else batch.to_pylist()
        if batch is None and len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count}")


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.server.close()


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


def test_texts_and_bytes_come_in_their_order_with_the_path(bench):
    feed = bench.feed(subscribe=("all", "more"))
    bench.server.send("1", b"\xff", "é")
    rows = bench.rows(3)
    feed.close()
    assert values(rows) == [b"1", b"\xff", "é".encode()]
    assert {(row["key"], row["topic"]) for row in rows} == {(None, "/feed")}
    assert bench.server.headers[0]["X-Key"] == "secret"
    assert not bench.errors


def test_it_connects_and_subscribes_again_and_says_that_messages_may_be_lost(bench, caplog):
    feed = bench.feed()
    bench.server.send("1")
    bench.rows(1)
    bench.server.hang_up()
    bench.server.send("2")
    bench.rows(2)
    port = bench.server.port
    bench.server.close()
    bench.server = Server(port)
    bench.server.send("3")
    assert values(bench.rows(3)) == [b"1", b"2", b"3"]
    assert bench.server.subscribed == ["all"]
    feed.close()
    ended, *more = [text for text in bench.said if "the connection has ended" in text]
    assert not more, "it is said once a minute"
    assert ended.startswith(f"prices: websocket ws://127.0.0.1:{port}/feed: the connection")
    logged = [record.getMessage() for record in caplog.records if record.name == "clonos"]
    assert len([text for text in logged if "the connection has ended" in text]) == 1
    said = [*bench.said, *logged]
    assert "word" not in "".join(said)
    assert "secret" not in "".join(said)


def test_a_server_that_hangs_up_at_once_is_given_time(bench, monkeypatch):
    feed = bench.feed()
    session: Any = feed._listener
    pauses: list[float] = []
    wait = session._is_over.wait

    def shortly(pause_s: float) -> bool:
        pauses.append(pause_s)
        return bool(wait(pause_s / 100))

    monkeypatch.setattr(session._is_over, "wait", shortly)
    for connections in range(1, 5):
        wait_for(lambda: bench.server.connected)
        bench.server.hang_up()
        while len(pauses) < connections:
            time.sleep(0.005)
    bench.server.send("1")  # something comes: the next outage is a new one
    bench.rows(1)
    bench.server.hang_up()
    bench.server.send("2")
    bench.rows(2)
    feed.close()
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, 0.0]


def test_what_is_too_long_ends_the_job_by_name(bench):
    feed = bench.feed(message_bytes=100)
    bench.server.send("x" * 100)
    bench.rows(1)
    bench.server.send("x" * 101)
    wait_for(lambda: bench.errors)
    feed.close()
    (error,) = bench.errors
    assert isinstance(error, SourceError)
    assert "more than 100 bytes" in str(error)
    assert "message_bytes" in error.remedy


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FOUND])
def test_a_refusal_is_an_error_at_the_start_and_later(bench, status):
    feed = bench.feed()
    bench.server.send("1")
    bench.server.status = status
    bench.server.hang_up()
    wait_for(lambda: bench.errors)
    feed.close()
    with pytest.raises(SourceError) as caught:
        bench.feed()
    for error in (caught.value, *bench.errors):
        assert isinstance(error, SourceError)
        assert "answers 401" in str(error) or "redirects" in str(error)
        assert "secret" not in str(error)
        assert error.remedy
    assert "secret" not in repr(bench.source())


def test_a_server_that_is_busy_is_asked_again_unless_the_job_is_just_starting(bench):
    feed = bench.feed()
    bench.server.send("1")
    bench.server.status = HTTPStatus.SERVICE_UNAVAILABLE
    bench.server.hang_up()
    wait_for(lambda: len(bench.server.headers) >= 3)
    assert any("it answers 503" in said for said in bench.said)
    bench.folder, here = bench.folder / "other", bench.folder  # whoever begins is the only writer
    with pytest.raises(SourceError, match="answers 503"):
        bench.feed()
    bench.folder, bench.server.status = here, None
    bench.server.send("2")
    assert values(bench.rows(2)) == [b"1", b"2"]
    feed.close()
    assert not bench.errors


def test_a_server_that_dies_while_it_is_asked_is_asked_again(bench, monkeypatch):
    """The library then says `ConnectionClosed`, which is no refusal, and no error of a socket."""
    feed = bench.feed()
    bench.server.send("1")
    bench.rows(1)
    connect = socket.create_connection
    resets: list[socket.socket] = []

    def reset(*where: Any) -> Any:
        """A connection that the other end has given up before anything was sent."""
        if len(resets) == 3:
            return connect(*where)
        with socket.create_server(("127.0.0.1", 0)) as dying:
            ours = connect(dying.getsockname())
            theirs, _ = dying.accept()
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()  # a reset, as when a process is killed
        resets.append(ours)
        return ours

    monkeypatch.setattr(socket, "create_connection", reset)
    bench.server.hang_up()
    bench.server.send("2")
    assert values(bench.rows(2)) == [b"1", b"2"]
    feed.close()
    assert len(resets) == 3
    assert all(ours.fileno() == -1 for ours in resets), "they were closed"
    assert not bench.errors


def test_a_server_that_is_not_there_is_named():
    source = clonos.sources.websocket("ws://127.0.0.1:1/?token=secret", value="text")
    assert source.inlet is not None
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        source.inlet.open(lambda *_: True, print, print)
    assert "secret" not in str(caught.value)


def test_while_there_is_no_room_nothing_is_read_and_nothing_lost(bench, monkeypatch):
    monkeypatch.setattr(inlet_feed, "WAITING_MESSAGES", 1)
    monkeypatch.setattr(Spool, "backlog_bytes", 1 << 30)  # of rows that the job has not read
    feed = bench.feed()
    wait_for(lambda: bench.server.connected)
    noise = os.urandom(50_000)  # nothing that a connection could compress
    count = 400

    def send() -> None:
        for n in range(count):
            bench.server.send(b"%d %b" % (n, noise))

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(1.0)
    with monkeypatch.context() as soon:  # only now: a slow server answers no ping within this time
        soon.setattr(websocket_inlet, "SILENCE_S", 0.05)
        sender.join(1.0)
    assert sender.is_alive(), "20 MB have gone somewhere, though nobody reads"
    monkeypatch.setattr(inlet_feed, "WAITING_MESSAGES", 1000)
    monkeypatch.setattr(Spool, "backlog_bytes", 0)
    feed._spool.truncate([0])  # something was read
    sender.join()
    found = [int(value.split()[0]) for value in values(bench.rows(count))]
    feed.close()
    assert found == list(range(count))
    assert len(bench.server.subscribed) == 1, "it has hung up: the server did not answer pings"


SERVER = """
import itertools, sys, time
from websockets.sync.server import serve
numbers = itertools.count(int(sys.argv[2]))
def send(connection):
    connection.recv()
    for n in numbers:
        connection.send(str(n))
        time.sleep(0.001)  # or who reads what is kept would never be done
server = serve(send, "127.0.0.1", int(sys.argv[1]), ping_interval=None)
print("ready", flush=True)
server.serve_forever()
"""
"""Numbers, each of them sent once, to whoever listens."""

DRIVER = """
import sys
import clonos
from clonos.sources.inlet_feed import InletFeed
from clonos.sources.spool import Spool
source = clonos.sources.websocket(f"ws://127.0.0.1:{sys.argv[1]}/", subscribe="all", value="text")
feed = InletFeed("prices", source.inlet, Spool(sys.argv[2], 1), print, print)
feed.start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_was_kept_is_there_once_though_reader_and_server_are_killed(tmp_path):
    port, uri = free_port(), str(tmp_path / "spool")
    server = start(SERVER, port, 0)
    reader = start(DRIVER, port, uri)
    kept = 0
    for victim in ("reader", "server", "reader", "server"):
        count = len(spooled(uri, kept + 100))
        if victim == "reader":
            kill(reader)
            before = values(spooled(uri, count))
            reader = start(DRIVER, port, uri)
        else:
            kill(server)
            time.sleep(0.2)  # what was on its way has come
            before = values(spooled(uri, count))
            server = start(SERVER, port, int(before[-1]) + 1_000_000)
        found = values(spooled(uri, len(before) + 100))
        assert found[: len(before)] == before
        kept = len(found)
    kill(reader)
    kill(server)
    numbers = [int(value) for value in values(spooled(uri, kept))]
    assert numbers == sorted(set(numbers))
    gaps = sum(b != a + 1 for a, b in itertools.pairwise(numbers))
    assert 2 <= gaps <= 4, "messages are lost where somebody was killed, and nowhere else"


def test_a_frozen_server_is_given_up_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(websocket_inlet, "SILENCE_S", 0.2)
    monkeypatch.setattr(websocket_inlet, "CONNECT_S", 0.5)
    port, uri = free_port(), str(tmp_path / "spool")
    server = start(SERVER, port, 0)
    source = clonos.sources.websocket(f"ws://127.0.0.1:{port}/", subscribe="all", value="text")
    errors: list[ClonosError] = []
    assert source.inlet is not None
    feed = InletFeed("prices", source.inlet, Spool(uri, 1), errors.append, print)
    feed.start()
    session: Any = feed._listener
    first = session._connection
    spooled(uri, 100)
    os.kill(server.pid, signal.SIGSTOP)
    wait_for(lambda: first.state.name == "CLOSED")
    kill(server)
    server = start(SERVER, port, 10**9)
    wait_for(lambda: int(values(spooled(uri, 1))[-1]) > 10**9)
    feed.close()
    kill(server)
    assert not errors


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"url": "http://a"}, WrongType),
        ({"url": "ws://"}, WrongType),
        ({"url": "ws://a:port"}, WrongType),
        ({"message_bytes": 0}, WrongType),
        ({"subscribe": [b"x"]}, WrongType),
        ({"headers": {"a": "b\r\nc: d"}}, WrongType),
        ({"headers": {"a": 1}}, WrongType),
        ({"value": "json"}, BadSchema),
    ],
)
def test_wrong_arguments(options, kind):
    given = {"url": "ws://a", "value": "text", **options}
    with pytest.raises(kind) as caught:
        clonos.sources.websocket(given.pop("url"), **given)
    assert caught.value.remedy
