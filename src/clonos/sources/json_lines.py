"""JSON objects, one per line, as Arrow columns: whatever our sinks write as JSON can be read.

Arrow's parser reads nearly all lines. It does not know maps, bytes, and numbers that are written as
texts ("NaN"), and takes a number that is too large for infinity. Lines with any of these are read
here, value by value; types are converted by Arrow's casts in both cases.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from clonos.columns.json_types import require_json
from clonos.columns.kept_values import infinities
from clonos.columns.schema import type_name

DEPTH_MAX: Final = 500
"""Objects and lists in each other, where Python's parser reads them: it stops at some depth that
depends on who calls it."""

_OPENS_OR_CLOSES: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]')
_HAS_ZONE: Final = re.compile(r"(?:Z|[+-]\d\d(?::?\d\d)?)$")
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_MARK: Final = "\\x"
"""How bytes begin, as in PostgreSQL; then hexadecimal digits follow."""


class _Object(dict[str, Any]):
    """An object of JSON; it remembers which names were there twice."""

    __slots__ = ("twice",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs] if len(self) < len(pairs) else []
        self.twice = {name for name in names if names.count(name) > 1}

    def part(self, name: str) -> Any:
        """The value of that name, or None."""
        if name in self.twice:
            raise ValueError(f"{name!r} is there twice")
        return self.get(name)


_NO_PARTS: Final = _Object([])


class _Number(str):
    """The text of a number: a float would lose digits of a decimal."""

    __slots__ = ()


def require_readable(schema: pa.Schema) -> pa.Schema:
    """The schema; raises `BadSchema` unless its columns can be read from JSON."""
    remedy = 'read it as a "string", or give another type'
    return require_json(schema, "read from JSON", remedy=remedy)


def parse_json(lines: pa.Array, schema: pa.Schema) -> pa.Table:
    """One row for each line; unknown fields are ignored.

    Raises
    ------
    ValueError, pyarrow.ArrowException
        A line is no object of this schema.
    """
    text = pc.ascii_trim_whitespace(lines.cast(pa.string()))
    # Otherwise two broken lines could form an object together.
    if not pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))).as_py():
        raise ValueError("not a JSON object")
    if not _form_of(schema).is_only_here:
        try:
            return _by_arrow(lines, schema)
        except (pa.ArrowException, ValueError):
            pass
    rows = [_object(line) for line in text.to_pylist()]
    columns = [_column([row.part(f.name) for row in rows], f.type, f.name) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _by_arrow(lines: pa.Array, schema: pa.Schema) -> pa.Table:
    form = _form_of(schema)
    text = b"\n".join([*lines.to_pylist(), b""])
    # A single block, because blocks are parsed independently.
    read = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 16)
    table = pa_json.read_json(io.BytesIO(text), read_options=read, parse_options=form.options)
    if table.num_rows != len(lines):
        raise ValueError(f"{table.num_rows} rows in {len(lines)} lines")
    columns = [table.column(name) for name in schema.names]
    for i in form.texts:
        columns[i] = columns[i].cast(schema.field(i).type)
    if any(infinities(chunk) for i in form.floats for chunk in columns[i].chunks):
        raise ValueError("infinity, or a number that is too large")
    return pa.Table.from_arrays(columns, schema=schema)


class _Form(NamedTuple):
    """How a schema is read; `texts` and `floats` are the columns that have some inside."""

    options: pa_json.ParseOptions
    texts: tuple[int, ...]
    floats: tuple[int, ...]
    is_only_here: bool


@lru_cache(maxsize=64)
def _form_of(schema: pa.Schema) -> _Form:
    types = list(schema.types)
    given = pa.schema([field.with_type(_as_text(field.type)) for field in schema])
    return _Form(
        pa_json.ParseOptions(explicit_schema=given, unexpected_field_behavior="ignore"),
        tuple(i for i, kind in enumerate(types) if kind != given.types[i]),
        tuple(i for i, kind in enumerate(types) if _is_in(kind, pa.types.is_floating)),
        any(_is_in(kind, _only_here) for kind in types),
    )


def _as_text(data_type: pa.DataType) -> pa.DataType:
    """The type with texts for what Arrow takes from numbers, or without looking at the zone."""
    types = pa.types
    if types.is_date(data_type) or (types.is_timestamp(data_type) and data_type.tz is None):
        return pa.string()
    if types.is_list(data_type):
        return pa.list_(_as_text_field(data_type.value_field))
    if types.is_large_list(data_type):
        return pa.large_list(_as_text_field(data_type.value_field))
    if types.is_struct(data_type):
        return pa.struct([_as_text_field(field) for field in data_type])
    return data_type


def _as_text_field(field: pa.Field) -> pa.Field:
    return field.with_type(_as_text(field.type))


def _object(line: str) -> _Object:
    if line.count("[") + line.count("{") > DEPTH_MAX and _depth(line) > DEPTH_MAX:
        raise ValueError(f"more than {DEPTH_MAX} objects and lists are in each other")
    found = json.loads(
        line,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=_Number,
        object_pairs_hook=_Object,
    )
    if not isinstance(found, _Object):
        raise ValueError("not a JSON object")  # noqa: TRY004 - of the line, not of an argument
    return found


def _depth(line: str) -> int:
    depth = deepest = 0
    for mark in _OPENS_OR_CLOSES.findall(line):
        depth += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, depth)
    return deepest


def _column(values: list[Any], data_type: pa.DataType, name: str) -> pa.Array:
    """An array of parsed values; `name` is for errors."""
    types = pa.types
    if types.is_struct(data_type):
        return _structs(values, data_type, name)
    if types.is_map(data_type):
        return _maps(values, data_type, name)
    if types.is_list(data_type) or types.is_large_list(data_type):
        _require(values, list, data_type, name)
        inside = [item for value in values if value is not None for item in value]
        items = _column(inside, data_type.value_type, f"{name}.element")
        if types.is_large_list(data_type):
            offsets = _offsets(values).cast(pa.int64())
            return pa.LargeListArray.from_arrays(offsets, items, type=data_type)
        return pa.ListArray.from_arrays(_offsets(values), items, type=data_type)
    if types.is_null(data_type):
        _require(values, type(None), data_type, name)
        return pa.nulls(len(values))
    if types.is_boolean(data_type):
        _require(values, bool, data_type, name)
        return pa.array(values, data_type)
    if types.is_integer(data_type) or types.is_floating(data_type):
        texts = [_number_text(value, data_type, name) for value in values]
        return _numbers(texts, data_type, name)
    if types.is_decimal(data_type):
        _require(values, str, data_type, name)
        return pa.array([None if v is None else str(v) for v in values], pa.string()).cast(
            data_type
        )
    _require(values, str, data_type, name)
    if any(type(value) is _Number for value in values):
        raise ValueError(f"{name}: a number is no {type_name(data_type)}")
    return _texts(values, data_type)


def _structs(values: list[Any], data_type: pa.DataType, name: str) -> pa.Array:
    _require(values, _Object, data_type, name)
    given = [value or _NO_PARTS for value in values]
    children = [
        _column([value.part(part.name) for value in given], part.type, f"{name}.{part.name}")
        for part in data_type
    ]
    is_null = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(data_type), mask=is_null)


def _maps(values: list[Any], data_type: pa.DataType, name: str) -> pa.Array:
    _require(values, _Object, data_type, name)
    given = [value for value in values if value is not None]
    if twice := [key for value in given for key in value.twice]:
        raise ValueError(f"{name}: the key {min(twice)!r} is there twice")
    keys = [key for value in given for key in value]
    items = [item for value in given for item in value.values()]
    kind = data_type.key_type
    if pa.types.is_boolean(kind):
        found = pa.array(keys, pa.string()).cast(kind)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        found = _numbers(list(map(str, keys)), kind, f"{name}.key")
    else:
        found = _column(keys, kind, f"{name}.key")
    inside = _column(items, data_type.item_type, f"{name}.value")
    return pa.MapArray.from_arrays(_offsets(values), found, inside, type=data_type)


def _require(values: list[Any], kind: type, data_type: pa.DataType, name: str) -> None:
    for value in values:
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name}: {_shown(value)} is no {type_name(data_type)}")


def _shown(value: Any) -> str:
    if isinstance(value, (_Number, bool)):
        return str(value)[:40].lower()
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, _Object) else repr(value)[:40]


def _offsets(values: list[Any]) -> pa.Array:
    """Where lists and maps begin; null where there is none."""
    offsets: list[int | None] = []
    at = 0
    for value in values:
        offsets.append(None if value is None else at)
        at += len(value or ())
    return pa.array([*offsets, at], pa.int32())


def _number_text(value: Any, data_type: pa.DataType, name: str) -> str | None:
    is_word = isinstance(value, str) and value in _NO_NUMBERS and pa.types.is_floating(data_type)
    if value is None or is_word or type(value) is _Number:
        return value  # type: ignore[no-any-return]
    raise ValueError(f"{name}: {_shown(value)} is no {type_name(data_type)}")


def _numbers(texts: list[str | None], data_type: pa.DataType, name: str) -> pa.Array:
    found = pa.array([None if t is None else str(t) for t in texts], pa.string()).cast(data_type)
    if pa.types.is_floating(data_type):
        for text, is_inf in zip(texts, pc.is_inf(found).to_pylist(), strict=True):
            if is_inf and text not in _NO_NUMBERS:
                raise ValueError(f"{name}: {text} is too large for {type_name(data_type)}")
    return found


def _texts(values: list[str | None], data_type: pa.DataType) -> pa.Array:
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return pa.array([None if v is None else _bytes(v) for v in values], data_type)
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        # Arrow's parser of JSON takes a time without a zone for one of UTC; its cast refuses it.
        has_zone = [v is not None and _HAS_ZONE.search(v[10:]) is not None for v in values]
        zoned = [v if has else None for v, has in zip(values, has_zone, strict=True)]
        naive = [None if has else v for v, has in zip(values, has_zone, strict=True)]
        moments = pa.array(naive, pa.string()).cast(pa.timestamp(data_type.unit))
        return pc.coalesce(pa.array(zoned, pa.string()).cast(data_type), moments.cast(data_type))
    return pa.array(values, pa.string()).cast(data_type)


def _bytes(text: str) -> bytes:
    if text.startswith(_MARK):
        return bytes.fromhex(text[len(_MARK) :])
    return text.encode()


def _only_here(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_map(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
    )


def _is_in(data_type: pa.DataType, fits: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type, or a part of it, fits."""
    if fits(data_type):
        return True
    if not pa.types.is_nested(data_type):
        return False
    return any(_is_in(data_type.field(i).type, fits) for i in range(data_type.num_fields))
