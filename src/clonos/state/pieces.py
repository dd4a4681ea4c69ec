"""The state of windows: *pieces*, which are rows or partial aggregates with an interval of time.

A piece has the columns of its content, ``~start`` and ``~end`` in ms, and ``~order``, which numbers
pieces as they come. Pieces are appended. Those that belong together are combined now and then, and
always before they become visible, so that the moment of combining never shows. A combined piece
keeps the order of its first part, which is its address in layers. Layers hold pieces as they are; a
fact records which were combined by then.
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
from clonos.state.stores import Facts

START: Final = "~start"
END: Final = "~end"
ORDER: Final = "~order"
INTERVAL: Final = [pa.field(START, pa.int64()), pa.field(END, pa.int64())]

_APPENDED_MIN: Final = 4096
_ADDRESS: Final = np.dtype(">u8")

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Combined(NamedTuple):
    """Pieces made of others.

    ``firsts``: for each new piece, the old one whose place it takes; ``codes``: for each old piece,
    the number of the new one that includes it, or -1 if it is dropped.
    """

    pieces: pa.RecordBatch
    firsts: Int64
    codes: Int64


class Combiner(Protocol):
    """Combines pieces, according to their content."""

    schema: pa.Schema

    @property
    def keys(self) -> Sequence[str]:
        """The columns of the key."""

    @property
    def time(self) -> str:
        """The column, in ms, in whose order pieces are due."""

    def combine(self, pieces: pa.RecordBatch) -> Combined:
        """Combine pieces, given in order, as far as possible; the new ones are in order, too."""


def numbers(batch: pa.RecordBatch, name: str) -> Int64:
    """A column of integers that are not null."""
    values: Int64 = batch.column(name).to_numpy()
    return values


def take(batch: pa.RecordBatch, places: Int64) -> pa.RecordBatch:
    """Rows of a batch; not copied if these are all its rows in order."""
    if len(places) == batch.num_rows and (np.diff(places) == 1).all():
        return batch
    return batch.take(pa.array(places))


class PieceStore:
    """All pieces of a task.

    Parameters
    ----------
    facts
        The operator's facts: ``order`` counts its pieces; those below ``combined`` are combined.
    """

    def __init__(self, combiner: Combiner, facts: Facts) -> None:
        self._combiner = combiner
        self._facts = facts
        self._schema = combiner.schema.append(pa.field(ORDER, pa.int64()))
        self._codec = RowCodec(self._schema)
        # What is noted of a deleted piece.
        self._names_of_gone = [*dict.fromkeys([*combiner.keys, combiner.time, ORDER])]
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._appended = 0  # number of last pieces that are not combined
        self._sealed = 0  # pieces below are in a layer ...
        self._rewritten = np.empty(0, np.int64)  # ... but these, in the first batch, have changed
        self._gone: list[pa.RecordBatch] = []
        self._layers: list[tuple[pa.Array, pa.Array]] = []  # restored, not yet taken in
        self._waiting = 0  # rows of these layers
        self._is_restored = False

    def append(self, pieces: pa.RecordBatch) -> None:
        """Add new pieces."""
        if self._is_restored:
            self._settle()
        rows, first = pieces.num_rows, self._facts.get("order", 0)
        self._facts.set("order", first + rows)
        order = pa.array(np.arange(first, first + rows))
        self._batches.append(
            pa.RecordBatch.from_arrays([*pieces.columns, order], schema=self._schema)
        )
        self._appended += rows
        self._rows += rows
        if self._appended > _APPENDED_MIN:
            self._combine_many()

    def all(self) -> pa.RecordBatch:
        """All pieces, in order, not combined."""
        if self._is_restored:
            self._settle()
        if len(self._batches) != 1:
            self._batches = [concat(self._batches) if self._batches else empty(self._schema)]
        return self._batches[0]

    def combine(self) -> pa.RecordBatch:
        """All pieces, in order, combined."""
        old = self.all()
        if self._appended:
            combined = self._combiner.combine(old.select(self._combiner.schema.names))
            if len(combined.firsts) < self._rows:
                self._replace(old, combined)
            self._appended = 0
            self._note_combined()
        return self._batches[0]

    def take_due(self, until: int, over: int) -> pa.RecordBatch:
        """Combined pieces, in order: all with a time of at most `until`, and perhaps others. Those
        with a time of at most `over` are removed."""
        del until
        pieces = self.combine()
        is_over = numbers(pieces, self._combiner.time) <= over
        if is_over.any():
            self.remove(is_over)
        return pieces

    def earliest(self) -> int | None:
        """The earliest time of any piece."""
        if self._is_restored:
            self._settle()
        times = [numbers(batch, self._combiner.time) for batch in self._batches if batch.num_rows]
        return min((int(some.min()) for some in times), default=None)

    def remove(self, is_gone: Mask) -> None:
        """Remove some of the pieces of :meth:`all`."""
        old = self.all()
        self._bury(old, is_gone)
        rewritten = self._rewritten[~is_gone[self._rewritten]]
        self._rewritten = rewritten - is_gone.nonzero()[0].searchsorted(rewritten)
        self._appended -= int(is_gone[self._rows - self._appended :].sum())
        self._keep(old.filter(pa.array(~is_gone)))

    def changes(self) -> Frozen:
        """The changes since the last call, deletions first.

        Nothing is combined for a layer. If a session joins two others, its sums depend on which
        pieces were combined first, and nobody knows when layers are sealed: it is in no log.
        """
        if self._is_restored:  # nothing has changed yet
            self._settle()
            return list
        return changed_rows(*self._changed(), self._combiner.keys, self._codec)

    def _changed(self) -> tuple[list[pa.RecordBatch], list[tuple[pa.RecordBatch, Int64]]]:
        """The deleted pieces; and batches with the places of new or changed pieces."""
        fresh = []
        for batch in reversed(self._batches):
            start = int(numbers(batch, ORDER).searchsorted(self._sealed))
            fresh.append((batch, np.arange(start, batch.num_rows)))
            if start:
                break
        fresh += [(batch, self._rewritten) for batch in self._batches[:1]]
        gone, self._gone = self._gone, []
        self._rewritten = np.empty(0, np.int64)
        self._sealed = self._facts.get("order", 0)
        return gone, fresh

    def restore(self, keys: pa.Array, values: pa.Array) -> None:
        """Restore pieces from a delta, lazily: when there are many, or when they are needed."""
        self._is_restored = True
        self._layers.append((keys, values))
        self._waiting += len(keys)
        if self._waiting > max(self._rows, _APPENDED_MIN):
            self._take_in()

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        """Decode pieces from layers, with their numbers."""
        columns = self._codec.decode(values)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def adopt(self, shares: Sequence[tuple[pa.Array, int]]) -> None:
        """Take over pieces of other stores, encoded as in layers; those with numbers below the one
        given were combined."""
        parts = [self.decode(values) for values, _ in shares if len(values)]
        pieces = in_one_order(parts, self._schema)
        if pieces.num_rows:
            self.append(pieces)

    def _combine_many(self) -> None:
        """Combine if the number of pieces has doubled, so that the cost per piece is constant."""
        if 2 * self._appended > self._rows:
            self.combine()

    def _note_combined(self) -> None:
        self._facts.set("combined", self._facts.get("order"))

    def _replace(self, old: pa.RecordBatch, combined: Combined) -> None:
        """Replace pieces by the combined ones made from them."""
        is_gone = np.ones(self._rows, bool)
        is_gone[combined.firsts] = False
        self._bury(old, is_gone)
        codes, rewritten = combined.codes, combined.codes[self._rewritten]
        is_other = np.bincount(codes[codes >= 0]) > 1
        is_other[rewritten[rewritten >= 0]] = True
        orders = numbers(old, ORDER)[combined.firsts]
        (self._rewritten,) = (is_other & (orders < self._sealed)).nonzero()
        columns = [*combined.pieces.columns, pa.array(orders)]
        self._keep(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _keep(self, pieces: pa.RecordBatch) -> None:
        self._batches = [pieces]
        self._rows = pieces.num_rows

    def _bury(self, old: pa.RecordBatch, is_gone: Mask) -> None:
        """Note deleted pieces that are in layers."""
        stored = numbers(old, ORDER).searchsorted(self._sealed)
        (chosen,) = is_gone[:stored].nonzero()
        if len(chosen):
            self._gone.append(old.select(self._names_of_gone).take(pa.array(chosen)))

    def _settle(self) -> None:
        """Finish restoring; only now are the facts final."""
        self._is_restored = False
        self._take_in()
        orders = numbers(self.all(), ORDER)
        self._sealed = self._facts.get("order", 0)
        combined = self._facts.get("combined", 0)
        self._appended = self._rows - int(orders.searchsorted(combined))

    def _take_in(self) -> None:
        """Apply the restored layers, with the newest value of each piece."""
        if not self._layers:
            return
        keys, values = (pa.concat_arrays(parts) for parts in zip(*self._layers, strict=True))
        self._layers, self._waiting = [], 0
        orders = orders_of(keys)
        _, newest = np.unique(orders[::-1], return_index=True)
        values = values.take(pa.array(len(orders) - 1 - newest)).drop_null()
        parts = self._batches or [empty(self._schema)]
        if len(values):
            columns = self._codec.decode(values)
            parts = [*parts, pa.RecordBatch.from_arrays(columns, schema=self._schema)]
        both = concat(parts)
        at = numbers(both, ORDER)
        is_old = np.isin(at[: self._rows], orders)
        alive = np.concatenate([np.flatnonzero(~is_old), np.arange(self._rows, len(at))])
        self._keep(both.take(pa.array(alive[np.argsort(at[alive], kind="stable")])))


def groups_of(batch: pa.RecordBatch, keys: Sequence[str]) -> Int64:
    """The key group of each row; without keys, that of the whole task."""
    if not keys:
        return np.full(batch.num_rows, WHOLE_TASK)
    hashes = hash_columns(key_columns(batch, keys))
    groups: Int64 = (hashes % np.uint64(KEY_GROUPS)).astype(np.int64)
    return groups


def changed_rows(
    gone: Sequence[pa.RecordBatch],
    fresh: Sequence[tuple[pa.RecordBatch, Int64]],
    keys: Sequence[str],
    codec: RowCodec,
) -> Frozen:
    """Changes by number: deleted rows, and the places of new or changed rows."""

    def work_out() -> list[Changes]:
        changes = []
        if gone:
            rows = concat(gone)
            rows = rows.take(pa.array(np.argsort(numbers(rows, ORDER))))
            nothing = pa.nulls(rows.num_rows, pa.large_binary())
            orders = addresses(numbers(rows, ORDER))
            changes.append(Changes(groups_of(rows, keys), orders, nothing))
        chosen = [batch.take(pa.array(places)) for batch, places in fresh if len(places)]
        if chosen:
            rows = concat(chosen)
            orders = addresses(numbers(rows, ORDER))
            changes.append(Changes(groups_of(rows, keys), orders, codec.encode(rows.columns)))
        return changes

    return work_out


def addresses(orders: Int64) -> pa.Array:
    """Numbers encoded as keys of a layer."""
    data = pa.py_buffer(orders.astype(_ADDRESS))
    offsets = pa.py_buffer(np.arange(len(orders) + 1) * _ADDRESS.itemsize)
    return pa.Array.from_buffers(pa.large_binary(), len(orders), [None, offsets, data])


def in_one_order(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of several stores, ordered by number and then by store; without the numbers."""
    rows = concat([empty(schema), *parts])
    by_order = pa.array(np.argsort(numbers(rows, ORDER), kind="stable"))
    return rows.take(by_order).select(schema.names[:-1])


def orders_of(keys: pa.Array) -> Int64:
    """The inverse of :func:`addresses`."""
    if not len(keys):
        return np.empty(0, np.int64)
    _, offsets, data = keys.buffers()
    start = int(np.frombuffer(offsets, np.int64)[keys.offset])
    raw = np.frombuffer(data, np.uint8)[start : start + len(keys) * _ADDRESS.itemsize]
    return raw.view(_ADDRESS).astype(np.int64)
