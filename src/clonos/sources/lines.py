"""Parses lines of bytes, as readers deliver them, into rows: text, JSON or CSV.

The chain parses, not the reader, because the consequences of a broken line (the job fails, or the
line is dropped and counted) must be the same on replay.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from clonos.columns.batches import concat, conform
from clonos.errors import BrokenLine
from clonos.operators.base import Operator
from clonos.operators.make import make_operator
from clonos.operators.operations import Operation

LINES = pa.schema([pa.field("value", pa.binary())])
"""The schema of line readers; null stands for a line that was too long."""

TEXT = pa.schema([pa.field("value", pa.string())])

Parser = Callable[[pa.Array, pa.Schema], pa.RecordBatch]


@dataclass(frozen=True)
class ParseLines(Operation):
    """Parses lines: "text", "json" or "csv"."""

    format: str
    schema: pa.Schema


class ParseLinesOperator(Operator):
    """Parses a batch as a whole; if that fails, line by line to find the broken lines."""

    def __init__(self, line_format: str, schema: pa.Schema) -> None:
        super().__init__()
        self._format = line_format
        self._parse: Parser = PARSERS[line_format]
        self._schema = schema

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        lines = batch.column(0)
        try:
            return self._parse(lines, self._schema)
        except (pa.ArrowException, ValueError):
            parsed = []
            for i in range(len(lines)):
                try:
                    parsed.append(self._parse(lines.slice(i, 1), self._schema))
                except (pa.ArrowException, ValueError) as error:
                    problem = BrokenLine(f"a line cannot be read as {self._format}: {error}")
                    self.reject(problem, lines[i].as_py())
            return concat(parsed) if parsed else None


@make_operator.register
def _(operation: ParseLines) -> Operator:
    return ParseLinesOperator(operation.format, operation.schema)


def _parse_text(lines: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    _require_all(lines)
    return pa.RecordBatch.from_arrays([lines.cast(pa.string())], schema=schema)


def _parse_json(lines: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """One object per line; blank lines are skipped, unknown fields ignored."""
    lines = _without_blank(lines)
    if not len(lines):
        return conform(pa.Table.from_pylist([], schema), schema)
    text = pc.ascii_trim_whitespace(lines.cast(pa.string()))
    # Otherwise two broken lines could form an object together.
    if not pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))).as_py():
        raise ValueError("not a JSON object")
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = pa_json.ReadOptions(use_threads=False, block_size=_block_size(lines))
    table = pa_json.read_json(_joined(lines), read_options=read, parse_options=options)
    return _checked(table, lines, schema)


def _parse_csv(lines: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """Comma-separated values; quotes must not contain line breaks; no value means null."""
    lines = _without_blank(lines)
    if not len(lines):
        return conform(pa.Table.from_pylist([], schema), schema)
    lines.cast(pa.string())  # checks that it is UTF-8
    read = pa_csv.ReadOptions(
        use_threads=False, column_names=schema.names, block_size=_block_size(lines)
    )
    convert = pa_csv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = pa_csv.read_csv(_joined(lines), read_options=read, convert_options=convert)
    return _checked(table, lines, schema)


PARSERS: dict[str, Parser] = {"text": _parse_text, "json": _parse_json, "csv": _parse_csv}


def infer_schema(line_format: str, sample: list[bytes], column_names: list[str]) -> pa.Schema:
    """Guess the schema from the first lines of a file."""
    joined = io.BytesIO(b"\n".join(sample) + b"\n")
    if line_format == "json":
        return pa_json.read_json(joined).schema
    read = pa_csv.ReadOptions(column_names=column_names)
    return pa_csv.read_csv(joined, read_options=read).schema


def _checked(table: pa.Table, lines: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    if table.num_rows != len(lines):
        raise ValueError(f"{table.num_rows} rows in {len(lines)} lines")
    return conform(table.select(schema.names), schema)


def _require_all(lines: pa.Array) -> None:
    if lines.null_count:
        raise ValueError("the line is longer than allowed")


def _without_blank(lines: pa.Array) -> pa.Array:
    _require_all(lines)
    return lines.filter(pc.greater(pc.binary_length(lines), 0))


def _joined(lines: pa.Array) -> Any:
    return io.BytesIO(b"\n".join(lines.to_pylist()) + b"\n")


def _block_size(lines: pa.Array) -> int:
    # A single block, because blocks are parsed independently.
    return int(pc.sum(pc.binary_length(lines)).as_py()) + 2 * len(lines) + 16
