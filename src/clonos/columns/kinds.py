"""Kinds of types, as functions of column expressions distinguish them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyarrow import types

from clonos.columns.schema import TIMESTAMP

BOOLEAN: Final = "boolean"
INTEGER: Final = "integer"
FLOATING: Final = "floating"
DECIMAL: Final = "decimal"
STRING: Final = "string"
BINARY: Final = "binary"
DATE: Final = "date"
ZONED: Final = "timestamp"
LOCAL: Final = "timestamp_ntz"
INTERVAL: Final = "interval"
STRUCT: Final = "struct"
OTHER: Final = "other"

NUMBER: Final = frozenset({INTEGER, FLOATING})
MOMENT: Final = frozenset({ZONED, LOCAL})
SIMPLE: Final = frozenset({BOOLEAN, INTEGER, FLOATING, DECIMAL, STRING, BINARY, DATE, *MOMENT})
"""Kinds of values that can be compared, chosen and passed on."""

_KINDS: Final = {
    pa.bool_(): BOOLEAN,
    pa.int8(): INTEGER,
    pa.int16(): INTEGER,
    pa.int32(): INTEGER,
    pa.int64(): INTEGER,
    pa.float32(): FLOATING,
    pa.float64(): FLOATING,
    pa.string(): STRING,
    pa.binary(): BINARY,
    pa.date32(): DATE,
    TIMESTAMP: ZONED,
    pa.timestamp("us"): LOCAL,
    pa.duration("us"): INTERVAL,
}


def kind_of(data_type: pa.DataType) -> str:
    """The kind of a type.

    Examples
    --------
    >>> kind_of(pa.int8()), kind_of(pa.decimal128(5, 2)), kind_of(pa.list_(pa.int8()))
    ('integer', 'decimal', 'other')
    """
    known = _KINDS.get(data_type)
    if known is not None:
        return known
    if types.is_decimal128(data_type):
        return DECIMAL
    return STRUCT if types.is_struct(data_type) else OTHER
