"""with_column: a column computed from values of others; the rest of a row stays in Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from typing import Any

import pyarrow as pa

from clonos.columns.rows import column_of, values_of
from clonos.operators.base import Operator, OperatorInfo, Services
from clonos.operators.context import Context, takes_context


class WithColumnOperator(Operator):
    """Calls ``fn(value, ...)`` with the values of some columns, row by row."""

    def __init__(
        self, fn: Callable[..., Any], of: Sequence[str], column: str, schema: pa.Schema
    ) -> None:
        super().__init__()
        self._fn = fn
        self._of = tuple(of)
        self._schema = schema
        self._field = schema.field(column)
        self._call: Callable[..., Any]

    def open(self, info: OperatorInfo, services: Services) -> None:
        super().open(info, services)
        if takes_context(self._fn, info.where, self._of):
            self._ctx = Context(self)
            self._call = self._with_context
        else:
            self._call = self._fn

    def _with_context(self, *values: Any) -> Any:
        return self._fn(*values, self._ctx)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        batch = self.readable(batch, self._of) if self._of else batch
        values, bad = self._called(batch)
        if bad:
            values, batch = without(values, batch, bad)
        return with_values(self._schema, self._field, values, batch, self._reject)

    def _called(self, batch: pa.RecordBatch) -> tuple[list[Any], list[int]]:
        """The function's value for each row, and the rows for which it raised."""
        call = self._call
        given = [values_of(batch.column(name)) for name in self._of]
        made = map(call, *given) if given else starmap(call, repeat((), batch.num_rows))
        values: list[Any] = []
        bad: list[int] = []
        while len(values) < batch.num_rows:  # continue behind each row that fails
            try:
                values.extend(made)
                if len(values) < batch.num_rows:
                    raise RuntimeError("the function raised StopIteration")
            except Exception as error:  # noqa: BLE001 - user code
                self._reject(error, batch, len(values))
                bad.append(len(values))
                values.append(None)
        return values, bad

    def _reject(self, error: Exception, batch: pa.RecordBatch, row: int) -> None:
        self.reject(error, batch.slice(row, 1), self._of)


Reject = Callable[[Exception, pa.RecordBatch, int], None]
"""Handles an error for the row of this number of a batch."""


def with_values(
    schema: pa.Schema,
    field: pa.Field,
    values: list[Any],
    batch: pa.RecordBatch,
    reject: Reject,
) -> pa.RecordBatch | None:
    """The rows of a batch with these values in one column; values that do not fit are rejected."""
    try:
        column = column_of(field, values)
    except ValueError:
        column = None
    if column is None:
        values, batch = without(values, batch, _unfit(field, values, batch, reject))
        column = column_of(field, values)
    if not batch.num_rows:
        return None
    columns = [column if n == field.name else batch.column(n) for n in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _unfit(
    field: pa.Field, values: Sequence[Any], batch: pa.RecordBatch, reject: Reject
) -> list[int]:
    """The rows whose value is not of the column's type."""
    bad = []
    for i, value in enumerate(values):
        try:
            column_of(field, [value])
        except ValueError as error:
            reject(error, batch, i)
            bad.append(i)
    return bad


def without(
    values: list[Any], batch: pa.RecordBatch, bad: Sequence[int]
) -> tuple[list[Any], pa.RecordBatch]:
    """Values and rows without those of these numbers."""
    left_out = set(bad)
    good = [i for i in range(len(values)) if i not in left_out]
    return [values[i] for i in good], batch.take(pa.array(good, pa.int64()))
