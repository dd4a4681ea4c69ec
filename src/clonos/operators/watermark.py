"""with_watermark: event time derived from a column of the rows."""

from __future__ import annotations

from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from clonos.operators.base import Operator
from clonos.operators.shares import everybody, highest, lowest

_PER_MS: Final = {"ms": 1, "us": 1000, "ns": 1_000_000}

IDLE: Final = -(2**62)
"""Sent in place of a watermark: the sender is idle, so receivers do not wait for it."""


class WatermarkOperator(Operator):
    """Promises that no row comes later than `delay_ms` behind the newest one seen.

    Watermarks from upstream end here. If no rows come for `idle_ms` of processing time, also none
    since it began, the task is idle: receivers do not wait for its watermark until rows come (as
    with Flink's ``withIdleness``).
    """

    joins: ClassVar = {"made": lowest, "seen": highest, "idle": everybody}

    def __init__(self, column: str, delay_ms: int, idle_ms: int | None = None) -> None:
        super().__init__()
        self._column = column
        self._delay_ms = delay_ms
        self._idle_ms = idle_ms
        self._fresh: int | None = None

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        newest = _newest_ms(batch.column(self._column))
        made = self.facts.get("made")
        if newest is not None and (made is None or newest - self._delay_ms - 1 > made):
            made = newest - self._delay_ms - 1
            self.facts.set("made", made)
            self._fresh = made
        if self._idle_ms is not None:
            self.facts.set("seen", self.services.step.clock_ms())
            if self.facts.get("idle"):
                self.facts.set("idle", value=False)
                self._fresh = made
        return batch

    def on_timer(self, now_ms: int) -> pa.RecordBatch | None:
        if self.facts.get("seen") is None:  # it has begun, and from now on waits for rows
            self.facts.set("seen", now_ms)
            return None
        self.facts.set("idle", value=True)
        self._fresh = IDLE
        return None

    def next_due_ms(self) -> int | None:
        if self._idle_ms is None or self.facts.get("idle"):
            return None
        seen: int | None = self.facts.get("seen")
        return 0 if seen is None else seen + self._idle_ms

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
    unit = column.type.unit
    ticks = column.cast(pa.int64())
    if unit == "ms":
        return ticks
    if unit == "s":
        return pc.multiply(ticks, 1000)
    is_null = ticks.is_null().to_numpy(zero_copy_only=False) if ticks.null_count else None
    values = (ticks.fill_null(0) if ticks.null_count else ticks).to_numpy()
    # Arrow's floor for times is ten times slower, and its division rounds up below 0.
    return pa.array(values // _PER_MS[unit], mask=is_null)


def _newest_ms(column: pa.Array) -> int | None:
    column = column.drop_null() if column.null_count else column
    if not len(column):
        return None
    if not pa.types.is_timestamp(column.type):
        return int(event_ms(column).to_numpy().max())
    newest, unit = int(column.view(pa.int64()).to_numpy().max()), column.type.unit
    return newest * 1000 if unit == "s" else newest // _PER_MS[unit]
