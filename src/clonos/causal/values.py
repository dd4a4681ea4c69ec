"""Encodings of NumPy arrays and pandas objects, which models take and return."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

import clonos.columns.batches  # registers Arrow batches  # noqa: F401
from clonos.core import canonical
from clonos.errors import ProtocolError, UnencodableValue

ARRAY: Final = 48
SERIES: Final = 49
FRAME: Final = 50
"""Extension codes; they are part of the log format."""


def _encode_array(array: Any) -> bytes:
    if array.dtype.hasobject:
        raise UnencodableValue(
            f"a NumPy array of dtype {array.dtype} cannot be kept",
            remedy="give it a dtype of numbers, or use a list",
        )
    return canonical.encode([array.dtype.str, list(array.shape), array.tobytes()])


def _decode_array(data: bytes) -> Any:
    dtype, shape, content = canonical.decode(data)
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape).copy()


def _encode_frame(frame: Any) -> bytes:
    try:
        batch = pa.RecordBatch.from_pandas(frame)
    except pa.ArrowException as error:
        raise UnencodableValue(
            f"a pandas object cannot be kept: {error}",
            remedy="let its columns have one type each",
        ) from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _decode_frame(data: bytes) -> Any:
    try:
        return pa.ipc.open_stream(data).read_pandas()
    except pa.ArrowException as error:
        raise ProtocolError(f"a pandas object cannot be read: {error}") from error


def _encode_series(series: Any) -> bytes:
    return canonical.encode([series.name, _encode_frame(series.to_frame("value"))])


def _decode_series(data: bytes) -> Any:
    name, content = canonical.decode(data)
    return _decode_frame(content)["value"].rename(name)


canonical.register(ARRAY, np.ndarray, _encode_array, _decode_array)
canonical.register(SERIES, pd.Series, _encode_series, _decode_series)
canonical.register(FRAME, pd.DataFrame, _encode_frame, _decode_frame)
