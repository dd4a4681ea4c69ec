"""Those who ask without a loop: many threads, forks, deadlines, streams that break."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from clonos.core.codec import Codec
from clonos.errors import AuthenticationFailed, PeerUnreachable, PlaintextRefused
from clonos.transport.certificates import Authority
from clonos.transport.client import Client
from clonos.transport.events import WIRE, ClientClosed, ClientOpened
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import JobSecret
from clonos.transport.tls import CLIENT_NAME, DRIVER_NAME, Identity

from .conftest import AUTHORITY, LOOPBACK, SECRET, WAIT_S


@dataclass(frozen=True, slots=True)
class Question:
    word: str
    later: bool
    ticket: int


@dataclass(frozen=True, slots=True)
class Echo:
    word: str
    ticket: int


CODEC = WIRE.extended({200: Question, 201: Echo})


class Service:
    """Echoes; what shall be answered later waits for :meth:`let_go`."""

    def __init__(self, identity: Identity | None = None, clients: Codec | None = CODEC) -> None:
        self._inbox = Inbox()
        self.plane = Plane(LOOPBACK, SECRET, "job", self._inbox, identity=identity, clients=clients)
        self.address = self.plane.address
        self.connections: dict[int, Any] = {}
        self.waiting: list[tuple[int, Question]] = []
        self.has_waiting = threading.Semaphore(0)
        self.opened = self.closed = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        while not self._is_over:
            for thing in self.plane.poll(1.0):
                self._hear(thing)

    def _hear(self, thing: Any) -> None:
        if callable(thing):
            thing()
        elif isinstance(thing, ClientOpened):
            self.connections[thing.conn_id] = thing.incoming
            self.opened += 1
        elif isinstance(thing, ClientClosed):
            del self.connections[thing.conn_id]
            self.closed += 1
        else:
            conn_id, question = thing
            if question.later:
                self.waiting.append(thing)
                self.has_waiting.release()
            else:
                self.connections[conn_id].send(Echo(question.word, question.ticket))

    def do(self, act: Callable[[], Any]) -> None:
        done = threading.Event()

        def job() -> None:
            act()
            done.set()

        self._inbox.put(job)
        assert done.wait(WAIT_S)

    def let_go(self) -> None:
        """Answer what waits, the last first."""
        while self.waiting:
            conn_id, question = self.waiting.pop()
            if conn_id in self.connections:
                self.connections[conn_id].send(Echo(question.word, question.ticket))

    def cut(self) -> None:
        """End all streams, without a word."""
        for incoming in list(self.connections.values()):
            incoming.connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._inbox.ring()
            self._thread.join()
            self.plane.shutdown(0.05)


@pytest.fixture
def client() -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def make(service: Service, secret: JobSecret = SECRET, job: str = "job", **rest: Any) -> Client:
        made.append(Client(service.address, job, secret, CODEC, **rest))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def plain() -> Iterator[Service]:
    service = Service()
    yield service
    service.stop()


@pytest.fixture(params=["plain", "tls"])
def pair(
    client: Callable[..., Client], request: pytest.FixtureRequest
) -> Iterator[tuple[Service, Callable[..., Client]]]:
    """A service and what makes its clients, whose streams are encrypted, or not."""
    if request.param == "plain":
        service = Service()
        yield service, partial(client, service)
    else:
        service = Service(AUTHORITY.issue(DRIVER_NAME))
        yield service, partial(client, service, identity=AUTHORITY.issue(CLIENT_NAME))
    service.stop()


def ask(client: Client, word: str, *, later: bool = False) -> str:
    echo: Echo = client.ask(Question, word, later)
    return echo.word


def test_a_reply_of_any_size(pair):
    _, new_client = pair
    asker = new_client()
    for size in (0, 1, 100_000, 20_000_000):
        assert ask(asker, "x" * size) == "x" * size


def test_threads_do_not_wait_for_one_another(pair):
    service, new_client = pair
    asker = new_client()
    replies: dict[int, str] = {}

    def wait(number: int) -> None:
        replies[number] = ask(asker, f"{number}" * 1000 * number, later=True)

    waiting = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        assert service.has_waiting.acquire(timeout=WAIT_S)
    assert [ask(asker, word) for word in "abc"] == ["a", "b", "c"]
    assert not replies
    service.do(service.let_go)
    for thread in waiting:
        thread.join(WAIT_S)
    assert replies == {number: f"{number}" * 1000 * number for number in range(8)}
    assert service.opened == 1


def test_many_threads_with_large_requests(pair):
    _, new_client = pair
    asker = new_client()
    wrong: list[Any] = []

    def go_on(number: int) -> None:
        for size in range(20):
            word = f"{number}" * size * 50_000
            if ask(asker, word) != word:
                wrong.append((number, size))

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_stream_that_was_cut_while_nobody_asked_is_opened_again(pair):
    service, new_client = pair
    asker = new_client()
    assert ask(asker, "a") == "a"
    service.do(service.cut)
    give_up_s = time.monotonic() + WAIT_S
    while service.closed == 0:  # both ends know
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    assert ask(asker, "b") == "b"
    assert service.opened == 2


def test_all_requests_under_way_fail_with_their_stream_and_the_next_does_not(pair):
    service, new_client = pair
    asker = new_client()
    failed = threading.Semaphore(0)

    def wait() -> None:
        with pytest.raises(PeerUnreachable):
            ask(asker, "lost", later=True)
        failed.release()

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert service.has_waiting.acquire(timeout=WAIT_S)
    service.do(service.cut)
    for _ in threads:
        assert failed.acquire(timeout=WAIT_S)
    assert ask(asker, "next") == "next"
    service.do(service.let_go)  # late replies to a stream that is gone
    assert ask(asker, "another") == "another"
    for thread in threads:
        thread.join(WAIT_S)


def test_no_reply_is_waited_for_forever(plain, client):
    asker = client(plain, reply_s=0.1)
    with pytest.raises(PeerUnreachable, match=r"no reply within 0\.1 s"):
        ask(asker, "never", later=True)
    late = client(plain)
    assert ask(late, "and it goes on") == "and it goes on"


def test_closing_wakes_who_waits(plain, client):
    asker = client(plain)
    woken = threading.Event()

    def wait() -> None:
        with pytest.raises(PeerUnreachable, match="was closed"):
            ask(asker, "never", later=True)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert plain.has_waiting.acquire(timeout=WAIT_S)
    asker.close()
    assert woken.wait(WAIT_S)
    waiting.join()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_a_fork_has_a_stream_of_its_own(pair):
    service, new_client = pair
    asker = new_client()
    assert ask(asker, "parent") == "parent"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if ask(asker, "child") == "child" else 2
            asker.close()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ask(asker, "still the parent") == "still the parent"
    assert service.opened == 2


def test_nobody_listens(plain, client):
    asker = client(plain)
    plain.stop()
    with pytest.raises(PeerUnreachable):
        ask(asker, "a")


def test_a_stranger_is_refused(plain, client):
    with pytest.raises(PeerUnreachable, match="secret"):
        ask(client(plain, JobSecret.new()), "a")
    with pytest.raises(PeerUnreachable, match="secret"):
        ask(client(plain, job="another"), "a")
    assert plain.opened == 0


def test_a_plane_that_serves_no_clients_refuses_them(client):
    service = Service(clients=None)
    try:
        with pytest.raises(PeerUnreachable, match="secret"):
            ask(client(service), "a")
    finally:
        service.stop()


def test_certificates_are_checked_on_both_sides(client):
    service = Service(AUTHORITY.issue(DRIVER_NAME))
    try:
        for name, authority in ((CLIENT_NAME, Authority("other")), ("slot-3", AUTHORITY)):
            with pytest.raises((PeerUnreachable, AuthenticationFailed)):
                ask(client(service, identity=authority.issue(name)), "a")
        assert service.opened == 0
    finally:
        service.stop()


def test_what_should_be_encrypted_is(plain, client):
    with pytest.raises(PlaintextRefused):
        ask(client(plain, identity=AUTHORITY.issue(CLIENT_NAME)), "a")
