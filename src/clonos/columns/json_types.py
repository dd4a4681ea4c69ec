"""Which types have a form in JSON: what sinks may write, and sources can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from clonos.errors import BadSchema

_PLAIN: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_null,
)


def missing_in_json(data_type: pa.DataType) -> pa.DataType | None:
    """The type, or the part of it, that has no form in JSON.

    The name of a field is a text, so a map's keys must not be nested.

    Examples
    --------
    >>> missing_in_json(pa.list_(pa.time32("s")))
    Time32Type(time32[s])
    >>> missing_in_json(pa.map_(pa.int64(), pa.string())) is None
    True
    """
    types = pa.types
    if types.is_map(data_type):
        if types.is_nested(data_type.key_type):
            return data_type
        parts = [data_type.key_type, data_type.item_type]
    elif types.is_list(data_type) or types.is_large_list(data_type):
        parts = [data_type.value_type]
    elif types.is_struct(data_type):
        parts = [field.type for field in data_type]
    else:
        return None if any(fits(data_type) for fits in _PLAIN) else data_type
    return next(filter(None, map(missing_in_json, parts)), None)


def require_json(schema: pa.Schema, what: str, *, where: str = "", remedy: str) -> pa.Schema:
    """The schema, if all its types have a form in JSON.

    Parameters
    ----------
    what
        What cannot be done otherwise, for the error: ``"read from JSON"``.

    Raises
    ------
    BadSchema
        A type has no form in JSON.
    """
    for field in schema:
        if (wrong := missing_in_json(field.type)) is not None:
            raise BadSchema(
                f"column {field.name!r}: {wrong} cannot be {what}", where=where, remedy=remedy
            )
    return schema
