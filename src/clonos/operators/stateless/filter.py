"""filter: keep the rows for which a function returns true."""

from __future__ import annotations

import pyarrow as pa

from clonos.columns.rows import rows_of
from clonos.operators.stateless.rowwise import UserFunctionOperator


class FilterOperator(UserFunctionOperator):
    """Keeps a row if ``fn(row)`` is true."""

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        keep = []
        call = self._call
        batch = self.readable(batch)
        for row in rows_of(batch):
            try:
                keep.append(bool(call(row)))
            except Exception as error:  # noqa: BLE001 - user code
                self.reject(error, row)
                keep.append(False)
        return batch if all(keep) else batch.filter(pa.array(keep, pa.bool_()))
