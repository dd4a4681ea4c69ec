"""State of operators as layers: what changed, as bytes, and how such layers are merged.

A delta is an Arrow table ``(key_group, operator, key, value)``: the present value of an operator's
key, or null if it has none any more. Applying deltas in order keeps the last row per key;
:func:`merge_deltas` does this without knowing what the values mean.

Values, rows by key and most pieces may not fit into memory, so they are not in the table. They
follow it as *runs* (:mod:`clonos.state.runs`), which are used in place. Then a delta has this
layout, little-endian::

    magic "SELFCHCK" | bytes up to the blocks u64 | bytes of table u64, of heads u32
    | heads: names, and per run operator and bytes of its index | table | indexes | blocks
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from clonos.core.content import Chunks, Content, Part, Writable, content_of
from clonos.core.layer import CHECKS_ITSELF, UP_TO
from clonos.errors import StateMismatch
from clonos.state.runs import (
    HASH,
    Index,
    Placing,
    Rows,
    Run,
    RunWriter,
    in_order,
    merge_runs,
    write_values,
)

FACTS = -1
"""Stands for a key group in rows that are an operator's :class:`Facts`."""

WHOLE_TASK = 0
"""Key group of state that has no key."""

CHAIN = -1
"""Operator number of the chain's own state."""

SCHEMA: Final = pa.schema(
    [
        pa.field("key_group", pa.int16(), nullable=False),
        pa.field("operator", pa.int16(), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("value", pa.large_binary()),
    ]
)
_NAMES = b"clonos.operators"

_SIZES: Final = struct.Struct("<QI")


class Changes(NamedTuple):
    """New values of keys (null: deleted), as columns: lists, or Arrow arrays of large binary."""

    groups: Any
    keys: Any
    values: Any


class Values(NamedTuple):
    """New values by key (None: deleted), with the key group of each."""

    values: Mapping[bytes, bytes | None]
    groups: Sequence[int]
    placing: Placing = HASH


Frozen = Callable[[], Sequence[Changes | Values | Rows | Run]]
"""Computes changes later, perhaps in another thread, from data that no longer changes. A run is
copied as it is."""


def both(first: Frozen, second: Frozen) -> Frozen:
    """The changes of two stores of one operator."""
    return lambda: [*first(), *second()]


class Delta:
    """Changes frozen now, and encoded later, in another thread.

    Values are bytes or Arrow columns, which are immutable, so holding them is enough.
    """

    def __init__(
        self, names: Sequence[str], changes: Iterable[tuple[int, Changes | Frozen]]
    ) -> None:
        self._names = names
        self._changes = list(changes)

    def __bytes__(self) -> bytes:
        return bytes(self.encoded())

    def encoded(self) -> Chunks:
        """Like :func:`encode_delta`, but as separate chunks."""
        return _encode(self._names, self._changes)


def encode_delta(names: Sequence[str], changes: Iterable[tuple[int, Changes | Frozen]]) -> bytes:
    """Encode the changes of each operator (by its number in `names`); empty if there are none."""
    return bytes(_encode(names, changes))


def _encode(names: Sequence[str], changes: Iterable[tuple[int, Changes | Frozen]]) -> Chunks:
    table: list[tuple[int, Changes]] = []
    blocks: list[bytes | Content] = []
    runs: list[tuple[int, Index]] = []
    rows: dict[int, list[Rows]] = {}
    for operator, given in changes:
        for changed in given() if callable(given) else [given]:
            if isinstance(changed, Changes):
                table.append((operator, changed))
            elif isinstance(changed, Rows):
                rows.setdefault(operator, []).append(changed)
            elif isinstance(changed, Run):
                if not len(changed):
                    continue
                runs.append((operator, changed.index))
                blocks.append(changed.blocks)
            elif changed.values:
                values, groups, placing = changed
                runs.append((operator, write_values(values, groups, blocks.append, placing)))
    for operator, parts in rows.items():
        writer = RunWriter(sum(len(part.hashes) for part in parts), blocks.append)
        writer.add(in_order(parts))
        if (index := writer.index()).rows:
            runs.append((operator, index))
    encoded = _encode_table(names, table)
    return Chunks([_head(names, encoded, runs), *blocks] if runs else [encoded])


def _encode_table(names: Sequence[str], changes: Iterable[tuple[int, Changes]]) -> bytes:
    schema = SCHEMA.with_metadata({_NAMES: json.dumps(list(names)).encode()})
    batches: list[pa.RecordBatch] = []
    small: list[list[Any]] = [[] for _ in schema]  # lists, mostly facts, are collected
    for operator, changed in changes:
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


def _head(names: Sequence[str], table: bytes, runs: Sequence[tuple[int, Index]]) -> bytes:
    """Everything except the blocks."""
    indexes = [index.encode() for _, index in runs]
    sizes = [[operator, len(i)] for (operator, _), i in zip(runs, indexes, strict=True)]
    heads = json.dumps([list(names), sizes]).encode()
    checked = UP_TO.size + _SIZES.size + len(heads) + len(table) + sum(map(len, indexes))
    first = UP_TO.pack(CHECKS_ITSELF, checked)
    return b"".join((first, _SIZES.pack(len(table), len(heads)), heads, table, *indexes))


class RunOf(NamedTuple):
    """A run of an operator."""

    operator: int
    run: Run


class Opened(NamedTuple):
    """A delta: its table, as bytes, and its runs."""

    names: Sequence[str]
    table: bytes
    runs: Sequence[RunOf]


def open_delta(delta: bytes | Content) -> Opened:
    """Read a delta without its blocks."""
    if not len(delta):
        return Opened((), b"", ())
    content = content_of(delta)
    first = content.read(0, UP_TO.size)
    if first[: len(CHECKS_ITSELF)] != CHECKS_ITSELF:
        table = content.read(0, len(content))
        return Opened(_names_of(table_of(table)) if table else [], table, ())
    try:
        _, end = UP_TO.unpack(first)
        head = content.read(UP_TO.size, end)
        in_table, in_heads = _SIZES.unpack_from(head)
        at = _SIZES.size + in_heads
        names, sizes = json.loads(head[_SIZES.size : at])
        table, at = head[at : at + in_table], at + in_table
        runs = []
        for operator, nbytes in sizes:
            index, at = Index.decode(head[at : at + nbytes]), at + nbytes
            runs.append(RunOf(operator, Run(index, Part(content, end, end + index.nbytes))))
            end += index.nbytes
    except (struct.error, ValueError, TypeError) as error:
        raise StateMismatch(f"a layer cannot be read: {error}") from error
    return Opened(names, table, runs)


def decode_delta(
    names: Sequence[str], delta: bytes | Content | Opened
) -> Iterator[tuple[int, bool, pa.Array, pa.Array]]:
    """For each operator, its facts (True) and state by key (False), without runs: keys, values."""
    opened = delta if isinstance(delta, Opened) else open_delta(delta)
    if opened.names and list(opened.names) != list(names):
        raise StateMismatch(
            f"the state of {', '.join(opened.names)} cannot be read by {', '.join(names)}",
            remedy="resume the job with the operators it was checkpointed with",
        )
    if opened.table:
        table = table_of(opened.table)
        numbers = table["operator"].to_numpy()
        groups = table["key_group"].to_numpy()
        for operator in sorted(set(numbers.tolist())):
            of_operator = numbers == operator
            for is_fact in (True, False):
                chosen = of_operator & ((groups == FACTS) == is_fact)
                if chosen.any():
                    part = table if chosen.all() else table.filter(pa.array(chosen))
                    yield operator, is_fact, column_of(part, "key"), column_of(part, "value")


def merge_deltas(
    deltas: Sequence[bytes | Content],
    *,
    is_base: bool = False,
    below: Mapping[int, int] | None = None,
) -> bytes:
    """One delta with the same effect as all of them, applied in order.

    Parameters
    ----------
    deltas
        Oldest first.
    is_base
        Whether the first of them is the task's first, so that nothing lies below and deletions need
        not be kept.
    below
        By operator, the number of deltas whose values by key are omitted, because they are stored
        elsewhere.

    Examples
    --------
    >>> merge_deltas([b"", b""])
    b''
    """
    blocks: list[bytes] = []
    head = _merge(deltas, blocks.append, is_base=is_base, below=below or {})
    return b"".join((head, *blocks))


def merge_into(
    scratch: Writable,
    deltas: Sequence[bytes | Content],
    *,
    is_base: bool = False,
    below: Mapping[int, int] | None = None,
) -> Content:
    """The same, but runs go to the end of `scratch` and need not fit into memory."""
    start = len(scratch)
    head = _merge(deltas, scratch.write, is_base=is_base, below=below or {})
    return Chunks([head, Part(scratch, start, len(scratch))])


def _merge(
    deltas: Sequence[bytes | Content],
    write: Callable[[bytes], object],
    *,
    is_base: bool,
    below: Mapping[int, int],
) -> bytes:
    numbered = [(n, open_delta(delta)) for n, delta in enumerate(deltas) if len(delta)]
    opened = [one for _, one in numbered]
    if not opened:
        return b""
    if any(list(one.names) != list(opened[0].names) for one in opened):
        raise StateMismatch("layers of different operators cannot be merged")
    table = _merge_tables([one.table for one in opened if one.table], is_base=is_base)
    runs: list[tuple[int, Index]] = []
    for operator in sorted({operator for one in opened for operator, _ in one.runs}):
        begin = below.get(operator, 0)
        mine = [run for n, one in numbered for of, run in one.runs if of == operator and n >= begin]
        writer = RunWriter(sum(map(len, mine)), write)
        merge_runs(mine, writer, is_base=is_base and operator not in below)
        index = writer.index()
        if index.rows:
            runs.append((operator, index))
    return _head(opened[0].names, table, runs) if runs else table


def _merge_tables(deltas: Sequence[bytes], *, is_base: bool) -> bytes:
    if not deltas:
        return b""
    table = pa.concat_tables([table_of(delta) for delta in deltas])
    numbered = table.append_column("row", pa.array(range(len(table)), pa.int64()))
    last = numbered.group_by(["operator", "key_group", "key"], use_threads=False).aggregate(
        [("row", "max")]
    )["row_max"]
    merged = table.take(last.combine_chunks().sort())
    if is_base:
        merged = merged.filter(merged["value"].is_valid())
    return _to_bytes(merged.combine_chunks()) if len(merged) else b""


def _names_of(table: pa.Table) -> list[str]:
    names: list[str] = json.loads(table.schema.metadata[_NAMES])
    return names


def column_of(table: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    column = table[name].combine_chunks()
    # Before Arrow 19 the result may still be chunked.
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _to_bytes(table: pa.Table) -> bytes:
    # Written twice, first only to measure: cheaper than a buffer that grows by copying.
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
    """The table of a delta made by :func:`encode_delta`, which must not be empty."""
    try:
        with pa.ipc.open_stream(delta) as reader:
            table = reader.read_all()
        return table.cast(SCHEMA.with_metadata(table.schema.metadata))
    except (pa.ArrowException, ValueError) as error:
        raise StateMismatch(f"a layer cannot be read: {error}") from error
