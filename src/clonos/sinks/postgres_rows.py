"""Arrow columns in PostgreSQL's formats: the CSV of ``COPY``, and column types.

Arrow's kernels convert whole columns to text, without Python code per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyarrow import csv

from clonos.columns.json_types import missing_in_json
from clonos.errors import WrongType
from clonos.sinks.json_texts import as_digits, as_json

_EQUAL: Final = {
    pa.bool_(): ("boolean",),
    pa.int8(): ("smallint", "integer", "bigint", "numeric"),
    pa.int16(): ("smallint", "integer", "bigint", "numeric"),
    pa.int32(): ("integer", "bigint", "numeric"),
    pa.int64(): ("bigint", "numeric"),
    pa.float32(): ("real", "double precision"),
    pa.float64(): ("double precision",),
    pa.date32(): ("date",),
}
_TEXTS: Final = ("text", "character varying", "character", "citext", "uuid", "json", "jsonb")
_JSON: Final = ("jsonb", "json", "text")


def types_for(data_type: pa.DataType, column: str) -> tuple[str, ...]:
    """PostgreSQL's types that hold every value of an Arrow type, the best one first.

    Examples
    --------
    >>> types_for(pa.int32(), "n"), types_for(pa.list_(pa.string()), "words")[0]
    (('integer', 'bigint', 'numeric'), 'jsonb')
    """
    found: tuple[str, ...] | None = _EQUAL.get(data_type)
    if found is not None:
        return found
    types = pa.types
    if types.is_string(data_type) or types.is_large_string(data_type):
        return _TEXTS
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return ("bytea",)
    if types.is_timestamp(data_type):
        zone = "with" if data_type.tz else "without"
        return (f"timestamp {zone} time zone",)
    if types.is_decimal(data_type):
        return (f"numeric({data_type.precision},{data_type.scale})", "numeric")
    if types.is_nested(data_type) and missing_in_json(data_type) is None:
        return _JSON
    raise WrongType(
        f"no column of PostgreSQL holds {data_type}",
        where=column,
        remedy='convert it first, for example with select("cast(... as string)") in Spark',
    )


def as_csv(rows: pa.Table) -> pa.Buffer:
    """Rows for ``COPY ... FROM STDIN (FORMAT csv)``: null is an empty field, "" a quoted one."""
    columns = [_plain(column) for column in rows.columns]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(columns, names=[str(i) for i in range(len(columns))])
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return sink.getvalue()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column so that Arrow's CSV writer produces PostgreSQL's notation."""
    types = pa.types
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return pa.chunked_array([as_digits(c) for c in column.chunks], pa.string())
    if types.is_nested(column.type):
        return pa.chunked_array([as_json(c) for c in column.chunks], pa.string())
    return column


def pieces(buffer: pa.Buffer, size: int = 1 << 20) -> Iterator[memoryview]:
    """Cut a buffer into pieces, so that a connection need not copy all of it at once."""
    view = memoryview(buffer)
    for start in range(0, len(view), size):
        yield view[start : start + size]
