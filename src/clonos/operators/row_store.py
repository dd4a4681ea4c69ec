"""Rows by key, in columns: the state of joins and of what else looks for earlier rows of a key.

Rows lie in *runs* sorted by the hash of their key; a batch is a run, and runs of like size are
merged. Rows never change. Each has a number that counts rows as they come (its address in
layers) and a time in ms at which it is dropped; what is found comes in the order of these
numbers, so that it does not show how rows lie in runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.core.canonical import encode
from clonos.operators.batches import concat, empty
from clonos.operators.keys import factorise, hash_columns, key_columns
from clonos.operators.pieces import ORDER, columns_of, groups_of, numbers, orders_of
from clonos.operators.row_codec import RowCodec
from clonos.operators.state import Changes, Frozen

DUE: Final = "~due"

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Run:
    """Rows sorted by the hash of their key; rows of one key in their order."""

    def __init__(self, rows: pa.RecordBatch, hashes: npt.NDArray[np.uint64]) -> None:
        by_hash = np.argsort(hashes, kind="stable")
        self.hashes = hashes[by_hash]
        self.rows = rows.take(pa.array(by_hash))
        self.is_alive = np.ones(rows.num_rows, bool)

    def __len__(self) -> int:
        return len(self.hashes)


class Found(NamedTuple):
    """Pairs of a row that was looked for (its number in the batch) and a row of the store.

    In order of the first and, for each of these, of arrival of the second. ``places``: run and
    number in it.
    """

    probes: Int64
    rows: pa.RecordBatch
    places: tuple[Int64, Int64]


class RowStore:
    """Rows of one schema.

    Parameters
    ----------
    schema
        Of the rows, with ``~due`` if they are to be dropped one day.
    keys
        The columns by which they are found.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        self.schema = schema.append(pa.field(ORDER, pa.int64()))
        self._codec = RowCodec(self.schema)
        self._has_due = DUE in schema.names
        self._runs: list[Run] = []
        self._sealed = 0
        self._earliest: int | None = None
        self._gone: list[pa.RecordBatch] = []

    def append(self, rows: pa.RecordBatch, first_order: int) -> None:
        """Take new rows, numbered from `first_order` on."""
        order = pa.array(np.arange(first_order, first_order + rows.num_rows))
        self._add(pa.RecordBatch.from_arrays([*rows.columns, order], schema=self.schema))

    def find(self, batch: pa.RecordBatch, keys: Sequence[str]) -> Found:
        """The rows whose key is that of a row of `batch`."""
        columns = key_columns(batch, keys)
        codes, firsts = factorise(columns, batch.num_rows)
        distinct = [column.take(pa.array(firsts)) for column in columns]
        hashes = hash_columns(distinct) if len(firsts) else np.empty(0, np.uint64)
        probes, runs, places, parts = [], [], [], []
        for number, run in enumerate(self._runs):
            low = np.searchsorted(run.hashes, hashes, "left")
            counts = np.searchsorted(run.hashes, hashes, "right") - low
            if not counts.any():
                continue
            probe, place = ragged(codes, low, counts)
            alive = run.is_alive[place]
            if not alive.all():
                probe, place = probe[alive], place[alive]
            rows = run.rows.take(pa.array(place))
            same = self._same(distinct, codes[probe], rows)
            if not same.all():
                probe, place, rows = probe[same], place[same], rows.filter(pa.array(same))
            probes.append(probe)
            runs.append(np.full(len(place), number))
            places.append(place)
            parts.append(rows)
        if not parts:
            nothing = np.empty(0, np.int64)
            return Found(nothing, empty(self.schema), (nothing, nothing))
        probe, rows = np.concatenate(probes), concat(parts)
        at = np.concatenate(runs), np.concatenate(places)
        if len(parts) > 1:
            order = np.lexsort((numbers(rows, ORDER), probe))
            return Found(probe[order], rows.take(pa.array(order)), (at[0][order], at[1][order]))
        return Found(probe, rows, at)

    def remove(self, places: tuple[Int64, Int64]) -> None:
        """Drop rows that were found."""
        for number in np.unique(places[0]).tolist():
            is_gone = np.zeros(len(self._runs[number]), bool)
            is_gone[places[1][places[0] == number]] = True
            self._kill(self._runs[number], is_gone)
        self._tidy()

    def drop_due(self, mark: int) -> None:
        """Drop the rows whose time is `mark` or earlier."""
        if self._earliest is None or self._earliest > mark:
            return
        for run in self._runs:
            self._kill(run, numbers(run.rows, DUE) <= mark)
        self._tidy()
        dues = [numbers(run.rows, DUE)[run.is_alive] for run in self._runs]
        self._earliest = min((int(due.min()) for due in dues if len(due)), default=None)

    def __len__(self) -> int:
        return sum(int(run.is_alive.sum()) for run in self._runs)

    def changes(self) -> Frozen:
        """What changed since the last call, gone rows first."""
        fresh = [
            (run.rows, run.is_alive & (numbers(run.rows, ORDER) >= self._sealed))
            for run in self._runs
        ]
        gone, self._gone = self._gone, []
        newest = [int(numbers(run.rows, ORDER).max()) for run in self._runs]
        self._sealed = 1 + max([self._sealed - 1, *newest])

        def work_out() -> Changes:
            old = self._sorted(gone)
            rows = self._sorted([rows.filter(pa.array(chosen)) for rows, chosen in fresh])
            orders = np.concatenate([numbers(old, ORDER), numbers(rows, ORDER)])
            groups = np.concatenate([groups_of(old, self._keys), groups_of(rows, self._keys)])
            return columns_of(orders, groups, rows, self._codec)

        return work_out

    def restore(self, keys: pa.Array, values: pa.Array) -> None:
        """Take rows from a delta."""
        orders = orders_of(keys)
        if values.null_count:
            gone = orders[values.is_null().to_numpy(zero_copy_only=False)]
            for run in self._runs:
                run.is_alive &= ~np.isin(numbers(run.rows, ORDER), gone)
            self._tidy()
        if values.null_count < len(values):
            columns = self._codec.decode(values.drop_null())
            self._add(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self._sealed = max(self._sealed, 1 + int(orders.max(initial=-1)))

    def _add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if self._has_due:
            due = int(numbers(rows, DUE).min())
            self._earliest = due if self._earliest is None else min(due, self._earliest)
        run = Run(rows, hash_columns(key_columns(rows, self._keys)))
        while self._runs and len(self._runs[-1]) <= len(run):
            run = _merged(self._runs.pop(), run)
        self._runs.append(run)

    def _same(self, distinct: Sequence[pa.Array], codes: Int64, rows: pa.RecordBatch) -> Mask:
        """Keys of one hash may still differ, unless they are single integers."""
        first = rows.column(self._keys[0])
        is_integer = len(self._keys) == 1 and pa.types.is_integer(first.type)
        if is_integer and not first.null_count and not distinct[0].null_count:
            return np.ones(rows.num_rows, bool)
        same: pa.Array = None
        chosen = pa.array(codes)
        for column, key in zip(distinct, self._keys, strict=True):
            is_same = _equal(column.take(chosen), rows.column(key))
            same = is_same if same is None else pc.and_(same, is_same)
        result: Mask = same.to_numpy(zero_copy_only=False)
        return result

    def _kill(self, run: Run, is_gone: Mask) -> None:
        is_gone = is_gone & run.is_alive
        if is_gone.any():
            run.is_alive &= ~is_gone
            stored = is_gone & (numbers(run.rows, ORDER) < self._sealed)
            if stored.any():
                self._gone.append(run.rows.filter(pa.array(stored)))

    def _tidy(self) -> None:
        """Free the memory of what is mostly gone."""
        runs = []
        for run in self._runs:
            alive = int(run.is_alive.sum())
            if alive:
                runs.append(run if 2 * alive > len(run) else _cleaned(run))
        self._runs = runs

    def _sorted(self, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        rows = concat(parts) if parts else empty(self.schema)
        return rows.take(pa.array(np.argsort(numbers(rows, ORDER))))


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
    """Null is equal to null, NaN to NaN."""
    if pa.types.is_nested(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return pa.array([encode(a) == encode(b) for a, b in pairs], pa.bool_())
    same = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same = pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    if same.null_count:
        same = pc.coalesce(same, pc.and_(left.is_null(), right.is_null()))
    return same


def _merged(older: Run, newer: Run) -> Run:
    older, newer = _cleaned(older), _cleaned(newer)
    hashes = np.concatenate([older.hashes, newer.hashes])
    return Run(concat([older.rows, newer.rows]), hashes)


def _cleaned(run: Run) -> Run:
    if run.is_alive.all():
        return run
    return Run(run.rows.filter(pa.array(run.is_alive)), run.hashes[run.is_alive])
