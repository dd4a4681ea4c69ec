"""The state of windows: *pieces*, which are rows or partial aggregates with an interval of time.

A piece has the columns of its content, ``~start`` and ``~end`` in ms, and ``~order``, which counts
pieces as they come. Pieces are appended; those that belong together are combined now and then,
and always before something is seen of them, so that nobody can tell when it was. A combined
piece keeps the order of its first part, which is its address in layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.columns.batches import concat, empty
from clonos.columns.keys import KEY_GROUPS, hash_columns, key_columns
from clonos.columns.row_codec import RowCodec
from clonos.state.deltas import WHOLE_TASK, Changes, Frozen

START: Final = "~start"
END: Final = "~end"
ORDER: Final = "~order"
INTERVAL: Final = [pa.field(START, pa.int64()), pa.field(END, pa.int64())]

_DIRTY: Final = 1
_STORED: Final = 2
_APPENDED_MIN: Final = 4096
_ADDRESS: Final = np.dtype(">u8")

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Combined(NamedTuple):
    """Pieces made of others.

    ``firsts``: per new piece the old one whose place it takes; ``codes``: per old piece the number
    of the new one that it went into, -1 if it is dropped.
    """

    pieces: pa.RecordBatch
    firsts: Int64
    codes: Int64


class Combiner(Protocol):
    """What pieces hold, and how they are combined."""

    schema: pa.Schema

    @property
    def keys(self) -> Sequence[str]:
        """The columns of the key."""

    def combine(self, pieces: pa.RecordBatch) -> Combined:
        """Pieces in their order, combined as far as possible; new ones are in order, too."""


def numbers(batch: pa.RecordBatch, name: str) -> Int64:
    """A column of integers that are not null."""
    values: Int64 = batch.column(name).to_numpy()
    return values


class PieceStore:
    """All pieces of a task."""

    def __init__(self, combiner: Combiner) -> None:
        self._combiner = combiner
        self._schema = combiner.schema.append(pa.field(ORDER, pa.int64()))
        self._codec = RowCodec(self._schema)
        self._batches: list[pa.RecordBatch] = []
        self._flags: list[npt.NDArray[np.uint8]] = []
        self._appended = 0
        self._gone: list[tuple[Int64, Int64]] = []
        self.rows = 0

    def append(self, pieces: pa.RecordBatch, first_order: int) -> None:
        """Take new pieces, numbered from `first_order` on."""
        rows = pieces.num_rows
        order = pa.array(np.arange(first_order, first_order + rows))
        self._batches.append(
            pa.RecordBatch.from_arrays([*pieces.columns, order], schema=self._schema)
        )
        self._flags.append(np.full(rows, _DIRTY, np.uint8))
        self._appended += rows
        self.rows += rows
        if self._appended > _APPENDED_MIN and 2 * self._appended > self.rows:
            self.combine()

    def all(self) -> pa.RecordBatch:
        """All pieces, in their order, not combined."""
        if len(self._batches) != 1:
            self._batches = [concat(self._batches) if self._batches else empty(self._schema)]
            self._flags = [np.concatenate(self._flags or [np.empty(0, np.uint8)])]
        return self._batches[0]

    def combine(self) -> pa.RecordBatch:
        """All pieces, in their order, combined."""
        if not self._appended:
            return self.all()
        old = self.all()
        combined = self._combiner.combine(old.select(self._combiner.schema.names))
        flags = np.zeros(len(combined.firsts), np.uint8)
        kept = combined.codes >= 0
        np.bitwise_or.at(flags, combined.codes[kept], self._flags[0][kept])
        flags &= self._flags[0][combined.firsts] | np.uint8(_DIRTY)
        is_gone = np.ones(old.num_rows, bool)
        is_gone[combined.firsts] = False
        self._bury(old, self._flags[0], is_gone)
        order = old.column(ORDER).take(pa.array(combined.firsts))
        columns = [*combined.pieces.columns, order]
        self._batches = [pa.RecordBatch.from_arrays(columns, schema=self._schema)]
        self._flags = [flags]
        self.rows = len(flags)
        self._appended = 0
        return self._batches[0]

    def remove(self, is_gone: Mask) -> None:
        """Remove some of :meth:`all`."""
        old = self.all()
        self._bury(old, self._flags[0], is_gone)
        self._batches = [old.filter(pa.array(~is_gone))]
        self._flags = [self._flags[0][~is_gone]]
        self.rows = len(self._flags[0])
        self._appended = min(self._appended, self.rows)

    def changes(self) -> Frozen:
        """What changed since the last call, gone pieces first."""
        pieces = self.combine()
        flags = self._flags[0]
        dirty = np.flatnonzero((flags & _DIRTY) != 0)
        flags[:] = _STORED
        gone, self._gone = self._gone, []

        def work_out() -> list[Changes]:
            nothing = np.empty(0, np.int64)
            gone_orders = np.concatenate([nothing, *(order for order, _ in gone)])
            gone_groups = np.concatenate([nothing, *(group for _, group in gone)])
            by_order = np.argsort(gone_orders)
            rows = pieces.take(pa.array(dirty))
            orders = np.concatenate([gone_orders[by_order], numbers(rows, ORDER)])
            groups = np.concatenate([gone_groups[by_order], self._groups(rows)])
            return columns_of(orders, groups, rows, self._codec)

        return work_out

    def restore(self, keys: pa.Array, values: pa.Array) -> None:
        """Take pieces from a delta."""
        orders = orders_of(keys)
        old = self.all()
        is_old = np.isin(numbers(old, ORDER), orders)
        valid = values.is_valid()
        parts = [old.filter(pa.array(~is_old))]
        if len(values) > values.null_count:
            columns = self._codec.decode(values.filter(valid))
            parts.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        batch = concat(parts)
        batch = batch.take(pa.array(np.argsort(numbers(batch, ORDER), kind="stable")))
        self._batches = [batch]
        self._flags = [np.full(batch.num_rows, _STORED, np.uint8)]
        self.rows = batch.num_rows

    def _bury(self, old: pa.RecordBatch, flags: npt.NDArray[np.uint8], is_gone: Mask) -> None:
        """Layers have to be told of stored pieces that are gone."""
        chosen = np.flatnonzero(is_gone & ((flags & _STORED) != 0))
        if len(chosen):
            rows = old.take(pa.array(chosen))
            self._gone.append((numbers(rows, ORDER), self._groups(rows)))

    def _groups(self, pieces: pa.RecordBatch) -> Int64:
        return groups_of(pieces, self._combiner.keys)


def groups_of(batch: pa.RecordBatch, keys: Sequence[str]) -> Int64:
    """The key group of each row; without keys it is that of the whole task."""
    if not keys:
        return np.full(batch.num_rows, WHOLE_TASK)
    hashes = hash_columns(key_columns(batch, keys))
    groups: Int64 = (hashes % np.uint64(KEY_GROUPS)).astype(np.int64)
    return groups


def columns_of(
    orders: Int64, groups: Int64, rows: pa.RecordBatch, codec: RowCodec
) -> list[Changes]:
    """Changes by number: `rows` are the last ones, those before are gone."""
    gone, keys = len(orders) - rows.num_rows, addresses(orders)
    parts = []
    if gone:
        nothing = pa.nulls(gone, pa.large_binary())
        parts.append(Changes(groups[:gone], keys.slice(0, gone), nothing))
    if rows.num_rows:
        parts.append(Changes(groups[gone:], keys.slice(gone), codec.encode(rows.columns)))
    return parts


def addresses(orders: Int64) -> pa.Array:
    """Numbers as keys of a layer."""
    data = pa.py_buffer(orders.astype(_ADDRESS))
    offsets = pa.py_buffer(np.arange(len(orders) + 1) * _ADDRESS.itemsize)
    return pa.Array.from_buffers(pa.large_binary(), len(orders), [None, offsets, data])


def orders_of(keys: pa.Array) -> Int64:
    """The inverse of :func:`addresses`."""
    if not len(keys):
        return np.empty(0, np.int64)
    _, offsets, data = keys.buffers()
    start = int(np.frombuffer(offsets, np.int64)[keys.offset])
    raw = np.frombuffer(data, np.uint8)[start : start + len(keys) * _ADDRESS.itemsize]
    return raw.view(_ADDRESS).astype(np.int64)
