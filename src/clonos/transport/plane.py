"""A process's endpoint in the job's network: one listening socket, and streams to other processes.

A data channel is opened by its *sender*; a control stream by the *slot*. One loop owns the plane:
:meth:`Plane.poll` sleeps until something comes (from a stream, or from another thread through the
inbox), and returns it. There are no threads behind it; a message costs one system call on each
side.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
import secrets
import selectors
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from clonos.core.codec import Codec
from clonos.core.plan import NOBODY, Incarnation
from clonos.errors import (
    CannotConnect,
    ClonosError,
    MalformedMessage,
    PeerUnreachable,
    PlaintextRefused,
)
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    ClientClosed,
    ClientOpened,
    ControlLost,
    ControlOpened,
    Event,
    Heartbeat,
    Register,
)
from clonos.transport.frames import fingerprint
from clonos.transport.inbox import Inbox
from clonos.transport.pulse import Progress, Pulse
from clonos.transport.secret import Greeting, JobSecret, Purpose, refused
from clonos.transport.shortage import PAUSE_S, Shortage
from clonos.transport.silence import is_silent, watch
from clonos.transport.sockets import SYSTEM, Sockets
from clonos.transport.states import State
from clonos.transport.streams import Incoming, Outgoing, Stream, Thing, wrong_schema
from clonos.transport.tls import CLIENT_NAME, Identity, Keys, slot_name

HEARTBEAT_S: Final = 0.1
"""A slot that hangs is noticed after a few of these; one that dies is noticed at once by its
stream."""

LINGER_S: Final = 5.0
"""Grace period for the other side of a closed stream to read the rest, and to close, too."""

STRANGERS_MAX: Final = 256
"""Connections accepted that are not authenticated yet; further ones wait outside."""

STRANGER_S: Final = 10.0
"""Time to authenticate; after that a connection makes room if others wait."""

NONCES_MAX: Final = 1 << 16
"""Greetings that are remembered, so that none of them counts twice. Inside TLS nobody overhears
one, so none is remembered."""

CONNECT_S: Final = 2.0
"""Connect timeout: a machine that is silent for this long will not answer, or something blocks
it."""

LOOK_S: Final = 0.5
"""How often the kernel is asked which peers have fallen silent."""

OPEN_S: Final = 60.0
"""A process that is silent for this long is dialled anew. That is no error: it may be in a long
call."""

PAUSE_MAX_S: Final = 1.0
"""A longer time between two looks is this process's own delay, not that of its peers."""

SHUTDOWN_S: Final = 3.0
"""Grace period for peers to leave at shutdown, before it hangs up."""

_UNDER_WAY: Final = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Plane:
    """The listening socket of one process and all its streams; for one thread at a time.

    Parameters
    ----------
    host
        The address of the interface to listen on; never all of them.
    secret
        Shared by the processes of the job and by nobody else.
    job_id
        Streams of other jobs are refused.
    inbox
        :meth:`poll` also returns what other threads put there.
    identity
        This process's certificate: all its streams are encrypted, and only with processes whose
        certificates have the same authority. Without one, streams are authenticated but not
        encrypted.
    allow_plaintext
        Must be true for an address that is not a loopback one if there is no `identity`.
    clients
        The codec for clients (:class:`~clonos.transport.client.Client`); without it they are
        refused.
    sockets
        The operating system's, except in simulations.

    Attributes
    ----------
    listened_s
        How long the plane has listened. Its timeouts use this clock: while a step keeps the loop
        busy, no peer is late.
    strangers_refused
        How many connections were refused because they had no secret or no certificate of the job.

    Raises
    ------
    PlaintextRefused
        `host` is not a loopback address, and there is neither `identity` nor `allow_plaintext`.
    OSError
        This process cannot listen there.

    Examples
    --------
    >>> plane = Plane("127.0.0.1", JobSecret.new(), "job-1", Inbox())
    >>> plane.address.startswith("tcp://127.0.0.1:")
    True
    >>> plane.shutdown()
    """

    def __init__(
        self,
        host: str,
        secret: JobSecret,
        job_id: str,
        inbox: Inbox,
        *,
        identity: Identity | None = None,
        allow_plaintext: bool = False,
        clients: Codec | None = None,
        sockets: Sockets = SYSTEM,
    ) -> None:
        self._sockets = sockets
        self._secret = secret
        self._job_id = job_id
        self._inbox = inbox
        self._keys = Keys(identity) if identity is not None else None
        self._allow_plaintext = allow_plaintext
        self._clients = clients
        self._check_address(host)
        self._listener = sockets.listen(host)
        named = f"[{host}]" if ":" in host else host
        self._name = f"tls://{self._keys.name}@{named}" if self._keys else f"tcp://{named}"
        self._life = secrets.token_hex(4)
        self._conn_ids = itertools.count(1)
        self._closing = False
        self._nonces: set[bytes] = set()
        self._newest_nonces: deque[bytes] = deque()
        self._schemas: dict[int, pa.Schema] = {}
        self._registered: dict[str, Incoming] = {}
        self._pulses: dict[str, Incoming] = {}  # the newest of each registered slot
        self._serve = {
            Purpose.CHANNEL: self._serve_channel,
            Purpose.CONTROL: self._serve_control,
            Purpose.PULSE: self._serve_pulse,
            Purpose.REQUESTS: self._serve_client,
        }
        self._streams: set[Stream] = set()
        self._to_flush: deque[Stream] = deque()
        self._strangers: dict[Stream, float] = {}  # since when; the oldest first
        self._deadlines: dict[Stream, float] = {}  # of streams that are leaving
        self._opening: dict[Outgoing, float] = {}  # since when
        self.strangers_refused = 0
        self.listened_s = 0.0
        self._looked = sockets.now_s()
        self._look_at = LOOK_S
        self._things: list[Thing] = []
        self._selector = sockets.selector()
        self._selector.register(self._listener, _READ)
        self._lets_in, self._lets_in_at = True, 0.0
        self._shortage = Shortage(host)
        self._selector.register(self._inbox, _READ)

    @property
    def address(self) -> str:
        """Where peers connect, and which process they expect: the name in our certificate, and a
        random part, because other processes may have listened at this port before."""
        return f"{self._name}:{self._listener.getsockname()[1]}/{self._life}"

    # --- the loop -----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Any]:
        """Flush what is queued, then return what arrived; wait for it at most `timeout_s`.

        Returns
        -------
        list
            Events of :mod:`clonos.transport.events`, pairs ``(conn_id, message)``, and whatever
            other threads have put into the inbox.
        """
        self.flush()
        may_let_in = not self._closing and self.listened_s >= self._lets_in_at
        if may_let_in and not self._lets_in and self._has_room():
            self._lets_in = True
            self._selector.register(self._listener, _READ)
        if timeout_s <= 0 or self._things or not self._inbox.may_sleep():
            timeout_s = 0.0
        ready = self._selector.select(timeout_s)
        self._inbox.awake()
        now = self._sockets.now_s()
        self.listened_s += min(now - self._looked, PAUSE_MAX_S)
        self._looked = now
        for key, mask in ready:
            stream = key.data
            if stream is None:
                self._accept() if key.fileobj is self._listener else self._inbox.silence()
                continue
            if mask & _READ and stream.state is not State.ENDED:
                self._things += stream.read()
                if self._opening:
                    self._opening.pop(stream, None)  # it answers
            if mask & _WRITE:
                self.changed(stream)
        self.flush()  # handshakes do not wait for the next steps
        if self._deadlines or self._opening:
            self._enforce_deadlines()
        if self.listened_s >= self._look_at:
            self._look_at = self.listened_s + LOOK_S
            self._end_silent()
        things, self._things = self._things, []
        return things + self._inbox.take()

    def flush(self) -> None:
        """Hand the system what was sent since the last flush."""
        while self._to_flush:
            stream = self._to_flush.popleft()
            stream.is_listed = False
            if stream.state is State.ENDED:
                continue
            before = stream.unsent_bytes
            stream.flush()
            if (wants := stream.wants_to_write) != stream.is_watched:
                stream.is_watched = wants
                self._selector.modify(stream.connection, _READ | _WRITE if wants else _READ, stream)
            moves = stream.unsent_bytes < before or stream not in self._deadlines
            if stream.is_leaving and moves:
                self._deadlines[stream] = self.listened_s + LINGER_S

    def changed(self, stream: Stream) -> None:
        """See :class:`~clonos.transport.streams.Host`."""
        if not stream.is_listed:
            stream.is_listed = True
            self._to_flush.append(stream)

    def gone(self, stream: Stream) -> None:
        """See :class:`~clonos.transport.streams.Host`."""
        self._streams.discard(stream)
        self._strangers.pop(stream, None)
        self._deadlines.pop(stream, None)
        if isinstance(stream, Outgoing):
            self._opening.pop(stream, None)
        self._selector.unregister(stream.connection)

    def _end_silent(self) -> None:
        """End streams whose peers do not answer: TCP itself would take a quarter of an hour."""
        for stream in [s for s in self._streams if is_silent(s.connection)]:
            self._things += stream.end(
                CannotConnect(f"{self.address} and {stream.peer} do not reach each other any more")
            )

    def _enforce_deadlines(self) -> None:
        now = self.listened_s
        for stream, due in list(self._deadlines.items()):
            if due <= now:
                self._things += stream.end(None)
        for stream, since in list(self._opening.items()):
            if stream.state not in (State.OPENING, State.PARTING):
                del self._opening[stream]
            elif now - since > CONNECT_S and not stream.is_connected:
                self._things += stream.end(
                    CannotConnect(
                        f"{self.address} cannot connect to {stream.peer}: nothing comes back "
                        f"within {CONNECT_S:g} s"
                    )
                )
            elif now - since > OPEN_S:
                self._things += stream.end(None)

    # --- opening streams ----------------------------------------------------------------------

    def pin(self, channel: int, schema: pa.Schema) -> None:
        """`channel` carries `schema`. Channels that are not pinned are neither accepted nor
        opened."""
        self._schemas[channel] = schema

    def connect(
        self,
        peer_address: str,
        channel: int,
        sender_incarnation: Incarnation,
        receiver_incarnation: Incarnation,
    ) -> Outgoing:
        """Open `channel`, which must be pinned, to its receiver; ends with a ChannelClosed."""
        schema = self._schemas[channel]

        def over(conn_id: int, error: ClonosError | None) -> Event:
            return ChannelClosed(channel, conn_id, "sender", error)

        greeting = Greeting(
            self._job_id,
            peer_address,
            Purpose.CHANNEL,
            channel,
            sender_incarnation,
            receiver_incarnation,
            fingerprint(schema),
        )
        return self._open(greeting, schema, over)

    def control(
        self,
        coordinator: str,
        register: Register,
        progress: Progress,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> Outgoing:
        """Open a slot's control stream; ends with a ControlLost.

        Parameters
        ----------
        coordinator
            The address of the coordinator's plane.
        register
            Sent first.
        progress
            Called in the pulse's thread for the fields of every Heartbeat.
        """

        def greet(purpose: Purpose) -> Greeting:
            return Greeting(self._job_id, coordinator, purpose, register.slot, NOBODY, NOBODY, b"")

        def lost(conn_id: int, error: ClonosError | None) -> Event:
            pulse.stop()
            return ControlLost(register.slot, conn_id, error)

        pulse = Pulse(
            self._secret,
            partial(greet, Purpose.PULSE),
            register.nonce,
            progress,
            heartbeat_s,
            self._keys,
        )
        outgoing = self._open(greet(Purpose.CONTROL), None, lost)
        outgoing.send(register)
        pulse.start()
        return outgoing

    def _open(
        self,
        greeting: Greeting,
        schema: pa.Schema | None,
        over: Callable[[int, ClonosError | None], Event],
    ) -> Outgoing:
        peer = urlsplit(greeting.audience)
        host = peer.hostname or ""
        self._check_address(host)
        if self._keys and not peer.username:
            raise PlaintextRefused(f"{greeting.audience} does not encrypt its streams")
        if self._closing:
            raise PeerUnreachable("this process is leaving the job")
        connection, failure = self._sockets.connect(host, peer.port or 0)
        outgoing = Outgoing(
            self,
            next(self._conn_ids),
            connection,
            greeting.audience,
            self._secret,
            greeting,
            schema,
            over,
            self._keys.client(peer.username) if self._keys and peer.username else None,
        )
        self._add(outgoing)
        self._opening[outgoing] = self.listened_s
        if failure not in _UNDER_WAY:
            reason = f"{greeting.audience} cannot be reached: {errno.errorcode[failure]}"
            self._things += outgoing.end(PeerUnreachable(reason))
        return outgoing

    def _add(self, stream: Stream) -> None:
        stream.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch(stream.connection)
        self._streams.add(stream)
        self._selector.register(stream.connection, _READ, stream)

    def _check_address(self, host: str) -> None:
        """Raise if plaintext would leave the machine without the user's explicit consent."""
        if not (is_loopback(host) or self._keys or self._allow_plaintext):
            raise PlaintextRefused(
                f"streams with {host} would leave this machine unencrypted",
                remedy="leave tls on, or pass tls=False if that network is trusted",
            )

    # --- serving streams ----------------------------------------------------------------------

    def _has_room(self) -> bool:
        """Whether there is room for one more unauthenticated connection; drops the oldest if its
        time is up."""
        if len(self._strangers) < STRANGERS_MAX:
            return True
        oldest, since = next(iter(self._strangers.items()))
        if self.listened_s - since <= STRANGER_S:
            return False
        self._things += oldest.end(None)
        return True

    def _accept(self) -> None:
        while self._has_room():
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if self._shortage.is_one(error):
                    self._lets_in_at = self.listened_s + PAUSE_S
                    break
                return  # all are accepted, or the client has gone again
            connection.setblocking(False)
            peer = f"tcp://{address[0]}:{address[1]}"
            tls = self._keys.server() if self._keys else None
            stranger = Incoming(
                self, next(self._conn_ids), connection, peer, self._admit, self._refused, tls
            )
            self._add(stranger)
            self._strangers[stranger] = self.listened_s
            self._things += stranger.read()  # it may have sent something while a step ran
        self._lets_in = False  # further ones wait in the system's queue
        self._selector.unregister(self._listener)

    def _refused(self) -> None:
        self.strangers_refused += 1

    def _admit(self, incoming: Incoming, sealed: bytes) -> list[Thing]:
        greeting = self._secret.open(sealed)
        is_ours = greeting.job == self._job_id and greeting.audience == self.address
        if incoming.tls is not None and greeting.purpose != Purpose.CHANNEL:
            is_client = greeting.purpose == Purpose.REQUESTS
            expected = CLIENT_NAME if is_client else slot_name(greeting.id)
            is_ours &= incoming.tls.peer_name == expected
        if not is_ours or greeting.nonce in self._nonces:
            raise refused()
        if incoming.tls is None:
            self._remember(greeting.nonce)
        del self._strangers[incoming]
        return self._serve[greeting.purpose](incoming, greeting, self._secret.answer(sealed))

    def _remember(self, nonce: bytes) -> None:
        self._nonces.add(nonce)
        self._newest_nonces.append(nonce)
        if len(self._newest_nonces) > NONCES_MAX:
            self._nonces.discard(self._newest_nonces.popleft())

    def _serve_channel(self, incoming: Incoming, greeting: Greeting, proof: bytes) -> list[Thing]:
        channel, conn_id = greeting.id, incoming.conn_id
        schema = self._schemas.get(channel)
        incoming.admitted(
            proof,
            schema,
            lambda message: [(conn_id, message)],
            lambda error: [ChannelClosed(channel, conn_id, "receiver", error)],
        )
        if schema is None or greeting.schema != fingerprint(schema):
            raise wrong_schema(f"channel {channel}", schema, None)
        return [ChannelOpened(channel, conn_id, greeting.sender, greeting.receiver, incoming)]

    def _serve_control(self, incoming: Incoming, greeting: Greeting, proof: bytes) -> list[Thing]:
        slot, conn_id = greeting.id, incoming.conn_id
        nonce = ""

        def deliver(message: Any) -> list[Thing]:
            nonlocal nonce
            if nonce:
                return [(conn_id, message)]
            if type(message) is Register and message.slot == slot:
                nonce = message.nonce
                self._registered[nonce] = incoming
                return [ControlOpened(conn_id, message, incoming)]
            raise MalformedMessage(f"slot {slot} spoke before it registered")

        def over(error: ClonosError | None) -> list[Thing]:
            self._registered.pop(nonce, None)
            return [ControlLost(slot, conn_id, error)]

        incoming.admitted(proof, None, deliver, over)
        return []

    def _serve_pulse(self, incoming: Incoming, greeting: Greeting, proof: bytes) -> list[Thing]:
        whose = ""

        def deliver(message: Any) -> list[Thing]:
            nonlocal whose
            if type(message) is not Heartbeat:
                raise MalformedMessage(f"the pulse of slot {greeting.id} said something else")
            if not whose:
                whose = message.nonce
                self._pulses[whose] = incoming
            control = self._registered.get(whose)
            return [(control.conn_id, message)] if control is not None else []

        def over(_: ClonosError | None) -> list[Thing]:
            if self._pulses.get(whose) is not incoming:  # it beats on a newer connection
                return []
            del self._pulses[whose]
            control = self._registered.get(whose)
            gone = PeerUnreachable("the process there has no pulse any more")
            return [*control.read_rest(), *control.end(gone)] if control is not None else []

        incoming.admitted(proof, None, deliver, over)
        return []

    def _serve_client(self, incoming: Incoming, _: Greeting, proof: bytes) -> list[Thing]:
        if self._clients is None:
            raise refused()
        conn_id = incoming.conn_id
        incoming.admitted(
            proof,
            None,
            lambda message: [(conn_id, message)],
            lambda error: [ClientClosed(conn_id, error)],
            self._clients,
        )
        return [ClientOpened(conn_id, incoming)]

    # --- the end ------------------------------------------------------------------------------

    def shutdown(self, deadline_s: float = SHUTDOWN_S) -> None:
        """Close all streams, wait for the peers to close theirs (up to a limit), stop listening."""
        if self._closing:
            return
        self._closing = True
        if self._lets_in:
            self._selector.unregister(self._listener)
        self._listener.close()
        for stream in list(self._strangers):
            stream.end(None)
        for stream in list(self._streams):
            stream.close()
        until = self._sockets.now_s() + deadline_s
        while self._streams and (left := until - self._sockets.now_s()) > 0:
            self.poll(min(left, 0.1))
        for stream in list(self._streams):  # frozen, or cut off
            stream.end(None)
        self._selector.close()
        with contextlib.suppress(OSError):
            self._inbox.close()


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address.

    Raises
    ------
    PlaintextRefused
        `host` is not the address of one interface.
    """
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
    return ip.is_loopback
