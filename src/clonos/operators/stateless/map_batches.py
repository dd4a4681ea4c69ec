"""map_batches: a whole Arrow batch in, a batch out; for vectorised code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from clonos.columns.batches import conform
from clonos.operators.stateless.rowwise import UserFunctionOperator


class MapBatchesOperator(UserFunctionOperator):
    """Calls ``fn(batch)``; the result is converted to the declared schema.

    How rows are grouped into batches is not defined, but it is the same on replay.
    """

    def __init__(self, fn: Callable[..., Any], schema: pa.Schema) -> None:
        super().__init__(fn)
        self._schema = schema

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        try:
            result = self._call(batch)
            if result is None:
                return None
            if not isinstance(result, (pa.RecordBatch, pa.Table)):
                raise TypeError(f"returned {type(result).__name__}, not a RecordBatch or Table")
            return conform(result, self._schema)
        except Exception as error:  # noqa: BLE001 - user code
            self.reject(error, batch)
            return None
