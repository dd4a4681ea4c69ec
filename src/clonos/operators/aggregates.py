"""Aggregates in columns: rows are folded into *partials*, one per group; partials are combined.

Rows are folded in the order of arrival, so that sums of floats are the same on replay. Nulls are
ignored, as in SQL; the aggregate of nulls alone is null (a count is 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.errors import ExpressionFailed, WrongType

Codes = npt.NDArray[np.int64]

DECIMAL_DIGITS: Final = 38
"""Spark's decimals have at most this many digits."""

_SUM_DIGITS: Final = 10
"""How many more digits a sum has than its values, as in Spark."""

_MEAN_DIGITS: Final = 4
"""How many more digits, and decimal places, a mean has than its values."""

_DIVISION_SCALE: Final = DECIMAL_DIGITS + 1
"""Spark divides decimals to this many places, and rounds the result again."""


class Aggregate(NamedTuple):
    """An aggregate function and its column (None: it aggregates whole rows)."""

    kind: str
    column: str | None

    def fold(self, schema: pa.Schema, where: str) -> Fold:
        """How the aggregate is computed for a column of this type.

        Raises
        ------
        WrongType
            The column's type has no such aggregate.
        """
        if self.kind == "count":
            return Count()
        assert self.column is not None
        data_type = schema.field(self.column).type
        if self.kind in ("min", "max"):
            return _extreme(self.kind, self.column, data_type, where)
        told, is_mean = f"{self.kind}({self.column})", self.kind == "avg"
        if pa.types.is_decimal(data_type):
            return DecimalSum(data_type, told, where, is_mean=is_mean)
        if not (pa.types.is_integer(data_type) or pa.types.is_floating(data_type)):
            raise WrongType(
                f"{self.kind} of column {self.column!r}, which is {data_type}",
                where=where,
                remedy="aggregate a numeric column, or count() rows",
            )
        if pa.types.is_floating(data_type):
            return FloatSum(is_mean=is_mean)
        return IntegerSum(told, where, is_mean=is_mean)


class Fold:
    """One aggregate.

    ``codes`` says for each row or partial which of `groups` groups it belongs to; every group has
    at least one.
    """

    data_type: pa.DataType
    partial_types: tuple[pa.DataType, ...]

    is_exact = True
    """Whether the result does not depend on how rows are ordered and divided into partials."""

    def start(self, column: pa.Array | None, codes: Codes, groups: int) -> list[pa.Array]:
        """The partials of rows: a column for each of the partial's types."""
        raise NotImplementedError

    def combine(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        """Combine partials."""
        raise NotImplementedError

    def result(self, partials: Sequence[pa.Array]) -> pa.Array:
        """The results of partials."""
        raise NotImplementedError


class Count(Fold):
    """Rows, or the values of a column that are not null."""

    data_type = pa.int64()
    partial_types = (pa.int64(),)

    def start(self, column: pa.Array | None, codes: Codes, groups: int) -> list[pa.Array]:
        return [pa.array(_count(column, codes, groups))]

    def combine(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        return [pa.array(_add_integers(partials[0].to_numpy(), codes, groups))]

    def result(self, partials: Sequence[pa.Array]) -> pa.Array:
        return partials[0]


class FloatSum(Fold):
    """Sum or mean of floats, as a sum and the number of values; both are doubles."""

    is_exact = False
    data_type = pa.float64()
    partial_types = (pa.float64(), pa.int64())

    def __init__(self, *, is_mean: bool) -> None:
        self._is_mean = is_mean

    def start(self, column: pa.Array | None, codes: Codes, groups: int) -> list[pa.Array]:
        assert column is not None
        return [_add_floats(column, codes, groups), pa.array(_count(column, codes, groups))]

    def combine(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        total, seen = partials
        return [_add_floats(total, codes, groups), _add_counts(seen, codes, groups)]

    def result(self, partials: Sequence[pa.Array]) -> pa.Array:
        total, seen = partials
        if self._is_mean:
            return _means(total.to_numpy(), seen)
        return _null_if_empty(total, seen)


class IntegerSum(Fold):
    """Sum or mean of integers; a sum is a bigint, or an error if it does not fit one.

    Partials are exact in any order: the sum modulo 2**64, and how many times 2**64 must be added.
    """

    partial_types = (pa.int64(), pa.int64(), pa.int64())

    def __init__(self, told: str, where: str, *, is_mean: bool) -> None:
        self._told, self._where = told, where
        self._is_mean = is_mean
        self.data_type = pa.float64() if is_mean else pa.int64()

    def start(self, column: pa.Array | None, codes: Codes, groups: int) -> list[pa.Array]:
        assert column is not None
        seen = pa.array(_count(column, codes, groups))
        codes, column = _drop_nulls(codes, column)
        try:
            values = column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid as error:  # it has no sign
            raise _overflow(self._told, "64 bits", self._where) from error
        total, carry = _add_wide(values, codes, groups)
        return [pa.array(total), pa.array(carry), seen]

    def combine(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        totals, carries, seen = partials
        total, carry = _add_wide(totals.to_numpy(), codes, groups)
        carry += _add_integers(carries.to_numpy(), codes, groups)
        return [pa.array(total), pa.array(carry), _add_counts(seen, codes, groups)]

    def result(self, partials: Sequence[pa.Array]) -> pa.Array:
        total, carry, seen = partials
        if self._is_mean:
            return _means(total.to_numpy() + carry.to_numpy() * 2.0**64, seen)
        if carry.to_numpy().any():
            raise _overflow(self._told, "64 bits", self._where)
        return _null_if_empty(total, seen)


class DecimalSum(Fold):
    """Sum or mean of decimals, with Spark's types; an error if these have too few digits."""

    def __init__(self, data_type: pa.DataType, told: str, where: str, *, is_mean: bool) -> None:
        precision, scale = data_type.precision, data_type.scale
        self._told, self._where = told, where
        self._is_mean = is_mean
        self._held = pa.decimal128(DECIMAL_DIGITS, scale)
        # Sums of fewer than 10**10 values fit 38 digits if the column leaves ten of them free.
        is_safe = precision + _SUM_DIGITS <= DECIMAL_DIGITS
        self._added = self._held if is_safe else pa.decimal256(2 * DECIMAL_DIGITS, scale)
        self.partial_types = (self._held, pa.int64())
        summed = pa.decimal128(min(DECIMAL_DIGITS, precision + _SUM_DIGITS), scale)
        self.data_type = _mean_type(precision, scale) if is_mean else summed

    def start(self, column: pa.Array | None, codes: Codes, groups: int) -> list[pa.Array]:
        assert column is not None
        seen = pa.array(_count(column, codes, groups))
        codes, column = _drop_nulls(codes, column)
        return [self._sum(column, codes, groups), seen]

    def combine(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        total, seen = partials
        return [self._sum(total, codes, groups), _add_counts(seen, codes, groups)]

    def result(self, partials: Sequence[pa.Array]) -> pa.Array:
        total, seen = partials
        if not self._is_mean:
            return _null_if_empty(self._fitting(total, self.data_type), seen)
        scale = self.data_type.scale
        pairs = zip(total.to_pylist(), seen.to_pylist(), strict=True)
        means = [_mean(t, n, scale) if n else None for t, n in pairs]
        return self._fitting(
            pa.array(means, pa.decimal256(2 * DECIMAL_DIGITS, scale)), self.data_type
        )

    def _sum(self, column: pa.Array, codes: Codes, groups: int) -> pa.Array:
        sums = self._fitting(_group_by(column.cast(self._added), codes, groups, "sum"), self._held)
        return pc.coalesce(sums, pa.scalar(Decimal(0), self._held))

    def _fitting(self, sums: pa.Array, data_type: pa.DataType) -> pa.Array:
        try:
            return sums.cast(data_type)
        except pa.ArrowInvalid as error:
            raise _overflow(self._told, str(data_type), self._where) from error


class Extreme(Fold):
    """The smallest or largest value."""

    def __init__(self, data_type: pa.DataType, is_min: bool) -> None:
        self.data_type = data_type
        self.partial_types = (data_type,)
        self._is_min = is_min

    def start(self, column: pa.Array | None, codes: Codes, groups: int) -> list[pa.Array]:
        assert column is not None
        codes, column = _drop_nulls(codes, column)
        if not _fits_numpy(self.data_type):
            return [self._by_sorting(column, codes, groups)]
        is_float = pa.types.is_floating(self.data_type)
        held = pa.float64() if is_float else pa.int64()
        values = _cast(column, held).to_numpy()
        fold: np.ufunc
        start: float
        if is_float:
            # NaN counts as the largest value, as in Spark: a minimum ignores it (fmin).
            fold, start = (np.fmin, np.nan) if self._is_min else (np.maximum, -np.inf)
        else:
            limits = np.iinfo(np.int64)
            fold = np.minimum if self._is_min else np.maximum
            start = limits.max if self._is_min else limits.min
        best: npt.NDArray[Any] = np.full(groups, start, values.dtype)
        with np.errstate(invalid="ignore"):  # NaN is a value like any other
            fold.at(best, codes, values)
        empty = np.bincount(codes, minlength=groups) == 0
        best[empty] = 0
        best += 0  # make -0.0 equal 0.0: otherwise the result would depend on which came first
        return [_cast(pa.array(best, held, mask=empty), self.data_type)]

    def combine(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        return self.start(partials[0], codes, groups)

    def result(self, partials: Sequence[pa.Array]) -> pa.Array:
        return partials[0]

    def _by_sorting(self, column: pa.Array, codes: Codes, groups: int) -> pa.Array:
        order = "ascending" if self._is_min else "descending"
        table = pa.table({"code": codes, "value": column})
        ranked = pc.sort_indices(table, sort_keys=[("code", "ascending"), ("value", order)])
        codes = codes[ranked.to_numpy()]
        is_first = np.diff(codes, prepend=-1) != 0
        return _place(column.take(ranked.filter(pa.array(is_first))), codes[is_first], groups)


def _extreme(kind: str, column: str, data_type: pa.DataType, where: str) -> Fold:
    types = pa.types
    is_sorted = types.is_string(data_type) or types.is_binary(data_type)
    is_sorted |= types.is_decimal(data_type) or types.is_uint64(data_type)
    if not (_fits_numpy(data_type) or is_sorted):
        raise WrongType(
            f"{kind} of column {column!r}, which is {data_type}",
            where=where,
            remedy="use a column of numbers, times, strings or binary",
        )
    return Extreme(data_type, kind == "min")


def _fits_numpy(data_type: pa.DataType) -> bool:
    types = pa.types
    is_instant = types.is_timestamp(data_type) or types.is_date32(data_type)
    is_number = types.is_integer(data_type) or types.is_floating(data_type)
    is_number &= not types.is_uint64(data_type)  # the others fit a long
    return bool(is_number or is_instant or types.is_boolean(data_type))


def _count(column: pa.Array | None, codes: Codes, groups: int) -> Codes:
    if column is not None and column.null_count:
        codes = codes[column.is_valid().to_numpy(zero_copy_only=False)]
    return np.bincount(codes, minlength=groups).astype(np.int64, copy=False)


def _add_integers(values: Codes, codes: Codes, groups: int) -> Codes:
    totals = np.zeros(groups, np.int64)
    np.add.at(totals, codes, values)
    return totals


def _add_counts(seen: pa.Array, codes: Codes, groups: int) -> pa.Array:
    return pa.array(_add_integers(seen.to_numpy(), codes, groups))


def _add_floats(column: pa.Array, codes: Codes, groups: int) -> pa.Array:
    codes, column = _drop_nulls(codes, column)
    # Not reduce or reduceat: they add pairwise, bincount one value after the other.
    return pa.array(np.bincount(codes, column.cast(pa.float64()).to_numpy(), groups))


def _add_wide(values: Codes, codes: Codes, groups: int) -> tuple[Codes, Codes]:
    """Sums modulo 2**64, and how many times 2**64 must be added to each."""
    totals = _add_integers(values, codes, groups)
    largest = max(-int(values.min(initial=0)), int(values.max(initial=0)))
    if largest * len(values) < 2**63:
        return totals, np.zeros(groups, np.int64)
    low = _add_integers(values & 0xFFFFFFFF, codes, groups)
    high = _add_integers(values >> 32, codes, groups) + (low >> 32)
    return totals, (high + 2**31) >> 32


def _means(totals: npt.NDArray[Any], seen: pa.Array) -> pa.Array:
    counts = seen.to_numpy()
    return pa.array(totals / np.maximum(counts, 1), mask=counts == 0)


def _null_if_empty(totals: pa.Array, seen: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(seen, 0), pa.scalar(None, totals.type), totals)


def _mean_type(precision: int, scale: int) -> pa.DataType:
    """Spark's type of a mean of decimals."""
    more = [min(DECIMAL_DIGITS, digits + _MEAN_DIGITS) for digits in (precision, scale)]
    return pa.decimal128(*more)


_WIDE: Final = Context(prec=4 * DECIMAL_DIGITS, rounding=ROUND_HALF_UP)


def _mean(total: Decimal, count: int, scale: int) -> Decimal:
    """The mean, rounded twice as Spark does."""
    mean = _WIDE.divide(total, Decimal(count))
    for places in (_DIVISION_SCALE, scale):
        mean = mean.quantize(Decimal(1).scaleb(-places), context=_WIDE)
    return mean


def _overflow(told: str, what: str, where: str) -> ExpressionFailed:
    return ExpressionFailed(
        f"ARITHMETIC_OVERFLOW in {told}: a sum does not fit {what}",
        where=where,
        remedy="make the column a double, or a decimal with more digits, before it is aggregated",
    )


def _drop_nulls(codes: Codes, column: pa.Array) -> tuple[Codes, pa.Array]:
    if not column.null_count:
        return codes, column
    return codes[column.is_valid().to_numpy(zero_copy_only=False)], column.drop_null()


def _group_by(column: pa.Array, codes: Codes, groups: int, function: str) -> pa.Array:
    table = pa.table({"code": codes, "value": column})
    found = table.group_by("code", use_threads=False).aggregate([("value", function)])
    values = found[f"value_{function}"].combine_chunks()
    return _place(values, found["code"].to_numpy(), groups)


def _place(values: pa.Array, codes: Codes, groups: int) -> pa.Array:
    """Each value at the index of its code; null where there is none."""
    where = np.full(groups, -1)
    where[codes] = np.arange(len(codes))
    return values.take(pa.array(where, mask=where < 0))


def _cast(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Cast; between integers and dates via an integer of equal width, as Arrow requires."""
    for wide, narrow in ((column.type, data_type), (data_type, column.type)):
        if pa.types.is_date32(wide) and pa.types.is_int64(narrow):
            return column.cast(pa.int32()).cast(data_type)
    return column.cast(data_type)
