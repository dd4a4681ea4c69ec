"""Dates and times in column expressions. Where a zone matters, it is UTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.datum import Datum, Fault, numpy_of, rows_of_all, with_nulls_of

_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US
_MONDAY: Final = 3
"""Day 0, 1 January 1970, was a Thursday: three days after a Monday."""
_YEAR: Final = 1970

Values = Any
"""A numpy array."""


def _days(column: pa.Array) -> Values:
    """Dates as days since 1970; one unit of numpy covers all dates of Arrow."""
    return numpy_of(column, pa.int32()).astype("M8[D]")


def of_date(part: Callable[[Values], Values]) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """A part of a date, as an int."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        (column,) = arguments
        return with_nulls_of(column, part(_days(column)).astype(np.int32), result)

    return compute


def year(days: Values) -> Values:
    """1970, ..."""
    return days.astype("M8[Y]").astype(np.int64) + _YEAR


def month(days: Values) -> Values:
    """1 to 12."""
    return days.astype("M8[M]").astype(np.int64) % 12 + 1


def quarter(days: Values) -> Values:
    """1 to 4."""
    return (month(days) - 1) // 3 + 1


def day_of_month(days: Values) -> Values:
    """1 to 31."""
    return (days - days.astype("M8[M]").astype("M8[D]")).astype(np.int64) + 1


def day_of_year(days: Values) -> Values:
    """1 to 366."""
    return (days - days.astype("M8[Y]").astype("M8[D]")).astype(np.int64) + 1


def weekday(days: Values) -> Values:
    """0 for a Monday."""
    return (days.astype(np.int64) + _MONDAY) % 7


def day_of_week(days: Values) -> Values:
    """1 for a Sunday."""
    return (weekday(days) + 1) % 7 + 1


def of_time(unit_us: int, units: int) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """``hour``, ``minute``, ``second``: whole units; `units` of them make the next larger one."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        (column,) = arguments
        values = numpy_of(column, pa.int64()) // unit_us % units
        return with_nulls_of(column, values.astype(np.int32), result)

    return compute


def since_epoch(unit_us: int) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """Whole units since 1970, rounded down."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        (column,) = arguments
        return with_nulls_of(column, numpy_of(column, pa.int64()) // unit_us, result)

    return compute


def days_later(sign: int) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """``date_add`` and ``date_sub``, which wrap around."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        date, days = arguments
        start, change = date.cast(pa.int32()), days.cast(pa.int32())
        made = pc.add(start, change) if sign > 0 else pc.subtract(start, change)
        return made.view(result)

    return compute


def days_between(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``datediff``, which wraps around."""
    del result
    end, start = arguments
    return pc.subtract(end.cast(pa.int32()), start.cast(pa.int32()))


def interval_later(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """A moment and a constant interval of days and time."""
    moment, interval = arguments
    rows = rows_of_all([moment])
    if not interval.is_valid:
        return pa.nulls(rows, result)
    try:
        return pc.add_checked(moment.view(pa.int64()), interval.cast(pa.int64())).view(result)
    except pa.ArrowInvalid as error:
        raise Fault("DATETIME_OVERFLOW") from error


def truncated(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``date_trunc`` to a constant unit."""
    unit, column = arguments
    moments = numpy_of(column, pa.int64())
    made = UNITS[str(unit.as_py()).upper()](moments)
    if (made > moments).any():  # wrapped around: earlier than the first timestamp
        raise Fault("DATETIME_OVERFLOW")
    return with_nulls_of(column, made, result)


def _to(unit_us: int) -> Callable[[Values], Values]:
    return lambda moments: moments // unit_us * unit_us


def _to_days(first: Callable[[Values], Values]) -> Callable[[Values], Values]:
    def shorten(moments: Values) -> Values:
        days = (moments // _DAY_US).astype("M8[D]")
        return first(days).astype("M8[D]").astype(np.int64) * _DAY_US

    return shorten


def _quarter_start(days: Values) -> Values:
    months = days.astype("M8[M]").astype(np.int64)
    return (months // 3 * 3).astype("M8[M]")


def _week_start(days: Values) -> Values:
    return (days.astype(np.int64) - weekday(days)).astype("M8[D]")


_NAMED: Final[dict[str, tuple[Callable[[Values], Values], str]]] = {
    "MICROSECOND": (_to(1), ""),
    "MILLISECOND": (_to(1000), ""),
    "SECOND": (_to(_SECOND_US), ""),
    "MINUTE": (_to(60 * _SECOND_US), ""),
    "HOUR": (_to(3600 * _SECOND_US), ""),
    "DAY": (_to(_DAY_US), "DD"),
    "WEEK": (_to_days(_week_start), ""),
    "MONTH": (_to_days(lambda days: days.astype("M8[M]")), "MM MON"),
    "QUARTER": (_to_days(_quarter_start), ""),
    "YEAR": (_to_days(lambda days: days.astype("M8[Y]")), "YYYY YY"),
}
UNITS: Final = {
    name: shorten for unit, (shorten, more) in _NAMED.items() for name in (unit, *more.split())
}
"""The units to which a moment can be truncated, under all their names in Spark."""


def is_known_unit(constants: Sequence[pa.Scalar | None]) -> bool:
    """Whether the unit of ``date_trunc`` is one of :data:`UNITS`."""
    unit = constants[0]
    return unit is not None and str(unit.as_py()).upper() in UNITS
