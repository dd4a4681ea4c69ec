"""Aggregates in columns: rows are folded into *partials*, one per group, and partials into others.

All fold in the order in which rows came, so that sums of floats are the same on replay. Nulls are
ignored, as in SQL; an aggregate of nothing but nulls is null (a count is 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.errors import WrongType

Codes = npt.NDArray[np.int64]

_DECIMAL_PRECISION_MAX = 38


class Aggregate(NamedTuple):
    """What to compute of which column (None: of rows)."""

    kind: str
    column: str | None

    def fold(self, schema: pa.Schema, where: str) -> Fold:
        """How it is computed for a column of this type.

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
        if pa.types.is_decimal(data_type) and self.kind in ("sum", "avg"):
            return Sum(pa.decimal128(_DECIMAL_PRECISION_MAX, data_type.scale), self.kind == "avg")
        if not (pa.types.is_integer(data_type) or pa.types.is_floating(data_type)):
            raise WrongType(
                f"{self.kind} of column {self.column!r}, which is {data_type}",
                where=where,
                remedy="aggregate a numeric column, or count() rows",
            )
        held = pa.float64() if pa.types.is_floating(data_type) else pa.int64()
        return Sum(held, self.kind == "avg")


class Fold:
    """One aggregate.

    ``codes`` says for each row or partial which of `groups` groups it belongs to; every group has
    at least one.
    """

    data_type: pa.DataType
    partial_types: tuple[pa.DataType, ...]

    is_exact = True
    """Whether partials may be made of any rows in any order without changing the result."""

    def start(self, column: pa.Array | None, codes: Codes, groups: int) -> list[pa.Array]:
        """The partials of rows: a column for each of the partial's types."""
        raise NotImplementedError

    def combine(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        """The partials of partials."""
        raise NotImplementedError

    def result(self, partials: Sequence[pa.Array]) -> pa.Array:
        """What the partials amount to."""
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


class Sum(Fold):
    """Sum or mean, as a sum and the number of values.

    Integers wrap around at 64 bits, as in Spark. The mean is a double.
    """

    def __init__(self, held: pa.DataType, is_mean: bool) -> None:
        self.is_exact = not pa.types.is_floating(held)
        self._is_mean = is_mean
        self.data_type = pa.float64() if is_mean else held
        self.partial_types = (held, pa.int64())

    def start(self, column: pa.Array | None, codes: Codes, groups: int) -> list[pa.Array]:
        assert column is not None
        return [self._sum(column, codes, groups), pa.array(_count(column, codes, groups))]

    def combine(self, partials: Sequence[pa.Array], codes: Codes, groups: int) -> list[pa.Array]:
        total, seen = partials
        return [
            self._sum(total, codes, groups),
            pa.array(_add_integers(seen.to_numpy(), codes, groups)),
        ]

    def result(self, partials: Sequence[pa.Array]) -> pa.Array:
        total, seen = partials
        empty = pc.equal(seen, 0)
        if not self._is_mean:
            return pc.if_else(empty, pa.scalar(None, total.type), total)
        if pa.types.is_decimal(total.type):
            pairs = zip(total.to_pylist(), seen.to_pylist(), strict=True)
            return pa.array([float(t / n) if n else None for t, n in pairs], pa.float64())
        values = total.to_numpy() / np.maximum(seen.to_numpy(), 1)
        return pa.array(values, mask=empty.to_numpy(zero_copy_only=False))

    def _sum(self, column: pa.Array, codes: Codes, groups: int) -> pa.Array:
        codes, column = _drop_nulls(codes, column)
        held = self.partial_types[0]
        if pa.types.is_decimal(held):
            sums = _group_by(column.cast(held), codes, groups, "sum")
            return pc.coalesce(sums.cast(held), pa.scalar(Decimal(0), held))
        values = column.cast(held).to_numpy()
        if pa.types.is_floating(held):
            # bincount adds one after the other, reduce and reduceat pairwise.
            return pa.array(np.bincount(codes, values, groups))
        return pa.array(_add_integers(values, codes, groups))


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
    if not (_fits_numpy(data_type) or is_sorted or types.is_decimal(data_type)):
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
    return bool(is_number or is_instant or types.is_boolean(data_type))


def _count(column: pa.Array | None, codes: Codes, groups: int) -> Codes:
    if column is not None and column.null_count:
        codes = codes[column.is_valid().to_numpy(zero_copy_only=False)]
    return np.bincount(codes, minlength=groups).astype(np.int64, copy=False)


def _add_integers(values: Codes, codes: Codes, groups: int) -> Codes:
    totals = np.zeros(groups, np.int64)
    np.add.at(totals, codes, values)
    return totals


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
    """Each value at its code; null where there is none."""
    where = np.full(groups, -1)
    where[codes] = np.arange(len(codes))
    return values.take(pa.array(where, mask=where < 0))


def _cast(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Cast also between integers and dates, for which Arrow wants an equally wide step."""
    for wide, narrow in ((column.type, data_type), (data_type, column.type)):
        if pa.types.is_date32(wide) and pa.types.is_int64(narrow):
            return column.cast(pa.int32()).cast(data_type)
    return column.cast(data_type)
