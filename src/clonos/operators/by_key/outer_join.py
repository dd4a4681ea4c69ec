"""Joins whose result depends on which rows have no partner: outer, semi and anti joins.

A side on which this matters has two stores: rows that *wait* for their first partner, and, if they
may have more, rows that have *met* one. A waiting row leaves when the watermark reaches the end of
its interval, because no partner can come any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from clonos.columns.batches import concat
from clonos.operators.by_key.join import TIME as ROW_TIME
from clonos.operators.by_key.join import Always, Bounds, JoinOperator, Keys, Schemas
from clonos.operators.shares import lowest, nothing
from clonos.operators.watermark import IDLE
from clonos.state.large_rows import LargeRowStore
from clonos.state.pieces import take
from clonos.state.row_store import DUE, Found

_END: Final = int(np.iinfo(np.int64).max)
_SHIFT: Final = 61
"""In layers, the highest bits of a row's number identify its store."""


class How(NamedTuple):
    """The output of a join.

    Attributes
    ----------
    alone
        For each side, whether rows without a partner are output.
    pairs
        Whether pairs are output; otherwise only rows of the left side.
    """

    alone: tuple[bool, bool] = (False, False)
    pairs: bool = True

    @property
    def asks(self) -> tuple[bool, bool]:
        """For each side, whether the output depends on which of its rows have a partner."""
        return self.alone[0] or not self.pairs, self.alone[1]


HOWS: Final[Mapping[str, How]] = {
    "inner": How(),
    "left": How((True, False)),
    "right": How((False, True)),
    "full": How((True, True)),
    "semi": How(pairs=False),
    "anti": How((True, False), pairs=False),
}
"""All joins, by the shortest of their names."""


def joined_schema(schemas: Schemas, how: str) -> pa.Schema:
    """The output columns; those of a side that may be missing are nullable.

    Examples
    --------
    >>> one = pa.schema([pa.field("a", pa.int8(), nullable=False)])
    >>> other = pa.schema([pa.field("b", pa.int8(), nullable=False)])
    >>> [field.nullable for field in joined_schema((one, other), "left")]
    [False, True]
    >>> joined_schema((one, other), "anti").names
    ['a']
    """
    known = HOWS[how]
    if not known.pairs:
        return schemas[0]
    left, right = (
        [field.with_nullable(nullable=True) for field in schemas[port]]
        if known.alone[1 - port]
        else list(schemas[port])
        for port in (0, 1)
    )
    return pa.schema([*left, *right])


class OuterJoinOperator(JoinOperator):
    """A join of any kind but an inner one.

    A pair is output when its second row arrives; a left row of a semi join, when its first partner
    is there. A row without a partner is output when none can come any more, with nulls for the
    columns of the other side. So the watermark must not pass rows that are still waiting.
    """

    joins: ClassVar = {
        **JoinOperator.joins,
        "waiting 0": nothing,
        "waiting 1": nothing,
        "passed": lowest,
    }

    def __init__(self, schemas: Schemas, keys: Keys, bounds: Bounds, how: str) -> None:
        super().__init__(schemas, keys, bounds)
        self.schema = joined_schema(schemas, how)
        self._how = HOWS[how]
        # Waiting rows hold back the watermark until they leave: at the end of the input at latest.
        times = [DUE, ROW_TIME] if self._is_bounded else [DUE]
        self._waiting = [
            self._new_store(port, times, _ORDERS[f"waiting {port}"]) if is_asked else None
            for port, is_asked in enumerate(self._how.asks)
        ]

    def _new_stores(self) -> list[LargeRowStore]:
        times = [DUE, ROW_TIME] if self._is_bounded else []
        return [self._new_store(port, times, _ORDERS[f"order {port}"]) for port in (0, 1)]

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        port = self.services.port
        usable = self._usable(batch, port)
        made = []
        if self._how.alone[port] and usable.num_rows < batch.num_rows:
            made.append(self._alone(self._unusable(batch, port), port))
        rows = self._in_time(usable, port)
        if rows.num_rows:
            made += self._met_by(rows, port)
        return concat(made) if made else None

    def _met_by(self, rows: pa.RecordBatch, port: int) -> list[pa.RecordBatch]:
        """The output for new rows. They are kept, and rows that have met one no longer wait."""
        has_met = np.zeros(rows.num_rows, bool)
        made = []
        for store in self._of(1 - port):
            pairs = self._partners(rows, store, port)
            if not len(pairs.probes):
                continue
            has_met[pairs.probes] = True
            if self._how.pairs:
                made.append(self._paired(rows, pairs, port))
            if store is self._waiting[1 - port]:
                met = self._leave(1 - port, pairs)
                if self._how == HOWS["semi"]:
                    made.append(met.select(self.schema.names))
        waiting = self._waiting[port]
        if waiting is None:
            self._take_in(self._stores[port], f"order {port}", rows)
            return made
        met = take(rows, np.flatnonzero(has_met))
        self._take_in(waiting, f"waiting {port}", take(rows, np.flatnonzero(~has_met)))
        if self._how.pairs:
            self._take_in(self._stores[port], f"order {port}", met)
        elif self._how == HOWS["semi"] and met.num_rows:
            made.append(met.select(self.schema.names))
        return made

    def _leave(self, port: int, pairs: Found) -> pa.RecordBatch:
        """Rows have met their first partner: they no longer wait, but may meet others."""
        waiting = self._waiting[port]
        assert waiting is not None
        _, firsts = np.unique(pairs.orders, return_index=True)
        rows = pairs.rows.take(pa.array(pairs.which[firsts]))
        waiting.discard(rows)
        met = rows.select(rows.schema.names[:-1])
        if self._how.pairs:
            self._take_in(self._stores[port], f"order {port}", met)
        return met

    def _take_in(self, store: LargeRowStore, fact: str, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            order = self.facts.get(fact, _ORDERS[fact].start)
            self.facts.set(fact, order + rows.num_rows)
            store.append(rows, order)

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        return self._over(watermark_ms)

    def on_end(self) -> pa.RecordBatch | None:
        return self._over(_END)

    def _over(self, mark: int) -> pa.RecordBatch | None:
        """The output of waiting rows whose interval has ended: they have no partner."""
        made = []
        for port, waiting in enumerate(self._waiting):
            if self._is_bounded:  # otherwise rows are not indexed by time
                self._stores[port].drop_due(mark)
            if waiting is not None and (rows := waiting.take_due(mark)).num_rows:
                made.append(self._alone(rows, port))
        return concat(made) if made and any(self._how.alone) else None

    def outgoing_watermark(self, incoming_ms: int) -> int | None:
        if incoming_ms == IDLE:
            return incoming_ms
        if isinstance(self._bounds[0], Always):
            return None  # rows of any time may be output at the end
        held = [store.lowest(ROW_TIME) for store in self._shown()]
        before = [time - 1 for time in held if time is not None]
        passed = min([incoming_ms, *before])
        passed = max(passed, int(self.facts.get("passed", passed)))
        self.facts.set("passed", passed)
        return passed

    def _shown(self) -> list[LargeRowStore]:
        """The stores whose rows may still be output."""
        return [*self._of(0), *(self._of(1) if self._how.pairs else [])]

    def _of(self, port: int) -> list[LargeRowStore]:
        """The stores of a side."""
        waiting = self._waiting[port]
        return [self._stores[port], *([] if waiting is None else [waiting])]

    @property
    def row_stores(self) -> Mapping[str, LargeRowStore]:
        waiting = {
            f"waiting {port}": store
            for port, store in enumerate(self._waiting)
            if store is not None
        }
        return {**super().row_stores, **waiting}

    def _unusable(self, batch: pa.RecordBatch, port: int) -> pa.RecordBatch:
        """The rows that :meth:`_usable` excludes."""
        has_null = np.zeros(batch.num_rows, bool)
        for name in self._must_have(port):
            has_null |= batch.column(name).is_null().to_numpy(zero_copy_only=False)
        return batch.filter(pa.array(has_null))

    def _alone(self, rows: pa.RecordBatch, port: int) -> pa.RecordBatch:
        """The output for rows without a partner."""
        mine = rows.select(self._schemas[port].names).columns
        if not self._how.pairs:
            return pa.RecordBatch.from_arrays(mine, schema=self.schema)
        other = [pa.nulls(rows.num_rows, field.type) for field in self._schemas[1 - port]]
        sides = [*mine, *other] if port == 0 else [*other, *mine]
        return pa.RecordBatch.from_arrays(sides, schema=self.schema)


_ORDERS: Final = {
    f"{kind} {port}": range((2 * port + place) << _SHIFT, (2 * port + place + 1) << _SHIFT)
    for port in (0, 1)
    for place, kind in enumerate(("order", "waiting"))
}
"""The numbers of each store."""
