"""Encodes and decodes rows, a column at a time: the format of columnar state in a layer.

A row is a head of fixed width, followed by the bytes of its strings::

    per column: 1 byte, whether it is null | its value, or the length of its string
    the strings, one after the other

The bytes under a null are zero, so that equal rows give equal bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.core.canonical import decode, encode

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]

_LENGTH: Final = np.dtype("<u4")
_BITS_PER_BYTE: Final = 8


class RowCodec:
    """Encodes batches of one schema.

    Examples
    --------
    >>> codec = RowCodec(pa.schema([("word", pa.string()), ("n", pa.int64())]))
    >>> encoded = codec.encode([pa.array(["a", None]), pa.array([1, 2])])
    >>> [column.to_pylist() for column in codec.decode(encoded)]
    [['a', None], [1, 2]]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._types = [field.type for field in schema]
        self._widths = [_width(data_type) for data_type in self._types]
        fields: list[tuple[str, Any]] = []
        for number, width in enumerate(self._widths):
            fields += [(f"valid {number}", bool), (f"value {number}", _held(width))]
        self._head = np.dtype(fields)

    @property
    def head_bytes(self) -> int:
        """How long a head is; it ends with the value of the last column, or with its length."""
        return self._head.itemsize

    def encode(self, columns: list[pa.Array]) -> pa.Array:
        """One binary value per row."""
        rows = len(columns[0])
        heads = np.empty(rows, self._head)
        tails: list[pa.Array] = []
        for number, (column, width) in enumerate(zip(columns, self._widths, strict=True)):
            nulls = column.null_count
            valid = column.is_valid().to_numpy(zero_copy_only=False) if nulls else True
            heads[f"valid {number}"] = valid
            if width:
                heads[f"value {number}"] = _fixed_values(column, width)
            else:
                tails.append(_strings(column))
                heads[f"value {number}"] = pc.binary_length(tails[-1]).to_numpy()
        offsets = np.arange(rows + 1, dtype=np.int64) * self._head.itemsize
        encoded = _binary(offsets, heads.view(np.uint8))
        if tails:
            separator = pa.scalar(b"", pa.large_binary())
            encoded = pc.binary_join_element_wise(encoded, *tails, separator)
        return encoded

    def decode(self, encoded: pa.Array) -> list[pa.Array]:
        """The inverse of :meth:`encode`."""
        starts = _offsets(encoded, np.dtype(np.int64))
        data = np.frombuffer(encoded.buffers()[2] or b"", np.uint8)
        size = self._head.itemsize
        # A head may begin at any byte.
        at_each = np.ndarray((max(0, len(data) - size + 1),), self._head, data, strides=(1,))
        heads = at_each[starts[:-1]]
        tail = starts[:-1] + size
        columns = []
        for number, (data_type, width) in enumerate(zip(self._types, self._widths, strict=True)):
            valid = heads[f"valid {number}"]
            values = np.ascontiguousarray(heads[f"value {number}"])
            if width:
                columns.append(_fixed_array(data_type, values, valid))
            else:
                lengths = values.astype(np.int64)
                offsets = np.concatenate([[0], np.cumsum(lengths)])
                if self._widths.count(0) == 1:  # all bytes outside the heads are this column's
                    parts = np.stack([np.full(len(starts) - 1, size), lengths], 1).reshape(-1)
                    is_tail = np.repeat(np.tile([False, True], len(starts) - 1), parts)
                    text = data[starts[0] : starts[-1]][is_tail]
                else:
                    text = data[np.repeat(tail - offsets[:-1], lengths) + np.arange(offsets[-1])]
                columns.append(_string_array(data_type, offsets, text, valid))
                tail = tail + lengths
        return columns


def _held(width: int) -> np.dtype[Any]:
    """The type in which a head holds the bytes of a value (or the length of a string)."""
    if not width:
        return _LENGTH
    return np.dtype(f"<u{width}" if width <= _BITS_PER_BYTE else f"V{width}")


def _width(data_type: pa.DataType) -> int:
    """Bytes of a value; 0 if the width varies."""
    if pa.types.is_boolean(data_type):
        return 1
    if pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type):
        bits: int = data_type.bit_width
        return bits // _BITS_PER_BYTE
    return 0


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _fixed_values(column: pa.Array, width: int) -> npt.NDArray[Any]:
    """The bytes of each value; zero for null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    held, start = _held(width), column.offset * width
    raw = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    values = raw[start : start + len(column) * width].view(held)
    if column.null_count:
        values = values.copy()
        values[column.is_null().to_numpy(zero_copy_only=False)] = np.zeros((), held)
    return values


def _fixed_array(
    data_type: pa.DataType, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]
) -> pa.Array:
    if pa.types.is_boolean(data_type):
        return pa.array(values.astype(bool), mask=~valid)
    buffers = [_validity(valid), pa.py_buffer(values.view(np.uint8))]
    return pa.Array.from_buffers(data_type, len(values), buffers)


def _strings(column: pa.Array) -> pa.Array:
    """As binary without nulls; other types are strings in their canonical encoding."""
    if not _is_text(column.type):
        values = [None if v is None else encode(v) for v in column.to_pylist()]
        column = pa.array(values, pa.binary())
    binary = column.cast(pa.binary()).cast(pa.large_binary())
    return binary.fill_null(b"") if binary.null_count else binary


def _string_array(
    data_type: pa.DataType, offsets: Int64, data: Bytes, valid: npt.NDArray[np.bool_]
) -> pa.Array:
    is_text = _is_text(data_type)
    buffers = [_validity(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    column = pa.Array.from_buffers(data_type if is_text else pa.binary(), len(valid), buffers)
    if is_text:
        return column
    values: list[Any] = [None if v is None else decode(v) for v in column.to_pylist()]
    return pa.array(values, data_type)


def _offsets(column: pa.Array, dtype: np.dtype[Any]) -> Int64:
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], dtype)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _binary(offsets: Int64, data: Bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
