"""Parses messages that the driver has spooled into rows.

A sender that gets no acknowledgement sends a message again. If its messages have keys, repetitions
are dropped here. The remembered keys are state of the source's task, and as durable as all state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from clonos.columns.keys import factorise, key_columns
from clonos.columns.schema import TIMESTAMP
from clonos.operators.base import Operator
from clonos.operators.keeps_rows import KeepsRows
from clonos.operators.make import make_operator
from clonos.operators.operations import Operation
from clonos.operators.watermark import event_ms
from clonos.sources.messages import VALUE, ParseMessagesOperator
from clonos.state.large_rows import LargeRowStore
from clonos.state.row_store import DUE

KEY: Final = "key"
TOPIC: Final = "topic"
RECEIVED: Final = "received_at"
METADATA: Final = (
    pa.field(KEY, pa.string()),
    pa.field(TOPIC, pa.string()),
    pa.field(RECEIVED, TIMESTAMP),
)
"""The metadata of a message: the sender's key, or null; the topic or path to which it was sent; the
time when it came."""
OFFERED: Final = pa.schema([VALUE, *METADATA])
"""The schema of spooled messages."""


@dataclass(frozen=True)
class ParseOffered(Operation):
    """Parses messages of :data:`OFFERED`, and drops repeated keys.

    Parameters
    ----------
    format
        The format of values: "json", "text" or "bytes".
    schema
        The schema of the columns parsed from values.
    within_ms
        How long a key is remembered.
    """

    format: str
    schema: pa.Schema
    within_ms: int
    has_metadata: bool


class ParseOfferedOperator(KeepsRows, ParseMessagesOperator):
    """See :class:`ParseOffered`; of several messages with one key, the first is taken."""

    def __init__(self, operation: ParseOffered) -> None:
        super().__init__(operation.format, operation.schema)
        self._within_ms = operation.within_ms
        self._names = [*operation.schema.names, *(f.name for f in METADATA)]
        if not operation.has_metadata:
            self._names = self._names[: len(operation.schema)]
        whole = pa.schema([METADATA[0], pa.field(DUE, pa.int64())])
        self._seen = LargeRowStore(whole, [KEY], [DUE])

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        fresh = self._first_ones(batch)
        parsed = super().on_batch(fresh) if fresh.num_rows else None
        return None if parsed is None else parsed.select(self._names)

    @property
    def row_stores(self) -> Mapping[str, LargeRowStore]:
        return {"order": self._seen}

    def _first_ones(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        has_key = batch.column(KEY).is_valid().to_numpy(zero_copy_only=False)
        if not has_key.any():
            return batch
        times = event_ms(batch.column(RECEIVED)).to_numpy()
        self._seen.drop_due(int(times.max()))
        named = np.flatnonzero(has_key)
        rows = batch.take(pa.array(named))
        _, firsts = factorise(key_columns(rows, [KEY]), rows.num_rows)
        is_new = np.ones(len(firsts), bool)
        is_new[self._seen.find(rows.take(pa.array(firsts)), [KEY]).probes] = False
        fresh = named[firsts[is_new]]
        if len(fresh):
            order = self.facts.get("order", 0)
            self.facts.set("order", order + len(fresh))
            keys = batch.column(KEY).take(pa.array(fresh))
            due = pa.array(times[fresh] + self._within_ms)
            self._seen.append(pa.RecordBatch.from_arrays([keys, due], [KEY, DUE]), order)
        chosen = ~has_key
        chosen[fresh] = True
        return batch.filter(pa.array(chosen))

    def _values(self, values: pa.Array) -> pa.RecordBatch:
        if self._format == "bytes":
            return pa.RecordBatch.from_arrays([values], schema=self._schema)
        return super()._values(values)


@make_operator.register
def _(operation: ParseOffered) -> Operator:
    return ParseOfferedOperator(operation)
