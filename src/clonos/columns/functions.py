"""The functions that column expressions may use in tasks, each computed exactly as Spark does.

The table is closed: each function is compared with Spark on edge values of its types
(``tests/columns/test_parity.py``), and any other function is refused when a job is defined. Names
are those of Spark's own expression classes, as an analysed expression contains them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns import casts, comparisons, numbers, strings, times
from clonos.columns.datum import Datum
from clonos.columns.kinds import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    FLOATING,
    INTEGER,
    INTERVAL,
    MOMENT,
    NUMBER,
    SIMPLE,
    STRING,
    STRUCT,
    ZONED,
    kind_of,
)

Types: TypeAlias = Sequence[pa.DataType]
Constants: TypeAlias = Sequence[pa.Scalar | None]
"""The value of each argument that is constant; None for others."""
Compute: TypeAlias = Callable[[Sequence[Datum], pa.DataType], Datum]

LEFT_FIRST: Final = (0, 1)
RIGHT_FIRST: Final = (1, 0)
"""Spark evaluates a divisor first."""


@dataclass(frozen=True)
class Function:
    """One function: how it is computed, its argument types, and its errors.

    ``sql``: how it is written. ``accepts``: whether it takes arguments of these types and returns
    that type. ``fits``: whether it takes these constants. ``can_raise``: whether some row could
    have no value; ``conditions``: Spark's names for these errors. ``skips_after_null``: the order
    in which Spark computes the arguments, if it stops at a null. ``is_of_zone``: whether the
    session's time zone affects the result.
    """

    sql: str
    compute: Compute
    accepts: Callable[[Types, pa.DataType], bool]
    fits: Callable[[Constants], bool] = lambda _: True
    can_raise: Callable[[Types, pa.DataType, Constants], bool] = lambda *_: False
    conditions: tuple[str, ...] = ()
    skips_after_null: tuple[int, ...] | None = None
    is_of_zone: bool = False


def _of(*kinds: frozenset[str] | str) -> Callable[[Types, pa.DataType], bool]:
    """Arguments of these kinds, in order; the last kind may be repeated."""
    allowed = [frozenset([kind]) if isinstance(kind, str) else kind for kind in kinds]

    def accepts(given: Types, result: pa.DataType) -> bool:
        del result
        if len(given) < len(allowed):
            return False
        wanted = [*allowed, *[allowed[-1]] * (len(given) - len(allowed))]
        return all(kind_of(t) in kinds for t, kinds in zip(given, wanted, strict=True))

    return accepts


def _alike(kinds: frozenset[str] | str) -> Callable[[Types, pa.DataType], bool]:
    """Arguments that all have the same type, of one of these kinds."""
    is_of = _of(kinds)
    return lambda given, result: is_of(given, result) and len(set(given)) == 1


def _arithmetic(kernel: str) -> Callable[[Types, pa.DataType], bool]:
    """Numbers of one type; decimals if Arrow's exact result is of Spark's type."""

    def accepts(given: Types, result: pa.DataType) -> bool:
        kinds = {kind_of(t) for t in given}
        if kinds != {DECIMAL}:
            return len(kinds) == 1 and kinds <= NUMBER and set(given) == {result}
        try:
            made = pc.call_function(kernel, [pa.array([], t) for t in given])
        except pa.ArrowInvalid:
            return False
        return bool(made.type == result)

    return accepts


def _integers_raise(given: Types, result: pa.DataType, constants: Constants) -> bool:
    del given, constants
    return kind_of(result) == INTEGER


def _zero_raises(given: Types, result: pa.DataType, constants: Constants) -> bool:
    del given, result
    return numbers.can_be_zero(constants)


def _division_raises(given: Types, result: pa.DataType, constants: Constants) -> bool:
    divisor = constants[1]
    is_minus_one = divisor is not None and divisor.is_valid and divisor.as_py() == -1
    return is_minus_one or _zero_raises(given, result, constants)


def _always(*_: object) -> bool:
    return True


def _checked(sql: str, kernel: str, condition: str = "") -> Function:
    return Function(
        sql,
        numbers.checked(kernel, condition),
        _arithmetic(kernel),
        can_raise=_integers_raise,
        conditions=(condition,) if condition else numbers.OVERFLOWS,
        skips_after_null=LEFT_FIRST,
    )


def _rounded(sql: str, rounded: Callable[..., Datum]) -> Function:
    return Function(
        sql,
        numbers.rounded_by(rounded),
        _of(NUMBER),
        can_raise=lambda given, *_: kind_of(given[0]) == FLOATING,
        conditions=("ARITHMETIC_OVERFLOW",),
    )


def _divided(sql: str, compute: Compute, kinds: frozenset[str] | str, *conditions: str) -> Function:
    raises = _division_raises if "ARITHMETIC_OVERFLOW" in conditions else _zero_raises
    return Function(
        sql,
        compute,
        _alike(kinds),
        can_raise=raises,
        conditions=conditions,
        skips_after_null=RIGHT_FIRST,
    )


def _compared(sql: str, compute: Compute) -> Function:
    return Function(sql, compute, _alike(SIMPLE), skips_after_null=LEFT_FIRST)


def _direct(kernel: Callable[..., Datum]) -> Compute:
    return lambda arguments, _: kernel(*arguments)


def _field(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    del result
    struct, number = arguments
    return pc.struct_field(struct, [number.as_py()])


def _bits(sql: str, kernel: Callable[..., Datum]) -> Function:
    return Function(sql, _direct(kernel), _alike(INTEGER), skips_after_null=LEFT_FIRST)


def _dated(sql: str, part: Callable[..., Datum]) -> Function:
    return Function(sql, times.of_date(part), _of(DATE))


def _timed(sql: str, unit_us: int, units: int) -> Function:
    return Function(sql, times.of_time(unit_us, units), _of(MOMENT), is_of_zone=True)


def _trim(sql: str, kernel: Callable[..., Datum]) -> Function:
    return Function(sql, strings.trimmed(kernel), _of(STRING), fits=_rest_is_constant)


def _pattern(sql: str, kernel: Callable[..., Datum]) -> Function:
    return Function(sql, strings.with_pattern(kernel), _of(STRING), fits=_rest_is_constant)


def _rest_is_constant(constants: Constants) -> bool:
    return None not in constants[1:]


def _cast_accepts(given: Types, result: pa.DataType) -> bool:
    return casts.is_known(given[0], result)


def _cast_raises(given: Types, result: pa.DataType, constants: Constants) -> bool:
    del constants
    return casts.can_raise(given[0], result)


FUNCTIONS: Final[dict[str, Function]] = {
    "Add": _checked("a + b", "add_checked"),
    "Subtract": _checked("a - b", "subtract_checked"),
    "Multiply": _checked("a * b", "multiply_checked"),
    "UnaryMinus": _checked("-a", "negate_checked", "ARITHMETIC_OVERFLOW"),
    "Abs": _checked("abs(a)", "abs_checked", "ARITHMETIC_OVERFLOW"),
    "Divide": _divided("a / b", numbers.divide, FLOATING, "DIVIDE_BY_ZERO"),
    "IntegralDivide": _divided(
        "a div b", numbers.integral_divide, INTEGER, "DIVIDE_BY_ZERO", "ARITHMETIC_OVERFLOW"
    ),
    "Remainder": _divided("a % b", numbers.remainder, NUMBER, "REMAINDER_BY_ZERO"),
    "Pmod": _divided("pmod(a, b)", numbers.positive_modulo, INTEGER, "REMAINDER_BY_ZERO"),
    "Floor": _rounded("floor(a)", np.floor),
    "Ceil": _rounded("ceil(a)", np.ceil),
    "Sqrt": Function("sqrt(a)", numbers.square_root, _of(FLOATING)),
    "BitwiseAnd": _bits("a & b", pc.bit_wise_and),
    "BitwiseOr": _bits("a | b", pc.bit_wise_or),
    "BitwiseXor": _bits("a ^ b", pc.bit_wise_xor),
    "BitwiseNot": _bits("~a", pc.bit_wise_not),
    "EqualTo": _compared("a = b", comparisons.equal),
    "EqualNullSafe": Function("a <=> b", comparisons.equal_or_both_null, _alike(SIMPLE)),
    "LessThan": _compared("a < b", comparisons.less),
    "LessThanOrEqual": _compared("a <= b", comparisons.at_most),
    "GreaterThan": _compared("a > b", comparisons.greater),
    "GreaterThanOrEqual": _compared("a >= b", comparisons.at_least),
    "In": Function("a in (b, ...)", comparisons.is_in, _alike(SIMPLE)),
    "Not": Function("not a", _direct(pc.invert), _of(BOOLEAN)),
    "IsNull": Function("a is null", _direct(pc.is_null), _of(SIMPLE | {STRUCT})),
    "IsNotNull": Function("a is not null", _direct(pc.is_valid), _of(SIMPLE | {STRUCT})),
    "IsNaN": Function("isnan(a)", comparisons.is_nan, _of(FLOATING)),
    "Greatest": Function("greatest(a, b, ...)", comparisons.extreme(True), _alike(SIMPLE)),
    "Least": Function("least(a, b, ...)", comparisons.extreme(False), _alike(SIMPLE)),
    "Cast": Function(
        "cast(a as type)",
        casts.cast,
        _cast_accepts,
        can_raise=_cast_raises,
        conditions=("CAST_OVERFLOW", "CAST_INVALID_INPUT", "DATETIME_OVERFLOW"),
    ),
    "Length": Function("length(a)", strings.length, _of(frozenset({STRING, BINARY}))),
    "OctetLength": Function("octet_length(a)", strings.octets, _of(frozenset({STRING, BINARY}))),
    "Substring": Function(
        "substring(a, 1, 2)", strings.substring, _of(STRING, INTEGER), fits=_rest_is_constant
    ),
    "Concat": Function("concat(a, b, ...)", strings.concat, _of(STRING)),
    "Upper": Function("upper(a)", strings.in_case(pc.ascii_upper, str.upper), _of(STRING)),
    "Lower": Function("lower(a)", strings.in_case(pc.ascii_lower, str.lower), _of(STRING)),
    "StringTrim": _trim("trim(a)", pc.utf8_trim),
    "StringTrimLeft": _trim("ltrim(a)", pc.utf8_ltrim),
    "StringTrimRight": _trim("rtrim(a)", pc.utf8_rtrim),
    "StringReplace": Function(
        "replace(a, 'b', 'c')", strings.replace, _of(STRING), fits=_rest_is_constant
    ),
    "Reverse": Function("reverse(a)", _direct(pc.utf8_reverse), _of(STRING)),
    "StartsWith": _pattern("startswith(a, 'b')", pc.starts_with),
    "EndsWith": _pattern("endswith(a, 'b')", pc.ends_with),
    "Contains": _pattern("contains(a, 'b')", pc.match_substring),
    "Like": Function(
        "a like 'b%'",
        strings.with_pattern(pc.match_like),
        _of(STRING),
        fits=strings.is_plain_pattern,
    ),
    "Year": _dated("year(a)", times.year),
    "Quarter": _dated("quarter(a)", times.quarter),
    "Month": _dated("month(a)", times.month),
    "DayOfMonth": _dated("day(a)", times.day_of_month),
    "DayOfYear": _dated("dayofyear(a)", times.day_of_year),
    "DayOfWeek": _dated("dayofweek(a)", times.day_of_week),
    "WeekDay": _dated("weekday(a)", times.weekday),
    "Hour": _timed("hour(a)", 3_600_000_000, 24),
    "Minute": _timed("minute(a)", 60_000_000, 60),
    "Second": _timed("second(a)", 1_000_000, 60),
    "TruncTimestamp": Function(
        "date_trunc('hour', a)",
        times.truncated,
        _of(STRING, ZONED),
        fits=times.is_known_unit,
        can_raise=_always,
        conditions=("DATETIME_OVERFLOW",),
        is_of_zone=True,
    ),
    "UnixMicros": Function("unix_micros(a)", times.since_epoch(1), _of(ZONED)),
    "UnixMillis": Function("unix_millis(a)", times.since_epoch(1000), _of(ZONED)),
    "UnixSeconds": Function("unix_seconds(a)", times.since_epoch(1_000_000), _of(ZONED)),
    "DateAdd": Function(
        "date_add(a, b)", times.days_later(1), _of(DATE, INTEGER), skips_after_null=LEFT_FIRST
    ),
    "DateSub": Function(
        "date_sub(a, b)", times.days_later(-1), _of(DATE, INTEGER), skips_after_null=LEFT_FIRST
    ),
    "DateDiff": Function(
        "datediff(a, b)", times.days_between, _of(DATE), skips_after_null=LEFT_FIRST
    ),
    "TimestampAddInterval": Function(
        "a + interval 5 minutes",
        times.interval_later,
        _of(MOMENT, INTERVAL),
        fits=_rest_is_constant,
        can_raise=_always,
        conditions=("DATETIME_OVERFLOW",),
        is_of_zone=True,
    ),
    "GetStructField": Function("a.b", _field, _of(STRUCT, INTEGER)),
}
"""By the name of Spark's class."""
