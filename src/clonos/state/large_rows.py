"""Rows by key that need not fit into memory.

New rows are in memory, as in any :class:`~clonos.state.row_store.RowStore`, and indexed there. All
others are in *tiers* (:mod:`clonos.state.tiers`), where they are found by the hash of their key,
and by their times (:mod:`clonos.state.placed`). A row never changes and is in one place only. So it
exists unless a tier, or a note in memory, marks it as deleted. Where a row is kept makes no
difference to the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from clonos.columns.batches import concat, empty
from clonos.columns.row_codec import RowCodec
from clonos.core.content import Shelf, Writable
from clonos.state.deltas import Frozen
from clonos.state.pieces import ORDER, numbers, take
from clonos.state.placed import (
    TIMES_END,
    Entries,
    Found,
    entries_of,
    found_in,
    joined,
    no_entries,
    place_of,
    time_at,
    times_in,
    write,
)
from clonos.state.renumbered import Numbered
from clonos.state.row_store import DUE, Chunk, Int64, RowStore, UInt64
from clonos.state.runs import Index, Rows, Run, RunWriter, in_memory
from clonos.state.sieves import Sieves
from clonos.state.tiers import LOADED_BYTES, Tiers

_ROW_BYTES: Final = 40
"""Approximate overhead of a row in memory: its number, its liveness, the index."""
_DEAD_BYTES: Final = 200
"""Approximate cost of remembering that a row in a tier is deleted."""
_READ_ROWS: Final = 4096
"""About so many rows are read at once: as objects of Python they are several times as large."""
_FOR_EVER: Final = range(1 << 63)


class _Dead:
    """Rows in tiers that are deleted."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self.orders: set[int] = set()
        self._entries: list[Entries] = []

    def __len__(self) -> int:
        return len(self.orders)

    def add(self, entries: Entries) -> None:
        """Add deleted rows."""
        self.orders.update(entries.orders.tolist())
        self._entries.append(entries)

    @staticmethod
    def both(one: _Dead, other: _Dead) -> _Dead:
        """The union of both."""
        dead = _Dead(one._columns)
        for entries in (one.entries, other.entries):
            dead.add(entries)
        return dead

    @property
    def entries(self) -> Entries:
        """All deleted rows, by number."""
        return joined(self._entries, self._columns).sorted()


class _Leaving:
    """Rows that are being written as a tier, and deleted rows of older tiers."""

    def __init__(
        self, store: LargeRowStore, codec: RowCodec, chunks: Sequence[Chunk], dead: _Dead
    ) -> None:
        self.chunks, self.dead = chunks, dead
        self.were_alive = [chunk.is_alive.copy() for chunk in chunks]
        self.index: Index | None = None
        self.earliest: list[int] = []
        self._how = store.keys, store.times
        self._codec, self._schema = codec, store.schema

    def fill(self, file: Writable) -> None:
        rows = empty(self._schema)
        if self.chunks:
            rows = concat([chunk.rows for chunk in self.chunks])
            is_alive = np.concatenate(self.were_alive)
            rows = rows if is_alive.all() else rows.filter(pa.array(is_alive))
        fresh, gone = entries_of(rows, *self._how), self.dead.entries
        writer = RunWriter((1 + len(self._how[1])) * (rows.num_rows + len(gone.orders)), file.write)
        write(rows, fresh, gone, self._codec, writer.add)
        self.earliest = [place_of(int(ms)) for ms in fresh.times.min(0, initial=1 << 62)]
        self.index = writer.index()

    def killed(self) -> list[pa.RecordBatch]:
        """Rows that were deleted after writing began."""
        return [
            chunk.rows.filter(pa.array(was_alive & ~chunk.is_alive))
            for chunk, was_alive in zip(self.chunks, self.were_alive, strict=True)
        ]


class _Ahead:
    """The rows in tiers with the earliest times, by one column.

    There are no entries below `low`. Those from `low` up to `until` have been read, without rows
    that were deleted by then.
    """

    def __init__(self, column: int, columns: int) -> None:
        self._column, self._columns = column, columns
        self.low = self.until = 0
        self.entries = no_entries(columns)  # by time

    def reset(self, low: int) -> None:
        """Tiers have changed, perhaps with entries from `low` on."""
        self.low = self.until = min(self.low, low)
        self.entries = no_entries(self._columns)

    @property
    def times(self) -> Int64:
        """The times of entries read so far."""
        times: Int64 = self.entries.times[:, self._column - 1]
        return times

    def read(self, runs: Sequence[Run], orders: range) -> None:
        """Read on, up to the beginning of a block."""
        low, high = self.until, TIMES_END
        for run in runs:
            firsts = run.index.firsts
            number = int(np.searchsorted(firsts, np.uint64(low), "right"))
            if number < len(firsts):
                high = min(high, int(firsts[number]))
        parts = [found_in(rows) for run in runs for rows in run.parts(low, high)]
        mine = [f.chosen(f.are_in(orders) & (f.columns == self._column)) for f in parts]
        gone = np.concatenate([np.empty(0, np.int64), *(f.orders[f.are_gone] for f in mine)])
        alive = [f.chosen(~f.are_gone & ~np.isin(f.orders, gone)) for f in mine]
        both = joined([self.entries, *(times_in(f, self._columns) for f in alive)], self._columns)
        self.entries = both.chosen(np.argsort(both.times[:, self._column - 1], kind="stable"))
        self.until = high

    def take(self, count: int) -> Entries:
        """Remove and return the first `count` entries."""
        taken = self.entries.chosen(slice(count))
        self.entries = self.entries.chosen(slice(count, None))
        return taken


class LargeRowStore(RowStore):
    """Rows of one schema, in memory and in tiers.

    Parameters
    ----------
    schema
        The schema, with ``~due`` if rows are to be dropped at some time.
    keys
        The columns by which rows are found.
    times
        The columns, in ms, for :meth:`drop_due`, :meth:`take_due` (``~due``) and :meth:`lowest`.
        Without ``~due`` no row is ever due.
    orders
        The range of its rows' numbers, disjoint from those of the operator's other stores.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        times: Sequence[str] = (),
        orders: range = _FOR_EVER,
    ) -> None:
        super().__init__(schema, keys)
        self.keys, self.times = self._keys, tuple(times)
        self._told = [*dict.fromkeys([*keys, *times, ORDER])]
        self._orders = orders
        self._below = Tiers[_Leaving](lambda _: self._mine)
        self._sieves = Sieves()
        self._limit = 0
        self._dead = _Dead(len(times))  # deleted rows in tiers
        self._leaving: _Leaving | None = None
        self._gone_below: list[Entries] = []
        self._ahead = {name: _Ahead(n, len(times)) for n, name in enumerate(times, 1)}

    @property
    def numbered(self) -> Numbered:
        """Its rows, to be renumbered in runs."""
        return Numbered(self._orders, self.schema)

    def use(self, shelf: Shelf, nbytes: int) -> None:
        """Use about this much memory; the rest goes on the shelf."""
        self._below.shelf, self._limit = shelf, nbytes

    def append(self, rows: pa.RecordBatch, first_order: int) -> None:
        if self._below.all:
            self._settle()
        super().append(rows, first_order)

    def discard(self, rows: pa.RecordBatch) -> None:
        """Drop rows that were found, each at most once."""
        rows = rows.take(pa.array(np.argsort(numbers(rows, ORDER))))
        is_here = np.zeros(rows.num_rows, np.bool_)
        for chunk, mine, places in self._located(numbers(rows, ORDER)):
            is_here[mine] = True
            self._kill(chunk, places)
        self._tidy()
        if not is_here.all():
            self._bury(entries_of(rows.filter(pa.array(~is_here)), self._keys, self.times))

    def drop_due(self, mark: int) -> None:
        super().drop_due(mark)
        if self._below.all and DUE in self._ahead:
            self._bury(self._due_below(mark))

    def _taken(self, mark: int) -> pa.RecordBatch:
        rows = super()._taken(mark)
        if not self._below.all or DUE not in self._ahead:
            return rows
        due = self._due_below(mark)
        below = self._rows_below(due)
        self._bury(due)
        return _by_number(concat([rows, below]) if rows.num_rows else below)

    def lowest(self, name: str) -> int | None:
        here, below = super().lowest(name), self._lowest_below(name)
        return min((low for low in (here, below) if low is not None), default=None)

    def changes(self) -> Frozen:
        gone, fresh = self._changed()
        below, self._gone_below = self._gone_below, []

        def work_out() -> list[Rows]:
            chosen = [batch.take(pa.array(places)) for batch, places in fresh if len(places)]
            rows = _by_number(concat(chosen)) if chosen else empty(self.schema)
            told = [entries_of(batch, self._keys, self.times) for batch in gone]
            dead = joined([*told, *below], len(self.times)).sorted()
            parts: list[Rows] = []
            write(rows, entries_of(rows, self._keys, self.times), dead, self._codec, parts.append)
            return parts

        self._relieve()
        return work_out

    def restore_run(self, run: Run) -> None:
        """Restore rows from a delta. A large run is used in place, without being read."""
        if self._below.shelf is None or run.nbytes <= min(LOADED_BYTES, self._limit // 4):
            parts = [found_in(rows) for rows in run.parts()]
            self._load([part.chosen(part.are_in(self._orders)) for part in parts])
        else:
            self._sink()
            self._below.restored(run)
            for ahead in self._ahead.values():
                ahead.reset(0)
        self._relieve()

    def _mine(self, rows: Rows) -> Rows:
        return rows.chosen(found_in(rows).are_in(self._orders))

    @property
    def has_tiers(self) -> bool:
        """Whether there are rows that are not in memory."""
        return bool(self._below.all)

    def let_go(self) -> None:
        """Give them up: the store is needed no more."""
        self._below.let_go()

    # --- memory -----------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self._chunks and not self._below.all

    def _load(self, parts: Sequence[Found]) -> None:
        """Load the content of a run into memory."""
        gone = [part.chosen(part.are_gone) for part in parts]
        self._load_gone(gone)
        alive = [part.chosen(~part.are_gone & (part.columns == 0)) for part in parts]
        values = [part.rows.values for part in alive if len(part.orders)]
        if values:
            self._add(_by_number(self._decoded(pa.concat_arrays(values))))
        newest = max((int(part.orders.max(initial=-1)) for part in parts), default=-1)
        self._next = max(self._next, 1 + newest)
        self._sealed = max(self._sealed, self._next)

    def _load_gone(self, parts: Sequence[Found]) -> None:
        """Note deleted rows, some of which may be in tiers."""
        by_column = []
        for column in range(1 + len(self.times)):
            mine = [part.chosen(part.columns == column) for part in parts]
            orders = np.concatenate([np.empty(0, np.int64), *(part.orders for part in mine)])
            places = np.concatenate([np.empty(0, np.uint64), *(p.rows.hashes for p in mine)])
            by_order = np.argsort(orders)
            orders = orders[by_order]
            by_column.append(places[by_order])
        hashes, *places_of = by_column
        times = [time_at(places) for places in places_of]
        stacked = np.stack(times, 1) if times else np.empty((len(orders), 0), np.int64)
        entries = Entries(hashes, orders, stacked)
        is_below = np.full(len(orders), bool(self._below.all))
        for chunk, mine_too, places in self._located(orders):
            is_below[mine_too] = False
            chunk.kill(places)
        self._tidy()
        if is_below.any():
            self._dead.add(entries.chosen(is_below))

    def _relieve(self) -> None:
        """Make room, if necessary. Only after a seal, when the rows that leave are in a layer."""
        if self._below.shelf is None:
            return
        self._settle()
        if self._leaving is not None:
            self._below.write()
            return
        sizes = [chunk.rows.nbytes + _ROW_BYTES * len(chunk) for chunk in self._chunks]
        kept = sum(sizes) + _DEAD_BYTES * len(self._dead)
        if kept <= self._limit:
            return
        count = 0
        while count < len(sizes) and sum(sizes[count:]) > self._limit // 2:
            count += 1
        self._leaving = _Leaving(self, self._codec, self._chunks[:count], self._dead)
        self._fixed, self._dead = count, _Dead(len(self.times))
        self._below.all.append(self._leaving)
        self._below.write()

    def _settle(self) -> None:
        """Take over tiers that were written meanwhile."""
        if not self._below.all or self._below.settle() is None:
            return
        leaving, self._leaving = self._leaving, None
        assert leaving is not None
        del self._chunks[: self._fixed]
        self._fixed = 0
        for rows in leaving.killed():
            self._dead.add(entries_of(rows, self._keys, self.times))
        for ahead, low in zip(self._ahead.values(), leaving.earliest, strict=True):
            ahead.reset(low)

    def _sink(self) -> None:
        """Turn the rows in memory into a tier, because newer tiers may delete some of them."""
        if self._leaving is not None:
            self._dead = _Dead.both(self._leaving.dead, self._dead)
            self._leaving, self._fixed = None, 0
            self._below.give_up()
        chunks, self._chunks = [chunk for chunk in self._chunks if chunk.alive], []
        if chunks:
            rows = concat([chunk.cleaned() for chunk in chunks])
            fresh, gone = entries_of(rows, self._keys, self.times), no_entries(len(self.times))

            def fill(writer: RunWriter) -> None:
                write(rows, fresh, gone, self._codec, writer.add)

            self._below.all.append(in_memory((1 + len(self.times)) * rows.num_rows, fill))

    def _decoded(self, values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(self._codec.decode(values), schema=self.schema)

    # --- tiers -----------------------------------------------------------------------------------

    def _candidates(self, hashes: UInt64) -> tuple[Int64, pa.RecordBatch]:
        wanted, rows = super()._candidates(hashes)
        if not self._below.all:
            return wanted, rows
        others, below = self._find_below(hashes)
        if not len(others):
            return wanted, rows
        both, numbers_of = concat([rows, below]), np.concatenate([wanted, others])
        order = np.lexsort((numbers(both, ORDER), numbers_of))
        return numbers_of[order], both.take(pa.array(order))

    def _find_below(self, hashes: UInt64) -> tuple[Int64, pa.RecordBatch]:
        """Rows in tiers whose keys have these hashes, and the index of the hash of each."""
        order = np.argsort(hashes)
        which, parts = [np.empty(0, np.int64)], [empty(self.schema)]
        for start in range(0, len(hashes), _READ_ROWS):
            chosen = order[start : start + _READ_ROWS]
            places, values = self._values_below(hashes[chosen])
            if places:
                which.append(chosen[np.array(places)])
                parts.append(self._decoded(pa.array(values, pa.large_binary())))
            del values  # they may be large
        return np.concatenate(which), concat(parts[1:] or parts)

    def _values_below(self, in_order: UInt64) -> tuple[list[int], list[bytes]]:
        """The same for a few sorted hashes, encoded."""
        start, end = (n.to_bytes(8, "big") for n in (self._orders.start, self._orders.stop))
        found: list[tuple[int, bytes, bytes]] = []
        gone: set[bytes] = set()
        for i, key, value in self._sieves.all(self._below.runs, in_order):
            if len(key) == len(start) and start <= key < end:
                if value is None:
                    gone.add(key)
                else:
                    found.append((i, key, value))
        alive = [
            (i, value)
            for i, key, value in found
            if key not in gone and not self._is_dead(int.from_bytes(key, "big"))
        ]
        return [i for i, _ in alive], [value for _, value in alive]

    def _is_dead(self, order: int) -> bool:
        leaving = self._leaving
        return order in self._dead.orders or (leaving is not None and order in leaving.dead.orders)

    def _bury(self, entries: Entries) -> None:
        """Remember that rows in tiers are deleted, and record it in the next layer."""
        if len(entries.orders):
            self._dead.add(entries)
            self._gone_below.append(entries)

    def _due_below(self, mark: int) -> Entries:
        ahead, end = self._ahead[DUE], place_of(mark)
        while ahead.until <= end and ahead.until < TIMES_END:
            ahead.read(self._below.runs, self._orders)
        due = ahead.take(int(np.searchsorted(ahead.times, mark, "right")))
        ahead.low = max(ahead.low, min(end, ahead.until))
        is_there = [not self._is_dead(order) for order in due.orders.tolist()]
        return due.chosen(np.array(is_there, np.bool_))

    def _lowest_below(self, name: str) -> int | None:
        if not self._below.all:
            return None
        ahead, runs = self._ahead[name], self._below.runs
        while True:
            orders = ahead.entries.orders.tolist()
            count = next((n for n, order in enumerate(orders) if not self._is_dead(order)), None)
            if count is not None:
                ahead.take(count)
                return int(ahead.times[0])
            ahead.take(len(orders))
            if ahead.until >= TIMES_END:
                return None
            ahead.low = ahead.until
            ahead.read(runs, self._orders)

    def _rows_below(self, entries: Entries) -> pa.RecordBatch:
        """The rows of these entries."""
        _, rows = self._find_below(np.unique(entries.hashes))
        return take(rows, np.isin(numbers(rows, ORDER), entries.orders).nonzero()[0])


def _by_number(rows: pa.RecordBatch) -> pa.RecordBatch:
    orders = numbers(rows, ORDER)
    if (orders[:-1] < orders[1:]).all():
        return rows
    return rows.take(pa.array(np.argsort(orders)))
