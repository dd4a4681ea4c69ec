"""with_watermark: event time made of a column of the rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from clonos.operators.base import Operator


class WatermarkOperator(Operator):
    """Promises that no row comes later than `delay_ms` behind the newest one seen.

    Watermarks from upstream end here.
    """

    def __init__(self, column: str, delay_ms: int) -> None:
        super().__init__()
        self._column = column
        self._delay_ms = delay_ms
        self._fresh: int | None = None

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        newest = pc.max(event_ms(batch.column(self._column))).as_py()
        if newest is not None:
            watermark = newest - self._delay_ms - 1
            if watermark > self.facts.get("made", watermark - 1):
                self.facts.set("made", watermark)
                self._fresh = watermark
        return batch

    def outgoing_watermark(self, incoming_ms: int) -> int | None:
        del incoming_ms
        return None

    def take_watermark(self) -> int | None:
        fresh, self._fresh = self._fresh, None
        return fresh


def event_ms(column: pa.Array) -> pa.Array:
    """A timestamp or date column as milliseconds since the epoch, rounded down."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    if column.type.unit != "ms":
        column = pc.floor_temporal(column, unit="millisecond").cast(
            pa.timestamp("ms", column.type.tz)
        )
    return column.cast(pa.int64())
