"""look_up: columns of a table that does not change, added to each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from clonos.operators.base import Operator
from clonos.operators.row_store import RowStore


class LookUpOperator(Operator):
    """Joins rows with those of a table that every task has.

    A row comes once for each row of the table that has its key, in the table's order; without one
    it is dropped, or comes with nulls (``is_left``).
    """

    def __init__(
        self,
        schema: pa.Schema,
        on: Sequence[str],
        table: pa.RecordBatch,
        table_on: Sequence[str],
        *,
        is_left: bool,
    ) -> None:
        super().__init__()
        self._on = tuple(on)
        self._added = [name for name in table.schema.names if name not in table_on]
        self._is_left = is_left
        fields = [table.schema.field(name) for name in self._added]
        if is_left:
            fields = [field.with_nullable(True) for field in fields]
        self.schema = pa.schema([*schema, *fields])
        self._table = RowStore(table.schema, table_on)
        for name in table_on:  # null is equal to nothing here
            table = table.filter(table.column(name).is_valid())
        self._table.append(table, 0)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        found = self._table.find(batch, self._on)
        probes = found.probes
        if self._is_left:
            times = np.bincount(probes, minlength=batch.num_rows)
            # A row without a partner has a place of its own, with null in it.
            padded = np.repeat(np.arange(batch.num_rows), np.maximum(times, 1))
            partner = np.full(len(padded), -1)
            partner[np.repeat(times > 0, np.maximum(times, 1))] = np.arange(len(probes))
            probes, chosen = padded, pa.array(partner, mask=partner < 0)
        else:
            chosen = pa.array(np.arange(len(probes)))
        is_same = len(probes) == batch.num_rows and (np.diff(probes) == 1).all()
        rows = batch if is_same else batch.take(pa.array(probes))
        columns = [found.rows.column(name).take(chosen) for name in self._added]
        return pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=self.schema)
