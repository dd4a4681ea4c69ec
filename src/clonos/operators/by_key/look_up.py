"""look_up: columns of a table, added to each row; the table may change while the job runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from clonos.columns.batches import conform, from_bytes, from_table
from clonos.errors import ProtocolError
from clonos.operators.base import Operator
from clonos.operators.identity import IdentityOperator
from clonos.operators.shares import Share, highest, nothing
from clonos.operators.watermark import IDLE
from clonos.state.pieces import take
from clonos.state.row_store import RowStore

VERSIONS: Final = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("table", pa.large_binary(), nullable=False),
    ]
)
"""A version of a table is a single row, so that it arrives completely or not at all."""


class SideTable:
    """A table that the driver reads when the job starts, and perhaps again while it runs.

    Parameters
    ----------
    given
        A DataFrame, a function that returns one, or an Arrow table or record batch. It stays in the
        driver and is not pickled.
    schema
        The table's schema.
    """

    def __init__(self, given: Any, schema: pa.Schema) -> None:
        self.schema = schema
        self._given = given

    def given(self) -> Any:
        """The table as the user gave it: a DataFrame, or an Arrow table or record batch."""
        return self._given() if callable(self._given) else self._given

    def read(self) -> pa.RecordBatch:
        """The table as it is now.

        Raises
        ------
        ValueError
            Its columns have changed.
        """
        table = self.given()
        if hasattr(table, "toArrow"):
            table = table.toArrow()
        if isinstance(table, pa.Table):
            table = from_table(table)
        return conform(table, self.schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "_given": None}


def looked_up(
    schema: pa.Schema, table: pa.Schema, table_on: Sequence[str], *, is_left: bool
) -> pa.Schema:
    """The columns of the rows, then those of the table without its keys."""
    fields = [field for field in table if field.name not in table_on]
    if is_left:
        fields = [field.with_nullable(True) for field in fields]
    return pa.schema([*schema, *fields])


class LookUpOperator(Operator):
    """Joins rows with a table that every task has.

    A row leaves once for each table row with its key, in the table's order. A row without a match
    is dropped, or leaves with nulls (``is_left``). Before the driver ships the operator, it
    replaces a :class:`SideTable` by its content.
    """

    def __init__(
        self,
        schema: pa.Schema,
        on: Sequence[str],
        table: pa.RecordBatch | SideTable,
        table_on: Sequence[str],
        *,
        is_left: bool,
    ) -> None:
        super().__init__()
        self._on = tuple(on)
        self._table_on = tuple(table_on)
        self._added = [name for name in table.schema.names if name not in table_on]
        self._is_left = is_left
        self.schema = looked_up(schema, table.schema, table_on, is_left=is_left)
        self._table: RowStore | None = None
        if not isinstance(table, SideTable):
            self._show(table)

    def _show(self, table: pa.RecordBatch) -> None:
        """Use this table from now on."""
        store = self._table = RowStore(table.schema, self._table_on)
        for name in self._table_on:  # null matches nothing
            table = table.filter(table.column(name).is_valid())
        store.append(table, 0)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        if self._table is None:
            raise ProtocolError(
                "the table has not been read: only a job that is started reads it",
                where=self.info.where,
                remedy="in a test of one task, or in memory, look up in an Arrow table",
            )
        found = self._table.find(batch, self._on)
        probes = found.probes
        if self._is_left:
            times = np.bincount(probes, minlength=batch.num_rows)
            # A row without a partner appears once, with nulls.
            padded = np.repeat(np.arange(batch.num_rows), np.maximum(times, 1))
            partner = np.full(len(padded), -1)
            partner[np.repeat(times > 0, np.maximum(times, 1))] = found.which
            chosen = pa.array(partner, mask=partner < 0)
            probes, columns = padded, [found.rows.column(n).take(chosen) for n in self._added]
        else:
            columns = found.columns(self._added)
        rows = take(batch, probes)
        return pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=self.schema)


class VersionedLookUpOperator(LookUpOperator):
    """The same; input 1 brings newer versions of the table.

    Which version a row sees follows from the order in which inputs are taken, which is in the log.
    The newest version is part of the state, so that a replay after a failure sees it again.
    """

    joins: ClassVar = {"version": highest, "table": nothing}

    _shown: int | None = None  # the version in use

    def adopt_state(self, shares: Sequence[Share], where: str) -> None:
        newest = self.facts.get("version")
        found = [s.facts["table"] for s in shares if s.facts.get("version", None) == newest]
        if newest is not None:
            self.facts.set("table", found[0])

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        if self.services.port == 1:
            for name in VERSIONS.names:
                self.facts.set(name, batch.column(name)[-1].as_py())
            return None
        version = self.facts.get("version")
        if version != self._shown:
            self._show(from_bytes(self.facts.get("table")))
            self._shown = version
        return super().on_batch(batch)


class VersionsOperator(IdentityOperator):
    """Passes versions on; event time does not wait for them."""

    def take_watermark(self) -> int | None:
        return IDLE
