"""Keys: a hash that is the same everywhere, key groups, and the distinct keys of a batch.

The hash decides which task owns a key, so it must give the same answer in every process and in
every later version: integers are mixed by splitmix64, the rest goes through xxh3, one distinct
value at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from clonos.core.canonical import encode

KEY_GROUPS = 128
"""Keys are hashed into this many groups; a group belongs to one task, so this is also the
highest parallelism of a keyed operator."""

_NULL_HASH = np.uint64(0x9E3779B97F4A7C15)

_SPARSE = 8
"""If integers span at most this many times their number, they are looked up in a table, not by
hash."""

_SMALL = 4096

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]


class DistinctKeys(NamedTuple):
    """The distinct keys of a batch in order of first appearance.

    ``codes`` holds the number of each row's key; ``encoded`` the canonical form (by which state is
    addressed); ``groups`` the key groups.
    """

    codes: Int64
    keys: list[tuple[Any, ...]]
    encoded: list[bytes]
    groups: list[int]


def owner_of_group(group: Any, parallelism: int) -> Any:
    """The index of the task that owns a key group (a number or an array of them)."""
    return group * parallelism // KEY_GROUPS


def hash_columns(columns: Sequence[pa.Array]) -> UInt64:
    """A 64-bit hash per row."""
    result = _hash_column(columns[0])
    for column in columns[1:]:
        result = _mix(result * np.uint64(31) + _hash_column(column))
    return result


def key_groups(columns: Sequence[pa.Array]) -> Int64:
    """The key group of each row."""
    groups: Int64 = (hash_columns(columns) % np.uint64(KEY_GROUPS)).astype(np.int64)
    return groups


def key_columns(batch: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    """The named columns, with -0.0 turned into 0.0 and all NaNs of floats into one."""
    return [_one_zero_one_nan(batch.column(name)) for name in names]


def distinct_keys(batch: pa.RecordBatch, names: Sequence[str]) -> DistinctKeys:
    """Find the distinct keys of a batch."""
    columns = key_columns(batch, names)
    codes, numbers = factorise(columns, batch.num_rows)
    firsts = pa.array(numbers)
    chosen = [column.take(firsts) for column in columns]
    keys = list(zip(*(column.to_pylist() for column in chosen), strict=True))
    encoded = [encode(list(key)) for key in keys]
    return DistinctKeys(codes, keys, encoded, key_groups(chosen).tolist())


def factorise(columns: Sequence[pa.Array], rows: int) -> tuple[Int64, Int64]:
    """Number the distinct rows in order of first appearance.

    Returns
    -------
    codes
        For each row, the number of its distinct row.
    firsts
        For each distinct row, where it first appears. Without columns, all rows are the same.

    Examples
    --------
    >>> codes, firsts = factorise([pa.array(["b", "a", "b"])], 3)
    >>> codes.tolist(), firsts.tolist()
    ([0, 1, 0], [0, 1])
    """
    if not columns or not rows:
        return np.zeros(rows, np.int64), np.zeros(min(rows, 1), np.int64)
    codes, firsts = densify(*_codes(columns[0]))
    for column in columns[1:]:
        other, span = _codes(column)
        if span == 1 or (other[firsts][codes] == other).all():
            continue  # this column distinguishes nothing more
        if len(firsts) * span > _spread(rows):
            other, distinct = densify(other, span)
            span = len(distinct)
        # Numbers stay below rows squared because both factors are at most that many.
        codes, firsts = densify(codes * span + other, len(firsts) * span)
    return codes, firsts


def densify(values: Int64, span: int | None = None) -> tuple[Int64, Int64]:
    """:func:`factorise` for integers; with a `span`, all of them are in ``range(span)``."""
    rows = len(values)
    if not rows:
        return values, values
    if span is None:
        low = int(values.min())
        values, span = values - low, int(values.max()) - low + 1
    if span == 1:
        return values, np.zeros(1, np.int64)
    if span > _spread(rows):
        found = pa.array(values).dictionary_encode().indices.to_numpy().astype(np.int64)
        firsts = np.empty(int(found.max()) + 1, np.int64)
        # If several values go to the same place, the last one stays.
        firsts[found[::-1]] = np.arange(rows)[::-1]
        return found, firsts
    table = np.full(span, rows, np.int32)
    table[values[::-1]] = np.arange(rows, dtype=np.int32)[::-1]
    firsts = np.sort(table[table < rows]).astype(np.int64)
    table[values[firsts]] = np.arange(len(firsts), dtype=np.int32)
    codes: Int64 = table[values].astype(np.int64)
    return codes, firsts


def _spread(rows: int) -> int:
    return _SPARSE * rows + _SMALL


def _codes(column: pa.Array) -> tuple[Int64, int]:
    """Equal numbers for equal values, and an exclusive upper bound of these numbers."""
    data_type = column.type
    if (pa.types.is_integer(data_type) or pa.types.is_timestamp(data_type)) and (
        not column.null_count
    ):
        values = _as_long(column).to_numpy()
        low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
        if span <= _spread(len(values)):
            return np.asarray(values - low, np.int64), span
    if pa.types.is_nested(data_type):
        column = pa.array([encode(value) for value in column.to_pylist()], pa.binary())
    encoded = column.dictionary_encode(null_encoding="encode")
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    return np.asarray(indices, dtype=np.int64), max(1, len(encoded.dictionary))


def _hash_column(column: pa.Array) -> UInt64:
    data_type = column.type
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if pa.types.is_integer(data_type) or pa.types.is_boolean(data_type):
        hashes = _mix(_as_uint64(_as_long(column)))
    elif pa.types.is_date32(data_type):
        hashes = _mix(_as_uint64(column.cast(pa.int32()).cast(pa.int64())))
    elif pa.types.is_timestamp(data_type):
        hashes = _mix(_as_uint64(column.cast(pa.int64())))
    elif pa.types.is_floating(data_type):
        values = _no_nulls(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        hashes = _mix(np.ascontiguousarray(values).view(np.uint64))
    else:
        hashes = _hash_distinct(column)
    return hashes if nulls is None else np.where(nulls, _NULL_HASH, hashes)


def _as_long(column: pa.Array) -> pa.Array:
    """Integers, booleans and times as longs; those that are too large, as negative ones."""
    if column.type == pa.int64():
        return column
    return column.view(pa.int64()) if column.type == pa.uint64() else column.cast(pa.int64())


def _no_nulls(column: pa.Array, instead: float) -> pa.Array:
    return column.fill_null(instead) if column.null_count else column


def _as_uint64(column: pa.Array) -> UInt64:
    values = _no_nulls(column, 0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values).view(np.uint64)


def _hash_distinct(column: pa.Array) -> UInt64:
    if pa.types.is_nested(column.type):
        column = pa.array([encode(value) for value in column.to_pylist()], pa.binary())
    encoded = column.dictionary_encode(null_encoding="encode")
    table = np.fromiter(
        (xxhash.xxh3_64_intdigest(_bytes_of(value)) for value in encoded.dictionary.to_pylist()),
        dtype=np.uint64,
        count=len(encoded.dictionary),
    )
    hashes: UInt64 = table[encoded.indices.to_numpy(zero_copy_only=False)]
    return hashes


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else encode(value)


def _mix(values: UInt64) -> UInt64:
    """splitmix64's finaliser."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64 = values ^ (values >> np.uint64(31))
    return mixed


def has_floats(data_type: pa.DataType) -> bool:
    """Whether values of this type are floats or contain floats.

    Examples
    --------
    >>> has_floats(pa.list_(pa.struct([("x", pa.float32())]))), has_floats(pa.decimal128(5))
    (True, False)
    """
    inner = (data_type.field(i).type for i in range(data_type.num_fields))
    return pa.types.is_floating(data_type) or any(map(has_floats, inner))


def _one_zero_one_nan(column: pa.Array) -> pa.Array:
    if not has_floats(column.type):
        return column
    if pa.types.is_nested(column.type):
        return pa.array(map(_one_inside, column.to_pylist()), column.type)
    values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
    same = np.where(np.isnan(values), np.nan, values + 0.0).astype(values.dtype)
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(same, column.type, mask=mask)


def _one_inside(value: Any) -> Any:
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return {name: _one_inside(inner) for name, inner in value.items()}
    return [*map(_one_inside, value)] if isinstance(value, list) else value
