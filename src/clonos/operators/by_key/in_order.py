"""in_order: rows sorted by event time, held back until the watermark has passed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.operators.base import Operator
from clonos.operators.shares import nothing
from clonos.operators.watermark import event_ms
from clonos.operators.windows.kinds import FOR_EVER
from clonos.state.deltas import Frozen
from clonos.state.large_pieces import LargePieceStore
from clonos.state.pieces import END, INTERVAL, ORDER, START, Combined, numbers, take

if TYPE_CHECKING:
    from clonos.core.content import Shelf
    from clonos.state.renumbered import Numbered
    from clonos.state.runs import Run
    from clonos.state.tiers import Tiered


class _Rows:
    """Pieces that are single rows, never combined."""

    time, is_exact = START, True

    def __init__(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        self.schema = pa.schema([*schema, *INTERVAL])
        self.keys = keys

    @staticmethod
    def combine(pieces: pa.RecordBatch) -> Combined:
        same = np.arange(pieces.num_rows)
        return Combined(pieces, same, same)


class InOrderOperator(Operator):
    """Releases rows ordered by `time`, then by the columns `ties`, then by arrival.

    Rows that arrive after the watermark has passed them, or have no time, are dropped and counted.
    """

    joins: ClassVar = {"order": nothing, "combined": nothing, "over": nothing}
    has_values = True

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], time: str, ties: Sequence[str]
    ) -> None:
        super().__init__()
        self.schema = schema
        self._time = time
        self._ties = tuple(ties)
        self._store = LargePieceStore(_Rows(schema, keys), self.facts)
        self._earliest: int | None = None  # unknown

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        times = event_ms(batch.column(self._time))
        if times.null_count:
            without = batch.filter(times.is_null())
            for i in range(without.num_rows):
                error = ValueError(f"no event time in column {self._time!r}")
                self.reject(error, without.slice(i, 1))
            batch, times = batch.filter(times.is_valid()), times.drop_null()
        at = times.to_numpy()
        mark = self.watermark_ms
        if mark is not None and (is_late := at <= mark).any():
            self.facts.set("late_rows", self.facts.get("late_rows", 0) + int(is_late.sum()))
            batch, at = batch.filter(pa.array(~is_late)), at[~is_late]
        if batch.num_rows:
            if self._earliest is not None:
                self._earliest = min(self._earliest, int(at.min()))
            names = [*self.schema.names, START, END]
            columns = [*batch.columns, pa.array(at), pa.array(at)]
            self._store.append(pa.RecordBatch.from_arrays(columns, names))
        return None

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        if self._earliest is None:
            earliest = self._store.earliest()
            self._earliest = FOR_EVER if earliest is None else earliest
        if self._earliest > watermark_ms:
            return None
        pieces = self._store.take_due(watermark_ms, watermark_ms)
        due = take(pieces, np.flatnonzero(numbers(pieces, START) <= watermark_ms))
        self._earliest = None
        keys: list[Any] = [(name, "ascending") for name in (START, *self._ties, ORDER)]
        ranked = due.take(pc.sort_indices(due, sort_keys=keys))
        return pa.RecordBatch.from_arrays(ranked.columns[: len(self.schema)], schema=self.schema)

    def on_end(self) -> pa.RecordBatch | None:
        return self.on_watermark(FOR_EVER - 1)

    def changes(self) -> Frozen:
        return self._store.changes()

    def restore_columns(self, keys: pa.Array, values: pa.Array) -> None:
        self._store.restore(keys, values)
        self._earliest = None

    @property
    def stores(self) -> Iterable[Tiered]:
        return (self._store,)

    def use(self, shelf: Shelf, nbytes: int) -> None:
        self._store.use(shelf, nbytes)

    def restore_values(self, run: Run) -> None:
        self._store.restore_run(run)
        self._earliest = None

    @property
    def numbered(self) -> Mapping[str, Numbered]:
        return self._store.numbered
