"""flat_map: one row in, any number of rows out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from clonos.columns.rows import RowBuilder, results_of, rows_of
from clonos.operators.stateless.rowwise import UserFunctionOperator


class FlatMapOperator(UserFunctionOperator):
    """Calls ``fn(row)`` and makes rows of what the returned iterable yields (None: no rows)."""

    def __init__(self, fn: Callable[..., Any], schema: pa.Schema) -> None:
        super().__init__(fn)
        self._builder = RowBuilder(schema)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        results: list[tuple[Any, ...]] = []
        call, as_tuple = self._call, self._builder.as_tuple
        for row in rows_of(self.readable(batch)):
            try:
                # All or nothing: a generator that fails half-way leaves no rows.
                results += results_of(call(row), as_tuple)
            except Exception as error:  # noqa: BLE001 - user code
                self.reject(error, row)
        return self._builder.build(results, self.reject)
