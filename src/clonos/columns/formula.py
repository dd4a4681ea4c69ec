"""Column expressions as data: what a task computes of a batch, with Arrow's kernels.

A formula is made by :mod:`clonos.spark.expressions` from what Spark has analysed. It needs no JVM,
is pickled with the job, and depends on nothing but the rows. Spark computes lazily: the right side
of an ``and``, a branch of a ``case`` and the rest of a ``coalesce`` only for the rows that need it.
Kernels compute whole columns, so a part that can raise is given only those rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.datum import Datum, Fault
from clonos.columns.functions import FUNCTIONS
from clonos.errors import ExpressionFailed


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the batch."""

    name: str
    type: pa.DataType
    raises: bool = False

    @property
    def fingerprint(self) -> str:
        """What it is, as text: a checkpoint belongs to one graph."""
        return f"`{self.name}`"


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all rows."""

    scalar: pa.Scalar
    raises: bool = False

    @property
    def type(self) -> pa.DataType:
        """Of the value."""
        return self.scalar.type

    @property
    def fingerprint(self) -> str:
        """See :attr:`Column.fingerprint`."""
        return f"{self.scalar.as_py()!r} {self.type}"


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of expressions.

    ``raises``: it or a part of it can raise; ``text``: its SQL, if it can.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: pa.DataType
    text: str
    raises: bool

    @property
    def fingerprint(self) -> str:
        """See :attr:`Column.fingerprint`."""
        given = ", ".join(argument.fingerprint for argument in self.arguments)
        return f"{self.function}({given}) {self.type}"


@dataclass(frozen=True, slots=True)
class Called:
    """A user's function of expressions; see :mod:`clonos.columns.user_functions`.

    ``kind``: what Spark calls ``evalType``. It may fail for any row, and is called for all of them,
    so laziness is of no account: ``raises`` is False.
    """

    name: str
    fn: Callable[..., Any]
    kind: int
    arguments: tuple[Expression, ...]
    type: pa.DataType
    raises: bool = False

    @property
    def fingerprint(self) -> str:
        """See :attr:`Column.fingerprint`; the function itself may be corrected."""
        given = ", ".join(argument.fingerprint for argument in self.arguments)
        return f"udf {self.name}({given}) {self.type}"


Expression: TypeAlias = Column | Constant | Apply | Called


@dataclass(frozen=True)
class ReadBy:
    """What a session was set to when it read an expression: it may mean something else in another.

    ``zone``: ``spark.sql.session.timeZone``; ``ansi``: ``spark.sql.ansi.enabled``.
    """

    zone: str
    ansi: bool


def apply(
    function: str, arguments: Sequence[Expression], data_type: pa.DataType, text: str = ""
) -> Apply:
    """A function of the table, or one of :data:`LAZY`, applied to expressions.

    Parameters
    ----------
    text
        Its SQL, for errors, if the function itself can raise.

    Examples
    --------
    >>> n = Column("n", pa.int64())
    >>> half = apply("IntegralDivide", [n, Constant(pa.scalar(2))], pa.int64(), "(n div 2)")
    >>> compute(half, pa.record_batch({"n": [7, -7]})).to_pylist()
    [3, -3]
    """
    raises = any(argument.raises for argument in arguments)
    if not raises and function not in LAZY:
        constants = [a.scalar if isinstance(a, Constant) else None for a in arguments]
        raises = FUNCTIONS[function].can_raise([a.type for a in arguments], data_type, constants)
    return Apply(function, tuple(arguments), data_type, text, raises)


def columns_of(expression: Expression) -> frozenset[str]:
    """The columns that an expression looks at."""
    match expression:
        case Column(name):
            return frozenset([name])
        case Apply(arguments=arguments) | Called(arguments=arguments):
            return frozenset().union(*map(columns_of, arguments))
        case _:
            return frozenset()


def compute(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """The values of an expression for the rows of a batch.

    Raises
    ------
    ExpressionFailed
        For at least one of the rows there is no value, as in Spark with ANSI mode on.
    """
    return _column(_evaluate(expression, batch), batch.num_rows)


def _evaluate(expression: Expression, batch: pa.RecordBatch) -> Datum:
    if isinstance(expression, Column):
        return batch.column(expression.name)
    if isinstance(expression, Constant):
        return expression.scalar
    assert isinstance(expression, Apply), "calls are taken out before"
    lazily = LAZY.get(expression.function)
    if lazily is not None:
        return lazily(expression.arguments, batch)
    function = FUNCTIONS[expression.function]
    arguments = _arguments(expression, function.skips_after_null, batch)
    if not any(isinstance(argument, pa.Array) for argument in arguments):
        arguments[0] = _column(arguments[0], batch.num_rows)
    try:
        return function.compute(arguments, expression.type)
    except Fault as fault:
        raise ExpressionFailed(f"{fault.condition} in {expression.text}") from fault


def _arguments(
    expression: Apply, order: Sequence[int] | None, batch: pa.RecordBatch
) -> list[Datum]:
    """All arguments; where one is null, Spark does not compute those after it."""
    given = expression.arguments
    if order is None or len(given) == 1 or not any(argument.raises for argument in given):
        return [_evaluate(argument, batch) for argument in given]
    found: dict[int, Datum] = {}
    present: pa.BooleanArray | None = None  # all, so far
    for i in order:
        made = _evaluate(given[i], batch) if present is None else _where(given[i], batch, present)
        found[i] = made
        if made.null_count if isinstance(made, pa.Array) else not made.is_valid:
            is_there = _column(made, batch.num_rows).is_valid()
            present = is_there if present is None else pc.and_(present, is_there)
    return [found[i] for i in range(len(given))]


def _where(expression: Expression, batch: pa.RecordBatch, needed: pa.BooleanArray) -> Datum:
    """The values in the rows that are `needed`; in others perhaps nulls."""
    if not expression.raises or needed.true_count == len(needed):
        return _evaluate(expression, batch)
    # One column at least: rows are counted by it.
    read = sorted(columns_of(expression)) or batch.schema.names[:1]
    rows = batch.select(read).filter(needed)
    values = _column(_evaluate(expression, rows), rows.num_rows)
    is_needed = needed.to_numpy(zero_copy_only=False)
    return values.take(pa.array(np.cumsum(is_needed) - 1, mask=~is_needed))


def _column(datum: Datum, rows: int) -> pa.Array:
    return datum if isinstance(datum, pa.Array) else pa.repeat(datum, rows)


def _is_true(condition: Datum, rows: int) -> pa.BooleanArray:
    column = _column(condition, rows)
    return pc.fill_null(column, fill_value=False) if column.null_count else column


def _and(arguments: Sequence[Expression], batch: pa.RecordBatch) -> Datum:
    left, right = arguments
    first = _column(_evaluate(left, batch), batch.num_rows)
    needed = pc.fill_null(first, fill_value=True) if right.raises else first
    return pc.and_kleene(first, _where(right, batch, needed))


def _or(arguments: Sequence[Expression], batch: pa.RecordBatch) -> Datum:
    left, right = arguments
    first = _column(_evaluate(left, batch), batch.num_rows)
    needed = pc.invert(_is_true(first, batch.num_rows)) if right.raises else first
    return pc.or_kleene(first, _where(right, batch, needed))


def _case(arguments: Sequence[Expression], batch: pa.RecordBatch) -> Datum:
    """Condition, value, condition, value, ..., and the value of all other rows."""
    *branches, otherwise = arguments
    rows = batch.num_rows
    is_lazy = any(argument.raises for argument in arguments[1:])
    left = pa.repeat(pa.scalar(value=True), rows) if is_lazy else None
    chosen = []
    for condition, value in zip(branches[::2], branches[1::2], strict=True):
        if left is None:
            chosen.append((_is_true(_evaluate(condition, batch), rows), _evaluate(value, batch)))
            continue
        hit = pc.and_(left, _is_true(_where(condition, batch, left), rows))
        chosen.append((hit, _where(value, batch, hit)))
        left = pc.and_not(left, hit)
    made = _evaluate(otherwise, batch) if left is None else _where(otherwise, batch, left)
    for hit, value in reversed(chosen):
        made = pc.if_else(hit, value, made)
    return made


def _coalesce(arguments: Sequence[Expression], batch: pa.RecordBatch) -> Datum:
    first, *others = arguments
    made = _column(_evaluate(first, batch), batch.num_rows)
    for other in others:
        if not made.null_count:
            break
        made = pc.coalesce(made, _where(other, batch, made.is_null()))
    return made


def _structure(arguments: Sequence[Expression], batch: pa.RecordBatch) -> Datum:
    """Name, value, name, value, ...: never null itself."""
    names = [a.scalar.as_py() for a in arguments[::2] if isinstance(a, Constant)]
    values = [_column(_evaluate(a, batch), batch.num_rows) for a in arguments[1::2]]
    fields = [pa.field(n, v.type) for n, v in zip(names, values, strict=True)]
    return pa.StructArray.from_arrays(values, fields=fields)


LAZY: Final[Mapping[str, Callable[[Sequence[Expression], pa.RecordBatch], Any]]] = {
    "And": _and,
    "Or": _or,
    "CaseWhen": _case,
    "Coalesce": _coalesce,
    "CreateNamedStruct": _structure,
}
"""What computes its parts only for the rows that need them, by the name of Spark's class."""
