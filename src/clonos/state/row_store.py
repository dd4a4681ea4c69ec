"""Rows by key, in columns: the state of joins and of other operators that find earlier rows of a
key.

Rows never change. Each has a number in order of arrival (its address in layers) and a time in ms at
which it is dropped. Rows are stored in *chunks*, in the order of their numbers, and do not move. An
index of numbers is sorted by the hash of the key. Rows are indexed only when the store is searched,
so rows dropped before that are never indexed. Results come in the order of numbers, independent of
the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.batches import concat, empty
from clonos.columns.keys import factorise, hash_columns, key_columns
from clonos.columns.row_codec import RowCodec
from clonos.core.canonical import encode
from clonos.state.deltas import Frozen
from clonos.state.pieces import ORDER, changed_rows, numbers, orders_of, take

DUE: Final = "~due"

_MERGED: Final = 8
"""How many chunks of similar size are merged; so there are few chunks, and few copies of rows."""

_INDEX_SLACK: Final = 4096
"""How many dead row numbers the index may have before it is worth cleaning."""

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


class Chunk:
    """Consecutive rows, in order; some may be dead."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.orders = numbers(rows, ORDER)
        self.is_alive = np.ones(rows.num_rows, bool)
        self.alive = rows.num_rows
        self.first, self.last = int(self.orders[0]), int(self.orders[-1])
        self._lowest: dict[str, int] = {}
        has_due = DUE in rows.schema.names
        self.earliest = int(numbers(rows, DUE).min()) if has_due else None  # a lower bound

    def __len__(self) -> int:
        return len(self.orders)

    def places(self, orders: Int64) -> Int64:
        """The places of rows; -1 if they are dead."""
        is_dense = self.last - self.first == len(self) - 1
        places = orders - self.first if is_dense else np.searchsorted(self.orders, orders)
        places = np.minimum(places, len(self) - 1)
        is_there = orders <= self.last if is_dense else self.orders[places] == orders
        if self.alive < len(self):
            is_there &= self.is_alive[places]
        return places if is_there.all() else np.where(is_there, places, -1)

    def kill(self, places: Int64) -> None:
        """Mark live rows as dead."""
        self.is_alive[places] = False
        self.alive -= len(places)
        self._lowest.clear()

    def lowest(self, name: str) -> int:
        """The lowest number in a column of live rows; there must be one."""
        if name not in self._lowest:
            self._lowest[name] = int(numbers(self.rows, name)[self.is_alive].min())
        return self._lowest[name]

    def due(self, mark: int) -> Int64:
        """The places of rows that are due."""
        if self.earliest is None or self.earliest > mark:
            return np.empty(0, np.int64)
        times = numbers(self.rows, DUE)
        is_due = self.is_alive & (times <= mark)
        self.earliest = int(times[self.is_alive & ~is_due].min(initial=np.iinfo(np.int64).max))
        return np.flatnonzero(is_due)

    def cleaned(self) -> pa.RecordBatch:
        """The live rows."""
        return self.rows if self.alive == len(self) else self.rows.filter(pa.array(self.is_alive))


class Found(NamedTuple):
    """The result of a search: each row of the store once, and the pairs that match.

    ``probes`` and ``which`` are pairs: the number of a row in the batch, and that of a row in
    ``rows``; ordered by the first, and then by arrival of the second.
    """

    probes: Int64
    which: Int64
    rows: pa.RecordBatch

    @property
    def orders(self) -> Int64:
        """The number of the second row of each pair."""
        return numbers(self.rows, ORDER)[self.which]

    def chosen(self, is_chosen: Mask) -> Found:
        """A selection of the pairs."""
        return Found(self.probes[is_chosen], self.which[is_chosen], self.rows)

    def columns(self, names: Sequence[str]) -> list[pa.Array]:
        """Columns of the second row of each pair."""
        columns: list[pa.Array] = take(self.rows.select(list(names)), self.which).columns
        return columns


class RowStore:
    """Rows of one schema.

    Parameters
    ----------
    schema
        The schema, with ``~due`` if rows are to be dropped at some time.
    keys
        The columns by which rows are found.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        self._told = [*dict.fromkeys([*keys, ORDER])]  # columns recorded of a deleted row
        self.schema = schema.append(pa.field(ORDER, pa.int64()))
        self._codec = RowCodec(self.schema)
        self._chunks: list[Chunk] = []
        self._fixed = 0  # number of first chunks that never change
        self._index: list[tuple[UInt64, Int64]] = []
        self._next = 0  # above all numbers used so far
        self._indexed = 0  # live rows below this number are in the index
        self._sealed = 0  # live rows below this number are in a layer
        self._gone: list[pa.RecordBatch] = []

    def append(self, rows: pa.RecordBatch, first_order: int) -> None:
        """Add new rows, numbered from `first_order` on, which is above all earlier numbers."""
        order = pa.array(np.arange(first_order, first_order + rows.num_rows))
        self._add(pa.RecordBatch.from_arrays([*rows.columns, order], schema=self.schema))

    def find(self, batch: pa.RecordBatch, keys: Sequence[str]) -> Found:
        """Find the rows that have the key of a row of `batch`."""
        nothing = np.empty(0, np.int64)
        if self.is_empty or not batch.num_rows:
            return Found(nothing, nothing, empty(self.schema))
        columns = key_columns(batch, keys)
        codes, firsts = factorise(columns, batch.num_rows)
        distinct = [column.take(pa.array(firsts)) for column in columns]
        wanted, rows = self._candidates(hash_columns(distinct))
        same = self._same(distinct, wanted, rows)
        if not same.all():
            wanted, rows = wanted[same], rows.filter(pa.array(same))
        counts = np.bincount(wanted, minlength=len(firsts))
        probes, which = ragged(codes, np.cumsum(counts) - counts, counts)
        return Found(probes, which, rows)

    @property
    def is_empty(self) -> bool:
        """Whether it has certainly no rows."""
        return not self._chunks

    def _candidates(self, hashes: UInt64) -> tuple[Int64, pa.RecordBatch]:
        """Rows whose keys have these hashes, and the index of the hash of each; ordered by hash,
        and then by number."""
        self._index_rows()
        wanted, orders = self._look_up(hashes)
        rows, is_alive = self._rows(orders)
        return wanted[is_alive], rows

    def at(self, orders: Int64) -> pa.RecordBatch:
        """The rows with these numbers, in this order; none may have been dropped."""
        rows, _ = self._rows(orders)
        return rows.select(self.schema.names[:-1])

    @property
    def orders(self) -> Int64:
        """The numbers of all rows."""
        return np.concatenate(
            [np.empty(0, np.int64), *(chunk.orders[chunk.is_alive] for chunk in self._chunks)]
        )

    @property
    def nbytes(self) -> int:
        """The approximate size of all rows."""
        return sum(chunk.rows.nbytes for chunk in self._chunks)

    def remove(self, orders: Int64) -> None:
        """Drop rows by their numbers, which may be repeated."""
        orders = np.sort(orders)  # much faster than np.unique
        is_new = np.ones(len(orders), bool)
        np.not_equal(orders[1:], orders[:-1], out=is_new[1:])
        for chunk, _, places in self._located(orders[is_new]):
            self._kill(chunk, places)
        self._tidy()

    def drop_due(self, mark: int) -> None:
        """Drop the rows whose time is `mark` or earlier."""
        due = [(chunk, places) for chunk in self._chunks if len(places := chunk.due(mark))]
        for chunk, places in due:
            self._kill(chunk, places)
        if due:
            self._tidy()

    def take_due(self, mark: int) -> pa.RecordBatch:
        """The same; also returns these rows, in order."""
        return self._taken(mark).select(self.schema.names[:-1])

    def _taken(self, mark: int) -> pa.RecordBatch:
        """The same, with their numbers."""
        due = [(chunk, places) for chunk in self._chunks if len(places := chunk.due(mark))]
        parts = [chunk.rows.take(pa.array(places)) for chunk, places in due]
        for chunk, places in due:
            self._kill(chunk, places)
        if due:
            self._tidy()
        return concat([empty(self.schema), *parts])

    def lowest(self, name: str) -> int | None:
        """The lowest number in a column of all rows."""
        return min((chunk.lowest(name) for chunk in self._chunks if chunk.alive), default=None)

    def __len__(self) -> int:
        return sum(chunk.alive for chunk in self._chunks)

    def changes(self) -> Frozen:
        """The changes since the last call, deletions first."""
        return changed_rows(*self._changed(), self._keys, self._codec)

    def _changed(self) -> tuple[list[pa.RecordBatch], list[tuple[pa.RecordBatch, Int64]]]:
        """The deleted rows; and batches with the places of new rows."""
        fresh = []
        for chunk in self._chunks:
            if chunk.last >= self._sealed:
                start = int(np.searchsorted(chunk.orders, self._sealed))
                fresh.append((chunk.rows, start + np.flatnonzero(chunk.is_alive[start:])))
        gone, self._gone = self._gone, []
        self._sealed = self._next
        return gone, fresh

    def restore(self, keys: pa.Array, values: pa.Array) -> None:
        """Restore rows from a delta."""
        orders = orders_of(keys)
        if values.null_count:
            gone = orders[values.is_null().to_numpy(zero_copy_only=False)]
            for chunk, _, places in self._located(gone):
                chunk.kill(places)
            self._tidy()
        if values.null_count < len(values):
            columns = self._codec.decode(values.drop_null())
            self._add(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._next = max(self._next, 1 + int(orders.max(initial=-1)))
        self._sealed = max(self._sealed, self._next)

    # --- chunks -------------------------------------------------------------------------------

    def _add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._chunks.append(Chunk(rows))
        self._next = self._chunks[-1].last + 1
        while len(self._chunks) - self._fixed >= _MERGED:
            newest = self._chunks[-_MERGED:]
            if len(newest[0]) >= _MERGED * sum(map(len, newest[1:])) // (_MERGED - 1):
                return
            self._chunks[-_MERGED:] = [Chunk(concat([chunk.cleaned() for chunk in newest]))]

    def _kill(self, chunk: Chunk, places: Int64) -> None:
        """Drop rows, and note those that are in layers."""
        chunk.kill(places)
        stored = places[chunk.orders[places] < self._sealed]
        if len(stored):
            self._gone.append(chunk.rows.select(self._told).take(pa.array(stored)))

    def _tidy(self) -> None:
        """Free the memory of chunks that are mostly dead."""
        self._chunks[self._fixed :] = [
            chunk if 2 * chunk.alive > len(chunk) else Chunk(chunk.cleaned())
            for chunk in self._chunks[self._fixed :]
            if chunk.alive
        ]

    def _rows(self, orders: Int64) -> tuple[pa.RecordBatch, Mask]:
        """The rows with these numbers, in order, and a mask of live ones."""
        loose = self._chunks[self._fixed :]
        if 2 * len(orders) > len(self) and len(loose) > 1:
            self._chunks[self._fixed :] = [Chunk(concat([chunk.cleaned() for chunk in loose]))]
        is_alive = np.zeros(len(orders), bool)
        parts, at = [], []
        for chunk, mine, places in self._located(orders):
            is_alive[mine] = True
            parts.append(chunk.rows.take(pa.array(places)))
            at.append(mine)
        if not parts:
            return empty(self.schema), is_alive
        rows = concat(parts)
        if len(parts) > 1:
            places_in_rows = np.empty(len(orders), np.int64)
            places_in_rows[np.concatenate(at)] = np.arange(rows.num_rows)
            rows = rows.take(pa.array(places_in_rows[is_alive]))
        return rows, is_alive

    def _located(self, orders: Int64) -> Iterator[tuple[Chunk, Int64, Int64]]:
        """For each chunk, the live ones of these numbers, and their places."""
        owners = np.searchsorted([chunk.first for chunk in self._chunks], orders, "right") - 1
        # Of many chunks few have any: those that were asked for together came together.
        for number in (np.flatnonzero(np.bincount(owners + 1)) - 1).tolist():
            if number < 0:
                continue
            chunk, mine = self._chunks[number], np.flatnonzero(owners == number)
            places = chunk.places(orders[mine])
            is_there = places >= 0
            if is_there.any():
                yield chunk, mine[is_there], places[is_there]

    # --- the index ------------------------------------------------------------------------------

    def _index_rows(self) -> None:
        """Add new rows to the index."""
        parts = []
        for chunk in self._chunks:
            if chunk.last >= self._indexed:
                start = int(np.searchsorted(chunk.orders, self._indexed))
                rows = chunk.rows.select([*dict.fromkeys(self._keys), ORDER]).slice(start)
                is_alive = chunk.is_alive[start:]
                if is_alive.any():  # a run is never empty
                    parts.append(rows if is_alive.all() else rows.filter(pa.array(is_alive)))
        self._indexed = self._next
        if not parts:
            return
        rows = concat(parts)
        run = _by_hash(hash_columns(key_columns(rows, self._keys)), numbers(rows, ORDER))
        while self._index and len(self._index[-1][0]) <= len(run[0]):
            hashes, orders = self._index.pop()
            run = _by_hash(np.concatenate([hashes, run[0]]), np.concatenate([orders, run[1]]))
        self._index.append(run)
        if sum(len(orders) for _, orders in self._index) > 2 * len(self) + _INDEX_SLACK:
            hashes, orders = map(np.concatenate, zip(*self._index, strict=True))
            is_alive = np.zeros(len(orders), bool)
            for _, mine, _ in self._located(orders):
                is_alive[mine] = True
            self._index = [_by_hash(hashes[is_alive], orders[is_alive])] if is_alive.any() else []

    def _look_up(self, hashes: UInt64) -> tuple[Int64, Int64]:
        """Pairs of a hash's index and the number of a row with that hash, sorted."""
        wanted, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        by_hash = np.argsort(hashes)  # sorted lookups are much faster
        in_order = hashes[by_hash]
        numbered = np.arange(len(hashes))
        for known, orders in self._index:  # runs are in order of arrival
            low = np.searchsorted(known, in_order, "left")
            hits = np.flatnonzero(known[np.minimum(low, len(known) - 1)] == in_order)
            if len(hits):
                first, counts = np.zeros((2, len(hashes)), np.int64)
                first[by_hash[hits]] = low[hits]
                high = np.searchsorted(known, in_order[hits], "right")
                counts[by_hash[hits]] = high - low[hits]
                number, place = ragged(numbered, first, counts)
                wanted.append(number)
                found.append(orders[place])
        numbers_of, orders_found = np.concatenate(wanted), np.concatenate(found)
        if len(found) > 2:
            by_number = np.argsort(numbers_of, kind="stable")
            return numbers_of[by_number], orders_found[by_number]
        return numbers_of, orders_found

    def _same(self, distinct: Sequence[pa.Array], codes: Int64, rows: pa.RecordBatch) -> Mask:
        """A mask of pairs with equal keys: hashes may collide, except of single integers."""
        first = rows.column(self._keys[0])
        is_integer = len(self._keys) == 1 and pa.types.is_integer(first.type)
        if is_integer and not first.null_count and not distinct[0].null_count:
            return np.ones(rows.num_rows, bool)
        same: pa.Array = None
        chosen = pa.array(codes)
        for column, known in zip(distinct, key_columns(rows, self._keys), strict=True):
            is_same = _equal(column.take(chosen), known)
            same = is_same if same is None else pc.and_(same, is_same)
        result: Mask = same.to_numpy(zero_copy_only=False)
        return result


def _by_hash(hashes: UInt64, orders: Int64) -> tuple[UInt64, Int64]:
    """Sort by hash; numbers with equal hashes keep their order."""
    by_hash = np.argsort(hashes, kind="stable")
    return hashes[by_hash], orders[by_hash]


def ragged(codes: Int64, low: Int64, counts: Int64) -> tuple[Int64, Int64]:
    """Pairs of each row and each number from ``low[code]`` on, ``counts[code]`` of them.

    Examples
    --------
    >>> a = np.array
    >>> [x.tolist() for x in ragged(a([1, 0, 1]), a([7, 3]), a([0, 2]))]
    [[0, 0, 2, 2], [3, 4, 3, 4]]
    """
    per_row = counts[codes]
    probes = np.repeat(np.arange(len(codes)), per_row)
    before = np.cumsum(per_row) - per_row
    places = np.arange(len(probes)) + np.repeat(low[codes] - before, per_row)
    return probes, places


def _equal(left: pa.Array, right: pa.Array) -> pa.Array:
    """Compare; null equals null, and NaN equals NaN."""
    if pa.types.is_nested(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return pa.array([encode(a) == encode(b) for a, b in pairs], pa.bool_())
    if pa.types.is_null(left.type):
        return left.is_null()
    if pa.types.is_float16(left.type):  # Arrow does not compare them
        left, right = left.cast(pa.float32()), right.cast(pa.float32())
    same = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same = pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    if same.null_count:
        same = pc.coalesce(same, pc.and_(left.is_null(), right.is_null()))
    return same
