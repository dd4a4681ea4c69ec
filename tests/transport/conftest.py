"""Planes whose loops are threads of the test, and what they say to each other."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from clonos.core.messages import Data, Item, Kind
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.transport.certificates import Authority
from clonos.transport.events import ChannelOpened, Register
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import JobSecret
from clonos.transport.streams import Incoming, Outgoing
from clonos.transport.tls import Identity

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
        def connect() -> Outgoing:
            self.plane.pin(channel, schema)
            return self.plane.connect(address, channel, A, B)

        outgoing: Outgoing = self.do(connect)
        return outgoing

    def send(self, outgoing: Outgoing, *messages: Any) -> None:
        self.do(lambda: deque(map(outgoing.send, messages), 0))

    def reply(self, incoming: Incoming, *messages: Any) -> None:
        self.do(lambda: deque(map(incoming.send, messages), 0))

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


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def register_of(slot: int, address: str) -> Register:
    return Register(slot, 1, "nonce", LOOPBACK, "0", 1, os.getpid(), address, {"Python": "3"})
