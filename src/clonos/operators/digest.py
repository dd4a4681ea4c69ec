"""The digest of a batch: equal for equal rows, however Arrow laid them out in memory.

Arrow leaves open what lies under a null, behind the last row and before the first of a slice, so
neither buffers nor their IPC form can be hashed as they are.
"""

from __future__ import annotations

from typing import Any

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


def _update(state: Any, column: pa.Array) -> None:
    state.update(b"%d,%d;" % (len(column), column.null_count))
    if column.null_count:
        state.update(_as_bytes(column.is_valid()))
        column = column.drop_null()
    data_type = column.type
    if not len(column):
        return
    if pa.types.is_struct(data_type):
        for child in column.flatten():
            _update(state, child)
    elif pa.types.is_list(data_type):
        state.update(pc.list_value_length(column).to_numpy())
        _update(state, column.flatten())
    elif pa.types.is_boolean(data_type):
        state.update(_as_bytes(column))
    elif pa.types.is_string(data_type) or pa.types.is_binary(data_type):
        _update_variable(state, column, np.dtype(np.int32))
    elif pa.types.is_large_string(data_type) or pa.types.is_large_binary(data_type):
        _update_variable(state, column, np.dtype(np.int64))
    elif pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type):
        width = data_type.bit_width // _BITS_PER_BYTE
        values = column.buffers()[1]
        state.update(values.slice(column.offset * width, len(column) * width))
    else:
        state.update(encode(column.to_pylist()))


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
