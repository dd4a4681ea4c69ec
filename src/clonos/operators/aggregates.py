"""Aggregates of windows, held as arrays: one entry per (window, key), the *slot*.

All fold rows in the order in which they came, so that sums of floats are the same on replay.
Nulls are ignored, as in SQL; an aggregate of nothing but nulls is null (a count is 0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.errors import WrongType

Slots = npt.NDArray[np.int64]

_FIRST_CAPACITY = 64
_DECIMAL_PRECISION_MAX = 38


class Aggregate(NamedTuple):
    """What to compute of which column (None: of rows)."""

    kind: str
    column: str | None

    def accumulator(self, schema: pa.Schema, where: str) -> Accumulator:
        """An empty accumulator for a column of this type.

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
        if pa.types.is_decimal(data_type):
            return _decimal_sum(self.kind, self.column, data_type, where)
        if not (pa.types.is_integer(data_type) or pa.types.is_floating(data_type)):
            raise WrongType(
                f"{self.kind} of column {self.column!r}, which is {data_type}",
                where=where,
                remedy="aggregate a numeric column, or count() rows",
            )
        is_float = pa.types.is_floating(data_type)
        if self.kind == "avg":
            return Average()
        return Numbers(pa.float64() if is_float else pa.int64(), np.add, 0.0 if is_float else 0)


class Accumulator:
    """State of one aggregate for all slots."""

    data_type: pa.DataType

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        raise NotImplementedError

    def clear(self, slots: Slots) -> None:
        """Begin anew in these slots."""
        raise NotImplementedError

    def add(self, slots: Slots, column: pa.Array | None, rows: int) -> None:
        """Fold one value per row into the slot of that row."""
        raise NotImplementedError

    def save(self, slots: Slots) -> list[Any]:
        """The state of these slots as plain values."""
        raise NotImplementedError

    def load(self, slots: Slots, saved: Sequence[Any]) -> None:
        """The inverse of :meth:`save`."""
        raise NotImplementedError

    def result(self, slots: Slots) -> pa.Array:
        """The aggregate of these slots."""
        raise NotImplementedError


class Count(Accumulator):
    """Rows, or the values of a column that are not null."""

    data_type = pa.int64()

    def __init__(self) -> None:
        self._counts = np.zeros(_FIRST_CAPACITY, np.int64)

    def grow(self, capacity: int) -> None:
        self._counts = _grown(self._counts, capacity)

    def clear(self, slots: Slots) -> None:
        self._counts[slots] = 0

    def add(self, slots: Slots, column: pa.Array | None, rows: int) -> None:
        if column is not None and column.null_count:
            slots = slots[column.is_valid().to_numpy(zero_copy_only=False)]
        np.add.at(self._counts, slots, 1)

    def save(self, slots: Slots) -> list[Any]:
        return list(self._counts[slots].tolist())

    def load(self, slots: Slots, saved: Sequence[Any]) -> None:
        self._counts[slots] = saved

    def result(self, slots: Slots) -> pa.Array:
        return pa.array(self._counts[slots], self.data_type)


class Numbers(Accumulator):
    """Sum, min or max of what fits a numpy array; ``fold`` is the ufunc that does it.

    Integers wrap around at 64 bits, as in Spark. Dates, times and booleans are held as integers.
    """

    def __init__(self, data_type: pa.DataType, fold: np.ufunc, start: float) -> None:
        self.data_type = data_type
        self._held_type = pa.float64() if pa.types.is_floating(data_type) else pa.int64()
        self._fold = fold
        self._start = start
        dtype = np.float64 if pa.types.is_floating(data_type) else np.int64
        self._values: npt.NDArray[Any] = np.full(_FIRST_CAPACITY, start, dtype)
        self._seen = np.zeros(_FIRST_CAPACITY, np.int64)

    def grow(self, capacity: int) -> None:
        self._values = _grown(self._values, capacity)
        self._seen = _grown(self._seen, capacity)

    def clear(self, slots: Slots) -> None:
        self._values[slots] = self._start
        self._seen[slots] = 0

    def add(self, slots: Slots, column: pa.Array | None, rows: int) -> None:
        assert column is not None
        if column.null_count:
            slots = slots[column.is_valid().to_numpy(zero_copy_only=False)]
            column = column.drop_null()
        values = _cast(column, self._held_type).to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):  # NaN is a value like any other
            self._fold.at(self._values, slots, values)
        np.add.at(self._seen, slots, 1)

    def save(self, slots: Slots) -> list[Any]:
        pairs = zip(self._values[slots].tolist(), self._seen[slots].tolist(), strict=True)
        return list(map(list, pairs))  # lists are quicker to encode than tuples

    def load(self, slots: Slots, saved: Sequence[Any]) -> None:
        self._values[slots], self._seen[slots] = zip(*saved, strict=True)

    def result(self, slots: Slots) -> pa.Array:
        empty = self._seen[slots] == 0
        values = np.where(empty, 0, self._values[slots])
        return _cast(pa.array(values, self._held_type, mask=empty), self.data_type)


class Average(Numbers):
    """Mean, as sum and count."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), np.add, 0.0)

    def result(self, slots: Slots) -> pa.Array:
        seen = self._seen[slots]
        empty = seen == 0
        mean = np.where(empty, 0.0, self._values[slots] / np.where(empty, 1, seen))
        return pa.array(mean, pa.float64(), mask=empty)


class Objects(Accumulator):
    """Min, max or sum of values that only Python compares or adds: strings, bytes, decimals."""

    def __init__(self, data_type: pa.DataType, fold: Callable[[Any, Any], Any]) -> None:
        self.data_type = data_type
        self._fold = fold
        self._values: list[Any] = [None] * _FIRST_CAPACITY

    def grow(self, capacity: int) -> None:
        self._values.extend([None] * (capacity - len(self._values)))

    def clear(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._values[slot] = None

    def add(self, slots: Slots, column: pa.Array | None, rows: int) -> None:
        assert column is not None
        values = self._values
        for slot, value in zip(slots.tolist(), column.to_pylist(), strict=True):
            if value is not None:
                old = values[slot]
                values[slot] = value if old is None else self._fold(old, value)

    def save(self, slots: Slots) -> list[Any]:
        return [self._values[slot] for slot in slots.tolist()]

    def load(self, slots: Slots, saved: Sequence[Any]) -> None:
        for slot, value in zip(slots.tolist(), saved, strict=True):
            self._values[slot] = value

    def result(self, slots: Slots) -> pa.Array:
        return pa.array(self.save(slots), self.data_type)


class AverageOfDecimals(Objects):
    """Mean of decimals: the sum is exact, the mean a double."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), lambda old, new: (old[0] + new[0], old[1] + new[1]))

    def add(self, slots: Slots, column: pa.Array | None, rows: int) -> None:
        assert column is not None
        for slot, value in zip(slots.tolist(), column.to_pylist(), strict=True):
            if value is not None:
                total, seen = self._values[slot] or (Decimal(0), 0)
                self._values[slot] = (total + value, seen + 1)

    def result(self, slots: Slots) -> pa.Array:
        pairs = self.save(slots)
        return pa.array([p and float(p[0] / p[1]) for p in pairs], pa.float64())


def _extreme(kind: str, column: str, data_type: pa.DataType, where: str) -> Accumulator:
    types = pa.types
    is_min = kind == "min"
    fold: np.ufunc
    start: float
    if types.is_floating(data_type):
        # NaN counts as the largest value, as in Spark: a minimum ignores it (fmin).
        fold, start = (np.fmin, np.nan) if is_min else (np.maximum, -np.inf)
        return Numbers(data_type, fold, start)
    is_instant = types.is_timestamp(data_type) or types.is_date32(data_type)
    if types.is_integer(data_type) or types.is_boolean(data_type) or is_instant:
        limits = np.iinfo(np.int64)
        fold, start = (np.minimum, limits.max) if is_min else (np.maximum, limits.min)
        return Numbers(data_type, fold, start)
    if types.is_string(data_type) or types.is_binary(data_type) or types.is_decimal(data_type):
        return Objects(data_type, min if is_min else max)
    raise WrongType(
        f"{kind} of column {column!r}, which is {data_type}",
        where=where,
        remedy="use a column of numbers, times, strings or binary",
    )


def _decimal_sum(kind: str, column: str, data_type: pa.DataType, where: str) -> Accumulator:
    if kind == "avg":
        return AverageOfDecimals()
    if kind != "sum":
        raise WrongType(f"{kind} of column {column!r}, which is {data_type}", where=where)
    return Objects(
        pa.decimal128(_DECIMAL_PRECISION_MAX, data_type.scale), lambda old, new: old + new
    )


def _cast(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Cast also between integers and dates, for which Arrow wants an equally wide step."""
    for wide, narrow in ((column.type, data_type), (data_type, column.type)):
        if pa.types.is_date32(wide) and pa.types.is_int64(narrow):
            return column.cast(pa.int32()).cast(data_type)
    return column.cast(data_type)


def _grown(values: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    grown = np.empty(capacity, values.dtype)
    grown[: len(values)] = values
    return grown


def output_schema(
    schema: pa.Schema, keys: Sequence[str], aggregates: Sequence[tuple[str, Accumulator]]
) -> pa.Schema:
    """Keys, the window, the aggregates."""
    timestamp = pa.timestamp("us", "UTC")
    return pa.schema(
        [
            *(schema.field(key) for key in keys),
            pa.field("window_start", timestamp, nullable=False),
            pa.field("window_end", timestamp, nullable=False),
            *(pa.field(name, accumulator.data_type) for name, accumulator in aggregates),
        ]
    )
