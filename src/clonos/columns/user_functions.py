"""Python functions within column expressions: Spark's ``@udf``, ``@pandas_udf``, ``@arrow_udf``.

Spark computes them for all rows, before any expression that uses them, even where an ``and`` or a
``case`` would have skipped them. So do tasks: a function's values become an additional column,
which the rest of the expression reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from clonos.columns.evaluation import compute
from clonos.columns.formula import Apply, Called, Column, Expression
from clonos.columns.kept_values import require_pairs
from clonos.columns.rows import column_of, short, values_of
from clonos.columns.schema import has_maps

PICKLED: Final = 100
"""Values of PySpark's ``evalType`` (``PythonEvalType``): this, and the next three."""
PER_ROW: Final = frozenset({PICKLED, 101})
PANDAS: Final = 200
ARROW: Final = 250
KNOWN: Final = PER_ROW | {PANDAS, ARROW}

_CLASSES: Final[tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...]] = (
    (pa.types.is_boolean, (bool,)),
    (pa.types.is_integer, (int,)),
    (pa.types.is_floating, (float,)),
    (pa.types.is_string, (str,)),
    (pa.types.is_binary, (bytes, bytearray)),
    (pa.types.is_date, (date,)),
    (pa.types.is_decimal, (Decimal,)),
)
"""Classes of the results of a function without Arrow: Spark silently turns others into null."""


class FunctionRaised(Exception):
    """A user's function could not compute a value for at least one row.

    Attributes
    ----------
    error
        The exception that it raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Prepared(NamedTuple):
    """Expressions in which columns stand for the results of user functions.

    ``calls``: the names of these columns, and how they are computed from the columns before.
    """

    calls: tuple[tuple[str, Called], ...]
    expressions: tuple[Expression, ...]

    def extended(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with these columns.

        Raises
        ------
        FunctionRaised
            A function failed.
        ExpressionFailed
            An argument has no value.
        """
        for name, called in self.calls:
            given = [compute(argument, batch) for argument in called.arguments]
            batch = batch.append_column(name, _values(called, given, batch.num_rows))
        return batch


def prepared(expressions: Sequence[Expression]) -> Prepared:
    """Replace the calls in expressions by columns.

    Examples
    --------
    >>> n = Column("n", pa.int64())
    >>> half = Called("half", lambda n: n // 2, 101, (n,), pa.int64())
    >>> made = prepared([half])
    >>> made.extended(pa.record_batch({"n": [7, 8]})).column(made.expressions[0].name).to_pylist()
    [3, 4]
    """
    calls: list[Called] = []

    def without_calls(expression: Expression) -> Expression:
        if not isinstance(expression, (Apply, Called)):
            return expression
        arguments = tuple(map(without_calls, expression.arguments))
        same = replace(expression, arguments=arguments)
        if isinstance(same, Apply):
            return same
        if same not in calls:
            calls.append(same)
        return Column(_name(calls.index(same)), same.type)

    made = tuple(map(without_calls, expressions))
    return Prepared(tuple((_name(i), called) for i, called in enumerate(calls)), made)


def _name(number: int) -> str:
    return f"~call {number}"


def _values(called: Called, given: Sequence[pa.Array], rows: int) -> pa.Array:
    if not rows:
        return pa.nulls(0, called.type)
    try:
        if called.kind not in PER_ROW:
            return whole(called.fn, called.kind, given, called.type, rows)
        values = per_row(called.fn, given, rows)
        if called.kind == PICKLED:
            _require_class(values, called.type)
        return column_of(pa.field(called.name, called.type), values)
    except Exception as error:
        raise FunctionRaised(error) from error


def per_row(fn: Callable[..., Any], given: Sequence[pa.Array], rows: int) -> list[Any]:
    """The values of a function of values."""
    values = list(map(fn, *map(values_of, given)) if given else (fn() for _ in repeat(None, rows)))
    if len(values) < rows:
        raise RuntimeError("the function raised StopIteration")
    return values


def whole(
    fn: Callable[..., Any], kind: int, given: Sequence[pa.Array], data_type: pa.DataType, rows: int
) -> pa.Array:
    """The values of a function of columns."""
    if kind == PANDAS:
        series = fn(*(column.to_pandas() for column in given))
        if has_maps(data_type):
            require_pairs(data_type, series)
        made = pa.Array.from_pandas(series, type=data_type)
    else:
        made = fn(*given)
        made = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
        made = made if made.type == data_type else made.cast(data_type)
    if len(made) != rows:
        raise ValueError(f"{len(made)} values of {rows} rows")
    return made


def _require_class(values: Sequence[Any], data_type: pa.DataType) -> None:
    classes = next(classes for is_one, classes in _CLASSES if is_one(data_type))
    for value in values:
        if value is not None and type(value) not in classes:
            raise TypeError(
                f"{short(value)} is of class {type(value).__name__}, but the function returns "
                f"{data_type}: Spark would make a null of it; say useArrow=True to have it cast"
            )
