"""Evaluates formulas: each is turned, once, into a function of batches.

Spark computes lazily: the right side of an ``and``, a branch of a ``case`` and the rest of a
``coalesce`` only for the rows that need it. Kernels compute whole columns, so a part that can raise
is given only those rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.datum import Datum, Fault
from clonos.columns.formula import Apply, Column, Constant, Expression, columns_of
from clonos.columns.functions import FUNCTIONS
from clonos.errors import ExpressionFailed

Evaluate: TypeAlias = Callable[[pa.RecordBatch], Datum]


class _Part(NamedTuple):
    """A part of an expression, with all that is needed to compute it for some of the rows."""

    evaluate: Evaluate
    raises: bool
    reads: tuple[str, ...]


def compute(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """The values of an expression for the rows of one batch; see :func:`computer`.

    Examples
    --------
    >>> from clonos.columns.formula import apply
    >>> n, two = Column("n", pa.int64()), Constant(pa.scalar(2))
    >>> half = apply("IntegralDivide", [n, two], pa.int64())
    >>> compute(half, pa.record_batch({"n": [7, -7]})).to_pylist()
    [3, -3]
    """
    return computer(expression)(batch)


def computer(expression: Expression) -> Callable[[pa.RecordBatch], pa.Array]:
    """A function that gives the values of an expression for the rows of a batch.

    It raises :class:`~clonos.errors.ExpressionFailed` if there is no value for at least one of the
    rows, as in Spark with ANSI mode on.
    """
    evaluate = _evaluate(expression)
    if not isinstance(expression, Constant):
        return evaluate
    return lambda batch: _column(evaluate(batch), batch.num_rows)


def _evaluate(expression: Expression) -> Evaluate:
    """A function that gives an array; a scalar only for a constant."""
    if isinstance(expression, Column):
        name = expression.name
        return lambda batch: batch.column(name)
    if isinstance(expression, Constant):
        scalar = expression.scalar
        return lambda _: scalar
    assert isinstance(expression, Apply), "calls are taken out before"
    lazily = _LAZILY.get(expression.function)
    return _applied(expression) if lazily is None else lazily(expression.arguments)


def _part(expression: Expression) -> _Part:
    return _Part(_evaluate(expression), expression.raises, tuple(sorted(columns_of(expression))))


def _applied(expression: Apply) -> Evaluate:
    function, result, text = FUNCTIONS[expression.function], expression.type, expression.text
    kernel, arguments = function.compute, _arguments(expression)

    def evaluate(batch: pa.RecordBatch) -> Datum:
        try:
            return kernel(arguments(batch), result)
        except Fault as fault:
            raise ExpressionFailed(f"{fault.condition} in {text}") from fault

    return evaluate


def _arguments(expression: Apply) -> Callable[[pa.RecordBatch], list[Datum]]:
    """All arguments; where one is null, Spark does not compute those after it."""
    given = expression.arguments
    order = FUNCTIONS[expression.function].skips_after_null
    if order is not None and len(given) > 1 and any(argument.raises for argument in given):
        return _in_order([_part(argument) for argument in given], order)
    evaluated = [_evaluate(argument) for argument in given]
    if given and all(isinstance(argument, Constant) for argument in given):
        evaluated[0] = computer(given[0])  # one array at least, for the number of rows
    if len(evaluated) == 1:
        (one,) = evaluated
        return lambda batch: [one(batch)]
    if len(evaluated) == 2:
        left, right = evaluated
        return lambda batch: [left(batch), right(batch)]
    return lambda batch: [evaluate(batch) for evaluate in evaluated]


def _in_order(
    parts: Sequence[_Part], order: Sequence[int]
) -> Callable[[pa.RecordBatch], list[Datum]]:
    def arguments(batch: pa.RecordBatch) -> list[Datum]:
        found: dict[int, Datum] = {}
        present: pa.BooleanArray | None = None  # all, so far
        for i in order:
            part = parts[i]
            made = part.evaluate(batch) if present is None else _where(part, batch, present)
            found[i] = made
            if made.null_count if isinstance(made, pa.Array) else not made.is_valid:
                is_there = _column(made, batch.num_rows).is_valid()
                present = is_there if present is None else pc.and_(present, is_there)
        return [found[i] for i in range(len(parts))]

    return arguments


def _where(part: _Part, batch: pa.RecordBatch, needed: pa.BooleanArray) -> Datum:
    """The values in the rows that are `needed`; other rows may hold nulls."""
    if not part.raises or needed.true_count == len(needed):
        return part.evaluate(batch)
    # At least one column, from which the rows are counted.
    rows = batch.select(part.reads or batch.schema.names[:1]).filter(needed)
    values = _column(part.evaluate(rows), rows.num_rows)
    is_needed = needed.to_numpy(zero_copy_only=False)
    return values.take(pa.array(np.cumsum(is_needed) - 1, mask=~is_needed))


def _column(datum: Datum, rows: int) -> pa.Array:
    return datum if isinstance(datum, pa.Array) else pa.repeat(datum, rows)


def _is_true(condition: Datum, rows: int) -> pa.BooleanArray:
    column = _column(condition, rows)
    return pc.fill_null(column, fill_value=False) if column.null_count else column


def _and(arguments: Sequence[Expression]) -> Evaluate:
    left, right = computer(arguments[0]), _part(arguments[1])

    def evaluate(batch: pa.RecordBatch) -> Datum:
        first = left(batch)
        if not right.raises:
            return pc.and_kleene(first, right.evaluate(batch))
        needed = pc.fill_null(first, fill_value=True)
        return pc.and_kleene(first, _where(right, batch, needed))

    return evaluate


def _or(arguments: Sequence[Expression]) -> Evaluate:
    left, right = computer(arguments[0]), _part(arguments[1])

    def evaluate(batch: pa.RecordBatch) -> Datum:
        first = left(batch)
        if not right.raises:
            return pc.or_kleene(first, right.evaluate(batch))
        needed = pc.invert(_is_true(first, batch.num_rows))
        return pc.or_kleene(first, _where(right, batch, needed))

    return evaluate


def _case(arguments: Sequence[Expression]) -> Evaluate:
    """Condition, value, condition, value, ..., and the value of all other rows."""
    *given, otherwise = map(_part, arguments)
    branches = list(zip(given[::2], given[1::2], strict=True))

    def eagerly(batch: pa.RecordBatch) -> Datum:
        made = otherwise.evaluate(batch)
        for condition, value in reversed(branches):
            hit = _is_true(condition.evaluate(batch), batch.num_rows)
            made = pc.if_else(hit, value.evaluate(batch), made)
        return made

    def lazily(batch: pa.RecordBatch) -> Datum:
        rows = batch.num_rows
        left = pa.repeat(pa.scalar(value=True), rows)
        chosen = []
        for condition, value in branches:
            hit = pc.and_(left, _is_true(_where(condition, batch, left), rows))
            chosen.append((hit, _where(value, batch, hit)))
            left = pc.and_not(left, hit)
        made = _where(otherwise, batch, left)
        for hit, value in reversed(chosen):
            made = pc.if_else(hit, value, made)
        return made

    return lazily if any(argument.raises for argument in arguments[1:]) else eagerly


def _coalesce(arguments: Sequence[Expression]) -> Evaluate:
    first, others = computer(arguments[0]), [_part(argument) for argument in arguments[1:]]

    def evaluate(batch: pa.RecordBatch) -> Datum:
        made = first(batch)
        for other in others:
            if not made.null_count:
                break
            made = pc.coalesce(made, _where(other, batch, made.is_null()))
        return made

    return evaluate


def _structure(arguments: Sequence[Expression]) -> Evaluate:
    """Name, value, name, value, ...: never null itself."""
    names = [a.scalar.as_py() for a in arguments[::2] if isinstance(a, Constant)]
    parts = [computer(argument) for argument in arguments[1::2]]

    def evaluate(batch: pa.RecordBatch) -> Datum:
        values = [part(batch) for part in parts]
        fields = [pa.field(n, v.type) for n, v in zip(names, values, strict=True)]
        return pa.StructArray.from_arrays(values, fields=fields)

    return evaluate


_LAZILY: Final[Mapping[str, Callable[[Sequence[Expression]], Any]]] = {
    "And": _and,
    "Or": _or,
    "CaseWhen": _case,
    "Coalesce": _coalesce,
    "CreateNamedStruct": _structure,
}
"""See :data:`~clonos.columns.formula.LAZY`."""
