"""Spark's ``@udf``, ``@pandas_udf`` and ``@arrow_udf`` objects, as functions of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from clonos.columns.user_functions import KNOWN, PANDAS, PER_ROW, whole
from clonos.errors import WrongType


class UserFunction(NamedTuple):
    """What is in such an object: the function, its type in Spark's words, and how it is called."""

    fn: Callable[..., Any]
    type: str
    kind: int

    @property
    def is_per_row(self) -> bool:
        """Whether it takes values; if not, whole columns."""
        return self.kind in PER_ROW

    def on_batches(
        self, of: Sequence[str], schema: pa.Schema, field: pa.Field, where: str
    ) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """The function of batches that adds a column, or replaces the one of this name."""
        if self.kind == PANDAS and (timed := [n for n in of if _is_time(schema.field(n).type)]):
            raise WrongType(
                f"{', '.join(timed)}: Spark gives a pandas_udf times of the session's zone",
                where=where,
                remedy="use an arrow_udf, or a plain function",
            )
        return partial(_with_column, self.fn, tuple(of), field, self.kind)


def user_function(fn: Any, where: str) -> UserFunction | None:
    """Take such an object apart; None if it is something else.

    Raises
    ------
    WrongType
        It is one that makes one value of many rows, or goes through all batches at once.
    """
    kind = getattr(fn, "evalType", None)
    if kind is None or not hasattr(fn, "func") or not hasattr(fn, "returnType"):
        return None
    if kind not in KNOWN:
        raise WrongType(
            f"{fn.func.__name__} is not a function of single rows (evalType {kind})",
            where=where,
            remedy="give udf, or pandas_udf and arrow_udf from columns to a column; others become "
            "a function of map_batches",
        )
    return UserFunction(fn.func, fn.returnType.simpleString(), kind)


def _with_column(
    fn: Callable[..., Any],
    of: Sequence[str],
    field: pa.Field,
    kind: int,
    batch: pa.RecordBatch,
) -> pa.RecordBatch:
    given = [batch.column(name) for name in of]
    made = whole(fn, kind, given, field.type, batch.num_rows)
    at = batch.schema.get_field_index(field.name)
    columns, fields = list(batch.columns), list(batch.schema)
    if at < 0:
        columns, fields = [*columns, made], [*fields, field]
    else:
        columns[at], fields[at] = made, field
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_nested(data_type))


def typed(column: str, function: UserFunction) -> str:
    """A column's name with the function's type, unless it says its own.

    Examples
    --------
    >>> upper = UserFunction(str.upper, "string", 100)
    >>> typed("word", upper), typed("word binary", upper)
    ('word string', 'word binary')
    """
    return column if " " in column.strip() else f"{column} {function.type}"
