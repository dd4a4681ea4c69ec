"""Batches as bytes."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from clonos.errors import MalformedMessage
from clonos.transport import frames
from clonos.transport.frames import Bodies

AT = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
ROWS = [
    {
        "n": i,
        "word": None if i % 5 == 0 else f"word {i}" * (i % 4),
        "flag": None if i % 7 == 0 else i % 2 == 0,
        "list": list(range(i % 3)),
        "struct": {"x": i / 3, "y": str(i)},
        "at": AT + dt.timedelta(seconds=i),
        "nothing": None,
    }
    for i in range(1000)
]
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("word", pa.string()),
        ("flag", pa.bool_()),
        ("list", pa.list_(pa.int32())),
        ("struct", pa.struct([("x", pa.float64()), ("y", pa.large_string())])),
        ("at", pa.timestamp("us", "UTC")),
        ("nothing", pa.null()),
    ]
)
BATCH = pa.RecordBatch.from_pylist(ROWS, SCHEMA)


def joined(pieces: Any) -> pa.Buffer:
    return pa.py_buffer(b"".join(map(bytes, pieces)))


@pytest.mark.parametrize(
    "batch", [BATCH, BATCH.slice(13, 100), BATCH.slice(999), BATCH.slice(5, 0)], ids=len
)
def test_what_stays_in_place_is_what_a_copy_would_be(batch: pa.RecordBatch) -> None:
    bodies = Bodies(SCHEMA)
    (copy,) = bodies.encode(batch, 0)
    for _ in range(2):
        pieces = bodies.encode(batch, frames.IN_PLACE_BYTES)
        assert len(pieces) > 1
        assert joined(pieces) == copy
    assert bodies.decode(joined(pieces)) == batch


def test_large_columns_are_not_copied() -> None:
    batch = pa.record_batch({"n": pa.array(range(100_000)), "m": pa.array(range(100_000))})
    kept = Bodies(batch.schema).encode(batch, batch.nbytes)
    there = {piece.address for piece in kept if isinstance(piece, pa.Buffer)}
    assert {column.buffers()[1].address for column in batch.columns} <= there


def test_a_batch_of_another_schema_is_damaged() -> None:
    batch = pa.record_batch({"n": pa.array(range(100_000))})
    other = Bodies(pa.schema([("n", pa.string())]))
    with pytest.raises(MalformedMessage, match="damaged"):
        other.decode(joined(Bodies(batch.schema).encode(batch, batch.nbytes)))


class Wire:
    """A connection on which everything has arrived."""

    def __init__(self, came: bytes) -> None:
        self._came = came

    def recv(self, size: int) -> bytes:
        part, self._came = self._came[:size], self._came[size:]
        return part


@pytest.mark.parametrize(
    ("message", "body", "fits"), [(10, 99, True), (11, 0, False), (0, 100, False)]
)
def test_a_batch_may_be_longer_than_a_message(message: int, body: int, fits: bool) -> None:
    reader = frames.FrameReader()
    reader.limit, reader.body_limit = 10, 99
    wire = Wire(frames.HEAD.pack(message, body) + bytes(message + body))
    if fits:
        ((encoded, batch),) = reader.receive(wire) or []
        assert (len(encoded), batch.size if batch else 0) == (message, body)
    else:
        with pytest.raises(MalformedMessage, match="10 \\+ 99 are allowed"):
            reader.receive(wire)
