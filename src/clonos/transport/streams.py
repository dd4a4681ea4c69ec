"""The two ends of one authenticated Flight stream (``do_exchange``).

Writing never blocks the caller: messages are encoded, queued, and written by a thread of the
stream. What is queued when that thread wakes goes out together: a *frame* is any number of
messages without a batch, then at most one with a batch, whose columns travel as the frame's Arrow
body and are never copied. Reading is a thread of its own, too, that puts what comes into the inbox.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgpack
import pyarrow as pa
from pyarrow import flight

from clonos.core import messages as m
from clonos.errors import ClonosError, MalformedMessage
from clonos.transport.errors import AuthenticationFailed, PeerUnreachable, SchemaMismatch
from clonos.transport.events import WIRE
from clonos.transport.secret import JobSecret

FRAME_MESSAGES_MAX: Final = 64
"""More would keep the first message of a frame waiting longer than a write costs."""

CONNECT_OPTIONS: Final = [
    # Never through a proxy of the environment: peers are named by address. (No keep-alive pings:
    # gRPC's servers take them for an attack; the control stream's heartbeats do that work.)
    ("grpc.enable_http_proxy", 0),
]

LINGER_S: Final = 5.0
"""How long a sender that has said everything waits for the receiver to end the stream."""

BYE: Final = b"\xc0"
"""Instead of a frame: I have said everything, end this stream. (Arrow's own way, ``done_writing``,
aborts the process when the other side happens to end the stream at the same moment.)"""

_BYE_BUFFER: Final = pa.py_buffer(BYE)

_BROKEN: Final = (pa.ArrowException, OSError)
_Entry = tuple[bytes, Any, int]  # encoded message, its batch's payload, bytes of both


class Outbox:
    """What waits to be written to one stream: :meth:`put` is for anyone, :meth:`run` for its
    writing thread."""

    def __init__(self, schema: pa.Schema | None = None) -> None:
        self._schema = schema
        self._queue: SimpleQueue[_Entry | None] = SimpleQueue()
        self._putting = threading.Lock()  # the loop and the heartbeat share a control stream
        # Two counters, so that the writing thread needs no lock.
        self._bytes_put = self._bytes_written = 0
        self._items_put = self._items_written = 0

    @property
    def unsent_bytes(self) -> int:
        return self._bytes_put - self._bytes_written

    @property
    def unsent_items(self) -> int:
        return self._items_put - self._items_written

    def put(self, message: Any) -> None:
        """Queue `message` for writing."""
        payload = None
        encoded = WIRE.encode(message)
        size = len(encoded)
        if type(message) is m.Data and message.item is not None and message.item.batch is not None:
            payload = message.item.batch.payload
            size += message.item.batch.nbytes
            if self._schema is None or not payload.schema.equals(self._schema):
                raise _wrong_schema(f"channel {message.channel}", self._schema, payload.schema)
        with self._putting:
            self._bytes_put += size
            self._items_put += 1
            self._queue.put((encoded, payload, size))

    def stop(self) -> None:
        """Let :meth:`run` return when it has written what is queued."""
        self._queue.put(None)

    def run(self, writer: Any) -> None:
        """Write what is put, until stopped."""
        begun = False
        while (entry := self._queue.get()) is not None:
            frame, last = self._frame(entry)
            payload = frame[-1][1]
            header = msgpack.packb([encoded for encoded, _, _ in frame])
            if payload is None:
                writer.write_metadata(header)
            else:
                if not begun:
                    writer.begin(self._schema)
                    begun = True
                writer.write_with_metadata(payload, header)
            self._bytes_written += sum([size for _, _, size in frame])
            self._items_written += len(frame)
            if last:
                return

    def _frame(self, entry: _Entry) -> tuple[list[_Entry], bool]:
        frame = [entry]
        while frame[-1][1] is None and len(frame) < FRAME_MESSAGES_MAX:
            try:
                following = self._queue.get_nowait()
            except Empty:
                break
            if following is None:
                return frame, True
            frame.append(following)
        return frame, False


def read_frame(metadata: Any, payload: Any) -> list[Any]:
    """Return the messages of a frame; the last one gets the payload."""
    try:
        parts = msgpack.unpackb(metadata, use_list=False)
    except ValueError as error:
        raise MalformedMessage(f"a frame cannot be read: {error}") from error
    if type(parts) is not tuple or not parts:
        raise MalformedMessage("a frame has no messages")
    if any(type(part) is not bytes for part in parts):
        raise MalformedMessage("a frame holds something that is not a message")
    messages = [WIRE.decode(part) for part in parts[:-1]]
    messages.append(WIRE.decode(parts[-1], payload))
    for message in messages:
        if type(message) is m.Data and message.item is not None:
            batch = message.item.batch
            if batch is None:
                continue
            if batch.payload is None or batch.payload.num_rows != batch.rows:
                raise MalformedMessage("a batch came without its rows")
    return messages


class Outgoing:
    """The client's end of a stream: sends data (or reports), hears what the peer answers.

    Made by :class:`~clonos.transport.plane.FlightPlane`. Opening it takes place in its own
    thread; what is sent before goes out when it is open.
    """

    def __init__(
        self,
        conn_id: int,
        address: str,
        sealed: bytes,
        secret: JobSecret,
        schema: pa.Schema | None,
        deliver: Callable[[int, Any], None],
        on_end: Callable[[Outgoing, ClonosError | None], None],
    ) -> None:
        self.conn_id = conn_id
        self.address = address
        self._sealed = sealed
        self._secret = secret
        self._outbox = Outbox(schema)
        self._deliver = deliver
        self._on_end = on_end
        self._leaving = False
        self._ended = threading.Event()
        self._said_so = False
        self._reader: Any = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._write, name=f"clonos-send-{conn_id}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    @property
    def unsent_bytes(self) -> int:
        """How much of what was sent has not been handed to the network yet."""
        return self._outbox.unsent_bytes

    @property
    def unsent_items(self) -> int:
        """How many messages have not been handed to the network yet."""
        return self._outbox.unsent_items

    def send(self, message: Any) -> None:
        """Queue `message`; never blocks. Messages after the end of the stream are dropped."""
        if not self._ended.is_set():
            self._outbox.put(message)

    def close(self, linger_s: float = 0.0) -> None:
        """End the stream; within `linger_s` what is queued is still written (this waits)."""
        self._leaving = True
        self._outbox.stop()
        if linger_s > 0:
            self._thread.join(linger_s)
        with self._lock:
            self._ended.set()
            if self._reader is not None:
                self._reader.cancel()

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it is left. The end may come earlier: a write to a frozen peer stays
        where it is, cancelled or not, until its connection breaks."""
        return not self._thread.is_alive()

    def _end(self, error: ClonosError | None) -> None:
        with self._lock:
            first, self._said_so = not self._said_so, True
            self._ended.set()
        if first:
            self._on_end(self, None if self._leaving else error)

    def _write(self) -> None:
        """Open the stream, write until there is no more to write, end it: the sending thread."""
        client = writer = error = None
        try:
            client = flight.FlightClient(self.address, generic_options=CONNECT_OPTIONS)
            descriptor = flight.FlightDescriptor.for_command(self._sealed)
            writer, reader = client.do_exchange(descriptor)
            self._exchange(writer, reader)
        except _BROKEN as broken:
            error = _unreachable(self.address, broken)
        finally:
            self._end(error)
            # Unclosed, Arrow complains on stderr when it drops them.
            _quietly(writer and writer.close)
            _quietly(client and client.close)

    def _exchange(self, writer: Any, reader: Any) -> None:
        with self._lock:
            self._reader = reader
            if self._ended.is_set():
                reader.cancel()
                return
        listener = threading.Thread(
            target=lambda: self._end(self._listen(reader)),
            name=f"clonos-hear-{self.conn_id}",
            daemon=True,
        )
        listener.start()
        try:
            self._outbox.run(writer)
            if not self._ended.is_set():
                writer.write_metadata(BYE)
                self._ended.wait(LINGER_S)
            reader.cancel()
        except _BROKEN:
            reader.cancel()  # why it broke, the reader gets to know
        listener.join()

    def _listen(self, reader: Any) -> ClonosError | None:
        """Read until the end; the reason of an end that nobody asked for."""
        try:
            proof = reader.read_chunk().app_metadata
            if proof is None or not self._secret.is_answer(self._sealed, proof.to_pybytes()):
                raise AuthenticationFailed(
                    f"what answers at {self.address} does not hold this job's secret",
                    remedy="see what else listens at that address",
                )
            while True:
                metadata = reader.read_chunk().app_metadata
                if metadata is None or metadata.equals(_BYE_BUFFER):
                    return None
                for message in read_frame(metadata, None):
                    self._deliver(self.conn_id, message)
        except StopIteration:
            return PeerUnreachable(f"{self.address} ended the stream")
        except ClonosError as error:
            return error
        except _BROKEN as broken:
            return _unreachable(self.address, broken)
        finally:
            self._outbox.stop()
            _quietly(reader.cancel)


class Incoming:
    """The server's end of a stream: hears data (or reports), answers.

    gRPC's synchronous server can neither interrupt a read nor end a stream whose client stays
    silent. So the end is asked for (:data:`BYE`, the client then leaves), and a client that
    does not leave keeps its stream, unheard, until the plane's shutdown cuts its connection.
    """

    def __init__(self, conn_id: int, name: str, peer: str, schema: Callable[[], Any]) -> None:
        self.conn_id = conn_id
        self.peer = peer
        self._name = name
        self._schema = schema
        self._checked = False
        self._outbox = Outbox()
        self._closed = False  # by us: nothing is heard any more
        self._ended = False  # by the client, or because it said something wrong

    def reply(self, message: Any) -> None:
        """Queue `message` for the peer; never blocks. Lost if the stream has ended."""
        if not self._closed:
            self._outbox.put(message)

    def close(self) -> None:
        """Hear nothing more and, once what was replied is written, ask the client to leave."""
        self._closed = True
        self._outbox.stop()

    def serve(self, proof: bytes, reader: Any, writer: Any, deliver: Callable[[Any], None]) -> None:
        """Read until the end of the stream, in gRPC's own thread for it.

        Raises
        ------
        ClonosError
            The peer said something wrong.
        """
        answering = threading.Thread(
            target=self._answer,
            args=(writer, proof),
            name=f"clonos-reply-{self.conn_id}",
            daemon=True,
        )
        answering.start()
        try:
            while True:
                chunk = reader.read_chunk()
                if self._closed:
                    return
                for message in self._messages(chunk):
                    deliver(message)
        except StopIteration:
            pass
        except _BROKEN as broken:
            raise _unreachable(self.peer, broken) from broken
        finally:
            self._closed = self._ended = True
            self._outbox.stop()
            answering.join()  # the writer dies with this call: nobody may still use it

    def _answer(self, writer: Any, proof: bytes) -> None:
        try:
            writer.write_metadata(proof)
            self._outbox.run(writer)
            if not self._ended:
                writer.write_metadata(BYE)
        except _BROKEN:
            pass  # the reading side gets to know, and says so

    def _messages(self, chunk: Any) -> list[Any]:
        if chunk.app_metadata is None:
            raise MalformedMessage("a batch came without a message", where=self._name)
        if chunk.app_metadata.equals(_BYE_BUFFER):
            raise StopIteration
        if chunk.data is not None:
            if not self._checked:  # one stream has one schema: Arrow sends it once
                pinned = self._schema()
                if pinned is None or not chunk.data.schema.equals(pinned):
                    raise _wrong_schema(self._name, pinned, chunk.data.schema)
                self._checked = True
            try:
                chunk.data.validate()
            except pa.ArrowInvalid as error:
                raise MalformedMessage(f"a batch is damaged: {error}", where=self._name) from error
        return read_frame(chunk.app_metadata, chunk.data)


def _wrong_schema(where: str, pinned: pa.Schema | None, seen: pa.Schema) -> SchemaMismatch:
    def short(schema: pa.Schema | None) -> str:
        return "nothing" if schema is None else str(schema).replace("\n", ", ")[:300]

    return SchemaMismatch(
        f"a batch has the schema ({short(seen)}); pinned is ({short(pinned)})",
        where=where,
        remedy="let every operator return exactly the schema it declares",
    )


def _unreachable(address: str, error: BaseException) -> PeerUnreachable:
    reason = str(error).partition(". gRPC client debug")[0][:300]
    return PeerUnreachable(f"the stream with {address} broke: {reason}")


def _quietly(action: Any) -> None:
    """Run a clean-up that may find everything gone already."""
    try:
        if action is not None:
            action()
    except _BROKEN:
        pass
