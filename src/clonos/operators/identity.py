"""An operator that does nothing: the head of a union, of a source, of most sinks."""

from __future__ import annotations

import pyarrow as pa

from clonos.operators.base import Operator


class IdentityOperator(Operator):
    """Passes everything on."""

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        return batch
