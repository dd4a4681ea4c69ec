"""Converts rows to the messages of a Kafka sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from clonos.errors import UnknownColumn, WrongType
from clonos.sinks.json_texts import as_json, require_writable

Value = Literal["json", "text", "bytes"]
"""The format of a message's value."""

_VALUE: Final = "value"


class Message(NamedTuple):
    """A row as a message."""

    key: bytes | str | None
    value: bytes | str | None


@dataclass(frozen=True)
class Format:
    """How rows become messages.

    Parameters
    ----------
    value
        "json": an object of all columns; otherwise the column ``value``.
    key
        The column with the messages' keys.

    Examples
    --------
    >>> rows = pa.RecordBatch.from_pydict({"id": [7], "word": ["hi"]})
    >>> list(Format("json", "id").messages(rows))
    [Message(key='7', value='{"id":7,"word":"hi"}')]
    """

    value: Value = "json"
    key: str | None = None

    def check(self, schema: pa.Schema) -> None:
        """Check that rows with these columns can be sent.

        Raises
        ------
        BadSchema, UnknownColumn, WrongType
            They cannot.
        """
        if self.value == "json":
            require_writable(schema, "kafka")
        if self.key is not None:
            kind = _type_of(schema, self.key)
            if not (_is_text(kind) or _is_bytes(kind) or pa.types.is_integer(kind)):
                raise _wrong(self.key, kind, "a text, bytes or an integer, to be a key")
        if self.value == "text" and not _is_text(kind := _type_of(schema, _VALUE)):
            raise _wrong(_VALUE, kind, "a text")
        if self.value == "bytes" and not _is_bytes(kind := _type_of(schema, _VALUE)):
            raise _wrong(_VALUE, kind, "bytes")

    def messages(self, rows: pa.RecordBatch) -> Iterator[Message]:
        """A message for each row, in order."""
        if self.value == "json":
            values = as_json(pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema)))
        else:
            values = rows.column(_VALUE)
        for key, value in zip(self._keys(rows), values.to_pylist(), strict=True):
            yield Message(key, value)

    def _keys(self, rows: pa.RecordBatch) -> list[bytes | str | None]:
        if self.key is None:
            return [None] * rows.num_rows
        column = rows.column(self.key)
        if pa.types.is_integer(column.type):
            column = column.cast(pa.string())
        found: list[bytes | str | None] = column.to_pylist()
        return found


def _type_of(schema: pa.Schema, column: str) -> pa.DataType:
    if column not in schema.names:
        raise UnknownColumn(
            f"there is no column {column!r}",
            where="kafka",
            remedy=f"the stream has {', '.join(schema.names)}",
        )
    return schema.field(column).type


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _wrong(column: str, kind: pa.DataType, wanted: str) -> WrongType:
    return WrongType(
        f"the column {column!r} is {kind}, not {wanted}", where="kafka", remedy="cast it first"
    )
