"""The wire format of messages and batches.

A *frame* is one message: the lengths of its two parts (little-endian, 32 bits each), the message
(msgpack), and its batch, if any, in Arrow's IPC format. The schema is not repeated: both ends have
pinned it before the stream was opened.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import inf
from typing import Any, Final, TypeAlias

import pyarrow as pa
import xxhash
from pyarrow import ipc

from clonos.core.codec import MESSAGE_BYTES_MAX
from clonos.core.step import BATCH_BYTES_MAX
from clonos.errors import MalformedMessage

HEAD: Final = struct.Struct("<II")
RECEIVE_BYTES: Final = 256 << 10
"""Limit of one read: no peer must keep the others waiting."""
APART_BYTES: Final = 64 << 10
"""Larger batches are received in place; smaller ones are copied out of the read buffer."""

BODY_BYTES_MAX: Final = BATCH_BYTES_MAX + (64 << 20)
"""A batch in Arrow's format is a little longer than its columns."""

_LIMITS: Final = MESSAGE_BYTES_MAX, BODY_BYTES_MAX

ALIGNMENT: Final = 64
"""Alignment of a batch's bytes in memory."""

IN_PLACE_BYTES: Final = 64 << 10
"""The columns of larger batches are sent from where they are; those of smaller ones are cheaper to
copy than to handle one by one."""

Frame = tuple[bytes, pa.Buffer | None]
Piece: TypeAlias = bytes | pa.Buffer


class FrameReader:
    """Splits incoming bytes into frames.

    Attributes
    ----------
    limit
        A longer message is a mistake or an attack.
    body_limit
        The same for batches.

    Parameters
    ----------
    untrusted
        Both limits for the first frame, if its sender is to prove with it who it is. Until
        :meth:`trust`, there is no other frame.
    """

    def __init__(self, untrusted: int | None = None) -> None:
        self._may_come: float = inf if untrusted is None else 1
        self.limit, self.body_limit = _LIMITS if untrusted is None else (untrusted, untrusted)
        self._rest = b""
        self._apart: _Apart | None = None

    def trust(self) -> list[Frame]:
        """The peer has proved who it is. Return the frames that came behind its proof."""
        self._may_come = inf
        self.limit, self.body_limit = _LIMITS
        return self._cut(self._rest)

    def receive(self, connection: Any) -> list[Frame] | None:
        """Read once from a socket; the frames that are complete, or None at the stream's end.

        Raises
        ------
        MalformedMessage
            A frame is larger than the limit.
        OSError
            The connection is broken, or (BlockingIOError) nothing has come.
        """
        if self._apart is None:
            came = connection.recv(RECEIVE_BYTES)
            return self._cut(self._rest + came if self._rest else came) if came else None
        size = connection.recv_into(self._apart.missing)
        if not size:
            return None
        self._apart.missing = self._apart.missing[size:]
        if self._apart.missing:
            return []
        apart, self._apart = self._apart, None
        return [apart.frame()]

    def _cut(self, came: bytes) -> list[Frame]:
        frames: list[Frame] = []
        at, end = 0, len(came)
        while end - at >= HEAD.size and self._may_come:
            message_size, body_size = HEAD.unpack_from(came, at)
            if message_size > self.limit or body_size > self.body_limit:
                raise MalformedMessage(
                    f"a frame of {message_size} + {body_size} bytes; "
                    f"{self.limit} + {self.body_limit} are allowed"
                )
            start = at + HEAD.size
            middle = start + message_size
            if middle + body_size > end:
                if message_size + body_size > APART_BYTES:
                    self._apart = _Apart(message_size, body_size, came[start:])
                    at = end
                break
            at = middle + body_size
            # A copy: a slice would keep all bytes of this read alive.
            body = pa.py_buffer(came[middle:at]) if body_size else None
            frames.append((came[start:middle], body))
            self._may_come -= 1
        self._rest = came[at:]
        return frames


class _Apart:
    """A large frame, received in place."""

    def __init__(self, message_size: int, body_size: int, first: bytes) -> None:
        # Arrow wants the body aligned, so the message begins at an offset.
        self._middle = -(-message_size // ALIGNMENT) * ALIGNMENT
        self._start = self._middle - message_size
        self._buffer = pa.allocate_buffer(self._middle + body_size)
        self._has_body = body_size > 0
        view = memoryview(self._buffer).cast("B")[self._start :]
        view[: len(first)] = first
        self.missing = view[len(first) :]

    def frame(self) -> Frame:
        message = self._buffer.slice(self._start, self._middle - self._start).to_pybytes()
        return message, self._buffer.slice(self._middle) if self._has_body else None


class Bodies:
    """Batches of one schema as bytes.

    Examples
    --------
    >>> batch = pa.record_batch({"k": [1, 2]})
    >>> bodies = Bodies(batch.schema)
    >>> (piece,) = bodies.encode(batch, batch.nbytes)
    >>> bodies.decode(piece).equals(batch)
    True
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._has_dictionaries = any(_has_dictionary(field.type) for field in schema)
        self._in_place: _InPlace | None = None

    def encode(self, batch: pa.RecordBatch, nbytes: int) -> Sequence[Piece]:
        """Return `batch` as one IPC message (or a whole IPC stream, if it has dictionaries).

        Bytes that are contiguous in memory are one piece. A large batch is not copied.
        """
        if self._has_dictionaries:
            sink = pa.BufferOutputStream()
            with ipc.new_stream(sink, self.schema) as writer:
                writer.write_batch(batch)
            return [sink.getvalue()]
        if nbytes < IN_PLACE_BYTES:
            return [batch.serialize()]
        if self._in_place is None:
            self._in_place = _InPlace(self.schema)
        return self._in_place.encode(batch)

    def decode(self, body: pa.Buffer) -> pa.RecordBatch:
        """Return the batch, whose columns are in `body`.

        Raises
        ------
        MalformedMessage
            It is not one of this schema.
        """
        try:
            if self._has_dictionaries:
                with ipc.open_stream(body) as reader:
                    batch = reader.read_next_batch()
                if not batch.schema.equals(self.schema):
                    raise MalformedMessage("a batch has another schema than its stream")
            else:
                batch = ipc.read_record_batch(body, self.schema)
            batch.validate()
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise MalformedMessage(f"a batch is damaged: {error}") from error
        return batch


class _InPlace:
    """Batches of one schema as IPC messages whose columns are not copied.

    Arrow writes to a Python stream piece by piece, and passes references to a batch's buffers.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._pieces = _Pieces()
        self._writer = ipc.new_stream(pa.PythonFile(self._pieces, mode="w"), schema)
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema))  # writes the schema

    def encode(self, batch: pa.RecordBatch) -> Sequence[Piece]:
        self._pieces.written = []
        self._writer.write_batch(batch)
        return self._pieces.written


class _Pieces:
    """The part of a file's interface that Arrow needs."""

    closed = False

    def __init__(self) -> None:
        self.written: list[Piece] = []

    def write(self, piece: Piece) -> int:
        self.written.append(piece)
        return len(piece)

    def flush(self) -> None:
        """Nothing is buffered."""


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def fingerprint(schema: pa.Schema | None) -> bytes:
    """Return the digest by which two ends find out whether they have the same schema."""
    if schema is None:
        return b""
    text = schema.to_string(show_field_metadata=False, show_schema_metadata=False)
    return xxhash.xxh3_128_digest(text.encode())
