"""last: for every row, aggregates of it and the rows of its key just before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.columns.batches import concat
from clonos.columns.keys import factorise, key_columns
from clonos.operators.aggregates import Aggregate, Fold
from clonos.operators.keeps_rows import KeepsRows
from clonos.operators.shares import nothing
from clonos.state.large_rows import LargeRowStore

Int64 = npt.NDArray[np.int64]


class LastOperator(KeepsRows):
    """Adds to each row aggregates of the last `number` rows of its key, itself included.

    Of the `number` - 1 earlier rows per key, only the aggregated columns are kept. Floats are added
    from the oldest row to the newest.
    """

    joins: ClassVar = {"order": nothing}

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        number: int,
        aggregates: Mapping[str, Aggregate],
        where: str = "last",
    ) -> None:
        super().__init__()
        self._keys = tuple(keys)
        self._number = number
        self._columns = [aggregate.column for aggregate in aggregates.values()]
        self._folds: list[Fold] = [a.fold(schema, where) for a in aggregates.values()]
        results = [
            pa.field(name, fold.data_type)
            for name, fold in zip(aggregates, self._folds, strict=True)
        ]
        self.schema = pa.schema([*schema, *results])
        wanted = dict.fromkeys([*keys, *(column for column in self._columns if column)])
        self._kept = pa.schema([schema.field(column) for column in wanted])
        self._store = LargeRowStore(self._kept, keys)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        fresh = batch.select(self._kept.names)
        _, firsts = factorise(key_columns(fresh, self._keys), fresh.num_rows)
        found = self._store.find(fresh.take(pa.array(firsts)), self._keys)
        earlier = found.rows.num_rows
        rows = concat([_as(self._kept, found.rows), _as(self._kept, fresh)])
        codes, _ = factorise(key_columns(rows, self._keys), rows.num_rows)
        by_key = np.argsort(codes, kind="stable")
        codes = codes[by_key]
        at = np.arange(len(codes))
        first = np.maximum.accumulate(np.where(np.diff(codes, prepend=-1) != 0, at, 0))
        results = self._results(
            rows.take(pa.array(by_key)), first, np.flatnonzero(by_key >= earlier)
        )
        # Reorder from key order to order of arrival.
        arrival = pa.array(np.argsort(by_key[by_key >= earlier]))
        self._remember(found.rows, fresh, by_key, codes)
        columns = [*batch.columns, *(column.take(arrival) for column in results)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @property
    def row_stores(self) -> Mapping[str, LargeRowStore]:
        return {"order": self._store}

    def _results(self, rows: pa.RecordBatch, first: Int64, wanted: Int64) -> list[pa.Array]:
        """The aggregates at the rows `wanted`; `rows` are sorted by key, each begins at `first`."""
        begin = np.maximum(first[wanted], wanted - self._number + 1)
        counts = wanted - begin + 1
        codes = np.repeat(np.arange(len(wanted)), counts)
        before = np.cumsum(counts) - counts
        members = pa.array(np.arange(len(codes)) + np.repeat(begin - before, counts))
        results = []
        for name, fold in zip(self._columns, self._folds, strict=True):
            values = None if name is None else rows.column(name).take(members)
            results.append(fold.result(fold.start(values, codes, len(wanted))))
        return results

    def _remember(
        self,
        known: pa.RecordBatch,
        fresh: pa.RecordBatch,
        by_key: Int64,
        codes: Int64,
    ) -> None:
        """Keep the newest of each key's known and new rows."""
        earlier = known.num_rows
        sizes = np.bincount(codes)
        from_end = np.cumsum(sizes)[codes] - np.arange(len(codes))
        is_kept = np.empty(len(codes), bool)
        is_kept[by_key] = from_end < self._number
        is_gone = ~is_kept[:earlier]
        if is_gone.any():
            self._store.discard(known.filter(pa.array(is_gone)))
        order = self.facts.get("order", 0)
        self.facts.set("order", order + fresh.num_rows)
        kept = fresh.filter(pa.array(is_kept[earlier:]))
        if kept.num_rows:
            self._store.append(kept, order)


def _as(schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)
