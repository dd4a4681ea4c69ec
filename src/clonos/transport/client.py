"""The client's end of requests and replies, for threads that block.

A process with a loop has a plane; a Python worker of Spark has none, and asks now and then from
whatever thread runs there. A :class:`Client` has the same stream (greeting, secret, TLS, frames)
without a loop: a thread that waits for its own reply also reads those of other threads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from clonos.core.codec import Codec
from clonos.core.plan import NOBODY
from clonos.errors import CannotConnect, ClonosError, PeerUnreachable, PlaintextRefused
from clonos.transport.events import ClientClosed
from clonos.transport.secret import Greeting, JobSecret, Purpose
from clonos.transport.states import State
from clonos.transport.streams import Outgoing, Stream, Thing
from clonos.transport.tls import Identity, Keys

REPLY_S: Final = 30.0
"""How long to wait for a reply."""

LOOK_S: Final = 1.0
"""Longest wait before checking that the stream is still the current one."""


class Client:
    """Asks a plane that serves clients. Any number of threads may use it, and their requests do not
    wait for each other. After a fork, each child has its own stream.

    A request is a message whose last field is its *ticket*; its reply has the same ticket. The
    first request connects. If the stream breaks, only the requests under way fail: the next one
    opens another stream.

    Parameters
    ----------
    address, job_id, secret
        Those of the plane.
    codec
        The plane's codec for its clients.
    identity
        This client's certificate, if the plane encrypts its streams.
    reply_s
        How long to wait for a reply.
    """

    def __init__(
        self,
        address: str,
        job_id: str,
        secret: JobSecret,
        codec: Codec,
        *,
        identity: Identity | None = None,
        reply_s: float = REPLY_S,
    ) -> None:
        self.address = address
        self._job_id = job_id
        self._secret = secret
        self._codec = codec
        self._keys = Keys(identity) if identity is not None else None
        self._reply_s = reply_s
        self._tickets = itertools.count(1)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._stream: Outgoing | None = None
        self._why: ClonosError | None = None  # the stream has ended
        self._awaited: set[int] = set()
        self._replies: dict[int, Any] = {}
        self._is_read = False  # a thread waits for replies

    def ask(self, kind: Callable[..., Any], *fields: Any) -> Any:
        """Send ``kind(*fields, ticket)``; return the reply.

        Raises
        ------
        PeerUnreachable
            No reply: the peer, or the network between, is gone or too slow. Whether the request
            arrived is unknown.
        AuthenticationFailed
            The process that listens there does not belong to this job.
        """
        if os.getpid() != self._pid:
            self._leave_to_parent()
        until = time.monotonic() + self._reply_s
        with self._changed:
            stream = self._current()
            ticket = next(self._tickets)
            stream.send(kind(*fields, ticket))
            stream.flush()
            self._awaited.add(ticket)
            try:
                return self._reply(stream, ticket, until)
            finally:
                self._awaited.discard(ticket)
                self._replies.pop(ticket, None)

    def close(self) -> None:
        """End the stream; the next request opens another."""
        if os.getpid() == self._pid:
            with self._changed:
                self._end(PeerUnreachable(f"the stream with {self.address} was closed"))

    # --- the stream (all of it holding the lock) ----------------------------------------------

    def _leave_to_parent(self) -> None:
        """Drop what a fork inherited: the stream and its locks are the parent's."""
        if self._stream is not None:
            self._stream.connection.close()  # closes only this process's descriptor
        self._begin()

    def _current(self) -> Outgoing:
        """The current stream, or a new one if it ended while nobody looked."""
        if self._stream is not None and not self._is_read:
            self._take(self._stream.read())
        if self._stream is None:
            self._stream = self._open()
        return self._stream

    def _open(self) -> Outgoing:
        peer = urlsplit(self.address)
        if self._keys and not peer.username:
            raise PlaintextRefused(f"{self.address} does not encrypt its streams")
        host = peer.hostname or ""
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect_ex((host, peer.port))  # reading tells the outcome
        greeting = Greeting(
            self._job_id, self.address, Purpose.REQUESTS, 0, NOBODY, NOBODY, schema=b""
        )
        return Outgoing(
            _Alone(),
            0,
            connection,
            self.address,
            self._secret,
            greeting,
            None,
            ClientClosed,
            self._keys.client(peer.username) if self._keys and peer.username else None,
            self._codec,
        )

    def _reply(self, stream: Outgoing, ticket: int, until: float) -> Any:
        while ticket not in self._replies:
            if self._stream is not stream:
                raise self._why or PeerUnreachable(f"{self.address} ended the stream")
            left_s = until - time.monotonic()
            if left_s <= 0:
                self._end(self._silent(stream))
            elif self._is_read and not stream.wants_to_write:
                self._changed.wait(min(left_s, LOOK_S))
            else:
                self._wait(stream, min(left_s, LOOK_S))
        return self._replies[ticket]

    def _wait(self, stream: Outgoing, seconds: float) -> None:
        """Wait until the stream can be read or written; the lock is released meanwhile."""
        reads = not self._is_read
        events = select.POLLIN if reads else 0
        if stream.wants_to_write:
            events |= select.POLLOUT
        poll = select.poll()
        poll.register(stream.connection, events)
        self._is_read = True
        self._changed.release()
        try:
            ready = poll.poll(seconds * 1000)
        finally:
            self._changed.acquire()
            if reads:
                self._is_read = False
                self._changed.notify_all()
        if self._stream is stream and ready:
            if ready[0][1] & ~select.POLLOUT and not self._is_read:
                self._take(stream.read())
            stream.flush()

    def _take(self, things: list[Thing]) -> None:
        for thing in things:
            if isinstance(thing, ClientClosed):
                self._end(thing.error)
            elif isinstance(thing, tuple):
                ticket = getattr(thing[1], "ticket", None)
                if ticket in self._awaited:
                    self._replies[ticket] = thing[1]

    def _end(self, why: ClonosError | None) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        self._why = why
        with contextlib.suppress(OSError):
            stream.connection.shutdown(socket.SHUT_RDWR)  # wakes threads that wait on it
        stream.end(None)
        self._changed.notify_all()

    def _silent(self, stream: Outgoing) -> PeerUnreachable:
        if stream.state is State.OPENING and not stream.is_connected:
            return CannotConnect(
                f"cannot connect to {self.address}: nothing comes back within {self._reply_s:g} s"
            )
        return PeerUnreachable(f"no reply within {self._reply_s:g} s from {self.address}")


class _Alone:
    """The host of a stream without a plane: its users flush it."""

    def changed(self, stream: Stream) -> None:
        """See :class:`~clonos.transport.streams.Host`."""

    def gone(self, stream: Stream) -> None:
        """See :class:`~clonos.transport.streams.Host`."""
