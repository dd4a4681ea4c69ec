"""The digest of a batch: equal for equal rows, however Arrow laid them out in memory.

Arrow does not define the bytes under a null, nor those before and after a slice, so neither the
buffers nor their IPC form can be hashed as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from clonos.core.canonical import encode

_BITS_PER_BYTE = 8


def content_digest(batch: pa.RecordBatch) -> int:
    """A 64-bit hash of the rows."""
    state = xxhash.xxh3_64()
    for column in batch.columns:
        _update(state, column)
    return state.intdigest()


def have_same_rows(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether two batches have the same columns and the same rows. To Arrow, NaN is not NaN.

    Examples
    --------
    >>> batch = pa.RecordBatch.from_pydict({"x": [float("nan")]})
    >>> batch.equals(batch.slice(0, 1)), have_same_rows(batch, batch.slice(0, 1))
    (False, True)
    """
    if one.equals(other):
        return True
    is_alike = one.schema.equals(other.schema) and one.num_rows == other.num_rows
    return is_alike and content_digest(one) == content_digest(other)


def _update(state: Any, column: pa.Array) -> None:
    nulls = column.null_count
    state.update(b"%d,%d;" % (len(column), nulls))
    if nulls:
        state.update(_as_bytes(column.is_valid()))
        column = column.drop_null()
    if len(column):
        _UPDATES.get(column.type.id, _update_rest)(state, column)


def _update_struct(state: Any, column: pa.Array) -> None:
    for child in column.flatten():
        _update(state, child)


def _update_list(state: Any, column: pa.Array) -> None:
    state.update(pc.list_value_length(column).to_numpy())
    _update(state, column.flatten())


def _update_boolean(state: Any, column: pa.Array) -> None:
    state.update(_as_bytes(column))


def _update_small(state: Any, column: pa.Array) -> None:
    _update_variable(state, column, _SMALL)


def _update_large(state: Any, column: pa.Array) -> None:
    _update_variable(state, column, _LARGE)


def _update_rest(state: Any, column: pa.Array) -> None:
    data_type = column.type
    if pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type):
        width = data_type.bit_width // _BITS_PER_BYTE
        values = column.buffers()[1]
        if column.offset or values.size != len(column) * width:
            values = values.slice(column.offset * width, len(column) * width)
        state.update(values)
    else:
        state.update(encode(column.to_pylist()))


_SMALL, _LARGE = np.dtype(np.int32), np.dtype(np.int64)

_UPDATES: Final[dict[int, Callable[[Any, pa.Array], None]]] = {
    pa.struct([]).id: _update_struct,
    pa.list_(pa.null()).id: _update_list,
    pa.bool_().id: _update_boolean,
    pa.string().id: _update_small,
    pa.binary().id: _update_small,
    pa.large_string().id: _update_large,
    pa.large_binary().id: _update_large,
}
"""By kind of type; fixed-size lists and other rare types take the slow path."""


def _update_variable(state: Any, column: pa.Array, dtype: np.dtype[Any]) -> None:
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    state.update(np.diff(offsets))
    start, end = int(offsets[0]), int(offsets[-1])
    if end > start:
        state.update(data.slice(start, end - start))


def _as_bytes(booleans: pa.Array) -> Any:
    return booleans.cast(pa.uint8()).to_numpy()
