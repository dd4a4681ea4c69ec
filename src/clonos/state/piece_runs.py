"""Pieces of windows in *runs* (:mod:`clonos.state.runs`), and how they are combined there.

The place of a piece is not the hash of its key. It begins with the time at which it is due, so
windows that fire next lie together::

    0 | due 47 bits | hash of the key 16 bits

Its own key is its number, as everywhere. A merge of runs combines pieces. The next layers must
report what it has changed; the run marks these rows by key groups below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from clonos.columns.keys import KEY_GROUPS, hash_columns, key_columns
from clonos.columns.row_codec import RowCodec
from clonos.errors import ExpressionFailed
from clonos.state.pieces import ORDER, Combiner, Int64, Mask, addresses, numbers, orders_of
from clonos.state.placed import TIMES_END, place_of, places_at, time_at
from clonos.state.runs import Rows, Run, UInt64
from clonos.state.tiers import TIERS_MAX

_HASH_BITS: Final = 16
PLACES_END: Final = 1 << 64
FAR: Final = TIMES_END - 1 << _HASH_BITS
"""The place of times so late that they share one."""
_NEAR: Final = 1 << _HASH_BITS
"""The first place above those of times so early that they share one."""


class LargeCombiner(Combiner, Protocol):
    """Combines pieces that need not be in memory."""

    @property
    def is_exact(self) -> bool:
        """Whether it does not matter which neighbouring pieces are combined first."""


def begin_of(time: int) -> int:
    """The first place of pieces that are due at this time."""
    return place_of(time) << _HASH_BITS


def end_of(time: int) -> int:
    """The end of the places of pieces that are due by this time."""
    begin = begin_of(time)
    return begin + (1 << _HASH_BITS) if begin < FAR else PLACES_END


def earliest_of(run: Run) -> int:
    """The time at which the first piece of a run that is not empty is due."""
    return int(time_at(run.index.firsts[:1] >> np.uint64(_HASH_BITS))[0])


def places_of(pieces: pa.RecordBatch, combiner: Combiner) -> tuple[UInt64, Int64]:
    """The places of pieces, and their key groups."""
    hashes = np.zeros(pieces.num_rows, np.uint64)
    if combiner.keys:
        hashes = hash_columns(key_columns(pieces, combiner.keys))
    slots = places_at(numbers(pieces, combiner.time)) << np.uint64(_HASH_BITS)
    places = slots | hashes >> np.uint64(64 - _HASH_BITS)
    return places, (hashes % np.uint64(KEY_GROUPS)).astype(np.int64)


def rows_of(pieces: pa.RecordBatch, combiner: Combiner, codec: RowCodec | None) -> Rows:
    """Pieces with their numbers, as rows of a run; without a codec: that they are deleted."""
    places, groups = places_of(pieces, combiner)
    order = np.argsort(places)
    pieces, count = pieces.take(pa.array(order)), pieces.num_rows
    values = codec.encode(pieces.columns) if codec else pa.nulls(count, pa.large_binary())
    return Rows(places[order], groups[order], addresses(numbers(pieces, ORDER)), values)


class PlacedPieces(NamedTuple):
    """Pieces that are in runs, by number, and where they are."""

    pieces: pa.RecordBatch
    places: UInt64
    groups: Int64

    def chosen(self, is_chosen: Mask) -> PlacedPieces:
        """Some of them."""
        if is_chosen.all():
            return self
        pieces = self.pieces.filter(pa.array(is_chosen))
        return PlacedPieces(pieces, self.places[is_chosen], self.groups[is_chosen])

    def gone(self) -> Rows:
        """Rows of a run that say that they are deleted."""
        nothing = pa.nulls(len(self.places), pa.large_binary())
        return Rows(self.places, self.groups, addresses(numbers(self.pieces, ORDER)), nothing)


def newest(parts: Sequence[Rows], codec: RowCodec, schema: pa.Schema) -> PlacedPieces:
    """The pieces that are in rows, by number; of several versions, the last one."""
    orders = np.concatenate([orders_of(rows.keys) for rows in parts])
    _, last = np.unique(orders[::-1], return_index=True)
    chosen: Int64 = len(orders) - 1 - last
    values = pa.concat_arrays([rows.values for rows in parts])
    if values.null_count:
        chosen = chosen[values.is_valid().to_numpy(zero_copy_only=False)[chosen]]
    values = values.take(pa.array(chosen))
    places, groups = (np.concatenate([rows[n] for rows in parts])[chosen] for n in range(2))
    groups = np.where(groups < 0, ~groups, groups)
    pieces = pa.RecordBatch.from_arrays(codec.decode(values), schema=schema)
    return PlacedPieces(pieces, places, groups)


class Merging:
    """Combines the pieces of runs while these are merged.

    Parameters
    ----------
    floor
        What lies below is dropped.
    combines
        Whether anything may be combined.
    """

    def __init__(
        self, combiner: Combiner, schema: pa.Schema, floor: int, *, combines: bool
    ) -> None:
        self._combiner, self._schema, self._codec = combiner, schema, RowCodec(schema)
        self.floor, self._combines = floor, combines
        self.has_combined = False

    def __call__(self, rows: Rows) -> Rows:
        if len(rows.hashes) and int(rows.hashes[0]) < self.floor:
            rows = rows.chosen(rows.hashes >= np.uint64(self.floor))
        groups = np.where(rows.groups < 0, ~rows.groups, rows.groups)  # reported by now
        return self._combined(rows._replace(groups=groups))

    def _combined(self, rows: Rows) -> Rows:
        # Far away, pieces that are due and others may have the same place.
        is_alive = rows.values.is_valid().to_numpy(zero_copy_only=False)
        is_near = (rows.hashes >= np.uint64(_NEAR)) & (rows.hashes < np.uint64(FAR))
        alive = (is_alive & is_near).nonzero()[0]
        if not self._combines or len(alive) < 2:
            return rows
        alive = alive[np.argsort(orders_of(rows.keys)[alive])]
        columns = self._codec.decode(rows.values.take(pa.array(alive)))
        pieces = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        try:
            combined = self._combiner.combine(pieces.select(self._combiner.schema.names))
        except ExpressionFailed:  # a sum is too large; that is told when it comes out
            return rows
        if len(combined.firsts) == len(alive):
            return rows
        self.has_combined = True
        is_gone = np.ones(len(alive), np.bool_)
        is_gone[combined.firsts] = False
        is_new = np.bincount(combined.codes[combined.codes >= 0]) > 1
        orders = pa.array(numbers(pieces, ORDER)[combined.firsts])
        fresh = pa.RecordBatch.from_arrays([*combined.pieces.columns, orders], schema=self._schema)
        fresh = fresh.filter(pa.array(is_new))
        gone, changed = alive[is_gone], alive[combined.firsts[is_new]]
        groups, at = rows.groups, np.arange(len(rows.groups))
        groups[gone], groups[changed] = ~groups[gone], ~groups[changed]
        at[changed], at[gone] = len(at) + np.arange(len(changed)), len(at) + len(changed)
        parts = [rows.values, self._codec.encode(fresh.columns), pa.nulls(1, pa.large_binary())]
        return rows._replace(groups=groups, values=pa.concat_arrays(parts).take(pa.array(at)))


class Unreported:
    """What the next layers must report of a run whose pieces were combined.

    It is reported from the lowest place to the highest, because windows fire in this order, too.
    """

    def __init__(self, run: Run, start: int) -> None:
        self._run, self._at = run, start

    @property
    def is_over(self) -> bool:
        """Whether everything was reported."""
        return self._at >= PLACES_END

    def next(self, nbytes: int) -> Callable[[], Iterator[Rows]]:
        """What is to be reported within the next `nbytes` of the run, or a larger part of a large
        one: until all of it is reported no other merge begins, and tiers pile up."""
        index = self._run.index
        nbytes = max(nbytes, index.nbytes // TIERS_MAX)
        block = int(np.searchsorted(index.firsts, np.uint64(self._at), "right"))
        before = np.uint64(index.ends[block - 1] if block else 0)
        last = int(np.searchsorted(index.ends, before + np.uint64(nbytes)))
        start, self._at = self._at, PLACES_END
        if max(block, last) < len(index.firsts):
            self._at = int(index.firsts[max(block, last)])
        return partial(self._marked, start, self._at, only_gone=False)

    def release(self, end: int) -> Callable[[], Iterator[Rows]]:
        """Everything up to there was released: of it, only deletions are left to be reported."""
        start, self._at = self._at, max(self._at, end)
        return partial(self._marked, start, self._at, only_gone=True)

    def _marked(self, low: int, high: int, *, only_gone: bool) -> Iterator[Rows]:
        if low >= high:
            return
        for rows in self._run.parts(low, high):
            is_told = rows.groups < 0
            if only_gone:
                is_told &= rows.values.is_null().to_numpy(zero_copy_only=False)
            if is_told.any():
                told = rows.chosen(is_told)
                yield told._replace(groups=~told.groups)
