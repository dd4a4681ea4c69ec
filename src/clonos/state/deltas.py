"""State of operators as layers: what changed, as bytes, and how such layers are merged.

A delta is an Arrow table ``(key_group, operator, key, value)``: the absolute value that a key of
an operator has now, or null if it has none any more. Whoever applies deltas in order keeps the
last row per key; :func:`merge_deltas` does that without knowing what the values mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from clonos.errors import StateMismatch

FACTS = -1
"""In place of a key group: this row is one of the operator's :class:`Facts`."""

WHOLE_TASK = 0
"""Key group of state that has no key."""

CHAIN = -1
"""Operator number of the chain's own state."""

_SCHEMA = pa.schema(
    [
        pa.field("key_group", pa.int16(), nullable=False),
        pa.field("operator", pa.int16(), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("value", pa.large_binary()),
    ]
)
_NAMES = b"clonos.operators"


class Changes(NamedTuple):
    """New values of keys (null: gone), as columns: lists, or Arrow arrays of large binary."""

    groups: Any
    keys: Any
    values: Any


Frozen = Callable[[], Sequence[Changes]]
"""Changes computed later, perhaps in another thread, from data that no longer changes."""


def both(first: Frozen, second: Frozen) -> Frozen:
    """The changes of two stores of one operator."""
    return lambda: [*first(), *second()]


class Delta:
    """What changed, frozen now; written as bytes later, and elsewhere.

    Values are bytes or Arrow columns, which nobody can change: to freeze them is to hold them.
    """

    def __init__(
        self, names: Sequence[str], changes: Iterable[tuple[int, Changes | Frozen]]
    ) -> None:
        self._names = names
        self._changes = list(changes)

    def __bytes__(self) -> bytes:
        return encode_delta(self._names, self._changes)


def encode_delta(names: Sequence[str], changes: Iterable[tuple[int, Changes | Frozen]]) -> bytes:
    """Encode the changes of each operator (by its number in `names`); empty if there are none."""
    schema = _SCHEMA.with_metadata({_NAMES: json.dumps(list(names)).encode()})
    batches: list[pa.RecordBatch] = []
    small: list[list[Any]] = [[] for _ in schema]  # what is a list is collected: facts, mostly
    for operator, given in changes:
        for changed in given() if callable(given) else [given]:
            rows = len(changed.keys)
            if isinstance(changed.keys, pa.Array):
                numbers = pa.array(np.full(rows, operator, np.int16))
                groups = pa.array(np.asarray(changed.groups, np.int16))
                columns = [groups, numbers, changed.keys, changed.values]
                batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            else:
                values = (changed.groups, [operator] * rows, changed.keys, changed.values)
                for column, some in zip(small, values, strict=True):
                    column.extend(some)
    if small[0]:
        columns = [pa.array(c, f.type) for c, f in zip(small, schema, strict=True)]
        batches.insert(0, pa.RecordBatch.from_arrays(columns, schema=schema))
    batches = [batch for batch in batches if batch.num_rows]
    return _to_bytes(pa.Table.from_batches(batches, schema)) if batches else b""


def decode_delta(
    names: Sequence[str], delta: bytes
) -> Iterator[tuple[int, bool, pa.Array, pa.Array]]:
    """Per operator, its facts (True) and its keyed state (False): keys and values."""
    if not delta:
        return
    table = table_of(delta)
    written_by = json.loads(table.schema.metadata[_NAMES])
    if written_by != list(names):
        raise StateMismatch(
            f"the state of {', '.join(written_by)} cannot be read by {', '.join(names)}",
            remedy="resume the job with the operators it was checkpointed with",
        )
    numbers = table["operator"].to_numpy()
    groups = table["key_group"].to_numpy()
    for operator in sorted(set(numbers.tolist())):
        of_operator = numbers == operator
        for is_fact in (True, False):
            chosen = of_operator & ((groups == FACTS) == is_fact)
            if chosen.any():
                part = table if chosen.all() else table.filter(pa.array(chosen))
                yield operator, is_fact, column_of(part, "key"), column_of(part, "value")


def merge_deltas(deltas: Sequence[bytes], *, is_base: bool = False) -> bytes:
    """One delta that has the effect of all of them, applied in order.

    Parameters
    ----------
    deltas
        Oldest first.
    is_base
        The first of them is the task's first: nothing lies below, so what is gone need not be
        mentioned any more.

    Examples
    --------
    >>> merge_deltas([b"", b""])
    b''
    """
    tables = [table_of(delta) for delta in deltas if delta]
    if not tables:
        return b""
    schema = tables[-1].schema
    for table in tables:
        if table.schema.metadata != schema.metadata:
            raise StateMismatch("layers of different operators cannot be merged")
    table = pa.concat_tables(tables)
    numbered = table.append_column("row", pa.array(range(len(table)), pa.int64()))
    last = numbered.group_by(["operator", "key_group", "key"], use_threads=False).aggregate(
        [("row", "max")]
    )["row_max"]
    merged = table.take(last.combine_chunks().sort())
    if is_base:
        merged = merged.filter(merged["value"].is_valid())
    return _to_bytes(merged.combine_chunks()) if len(merged) else b""


def column_of(table: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    column = table[name].combine_chunks()
    # Before version 19 of Arrow the result may still be in chunks.
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _to_bytes(table: pa.Table) -> bytes:
    # Written twice, the first time to nowhere: cheaper than a buffer that grows by copying.
    size = pa.MockOutputStream()
    _write(table, size)
    buffer = pa.allocate_buffer(size.size())
    _write(table, pa.FixedSizeBufferWriter(buffer))
    encoded: bytes = buffer.to_pybytes()
    return encoded


def _write(table: pa.Table, sink: Any) -> None:
    with sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def table_of(delta: bytes) -> pa.Table:
    """A delta that is not empty, as :func:`encode_delta` has made it."""
    try:
        with pa.ipc.open_stream(delta) as reader:
            table = reader.read_all()
        return table.cast(_SCHEMA.with_metadata(table.schema.metadata))
    except (pa.ArrowException, ValueError) as error:
        raise StateMismatch(f"a layer cannot be read: {error}") from error
