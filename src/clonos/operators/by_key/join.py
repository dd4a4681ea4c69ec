"""Joins of two streams on equal keys, bounded in event time or not.

Each row has a time and an interval of times that it accepts for rows of the other side. Two rows of
one key are joined if each accepts the other's time. A row is kept until the watermark reaches the
end of its interval. The kinds of joins differ only in where the interval comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.operators.keeps_rows import KeepsRows
from clonos.operators.shares import nothing
from clonos.operators.watermark import event_ms
from clonos.operators.windows.kinds import FOR_EVER
from clonos.state.large_rows import LargeRowStore
from clonos.state.pieces import numbers, take
from clonos.state.row_store import DUE, Found

Int64 = npt.NDArray[np.int64]

TIME: Final = "~time"
"""The column of a store with the time of a row."""
_FROM: Final = "~from"
_ORDERS: Final = (range(1 << 62), range(1 << 62, 1 << 63))
"""The row numbers of the two sides; in layers they show to which side a row belongs."""


class Always(NamedTuple):
    """All times are accepted: nothing is ever dropped."""

    def times(self, batch: pa.RecordBatch) -> tuple[Int64, Int64, Int64]:
        """For each row: its time, and the first and last time that it accepts."""
        nothing = np.zeros(batch.num_rows, np.int64)
        return nothing, nothing - FOR_EVER, nothing + FOR_EVER


class Keep(NamedTuple):
    """A row waits `keep_ms` for rows of the other side that come later."""

    time: str
    keep_ms: int

    def times(self, batch: pa.RecordBatch) -> tuple[Int64, Int64, Int64]:
        """See :meth:`Always.times`."""
        times = _ms(batch, self.time)
        return times, np.full(len(times), -FOR_EVER), times + self.keep_ms


class SameWindow(NamedTuple):
    """Both rows are in the same window of this size."""

    time: str
    size_ms: int

    def times(self, batch: pa.RecordBatch) -> tuple[Int64, Int64, Int64]:
        """See :meth:`Always.times`."""
        times = _ms(batch, self.time)
        starts = times // self.size_ms * self.size_ms
        return times, starts, starts + self.size_ms - 1


class Between(NamedTuple):
    """A row has the interval in two of its columns: start (included) and end (excluded)."""

    start: str
    end: str

    def times(self, batch: pa.RecordBatch) -> tuple[Int64, Int64, Int64]:
        """See :meth:`Always.times`."""
        starts = _ms(batch, self.start)
        return starts, starts, _ms(batch, self.end) - 1


Bound = Always | Keep | SameWindow | Between


Bounds = tuple[Bound, Bound]
Schemas = tuple[pa.Schema, pa.Schema]
Keys = tuple[Sequence[str], Sequence[str]]


class JoinOperator(KeepsRows):
    """An inner join; input 0 is the left side, input 1 the right one.

    Output: all columns of the left row, then those of the right row; once for each pair, when its
    second row arrives.
    """

    joins: ClassVar = {"order 0": nothing, "order 1": nothing}

    def __init__(self, schemas: Schemas, keys: Keys, bounds: Bounds) -> None:
        super().__init__()
        self.schema = pa.schema([*schemas[0], *schemas[1]])
        self._schemas = schemas
        self._keys = keys
        self._bounds = bounds
        self._is_bounded = not isinstance(bounds[0], Always)
        self._stores = self._new_stores()

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        port = self.services.port
        rows = self._in_time(self._usable(batch, port), port)
        if not rows.num_rows:
            return None
        pairs = self._partners(rows, self._stores[1 - port], port)
        order = self.facts.get(f"order {port}", _ORDERS[port].start)
        self.facts.set(f"order {port}", order + rows.num_rows)
        self._stores[port].append(rows, order)
        return self._paired(rows, pairs, port) if len(pairs.probes) else None

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        for store in self._stores:
            store.drop_due(watermark_ms)
        return None

    @property
    def row_stores(self) -> Mapping[str, LargeRowStore]:
        return {f"order {port}": store for port, store in enumerate(self._stores)}

    def _new_stores(self) -> list[LargeRowStore]:
        times = [DUE] if self._is_bounded else []
        return [self._new_store(port, times, _ORDERS[port]) for port in (0, 1)]

    def _new_store(self, port: int, times: Sequence[str], orders: range) -> LargeRowStore:
        extra = [pa.field(name, pa.int64()) for name in (TIME, _FROM, DUE)]
        schema = pa.schema([*self._schemas[port], *extra])
        return LargeRowStore(schema, self._keys[port], times, orders)

    def _usable(self, batch: pa.RecordBatch, port: int) -> pa.RecordBatch:
        """Rows without nulls in key or times; the others have no partners."""
        for name in self._must_have(port):
            column = batch.column(name)
            if column.null_count:
                batch = batch.filter(column.is_valid())
        return batch

    def _must_have(self, port: int) -> list[str]:
        """The columns in which a null means that a row has no partners."""
        return [*self._keys[port], *(n for n in self._bounds[port] if isinstance(n, str))]

    def _in_time(self, batch: pa.RecordBatch, port: int) -> pa.RecordBatch:
        """The rows that are not late, with their intervals added, as the store keeps them."""
        times, first, last = self._bounds[port].times(batch)
        mark = self.watermark_ms
        if mark is not None and (is_late := last <= mark).any():
            self.facts.set("late_rows", self.facts.get("late_rows", 0) + int(is_late.sum()))
            is_kept = ~is_late
            batch = batch.filter(pa.array(is_kept))
            times, first, last = times[is_kept], first[is_kept], last[is_kept]
        columns = [*batch.columns, *(pa.array(values) for values in (times, first, last))]
        names = [*batch.schema.names, TIME, _FROM, DUE]
        return pa.RecordBatch.from_arrays(columns, names)

    def _partners(self, rows: pa.RecordBatch, store: LargeRowStore, port: int) -> Found:
        """The rows of the other side's store that match new rows of this side."""
        found = store.find(rows, self._keys[port])
        at, start, end = (numbers(found.rows, name)[found.which] for name in (TIME, _FROM, DUE))
        mine = found.probes
        times, first, last = (numbers(rows, name)[mine] for name in (TIME, _FROM, DUE))
        accepted = (first <= at) & (at <= last)
        accepted &= (start <= times) & (times <= end)
        return found.chosen(accepted)

    def _paired(self, rows: pa.RecordBatch, pairs: Found, port: int) -> pa.RecordBatch:
        """All columns of both rows of each pair."""
        mine = take(rows.select(self._schemas[port].names), pairs.probes).columns
        other = pairs.columns(self._schemas[1 - port].names)
        both_sides = [*mine, *other] if port == 0 else [*other, *mine]
        return pa.RecordBatch.from_arrays(both_sides, schema=self.schema)


def _ms(batch: pa.RecordBatch, column: str) -> Int64:
    times: Int64 = event_ms(batch.column(column)).to_numpy()
    return times
