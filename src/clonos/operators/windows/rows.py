"""Outputs all rows of a window, with its bounds, when it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import pyarrow as pa

from clonos.columns.batches import concat
from clonos.operators.keeps_rows import KeepsRows
from clonos.operators.shares import nothing
from clonos.operators.watermark import event_ms
from clonos.operators.windows.content import BOUNDS, Content, Folded, instants
from clonos.operators.windows.kinds import Fixed, Session
from clonos.operators.windows.window import WindowOperator
from clonos.state.deltas import Frozen, both
from clonos.state.large_rows import LargeRowStore
from clonos.state.pieces import END, START, PieceStore, numbers
from clonos.state.sessions import AWAY, SessionStore

if TYPE_CHECKING:
    from clonos.core.content import Shelf
    from clonos.state.runs import Run

_TIME: Final = "~time"
_FIRST_ORDER: Final = 1 << 62
"""Rows are numbered from here, windows from 0, so that layers can tell them apart."""
_AT_ONCE: Final = 4096
"""The rows of so many windows are read at once, if some are not in memory."""


class WindowRowsOperator(KeepsRows, WindowOperator):
    """Keeps rows and windows separately, so that arriving rows change only the windows."""

    joins: ClassVar = {**WindowOperator.joins, "row": nothing}

    def __init__(self, schema: pa.Schema, keys: Sequence[str], window: Fixed | Session) -> None:
        super().__init__(Folded(schema, keys, window, {}), window, is_final=False)
        self._keys = tuple(keys)
        self._names = schema.names
        whole = schema.append(pa.field(_TIME, pa.int64()))
        self._rows = LargeRowStore(whole, keys, orders=range(_FIRST_ORDER, 1 << 63))
        self._output = pa.schema([*schema, *BOUNDS])

    def _store_of(self, content: Content) -> PieceStore:
        is_session = isinstance(self._window, Session)
        return (SessionStore if is_session else PieceStore)(content, self.facts)

    @property
    def schema(self) -> pa.Schema:
        return self._output

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        rows = self._in_time(batch)
        if not rows.num_rows:
            return None
        super().on_batch(rows)
        window = self._window
        assert isinstance(window, (Fixed, Session))
        if window.event_time is None:
            times = pa.array(np.full(rows.num_rows, self.services.step.clock_ms()))
        else:
            times = event_ms(rows.column(window.event_time))
        order = self.facts.get("row", _FIRST_ORDER)
        self.facts.set("row", order + rows.num_rows)
        names = [*self._names, _TIME]
        self._rows.append(pa.RecordBatch.from_arrays([*rows.columns, times], names), order)
        return None

    def changes(self) -> Frozen:
        return both(WindowOperator.changes(self), self._rows.changes())

    def use(self, shelf: Shelf, nbytes: int) -> None:
        if isinstance(self._store, SessionStore):
            self._store.use(shelf, nbytes // 2)
            nbytes -= nbytes // 2
        self._rows.use(shelf, nbytes)

    def restore_values(self, run: Run) -> None:
        if isinstance(self._store, SessionStore):
            self._store.restore_run(run)
        self._rows.restore_run(run)
        self._is_restored = True

    @property
    def row_stores(self) -> Mapping[str, LargeRowStore]:
        if isinstance(self._store, SessionStore):
            return {"row": self._rows, AWAY: self._store.away}
        return {"row": self._rows}

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that have a time and are not late: the window that each makes alone is not over."""
        window = self._window
        assert isinstance(window, (Fixed, Session))
        if window.event_time is None:
            return batch
        batch = self._without_nulls(batch, window.event_time)
        if self.watermark_ms is None or not batch.num_rows:
            return batch
        _, ends = window.intervals(event_ms(batch.column(window.event_time)).to_numpy())
        is_late = window.is_over(ends, self.watermark_ms)
        if not is_late.any():
            return batch
        self.facts.set("late_rows", self.facts.get("late_rows", 0) + int(is_late.sum()))
        return batch.filter(pa.array(~is_late))

    def _result(self, fired: pa.RecordBatch) -> pa.RecordBatch:
        if not self._rows.has_tiers:
            return self._taken(fired)
        starts = range(0, fired.num_rows, _AT_ONCE)
        return concat([self._taken(fired.slice(start, _AT_ONCE)) for start in starts])

    def _taken(self, fired: pa.RecordBatch) -> pa.RecordBatch:
        """The output for some windows; their rows are dropped."""
        found = self._rows.find(fired, self._keys)
        starts, ends = (numbers(fired, name)[found.probes] for name in (START, END))
        times = numbers(found.rows, _TIME)[found.which]
        is_in = (starts <= times) & (times < ends)
        found = found.chosen(is_in)
        _, firsts = np.unique(found.which, return_index=True)
        self._rows.discard(found.rows.take(pa.array(found.which[firsts])))
        columns = found.columns(self._names)
        columns += [instants(starts[is_in]), instants(ends[is_in])]
        return pa.RecordBatch.from_arrays(columns, schema=self._output)
