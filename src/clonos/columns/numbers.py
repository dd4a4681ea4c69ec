"""Arithmetic of column expressions, as Spark computes it in ANSI mode.

Integers raise on overflow. Division truncates towards zero; division by zero raises, for floats,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from clonos.columns.datum import Datum, Fault, any_true, numpy_of, rows_of_all, with_nulls_of

_LONG_EDGE: Final = 2.0**63
OVERFLOWS: Final = ("ARITHMETIC_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW")
_SMALL: Final = frozenset({pa.int8(), pa.int16()})


def overflow_of(data_type: pa.DataType) -> str:
    """Spark's name for an overflow of this type."""
    return OVERFLOWS[data_type in _SMALL]


def checked(kernel: str, condition: str = "") -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """An Arrow kernel that raises on overflow; floats and decimals of enough digits never do.

    ``condition``: Spark's name for the overflow, if it does not depend on the type.
    """

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        try:
            return pc.call_function(kernel, list(arguments))
        except pa.ArrowInvalid as error:
            raise Fault(condition or overflow_of(result)) from error

    return compute


def divide(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``/`` of doubles."""
    del result
    left, right = arguments
    _forbid_zero(left, right, "DIVIDE_BY_ZERO")
    return pc.divide(left, right)


def integral_divide(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``div``."""
    left, right = arguments
    _forbid_zero(left, right, "DIVIDE_BY_ZERO")
    try:
        return pc.divide_checked(left, right)
    except pa.ArrowInvalid as error:
        raise Fault(overflow_of(result)) from error


def remainder(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``%``, with the sign of the dividend."""
    left, right = arguments
    _forbid_zero(left, right, "REMAINDER_BY_ZERO")
    if types.is_floating(result):
        return _float_remainder(left, right)
    return _integer_remainder(left, right, result)


def positive_modulo(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``pmod`` of integers."""
    left, right = arguments
    _forbid_zero(left, right, "REMAINDER_BY_ZERO")
    # Java adds small integers as ints.
    wide = pa.int32() if result in _SMALL else result
    left, right = left.cast(wide), right.cast(wide)
    first = _integer_remainder(left, right, wide)
    shifted = _integer_remainder(pc.add(first, right), right, wide)
    return pc.if_else(pc.less(first, pa.scalar(0, wide)), shifted, first).cast(result)


def _integer_remainder(left: Datum, right: Datum, result: pa.DataType) -> Datum:
    divisor = right.as_py() if isinstance(right, pa.Scalar) else None
    if divisor is not None and divisor not in {-1, 0} and isinstance(left, pa.Array):
        # The usual case: one function instead of three kernels.
        values = np.fmod(numpy_of(left), np.array(divisor, left.type.to_pandas_dtype()))
        return with_nulls_of(left, values, result)
    # The smallest integer cannot be divided by -1, and the remainder is the same as for 1. Where
    # the dividend is null, the divisor may be zero, which some kernels do not ignore.
    if isinstance(right, pa.Array) or right.as_py() in {-1, 0}:
        is_odd = pc.or_(*(pc.equal(right, pa.scalar(odd, result)) for odd in (-1, 0)))
        right = pc.if_else(is_odd, pa.scalar(1, result), right)
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))


def _float_remainder(left: Datum, right: Datum) -> pa.Array:
    both = pc.add(left, right)  # null where either is null
    rows = rows_of_all([left, right])
    first, second = (numpy_of(pa.repeat(d, rows) if isinstance(d, pa.Scalar) else d)
                     for d in (left, right))  # fmt: skip
    with np.errstate(invalid="ignore", divide="ignore"):
        return with_nulls_of(both, np.fmod(first, second), both.type)


def _forbid_zero(left: Datum, right: Datum, condition: str) -> None:
    if isinstance(right, pa.Scalar) and right.as_py() != 0:
        return
    zero = pc.equal(right, pa.scalar(0, right.type))
    if any_true(zero) and any_true(pc.and_(zero, pc.is_valid(left))):
        raise Fault(condition)


def can_be_zero(constants: Sequence[pa.Scalar | None]) -> bool:
    """Whether a divisor may be zero: it is no constant, or is zero."""
    divisor = constants[1]
    return divisor is None or not divisor.is_valid or divisor.as_py() == 0


def rounded_by(rounded: Callable[[Any], Any]) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """``floor`` and ``ceil`` of doubles, for which Spark returns longs: 0 for NaN."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        (column,) = arguments
        if types.is_integer(column.type):
            return column
        values = rounded(numpy_of(column).astype(np.float64))
        if ((values < -_LONG_EDGE) | (values >= _LONG_EDGE)).any():
            raise Fault("ARITHMETIC_OVERFLOW")
        return with_nulls_of(column, to_long(values), result)

    return compute


def to_long(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Doubles as longs, as Java casts them.

    Examples
    --------
    >>> to_long(np.array([1.9, -1.9, float("nan"), 1e300])).tolist()
    [1, -1, 0, 9223372036854775807]
    """
    values = values.astype(np.float64)
    too_large, too_small = values >= _LONG_EDGE, values < -_LONG_EDGE
    is_odd = too_large | too_small | np.isnan(values)
    made = np.where(is_odd, 0.0, values).astype(np.int64)
    made[too_large] = np.iinfo(np.int64).max
    made[too_small] = np.iinfo(np.int64).min
    return made


def square_root(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``sqrt``; NaN for negative numbers."""
    del result
    return pc.sqrt(arguments[0])
