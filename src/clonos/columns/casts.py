"""Casts of column expressions, as Spark makes them in ANSI mode; other casts are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.datum import Datum, Fault, numpy_of, with_nulls_of
from clonos.columns.kinds import (
    BOOLEAN,
    DATE,
    DECIMAL,
    FLOATING,
    INTEGER,
    LOCAL,
    STRING,
    ZONED,
    kind_of,
)
from clonos.columns.numbers import to_long

_BLANK: Final = "".join(map(chr, [*range(33), 127]))
"""Characters that Spark trims off a number's text: blanks and control characters of ASCII."""
_DAY_US: Final = 86_400_000_000
_LONG: Final = pa.int64()

Convert = Callable[[pa.Array, pa.DataType], pa.Array]


def cast(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``cast`` between two types of the table."""
    (column,) = arguments
    if column.type == result:
        return column
    return CASTS[kind_of(column.type), kind_of(result)](column, result)


def is_known(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether the table has this cast.

    Examples
    --------
    >>> is_known(pa.int32(), pa.string()), is_known(pa.float64(), pa.string())
    (True, False)
    """
    kinds = kind_of(source), kind_of(target)
    if kinds == (DECIMAL, DECIMAL):
        return target.scale >= source.scale and _whole(target) >= _whole(source)
    if kinds == (INTEGER, DECIMAL):
        return bool(_whole(target) >= _DIGITS[source])
    return source == target or kinds in CASTS


def can_raise(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether some values of `source` have no equivalent in `target`."""
    kinds = kind_of(source), kind_of(target)
    if kinds == (INTEGER, INTEGER):
        return bool(source.bit_width > target.bit_width)
    return kinds in {(FLOATING, INTEGER), (STRING, INTEGER), (DATE, ZONED), (DATE, LOCAL)}


_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def _whole(decimal: pa.DataType) -> int:
    return int(decimal.precision - decimal.scale)


def _freely(column: pa.Array, target: pa.DataType) -> pa.Array:
    return pc.cast(column, target, safe=False)


def _to_integer(column: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return pc.cast(column, target)
    except pa.ArrowInvalid as error:
        raise Fault("CAST_OVERFLOW") from error


def _float_to_integer(column: pa.Array, target: pa.DataType) -> pa.Array:
    values = numpy_of(column).astype(np.float64)
    with np.errstate(invalid="ignore"):
        edges = np.iinfo(target.to_pandas_dtype())
        fits = (np.floor(values) <= float(edges.max)) & (np.ceil(values) >= float(edges.min))
    if not fits.all():
        raise Fault("CAST_OVERFLOW")
    return with_nulls_of(column, to_long(values), _LONG).cast(target)


def _from_text(column: pa.Array, target: pa.DataType) -> pa.Array:
    bare = pc.utf8_trim(column, characters=_BLANK)
    if pc.match_substring_regex(bare, pattern="^[+-]?[0-9]+$").false_count:
        raise Fault("CAST_INVALID_INPUT")
    # Arrow knows no plus sign, and gives up on many leading zeros.
    bare = pc.replace_substring_regex(bare, pattern="^([+]|(-?))0*([0-9])", replacement=r"\2\3")
    try:
        return pc.cast(bare, target)
    except pa.ArrowInvalid as error:
        raise Fault("CAST_INVALID_INPUT") from error


def _to_boolean(column: pa.Array, target: pa.DataType) -> pa.Array:
    del target
    return pc.not_equal(column, pa.scalar(0, column.type))


def _to_date(column: pa.Array, target: pa.DataType) -> pa.Array:
    days = numpy_of(column, _LONG) // _DAY_US
    return with_nulls_of(column, days.astype(np.int32), target)


def _to_moment(column: pa.Array, target: pa.DataType) -> pa.Array:
    days = column.view(pa.int32()).cast(_LONG)
    try:
        return pc.multiply_checked(days, pa.scalar(_DAY_US)).view(target)
    except pa.ArrowInvalid as error:
        raise Fault("DATETIME_OVERFLOW") from error


def _same_clock(column: pa.Array, target: pa.DataType) -> pa.Array:
    return column.view(_LONG).view(target)


CASTS: Final[dict[tuple[str, str], Convert]] = {
    (INTEGER, INTEGER): _to_integer,
    (INTEGER, FLOATING): _freely,
    (INTEGER, DECIMAL): _freely,
    (INTEGER, STRING): _freely,
    (INTEGER, BOOLEAN): _to_boolean,
    (BOOLEAN, INTEGER): _freely,
    (BOOLEAN, FLOATING): lambda column, target: column.cast(pa.int8()).cast(target),
    (BOOLEAN, STRING): _freely,
    (FLOATING, FLOATING): _freely,
    (FLOATING, INTEGER): _float_to_integer,
    (FLOATING, BOOLEAN): _to_boolean,
    (DECIMAL, DECIMAL): _freely,
    (STRING, INTEGER): _from_text,
    (ZONED, DATE): _to_date,
    (LOCAL, DATE): _to_date,
    (DATE, ZONED): _to_moment,
    (DATE, LOCAL): _to_moment,
    (ZONED, LOCAL): _same_clock,
    (LOCAL, ZONED): _same_clock,
}
"""The casts, by the kinds of both types; decimals and the like only where nothing is lost."""

CONDITIONS: Final = {
    INTEGER: ("CAST_OVERFLOW",),
    FLOATING: ("CAST_OVERFLOW",),
    STRING: ("CAST_INVALID_INPUT",),
    DATE: ("DATETIME_OVERFLOW",),
}
"""The errors that a cast from a kind of types may raise; the last has no name in Spark."""


def is_of_zone(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether the session's zone matters."""
    return source != target and ZONED in {kind_of(source), kind_of(target)}
