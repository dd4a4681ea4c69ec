"""Operators that change no row: the heads of unions, of sources, of most sinks."""

from __future__ import annotations

import pyarrow as pa

from clonos.columns.batches import conform
from clonos.operators.base import Operator


class IdentityOperator(Operator):
    """Passes everything on."""

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        return batch


class WidenOperator(Operator):
    """Passes everything on, as rows of one schema; in theirs, less may be null."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self._schema = schema

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        return conform(batch, self._schema)
