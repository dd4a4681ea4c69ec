"""Joins of two streams on equal keys, bounded in event time or not.

Each row has a time, and an interval of times of the other side's rows that it accepts; two rows of
one key are joined if each accepts the other's time. A row is kept until the watermark reaches the
last time that it accepts. The three ways to join differ only in where the interval comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.operators.base import Operator
from clonos.operators.shares import Share, nothing
from clonos.operators.watermark import event_ms
from clonos.operators.window_kinds import FOR_EVER
from clonos.state.deltas import Frozen, both
from clonos.state.pieces import numbers, orders_of
from clonos.state.row_store import DUE, RowStore, take

Int64 = npt.NDArray[np.int64]

_TIME: Final = "~time"
_FROM: Final = "~from"
_FIRST_ORDERS: Final = (0, 1 << 62)
"""Each side numbers its own rows; in layers the numbers tell the sides apart."""


class Always(NamedTuple):
    """All times are accepted: nothing is ever dropped."""

    def times(self, batch: pa.RecordBatch) -> tuple[Int64, Int64, Int64]:
        """Per row: its time, the first and the last time that it accepts."""
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
    """A row names the times that it accepts: from one column up to before another."""

    start: str
    end: str

    def times(self, batch: pa.RecordBatch) -> tuple[Int64, Int64, Int64]:
        """See :meth:`Always.times`."""
        starts = _ms(batch, self.start)
        return starts, starts, _ms(batch, self.end) - 1


Bound = Always | Keep | SameWindow | Between


class JoinOperator(Operator):
    """An inner join; input 0 is the left side, input 1 the right one.

    Output: all columns of the left row, then those of the right row, for each pair once, when its
    second row comes.
    """

    joins: ClassVar = {"order 0": nothing, "order 1": nothing}

    def __init__(
        self,
        schemas: tuple[pa.Schema, pa.Schema],
        keys: tuple[Sequence[str], Sequence[str]],
        bounds: tuple[Bound, Bound],
    ) -> None:
        super().__init__()
        self.schema = pa.schema([*schemas[0], *schemas[1]])
        self._schemas = schemas
        self._keys = keys
        self._bounds = bounds
        extra = [pa.field(name, pa.int64()) for name in (_TIME, _FROM, DUE)]
        self._stores = [
            RowStore(pa.schema([*schema, *extra]), key)
            for schema, key in zip(schemas, keys, strict=True)
        ]

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        port = self.services.port
        batch = self._usable(batch, port)
        times, first, last = self._bounds[port].times(batch)
        mark = self.watermark_ms
        if mark is not None and (is_late := last <= mark).any():
            self.facts.set("late_rows", self.facts.get("late_rows", 0) + int(is_late.sum()))
            is_kept = ~is_late
            batch = batch.filter(pa.array(is_kept))
            times, first, last = times[is_kept], first[is_kept], last[is_kept]
        if not batch.num_rows:
            return None
        found = self._stores[1 - port].find(batch, self._keys[port])
        at, start, end = (numbers(found.rows, name)[found.which] for name in (_TIME, _FROM, DUE))
        mine = found.probes
        accepted = (first[mine] <= at) & (at <= last[mine])
        accepted &= (start <= times[mine]) & (times[mine] <= end)
        columns = [*batch.columns, *(pa.array(values) for values in (times, first, last))]
        store = self._stores[port]
        order = self.facts.get(f"order {port}", _FIRST_ORDERS[port])
        self.facts.set(f"order {port}", order + batch.num_rows)
        names = store.schema.names[:-1]
        store.append(pa.RecordBatch.from_arrays(columns, names), order)
        if not accepted.any():
            return None
        pairs = found.chosen(accepted)
        pair = (
            take(batch, pairs.probes).columns,
            pairs.columns(self._schemas[1 - port].names),
        )
        return pa.RecordBatch.from_arrays([*pair[port], *pair[1 - port]], schema=self.schema)

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        for store in self._stores:
            store.drop_due(watermark_ms)
        return None

    def changes(self) -> Frozen:
        left, right = self._stores
        return both(left.changes(), right.changes())

    def restore_columns(self, keys: pa.Array, values: pa.Array) -> None:
        is_right = pa.array(orders_of(keys) >= _FIRST_ORDERS[1])
        for store, chosen in zip(self._stores, (pc.invert(is_right), is_right), strict=True):
            store.restore(keys.filter(chosen), values.filter(chosen))

    def adopt_state(self, shares: Sequence[Share], where: str) -> None:
        are_right = [pa.array(orders_of(share.keys) >= _FIRST_ORDERS[1]) for share in shares]
        for port, store in enumerate(self._stores):
            mine = [is_right if port else pc.invert(is_right) for is_right in are_right]
            chosen = [s.values.filter(is_mine) for s, is_mine in zip(shares, mine, strict=True)]
            first = _FIRST_ORDERS[port]
            self.facts.set(f"order {port}", first + store.adopt(chosen, first))

    def _usable(self, batch: pa.RecordBatch, port: int) -> pa.RecordBatch:
        """Rows without a null in key or times: the others are joined with nothing."""
        bound = self._bounds[port]
        names = [*self._keys[port]]
        names += [name for name in bound if isinstance(name, str)]
        for name in names:
            column = batch.column(name)
            if column.null_count:
                batch = batch.filter(column.is_valid())
        return batch


def _ms(batch: pa.RecordBatch, column: str) -> Int64:
    times: Int64 = event_ms(batch.column(column)).to_numpy()
    return times
