"""Comparisons of column expressions: NaN equals itself and is greater than anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from clonos.columns.datum import Datum


def equal(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``=``."""
    del result
    return _equal(*arguments)


def equal_or_both_null(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``<=>``."""
    del result
    left, right = arguments
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.coalesce(_equal(left, right), both_null)


def less(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``<``."""
    del result
    return _less(*arguments)


def greater(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``>``."""
    del result
    return _less(*reversed(arguments))


def at_most(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``<=``: the same as not ``>``, as floats are totally ordered here."""
    del result
    if _is_exact(*arguments):
        return pc.less_equal(*arguments)
    return pc.invert(_less(*reversed(arguments)))


def at_least(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``>=``."""
    del result
    if _is_exact(*arguments):
        return pc.greater_equal(*arguments)
    return pc.invert(_less(*arguments))


def is_in(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``in``: null if the value is null, or if it is not found and the list holds a null."""
    value, *others = arguments
    if types.is_floating(value.type) or not all(isinstance(o, pa.Scalar) for o in others):
        found = _equal(value, others[0])
        for other in others[1:]:
            found = pc.or_kleene(found, _equal(value, other))
        return found
    wanted = [other for other in others if other.is_valid]
    among = pa.array([other.as_py() for other in wanted], value.type)
    found = pc.is_in(value, value_set=among)
    unknown = pc.is_null(value)
    if len(wanted) < len(others):
        unknown = pc.or_(unknown, pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, result), found)


def extreme(is_greatest: bool) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """``greatest`` and ``least``, which pass over nulls."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        del result
        best, *others = arguments
        for other in others:
            is_better = _less(best, other) if is_greatest else _less(other, best)
            best = pc.if_else(pc.fill_null(is_better, fill_value=False), other, best)
            best = pc.coalesce(best, other)
        return best

    return compute


def is_nan(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``isnan``, which is false for null."""
    del result
    return pc.fill_null(pc.is_nan(arguments[0]), fill_value=False)


def _equal(left: Datum, right: Datum) -> Datum:
    if _is_exact(left, right):
        return pc.equal(left, right)
    return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less(left: Datum, right: Datum) -> Datum:
    if _is_exact(left, right):
        return pc.less(left, right)
    return pc.or_(pc.less(left, right), pc.and_not(pc.is_nan(right), pc.is_nan(left)))


def _is_exact(left: Datum, right: Datum) -> bool:
    """Whether Arrow's comparison is right as it is: neither side can be NaN."""
    return not types.is_floating(left.type) or (_has_no_nan(left) and _has_no_nan(right))


def _has_no_nan(datum: Any) -> bool:
    if isinstance(datum, pa.Scalar):
        return not datum.is_valid or not isnan(datum.as_py())
    return not pc.is_nan(datum).true_count
