"""Rows as bytes and back, a column at a time: what columnar state looks like in a layer.

A row is a head of fixed width, followed by the bytes of its strings::

    per column: 1 byte, whether it is null | its value, or the length of its string
    the strings, one behind the other

What lies under a null is zero, so that equal rows give equal bytes.
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
        self._head = sum(1 + (width or _LENGTH.itemsize) for width in self._widths)

    def encode(self, columns: list[pa.Array]) -> pa.Array:
        """One binary value per row."""
        rows = len(columns[0])
        heads = np.empty((rows, self._head), np.uint8)
        tails: list[pa.Array] = []
        at = 0
        for column, width in zip(columns, self._widths, strict=True):
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            heads[:, at] = valid
            at += 1
            if width:
                heads[:, at : at + width] = _fixed_bytes(column, width, valid)
                at += width
            else:
                tails.append(_strings(column))
                lengths = pc.binary_length(tails[-1]).to_numpy().astype(_LENGTH)
                heads[:, at : at + _LENGTH.itemsize] = lengths.view(np.uint8).reshape(
                    rows, _LENGTH.itemsize
                )
                at += _LENGTH.itemsize
        offsets = np.arange(rows + 1, dtype=np.int64) * self._head
        encoded = _binary(offsets, heads.reshape(-1))
        if tails:
            separator = pa.scalar(b"", pa.large_binary())
            encoded = pc.binary_join_element_wise(encoded, *tails, separator)
        return encoded

    def decode(self, encoded: pa.Array) -> list[pa.Array]:
        """The inverse of :meth:`encode`."""
        starts = _offsets(encoded, np.dtype(np.int64))
        data = np.frombuffer(encoded.buffers()[2] or b"", np.uint8)
        heads = data[starts[:-1, None] + np.arange(self._head)]
        at, tail = 0, starts[:-1] + self._head
        columns = []
        for data_type, width in zip(self._types, self._widths, strict=True):
            valid = heads[:, at].view(bool)
            at += 1
            taken = width or _LENGTH.itemsize
            values = np.ascontiguousarray(heads[:, at : at + taken])
            at += taken
            if width:
                columns.append(_fixed_array(data_type, values, valid))
            else:
                lengths = values.view(_LENGTH)[:, 0].astype(np.int64)
                offsets = np.concatenate([[0], np.cumsum(lengths)])
                if self._widths.count(0) == 1:  # what is not a head is this column
                    is_head = np.zeros(len(data), bool)
                    is_head[starts[:-1, None] + np.arange(self._head)] = True
                    text = data[starts[0] : starts[-1]][~is_head[starts[0] : starts[-1]]]
                else:
                    places = np.repeat(tail - offsets[:-1], lengths) + np.arange(offsets[-1])
                    text = data[places]
                columns.append(_string_array(data_type, offsets, text, valid))
                tail = tail + lengths
        return columns


def _width(data_type: pa.DataType) -> int:
    """Bytes of a value; 0 if that varies."""
    if pa.types.is_boolean(data_type):
        return 1
    if pa.types.is_primitive(data_type) or pa.types.is_decimal(data_type):
        bits: int = data_type.bit_width
        return bits // _BITS_PER_BYTE
    return 0


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def _fixed_bytes(column: pa.Array, width: int, valid: npt.NDArray[np.bool_]) -> Bytes:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    start = column.offset * width
    raw = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    values = raw[start : start + len(column) * width].reshape(len(column), width)
    return np.where(valid[:, None], values, 0) if column.null_count else values


def _fixed_array(data_type: pa.DataType, values: Bytes, valid: npt.NDArray[np.bool_]) -> pa.Array:
    if pa.types.is_boolean(data_type):
        return pa.array(values[:, 0].astype(bool), mask=~valid)
    buffers = [_validity(valid), pa.py_buffer(values)]
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
