"""The two ends of one authenticated stream. Neither ever blocks.

Sent messages wait in the stream until its plane flushes it; what does not fit into the socket then
is written when there is room. Whatever arrives becomes an event of the plane at once. So a stream
costs no thread, and a peer that does not read blocks nobody.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from clonos.core import messages as m
from clonos.core.codec import Codec
from clonos.errors import AuthenticationFailed, ClonosError, MalformedMessage, PeerUnreachable
from clonos.transport.errors import SchemaMismatch
from clonos.transport.events import WIRE, Event, Refused
from clonos.transport.frames import (
    HEAD,
    RECEIVE_BYTES,
    Bodies,
    Frame,
    FrameReader,
    Piece,
)
from clonos.transport.secret import GREETING_BYTES_MAX, Greeting, JobSecret
from clonos.transport.states import DEAF, LEAVERS, STREAM, Change, State
from clonos.transport.tls import Tls

if TYPE_CHECKING:
    import pyarrow as pa

BUFFERS_MAX: Final = 64
"""Buffers handed to the system in one call."""
_READS_MAX: Final = 64
"""So often is read what a process has left behind: far more than a socket holds."""

Thing = Event | tuple[int, Any]
"""What the loop receives: an event, or ``(conn_id, message)``."""


class Host(Protocol):
    """What a stream needs of its plane."""

    def changed(self, stream: Stream) -> None:
        """The stream has something to write, or its state has changed."""

    def gone(self, stream: Stream) -> None:
        """The stream's connection is about to be closed."""


class Stream:
    """One end of a stream: its connection, what is queued for it, and its state.

    Attributes
    ----------
    state
        The state of its machine, copied because it is read for every message.
    """

    def __init__(
        self, host: Host, conn_id: int, connection: socket.socket, peer: str, tls: Tls | None
    ) -> None:
        self.conn_id = conn_id
        self.peer = peer
        self.connection = connection
        self.tls = tls
        self._machine = STREAM.machine(f"the stream with {peer}")
        self.state = self._machine.state
        self.wants_to_write = False
        self.is_listed = False  # in the plane's list of streams to flush
        self.is_watched = False  # by the plane, for room to write
        self.stood = False  # something was written
        self._host = host
        self._codec = WIRE
        self._bodies: Bodies | None = None
        self._reader = FrameReader(untrusted=GREETING_BYTES_MAX)
        self._out: deque[Any] = deque()
        self._unsent_bytes = 0
        self._said_so = False  # the closing event was emitted

    def _on(self, change: Change) -> None:
        self.state = self._machine.on(change)

    def story(self) -> str:
        """The last transitions of the stream, oldest first."""
        return self._machine.story()

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to close."""
        return self.state in LEAVERS

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were sent but not handed to the network yet."""
        return self._unsent_bytes

    # --- writing ------------------------------------------------------------------------------

    def _put(self, message: Any) -> None:
        self._put_frame(*self._frame(message))

    def _frame(self, message: Any) -> tuple[bytes, Sequence[Piece]]:
        body: Sequence[Piece] = ()
        if type(message) is m.Data and message.item is not None and message.item.batch is not None:
            payload = message.item.batch.payload
            if self._bodies is None or not payload.schema.equals(self._bodies.schema):
                pinned = self._bodies.schema if self._bodies else None
                raise wrong_schema(f"channel {message.channel}", pinned, payload.schema)
            body = self._bodies.encode(payload, message.item.batch.nbytes)
        return self._codec.encode(message), body

    def _put_frame(self, encoded: bytes, body: Sequence[Piece] = ()) -> None:
        size = sum(map(len, body))
        head = HEAD.pack(len(encoded), size) + encoded
        if self.tls is not None:
            self._append(self.tls.seal([head, *body]))
        else:
            self._out.append(head)
            self._out.extend(map(memoryview, body))
            self._unsent_bytes += len(head) + size
        self._host.changed(self)

    def _append(self, piece: Any) -> None:
        self._out.append(piece)
        self._unsent_bytes += len(piece)

    def flush(self) -> None:
        """Write as much as the system takes now."""
        out = self._out
        try:
            while out:
                written = self.connection.sendmsg(list(islice(out, BUFFERS_MAX)))
                self._unsent_bytes -= written
                self.stood = True
                while out and written >= len(out[0]):
                    written -= len(out.popleft())
                if written:
                    out[0] = memoryview(out[0])[written:]
            self.wants_to_write = False
        except BlockingIOError:
            self.wants_to_write = True
        except OSError:  # reading tells why
            self._forget_unsent()
        if self.state is State.LEAVING and not out:
            self._shut()

    def _forget_unsent(self) -> None:
        self._out.clear()
        self._unsent_bytes = 0
        self.wants_to_write = False

    # --- reading ------------------------------------------------------------------------------

    def read(self) -> list[Thing]:
        """Take what has arrived."""
        frames: list[Frame] | None
        try:
            if self.state in DEAF:
                frames = [] if self.connection.recv(RECEIVE_BYTES) else None
            elif self.tls is None:
                frames = self._reader.receive(self.connection)
            else:
                frames = self._receive_sealed(self.tls)
        except BlockingIOError:
            return []
        except ssl.SSLError as failure:
            return self._not_trusted(failure)
        except OSError as broken:
            return self.end(PeerUnreachable(f"the stream with {self.peer} broke: {broken}"))
        except ClonosError as error:
            return self._wrong(error)
        if frames is None:
            return self.end(PeerUnreachable(f"{self.peer} ended the stream"))
        return self._hear(frames)

    def read_rest(self) -> list[Thing]:
        """Take all that has arrived: the last words of a process that is gone."""
        things: list[Thing] = []
        for _ in range(_READS_MAX):
            if self.state is State.ENDED:
                break
            things += self.read()
        return things

    def _hear(self, frames: Sequence[Frame]) -> list[Thing]:
        things: list[Thing] = []
        try:
            for encoded, body in frames:
                if self.state in DEAF:
                    break
                things += self._heard(encoded, body)
        except ClonosError as error:
            things += self._wrong(error)
        return things

    def _hear_rest(self) -> list[Thing]:
        """The peer has proved who it is: hear what came behind its proof."""
        try:
            frames = self._reader.trust()
        except ClonosError as error:
            return self._wrong(error)
        return self._hear(frames)

    def _receive_sealed(self, tls: Tls) -> list[Frame] | None:
        """Read once, and return all frames: data that stays in OpenSSL's buffer would not wake the
        loop."""
        came = self.connection.recv(RECEIVE_BYTES)
        if not came:
            return None
        was_open, frames = tls.is_open, []
        tls.arrived(came)
        said = tls.said()  # output of a handshake
        if said:
            self._append(said)
        if tls.is_open:
            with suppress(BlockingIOError):
                while (some := self._reader.receive(tls)) is not None:
                    frames += some
        if tls.is_open and not was_open:
            self._trusted()
        if said:
            self._host.changed(self)
        return frames

    def _trusted(self) -> None:
        """The handshake is over."""

    def _not_trusted(self, failure: ssl.SSLError) -> list[Thing]:
        """The peer's certificate is not trusted, or ours is not by the peer: tell it why, and
        leave."""
        if self.tls is not None and (alert := self.tls.said()):
            self._append(alert)
        Stream.close(self)
        reason = failure.reason or str(failure)
        return self._say_so(
            AuthenticationFailed(
                f"the stream with {self.peer} cannot be encrypted: {reason}",
                remedy="see what else listens at that address, and whether both machines' clocks "
                "are right to the day",
            )
        )

    def _heard(self, encoded: bytes, body: pa.Buffer | None) -> list[Thing]:
        raise NotImplementedError

    def _message(self, encoded: bytes, body: pa.Buffer | None) -> Any:
        if body is None:
            message = self._codec.decode(encoded)
        elif self._bodies is None:
            raise MalformedMessage("a batch came where none is expected", where=self.peer)
        else:
            message = self._codec.decode(encoded, self._bodies.decode(body))
        if type(message) is m.Data and message.item is not None:
            batch = message.item.batch
            if batch is not None and (
                batch.payload is None or batch.payload.num_rows != batch.rows
            ):
                raise MalformedMessage("a batch came without its rows", where=self.peer)
        return message

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Read nothing more; end the stream once its queue is written. Does not wait."""
        if self.state not in DEAF:
            self._on(Change.CLOSE)
            self._host.changed(self)

    def _shut(self) -> None:
        # Not close(): the system would discard, at both ends, what was not read yet.
        self._on(Change.FLUSH)
        try:
            self.connection.shutdown(socket.SHUT_WR)
        except OSError:
            self._forget_unsent()

    def _wrong(self, error: ClonosError) -> list[Thing]:
        """The peer broke the protocol: tell it, and close. Nobody cares what comes after that."""
        if self.state in DEAF:
            return []
        self._put_frame(WIRE.encode(Refused(type(error).__name__, error.what)))
        Stream.close(self)  # now, even if messages are held back
        return self._say_so(error)

    def end(self, error: ClonosError | None) -> list[Thing]:
        """The connection is over: close it. Once."""
        if self.state is State.ENDED:
            return []
        was_asked_to = self.is_leaving
        self._on(Change.END)
        self._host.gone(self)
        self._forget_unsent()
        self.connection.close()
        return self._say_so(None if was_asked_to else error)

    def _say_so(self, error: ClonosError | None) -> list[Thing]:
        if self._said_so:
            return []
        self._said_so = True
        return self._over(error)

    def _over(self, error: ClonosError | None) -> list[Thing]:
        raise NotImplementedError


class Outgoing(Stream):
    """The client's end: sends data (or reports), and reads the peer's answers.

    Made by :class:`~clonos.transport.plane.Plane`. Messages are sent once the peer has proved that
    it holds the job's secret.
    """

    def __init__(
        self,
        host: Host,
        conn_id: int,
        connection: socket.socket,
        peer: str,
        secret: JobSecret,
        greeting: Greeting,
        schema: pa.Schema | None,
        over: Callable[[int, ClonosError | None], Event],
        tls: Tls | None,
        codec: Codec = WIRE,
    ) -> None:
        super().__init__(host, conn_id, connection, peer, tls)
        self._codec = codec
        self._secret = secret
        self._sealed = secret.seal(greeting)
        self._bodies = Bodies(schema) if schema is not None else None
        self._on_over = over
        self._held: list[tuple[bytes, Sequence[Piece]]] = []
        if tls is None:
            self._put_frame(self._sealed)
        else:
            tls.shake_hands()
            self._append(tls.said())
            self._host.changed(self)

    def _trusted(self) -> None:
        self._put_frame(self._sealed)

    @property
    def is_connected(self) -> bool:
        """Whether the other machine has accepted the connection (its process may not have, yet)."""
        try:
            self.connection.getpeername()
        except OSError:
            return False
        return True

    def send(self, message: Any) -> None:
        """Queue `message`; never blocks. Messages after the end of the stream are dropped."""
        if self.state is State.OPEN:
            self._put(message)
        elif self.state is State.OPENING:
            self._held.append(self._frame(message))

    def close(self) -> None:
        if self.state is State.OPENING and self._held:
            self._on(Change.PART)
            self._host.changed(self)
        elif self.state is not State.PARTING:
            super().close()

    def _heard(self, encoded: bytes, body: pa.Buffer | None) -> list[Thing]:
        if self.state is State.OPEN:
            message = self._message(encoded, body)
            if type(message) is not Refused:
                return [(self.conn_id, message)]
            return self._turned_away(message)
        if not self._secret.is_answer(self._sealed, encoded):
            return self._turned_away(_as_refusal(encoded))
        self._on(Change.PROVE)
        for frame in self._held:
            self._put_frame(*frame)
        self._held.clear()
        return self._hear_rest()

    def _turned_away(self, refusal: Refused | None) -> list[Thing]:
        if refusal is not None:
            return self.end(
                PeerUnreachable(f"{self.peer} refused: {refusal.error}: {refusal.message}")
            )
        return self.end(
            AuthenticationFailed(
                f"what answers at {self.peer} does not hold this job's secret",
                remedy="see what else listens at that address",
            )
        )

    def _over(self, error: ClonosError | None) -> list[Thing]:
        return [self._on_over(self.conn_id, error)]


class Incoming(Stream):
    """The server's end: reads data (or reports), and answers.

    Parameters
    ----------
    admit
        Called with this stream and the first message of a client; calls :meth:`admitted`, and
        returns the events for the loop.
    refused
        Called if the client is not of this job.
    """

    def __init__(
        self,
        host: Host,
        conn_id: int,
        connection: socket.socket,
        peer: str,
        admit: Callable[[Incoming, bytes], list[Thing]],
        refused: Callable[[], None],
        tls: Tls | None,
    ) -> None:
        super().__init__(host, conn_id, connection, peer, tls)
        self._admit = admit
        self._deliver: Callable[[Any], list[Thing]] | None = None
        self._refused = refused
        self._on_over: Callable[[ClonosError | None], list[Thing]] = self._not_admitted

    def admitted(
        self,
        proof: bytes,
        schema: pa.Schema | None,
        deliver: Callable[[Any], list[Thing]],
        over: Callable[[ClonosError | None], list[Thing]],
        codec: Codec = WIRE,
    ) -> None:
        """The client holds the secret: prove that we do, too, and listen."""
        self._bodies = Bodies(schema) if schema is not None else None
        self._codec = codec
        self._deliver = deliver
        self._on_over = over
        self._on(Change.PROVE)
        self._put_frame(proof)

    def send(self, message: Any) -> None:
        """Queue `message` for the peer; never blocks. Lost if the stream has ended."""
        if self.state is State.OPEN:
            self._put(message)

    def _heard(self, encoded: bytes, body: pa.Buffer | None) -> list[Thing]:
        if self._deliver is None:
            things = self._admit(self, encoded)
            return things + self._hear_rest() if self.state is State.OPEN else things
        return self._deliver(self._message(encoded, body))

    def _not_admitted(self, error: ClonosError | None) -> list[Thing]:
        """The loop knows nothing of a client that was never admitted."""
        if error is not None:
            self._refused()
        return []

    def _over(self, error: ClonosError | None) -> list[Thing]:
        # A client that leaves is no error.
        return self._on_over(None if type(error) is PeerUnreachable else error)


def _as_refusal(encoded: bytes) -> Refused | None:
    try:
        message = WIRE.decode(encoded)
    except MalformedMessage:
        return None
    return message if type(message) is Refused else None


def wrong_schema(where: str, pinned: pa.Schema | None, seen: pa.Schema | None) -> SchemaMismatch:
    """Return the error of a batch (or of a stream, if `seen` is None) with the wrong schema."""

    def short(schema: pa.Schema | None) -> str:
        return "something else" if schema is None else str(schema).replace("\n", ", ")[:300]

    return SchemaMismatch(
        f"a batch has the schema ({short(seen)}); pinned is ({short(pinned)})",
        where=where,
        remedy="let every operator return exactly the schema it declares",
    )
