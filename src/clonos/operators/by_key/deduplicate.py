"""deduplicate: only the first row of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from clonos.columns.keys import factorise, key_columns
from clonos.operators.keeps_rows import KeepsRows
from clonos.operators.shares import nothing
from clonos.operators.watermark import event_ms
from clonos.operators.windows.kinds import FOR_EVER
from clonos.state.large_rows import LargeRowStore
from clonos.state.row_store import DUE


class DeduplicateOperator(KeepsRows):
    """Drops rows whose key has been seen.

    A key is remembered for ever or, with `time`, until the watermark is `within_ms` past the time
    of its first row. A key that contains a null is a key like any other.
    """

    joins: ClassVar = {"order": nothing}

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], time: str | None, within_ms: int
    ) -> None:
        super().__init__()
        self._keys = tuple(keys)
        self._time = time
        self._within_ms = within_ms
        fields = [schema.field(key) for key in keys]
        whole = pa.schema([*fields, pa.field(DUE, pa.int64())])
        self._store = LargeRowStore(whole, keys, [] if time is None else [DUE])

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        columns = key_columns(batch, self._keys)
        _, firsts = factorise(columns, batch.num_rows)
        rows = batch.take(pa.array(firsts))
        is_known = np.zeros(len(firsts), bool)
        is_known[self._store.find(rows, self._keys).probes] = True
        rows = rows.filter(pa.array(~is_known))
        if not rows.num_rows:
            return None
        due = pa.array(np.full(rows.num_rows, FOR_EVER))
        if self._time is not None:
            times = event_ms(rows.column(self._time)).fill_null(FOR_EVER).to_numpy()
            due = pa.array(np.minimum(times + self._within_ms, FOR_EVER))
        keys = key_columns(rows, self._keys)
        order = self.facts.get("order", 0)
        self.facts.set("order", order + rows.num_rows)
        names = [*self._keys, DUE]
        self._store.append(pa.RecordBatch.from_arrays([*keys, due], names), order)
        # Whether 0.0 or -0.0 came first in a key must not matter, as in Spark.
        one = dict(zip(self._keys, keys, strict=True))
        columns = [one.get(name, rows.column(name)) for name in rows.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        if self._time is not None:
            self._store.drop_due(watermark_ms)
        return None

    @property
    def row_stores(self) -> Mapping[str, LargeRowStore]:
        return {"order": self._store}
