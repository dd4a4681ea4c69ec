"""map: one row in, one row out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from clonos.columns.rows import Given, RowBuilder
from clonos.operators.stateless.rowwise import UserFunctionOperator


class MapOperator(UserFunctionOperator):
    """Calls ``fn(row)`` and makes a row of what it returns."""

    def __init__(self, fn: Callable[..., Any], schema: pa.Schema) -> None:
        super().__init__(fn)
        self._builder = RowBuilder(schema)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        results = []
        call, as_tuple = self._call, self._builder.as_tuple
        given = Given(self.readable(batch))
        for row in given.rows:
            try:
                results.append(as_tuple(call(row)))
            except Exception as error:  # noqa: BLE001 - user code
                self.reject(error, row)
        return self._builder.build(results, self.reject, given)
