"""Arrow batches: joining them, fitting them to a schema, and wrapping them for the core."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from clonos.columns.digest import content_digest
from clonos.columns.kept_values import infinities, require_nulls_allowed
from clonos.core.canonical import register
from clonos.core.program import Batch

_PINNED_RATIO_MAX = 2
"""A batch may keep alive this many times its own size; beyond that it is copied."""

_PINNED_SLACK_BYTES = 4096
"""Padding that is no reason to copy a small batch."""

_BATCH_BYTES, _COLUMN_BYTES = 900, 400
"""Measured with batches that came from other processes, with 1 to 20 columns."""


def seal(batch: pa.RecordBatch, *, digests: bool = True) -> Batch:
    """Wrap a batch for the core, with what it takes in memory and the digest of its content.

    A slice is copied if it keeps much more memory alive than it needs. Without `digests` (at least
    once, nothing is ever compared) the digest is 0.
    """
    nbytes = batch.nbytes
    digest = content_digest(batch) if digests else 0
    if _pins_more_than(batch, nbytes):
        batch = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    kept = nbytes + _BATCH_BYTES + _COLUMN_BYTES * batch.num_columns  # no call: each step is here
    return Batch(batch, batch.num_rows, kept, digest)


def kept_bytes(batch: pa.RecordBatch) -> int:
    """What a batch takes in memory: however few rows it has, Arrow takes some for each column.

    Examples
    --------
    >>> kept_bytes(pa.RecordBatch.from_pydict({"n": [1]}))
    1308
    """
    return int(batch.nbytes) + _BATCH_BYTES + _COLUMN_BYTES * int(batch.num_columns)


def unseal(batches: Sequence[Batch]) -> pa.RecordBatch:
    """The Arrow content of one or more consecutive batches as a single batch."""
    return concat([batch.payload for batch in batches])


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of one schema, in order."""
    return batches[0] if len(batches) == 1 else from_table(pa.Table.from_batches(batches))


def from_table(table: pa.Table) -> pa.RecordBatch:
    """A table as a single batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else empty(table.schema)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def conform(batch: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Bring columns into the order and types of `schema`.

    Raises
    ------
    ValueError
        A column is missing or unexpected, would lose information, or holds a forbidden null.
    """
    if isinstance(batch, pa.Table):
        batch = from_table(batch)
    if batch.schema.equals(schema, check_metadata=True):
        columns = batch.columns
    else:
        if sorted(batch.schema.names) != sorted(schema.names):
            raise ValueError(
                f"columns {', '.join(batch.schema.names)} instead of {', '.join(schema.names)}"
            )
        columns = [_fit(batch.column(field.name), field) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    for field, column in zip(schema, columns, strict=True):
        require_nulls_allowed(field, column)
    return batch


def _fit(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    fit = column.cast(field.type)
    if infinities(fit) > infinities(column):
        raise ValueError(f"column {field.name!r}: a number is too large for {field.type}")
    return fit


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """One batch with its schema as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def from_bytes(data: bytes) -> pa.RecordBatch:
    """The inverse of :func:`to_bytes`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def _pins_more_than(batch: pa.RecordBatch, nbytes: int) -> bool:
    if any(column.offset for column in batch.columns):
        return True
    roots: dict[int, int] = {}
    for column in batch.columns:
        for buffer in column.buffers():
            root = buffer
            while root is not None and root.parent is not None:
                root = root.parent
            if root is not None:
                roots[root.address] = root.size
    return sum(roots.values()) > _PINNED_RATIO_MAX * nbytes + _PINNED_SLACK_BYTES


register(32, pa.RecordBatch, to_bytes, from_bytes)
