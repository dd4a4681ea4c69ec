"""Arrow columns as JSON, computed by Arrow's kernels, without Python code per row."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.json_types import require_json

_HEX: Final = np.frombuffer(
    b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint8
).reshape(256, 2)
_CONTROLS: Final = {
    **{chr(code): f"\\u{code:04x}" for code in range(32)},
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}


def require_writable(schema: pa.Schema, where: str) -> None:
    """Raise `BadSchema` unless sources can read what these columns are as JSON."""
    remedy = "convert it first; instead of a map whose keys are nested, give an array of structs"
    require_json(schema, "written as JSON", where=where, remedy=remedy)


def as_json(values: pa.Array) -> pa.StringArray:
    """Values as JSON; null stays null.

    Times are strings in ISO format, and bytes are hexadecimal digits as in bytea. Numbers that JSON
    lacks ("NaN", "Infinity") are strings, as in Spark's ``to_json``.

    Examples
    --------
    >>> as_json(pa.array([{"a": [1, None], "b": "x"}, None])).to_pylist()
    ['{"a":[1,null],"b":"x"}', None]
    """
    types, kind = pa.types, values.type
    if types.is_map(kind):
        keys, items = as_json(values.keys), as_json(values.items)
        if not (types.is_string(kind.key_type) or types.is_large_string(kind.key_type)):
            keys = _quoted(pc.replace_substring(keys, '"', ""))
        texts = _listed(values, _joined(keys, ":", _or_null(items)), "{", "}")
    elif types.is_list(kind) or types.is_large_list(kind):
        texts = _listed(values, _or_null(as_json(values.values)), "[", "]")
    elif types.is_struct(kind):
        texts = _struct(values)
    else:
        return _scalars(values)
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string()))


def _scalars(values: pa.Array) -> pa.StringArray:
    types, kind = pa.types, values.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return values.cast(pa.string())
    if types.is_floating(kind):
        texts = pc.if_else(pc.is_nan(values), "NaN", values.cast(pa.string()))
        texts = pc.replace_substring_regex(texts, "inf$", "Infinity")
        return pc.if_else(pc.is_finite(values), texts, _quoted(texts))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _quoted(pc.replace_substring(as_digits(values), "\\", "\\\\"))
    if types.is_timestamp(kind):
        naive = values.cast(pa.timestamp(kind.unit)) if kind.tz else values
        texts = pc.replace_substring(naive.cast(pa.string()), " ", "T")
        return _quoted(_joined(texts, "Z") if kind.tz else texts)
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(_escaped(values.cast(pa.string())))
    return _quoted(values.cast(pa.string()))


def _escaped(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring(texts, "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, "[\\x00-\\x1f]")).as_py():
        for control, escape in _CONTROLS.items():
            texts = pc.replace_substring(texts, control, escape)
    return texts


def _struct(values: pa.StructArray) -> pa.StringArray:
    parts: list[Any] = []
    for i, field in enumerate(values.type):
        head = json.dumps(field.name, ensure_ascii=False)
        parts += [f"{',' if i else '{'}{head}:", _or_null(as_json(values.field(i)))]
    if not parts:
        return pa.array(["{}"] * len(values))
    return _joined(*parts, "}")


def _listed(values: pa.Array, children: pa.Array, begin: str, end: str) -> pa.StringArray:
    """The texts of the children of each list, joined. `children` are those of the whole buffer."""
    offsets = pc.subtract(values.offsets, values.offsets[0]) if len(values) else values.offsets
    first = values.offsets[0].as_py() if len(values) else 0
    last = values.offsets[-1].as_py() if len(values) else 0
    lists = pa.ListArray.from_arrays(offsets.cast(pa.int32()), children.slice(first, last - first))
    return _joined(begin, pc.binary_join(lists, ","), end)


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _quoted(texts: pa.Array) -> pa.Array:
    return _joined('"', texts, '"')


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, "null")


def as_digits(values: pa.Array) -> pa.StringArray:
    """Bytes in bytea's notation: hexadecimal digits after a prefix."""
    values = values.cast(pa.binary())
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    data = values.buffers()[2]
    used = np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]
    digits = pa.py_buffer(np.ascontiguousarray(_HEX[used]))
    starts = pa.py_buffer(np.ascontiguousarray((offsets - offsets[0]) * 2))
    texts = pa.StringArray.from_buffers(len(values), starts, digits)
    texts = pc.binary_join_element_wise("\\x", texts, "")
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string()))
