"""A process's place in the job's network: one Flight server, and streams to other ones.

A data channel is opened by its *sender*; a control stream by the *slot*. Everything heard, and
every opening and end of a stream, is put into one inbox, which one loop reads.
"""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from clonos.core.plan import Incarnation
from clonos.errors import ClonosError, MalformedMessage
from clonos.transport.errors import AuthenticationFailed, PeerUnreachable, PlaintextRefused
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    ControlLost,
    ControlOpened,
    Heartbeat,
    Register,
)
from clonos.transport.secret import Greeting, JobSecret, Purpose, refused
from clonos.transport.streams import Incoming, Outgoing

HEARTBEAT_S: Final = 1.0
"""A slot that hangs is noticed after a few of these; one that dies, at once by its stream."""

SHUTDOWN_S: Final = 3.0
"""A shutdown that takes longer is left to the process's end."""

_NOBODY: Final = Incarnation(0, 0)

Inbox = SimpleQueue[Any]
Pulse = Callable[[], tuple[int, int | None]]


class FlightPlane:
    """The Flight server of one process and all its streams.

    Parameters
    ----------
    host
        The address of the interface to listen on; never all of them.
    secret
        Shared by the processes of the job and by nobody else.
    job_id
        Streams of other jobs are refused.
    inbox
        Where events and ``(conn_id, message)`` pairs are put.
    allow_plaintext
        Needed for an address that is not a loopback one: streams are authenticated but not
        encrypted.

    Raises
    ------
    PlaintextRefused
        `host` is not a loopback address and `allow_plaintext` is not set.

    Examples
    --------
    >>> from queue import SimpleQueue
    >>> plane = FlightPlane("127.0.0.1", JobSecret.new(), "job-1", SimpleQueue())
    >>> plane.address.startswith("grpc://127.0.0.1:")
    True
    >>> plane.shutdown()
    True
    """

    def __init__(
        self,
        host: str,
        secret: JobSecret,
        job_id: str,
        inbox: Inbox,
        *,
        allow_plaintext: bool = False,
    ) -> None:
        self._secret = secret
        self._job_id = job_id
        self._inbox = inbox
        self._allow_plaintext = allow_plaintext
        self._check_address(host)
        self._host = f"[{host}]" if ":" in host else host
        self._conn_ids = itertools.count(1)
        self._lock = threading.Lock()
        self._closing = False
        self._nonces: set[bytes] = set()
        self._schemas: dict[int, pa.Schema] = {}
        self._outgoing: list[Outgoing] = []
        self._incoming: dict[int, Incoming] = {}
        self._server = _Server(f"grpc://{self._host}:0", self._serve)
        # Arrow's own clean-up at exit waits for open streams, forever: be there before it.
        atexit.register(self.shutdown)

    @property
    def address(self) -> str:
        """Where peers connect to."""
        return f"grpc://{self._host}:{self._server.port}"

    # --- opening streams ---

    def pin(self, channel: int, schema: pa.Schema) -> None:
        """Accept only batches of `schema` on an input channel (without: none at all)."""
        self._schemas[channel] = schema

    def connect(
        self,
        peer_address: str,
        channel: int,
        sender_incarnation: Incarnation,
        receiver_incarnation: Incarnation,
        schema: pa.Schema,
    ) -> Outgoing:
        """Open `channel` to its receiver; ends with a ChannelClosed in the inbox."""

        def on_end(outgoing: Outgoing, error: ClonosError | None) -> None:
            self._inbox.put(ChannelClosed(channel, outgoing.conn_id, "sender", error))

        greeting = Greeting(
            self._job_id,
            peer_address,
            Purpose.CHANNEL,
            channel,
            sender_incarnation,
            receiver_incarnation,
        )
        return self._open(greeting, schema, on_end)

    def control(
        self, coordinator: str, register: Register, pulse: Pulse, heartbeat_s: float = HEARTBEAT_S
    ) -> Outgoing:
        """Open a slot's control stream; ends with a ControlLost in the inbox.

        Parameters
        ----------
        coordinator
            The address of the coordinator's plane.
        register
            Sent first.
        pulse
            Called by a thread of its own for the fields of every Heartbeat: steps done, and
            since when (ms) the loop is inside user code, if it is.
        """
        over = threading.Event()

        def on_end(outgoing: Outgoing, error: ClonosError | None) -> None:
            over.set()
            self._inbox.put(ControlLost(register.slot, outgoing.conn_id, error))

        def beat() -> None:
            while not over.wait(heartbeat_s):
                outgoing.send(Heartbeat(register.slot, *pulse()))

        greeting = Greeting(
            self._job_id, coordinator, Purpose.CONTROL, register.slot, _NOBODY, _NOBODY
        )
        outgoing = self._open(greeting, None, on_end)
        outgoing.send(register)
        threading.Thread(target=beat, name="clonos-heartbeat", daemon=True).start()
        return outgoing

    def _open(
        self,
        greeting: Greeting,
        schema: pa.Schema | None,
        on_end: Callable[[Outgoing, ClonosError | None], None],
    ) -> Outgoing:
        self._check_address(urlsplit(greeting.audience).hostname or "")
        conn_id = next(self._conn_ids)
        outgoing = Outgoing(
            conn_id,
            greeting.audience,
            self._secret.seal(greeting),
            self._secret,
            schema,
            lambda conn_id, message: self._inbox.put((conn_id, message)),
            on_end,
        )
        with self._lock:
            if self._closing:
                raise PeerUnreachable("this process is leaving the job")
            outgoing.start()
            self._outgoing = [o for o in self._outgoing if not o.is_gone] + [outgoing]
        return outgoing

    def _check_address(self, host: str) -> None:
        """Plaintext leaves the machine only if asked for by name."""
        try:
            ip = ipaddress.ip_address(host)
        except ValueError:
            raise PlaintextRefused(
                f"{host!r} is not an IP address", remedy="name the interface by its address"
            ) from None
        if ip.is_unspecified:
            raise PlaintextRefused(
                f"{host} would listen on every interface",
                remedy="give the address of the one that the job's processes share",
            )
        if not ip.is_loopback and not self._allow_plaintext:
            raise PlaintextRefused(
                f"streams with {host} would leave this machine unencrypted",
                remedy="set allow_plaintext=True if that network is trusted",
            )

    # --- serving streams ---

    def _authenticate(self, sealed: bytes) -> Greeting:
        greeting = self._secret.open(sealed)
        with self._lock:
            is_ours = greeting.job == self._job_id and greeting.audience == self.address
            if self._closing or not is_ours or greeting.nonce in self._nonces:
                raise refused()
            self._nonces.add(greeting.nonce)
        return greeting

    def _serve(self, peer: str, sealed: bytes, reader: Any, writer: Any) -> None:
        """One stream, from its greeting to its end."""
        greeting = self._authenticate(sealed)
        conn_id = next(self._conn_ids)
        name = f"{greeting.purpose.name.lower()} {greeting.id}"
        incoming = Incoming(conn_id, name, peer, lambda: self._schemas.get(greeting.id))
        with self._lock:
            self._incoming[conn_id] = incoming
        error: ClonosError | None = None
        serve = self._serve_channel if greeting.purpose == Purpose.CHANNEL else self._serve_control
        try:
            serve(greeting, incoming, self._secret.answer(sealed), reader, writer)
        except ClonosError as wrong:
            error = wrong
            raise
        finally:
            del self._incoming[conn_id]
            if greeting.purpose == Purpose.CHANNEL:
                self._inbox.put(ChannelClosed(greeting.id, conn_id, "receiver", error))
            else:
                self._inbox.put(ControlLost(greeting.id, conn_id, error))

    def _serve_channel(
        self, greeting: Greeting, incoming: Incoming, proof: bytes, reader: Any, writer: Any
    ) -> None:
        conn_id, inbox = incoming.conn_id, self._inbox
        inbox.put(ChannelOpened(greeting.id, conn_id, greeting.sender, greeting.receiver, incoming))
        incoming.serve(proof, reader, writer, lambda message: inbox.put((conn_id, message)))

    def _serve_control(
        self, greeting: Greeting, incoming: Incoming, proof: bytes, reader: Any, writer: Any
    ) -> None:
        conn_id, inbox = incoming.conn_id, self._inbox
        registered = False

        def deliver(message: Any) -> None:
            nonlocal registered
            if registered:
                inbox.put((conn_id, message))
            elif type(message) is Register and message.slot == greeting.id:
                registered = True
                inbox.put(ControlOpened(conn_id, message, incoming))
            else:
                raise MalformedMessage(f"slot {greeting.id} spoke before it registered")

        incoming.serve(proof, reader, writer, deliver)

    # --- the end ---

    def shutdown(self, deadline_s: float = SHUTDOWN_S) -> bool:
        """End all streams and the server; True if all of it has ended before the deadline."""
        atexit.unregister(self.shutdown)
        with self._lock:
            first, self._closing = not self._closing, True
            outgoing, incoming = self._outgoing, list(self._incoming.values())
        if not first:
            return True
        for stream in outgoing:
            stream.close()
        for peer in incoming:
            peer.close()
        until = time.monotonic() + deadline_s
        # Peers leave when asked, unless they are frozen or cut off.
        if not self._wait_for_streams(until - deadline_s / 2):
            for peer in list(self._incoming.values()):
                sever(peer.peer, local_port=self._server.port)
            for stream in outgoing:
                if not stream.is_gone:
                    sever(stream.address)
            self._wait_for_streams(until)
        closer = threading.Thread(target=self._server.shutdown, name="clonos-close", daemon=True)
        closer.start()
        closer.join(max(0.0, until - time.monotonic()))
        return not closer.is_alive()

    def _wait_for_streams(self, until: float) -> bool:
        while self._incoming or not all(stream.is_gone for stream in self._outgoing):
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    """Hands every exchange to the plane; what else Flight can do is refused by its defaults."""

    def __init__(self, location: str, serve: Callable[[str, bytes, Any, Any], None]) -> None:
        self._serve = serve
        super().__init__(location)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            self._serve(context.peer(), descriptor.command or b"", reader, writer)
        except AuthenticationFailed as error:
            raise flight.FlightUnauthenticatedError(str(error)) from error
        except ClonosError as error:
            raise flight.FlightServerError(f"{type(error).__name__}: {error}") from error


def sever(peer: str, local_port: int | None = None) -> None:
    """Cut this process's TCP connections with the port of `peer`, if it does not leave otherwise.

    gRPC waits for a stream's reads and writes even after it was cancelled, and cannot end a single
    connection of a server at all.
    """
    peer_port = int(peer.rpartition(":")[2])
    for entry in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # not a connection, or gone meanwhile
            _sever_if(os.dup(int(entry.name)), peer_port, local_port)


def _sever_if(fd: int, peer_port: int, local_port: int | None) -> None:
    """Shut the socket `fd` if it has these ports; `fd` itself is closed in any case."""
    try:
        connection = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        ports = connection.getsockname()[1], connection.getpeername()[1]
        if ports[1] == peer_port and local_port in (None, ports[0]):
            connection.shutdown(socket.SHUT_RDWR)
