"""Parses messages and entries, as readers of brokers deliver them, into rows.

The chain parses, as with lines, because the consequences of a broken message must be the same on
replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.batches import concat
from clonos.columns.schema import TIMESTAMP, parse_schema
from clonos.errors import BadSchema, BrokenLine, WrongType
from clonos.operators.base import Operator
from clonos.operators.make import make_operator
from clonos.operators.operations import Operation, PassOn
from clonos.sources.json_lines import require_readable
from clonos.sources.lines import PARSERS, TEXT, require_infinite, short_reason

VALUE: Final = pa.field("value", pa.binary())

Value = Literal["json", "text", "bytes"]
"""The format of a message's value."""

METADATA: Final = (
    pa.field("key", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP),
)
"""The metadata columns of a Kafka message, named as in Spark's Kafka source."""


def message_schema(*, metadata: bool) -> pa.Schema:
    """The schema of readers of messages."""
    return pa.schema([VALUE, *(METADATA if metadata else ())])


def columns_of(value: Value, schema: Any) -> pa.Schema:
    """The columns parsed from values.

    Raises
    ------
    WrongType, BadSchema
        The format is unknown; a schema is missing or superfluous, or has a type that JSON lacks.
    """
    if value not in get_args(Value):
        raise WrongType(f"value={value!r}", remedy=f"use one of {', '.join(get_args(Value))}")
    if (schema is not None) != (value == "json"):
        wrong = "json without a schema" if value == "json" else f"a schema for {value}"
        raise BadSchema(wrong, remedy='say schema="word string, ...", with "json" only')
    if value == "json":
        return require_readable(parse_schema(schema))
    return TEXT if value == "text" else pa.schema([VALUE])


@dataclass(frozen=True)
class ParseMessages(Operation):
    """Parses the values of messages: "text" or "json"."""

    format: str
    schema: pa.Schema


@dataclass(frozen=True)
class ParseFields(Operation):
    """Parses fields of bytes into columns."""

    schema: pa.Schema


def message_rows(
    value: Value, schema: Any, beside: Sequence[pa.Field]
) -> tuple[Operation, pa.Schema]:
    """The operation that parses messages, and the schema of its rows."""
    rows = columns_of(value, schema)
    if value == "bytes":
        return PassOn(), pa.schema([*rows, *beside])
    return ParseMessages(value, rows), with_metadata(rows, beside)


def with_metadata(rows: pa.Schema, beside: Sequence[pa.Field]) -> pa.Schema:
    """Columns of values, and metadata columns beside them; raises `BadSchema` if names clash."""
    if both := {field.name for field in beside} & set(rows.names):
        raise BadSchema(
            f"{', '.join(sorted(both))}: a column of the value and of the metadata",
            remedy="leave metadata out, or rename the field where it is produced",
        )
    return pa.schema([*rows, *beside])


class _OneByOne(Operator):
    """Parses a batch as a whole; if that fails, row by row to find the broken ones."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        try:
            return self._parse(batch)
        except (pa.ArrowException, ValueError):
            parsed = []
            for i in range(batch.num_rows):
                try:
                    parsed.append(self._parse(batch.slice(i, 1)))
                except (pa.ArrowException, ValueError) as error:
                    (row,) = batch.slice(i, 1).to_pylist()
                    self.reject(BrokenLine(f"{self._what}: {short_reason(error)}"), row)
            return concat(parsed) if parsed else None

    def _parse(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError


class ParseMessagesOperator(_OneByOne):
    """Parses the values of messages.

    Each value is a row. A null value (a tombstone) is a row of nulls.

    Parameters
    ----------
    value_format
        "text" or "json".
    schema
        The schema of the columns parsed from a value.
    """

    def __init__(self, value_format: str, schema: pa.Schema) -> None:
        super().__init__(f"a message is not {value_format}")
        self._format = value_format
        self._schema = schema

    def _parse(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = self._values(batch.column(0))
        if len(values) != batch.num_rows:
            raise ValueError("it is empty")
        rest = zip(batch.schema, batch.columns, strict=True)
        _, *beside = rest
        fields = [*values.schema, *(field for field, _ in beside)]
        columns = [*values.columns, *(column for _, column in beside)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _values(self, values: pa.Array) -> pa.RecordBatch:
        if self._format == "text":
            return pa.RecordBatch.from_arrays([values.cast(pa.string())], schema=self._schema)
        return PARSERS[self._format](pc.fill_null(values, b"{}"), self._schema)


class ParseFieldsOperator(_OneByOne):
    """Turns fields, which are bytes, into columns.

    A missing field is null.

    Parameters
    ----------
    schema
        The schema of these columns; further columns of a batch stay as they are.
    """

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__("an entry does not fit the schema")
        self._schema = schema

    def _parse(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, fields = list(batch.columns), list(batch.schema)
        for i, wanted in enumerate(self._schema):
            fields[i] = wanted
            if not pa.types.is_binary(wanted.type):
                texts = columns[i].cast(pa.string())
                columns[i] = texts.cast(wanted.type)
                if pa.types.is_floating(wanted.type):
                    require_infinite(columns[i], texts)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@make_operator.register
def _(operation: ParseMessages) -> Operator:
    return ParseMessagesOperator(operation.format, operation.schema)


@make_operator.register
def _(operation: ParseFields) -> Operator:
    return ParseFieldsOperator(operation.schema)
