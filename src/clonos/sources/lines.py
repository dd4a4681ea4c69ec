"""Parses lines of bytes, as readers deliver them, into rows: text, JSON or CSV.

The chain parses, not the reader, because the consequences of a broken line (the job fails, or the
line is dropped and counted) must be the same on replay.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from clonos.columns.batches import concat, conform
from clonos.columns.kept_values import infinities
from clonos.columns.schema import type_name
from clonos.errors import BadSchema, BrokenLine
from clonos.operators.base import Operator
from clonos.operators.make import make_operator
from clonos.operators.operations import Operation
from clonos.operators.shares import Join, total
from clonos.sources.json_lines import parse_json

LINES = pa.schema([pa.field("value", pa.binary())])
"""The schema of line readers; null stands for a line that was too long."""

TEXT = pa.schema([pa.field("value", pa.string())])

_READ: Final = "lines"
"""The fact that counts the lines that were read."""
_REASON_MAX = 300
_INFINITY = r"(?i)^\s*[+-]?inf(?:inity)?\s*$"

_OF_COLUMN = re.compile(r"^In CSV column #(\d+): (?:Row #\d+: )?")
_OF_ROW = re.compile(r"^(CSV parse error: )Row #\d+: ")
_NO_VALUE = re.compile(r"^CSV conversion error to .*?: invalid value '(.*)'$", re.DOTALL)

Parser = Callable[[pa.Array, pa.Schema], pa.RecordBatch]

FIND_S: Final = 2.0
"""Longest time to look for the line at which a job fails ..."""
LOOK_S: Final = 0.2
"""... and for those of a step that are kept. If that is not enough, their places are not known; the
next step goes on looking from there."""


class Trail(Protocol):
    """The lines of a task in the order in which it has read them."""

    def find(self, lines: Sequence[tuple[int, bytes | None]], within_s: float) -> list[str]:
        """Where these lines are, such as "line 7 of /data/a.csv"; empty if that is not known.

        Parameters
        ----------
        lines
            For each, how many the task has read before it, at least, and its content. They follow
            each other, and those that were asked for before.
        """


class Find(Protocol):
    """Makes the trail of a task."""

    def trail(self, index: int, parallelism: int) -> Trail:
        """The lines that a task reads."""


@dataclass(frozen=True)
class ParseLines(Operation):
    """Parses lines: "text", "json" or "csv"."""

    format: str
    schema: pa.Schema
    find: Find | tuple[()] = ()  # nothing: they have no places


class ParseLinesOperator(Operator):
    """Parses a batch as a whole; if that fails, line by line to find the broken lines."""

    joins: ClassVar[Mapping[str, Join]] = {_READ: total}

    def __init__(self, line_format: str, schema: pa.Schema, find: Find | tuple[()] = ()) -> None:
        super().__init__()
        self._find = find or None
        self._trail: Trail | None = None  # for as long as this life
        self._format = line_format
        self._parse: Parser = PARSERS[line_format]
        self._schema = schema

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        lines, read = batch.column(0), self.facts.get(_READ, 0)
        self.facts.set(_READ, read + len(lines))
        try:
            return self._parse(lines, self._schema)
        except (pa.ArrowException, ValueError):
            parsed = []
            broken: list[tuple[int, Exception]] = []
            for i in range(len(lines)):
                try:
                    parsed.append(self._parse(lines.slice(i, 1), self._schema))
                except (pa.ArrowException, ValueError) as error:
                    broken.append((i, error))
                    if self.info.on_bad_record == "fail":
                        break
            given = [(read + i, lines[i].as_py()) for i, _ in broken]
            for (_, line), (_, why), place in zip(given, broken, self._places(given), strict=True):
                self._reject(why, line, place)
            return concat(parsed) if parsed else None

    def _places(self, lines: Sequence[tuple[int, bytes | None]]) -> list[str]:
        """Where these lines are. What is kept is output, and must be the same in a replay, perhaps
        where the files are not: so the log has the answer, as that of a call."""
        if not lines or self._find is None or self.info.on_bad_record == "drop":
            return [""] * len(lines)
        if self.info.on_bad_record == "fail":
            return self._look(lines, FIND_S)
        self.services.caller = self
        found: list[str] = self.services.step.call(self._look, [lines], {})
        return found

    def _look(
        self, lines: Sequence[tuple[int, bytes | None]], within_s: float = LOOK_S
    ) -> list[str]:
        assert self._find is not None
        if self._trail is None:
            self._trail = self._find.trail(self.info.index, self.info.parallelism)
        return self._trail.find(lines, within_s)

    def _reject(self, error: Exception, line: bytes | None, place: str) -> None:
        why = plain_reason(error, self._schema)
        problem = BrokenLine(
            f"{place or 'a line'} cannot be read as {self._format}: {why}",
            remedy="correct the line (and choose another checkpoint_dir, if the job has one)",
        )
        self.reject(problem, line)


@make_operator.register
def _(operation: ParseLines) -> Operator:
    return ParseLinesOperator(operation.format, operation.schema, operation.find)


def _parse_text(lines: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    _require_all(lines)
    return pa.RecordBatch.from_arrays([lines.cast(pa.string())], schema=schema)


def _parse_json(lines: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """One object per line; blank lines are skipped, unknown fields ignored."""
    lines = _without_blank(lines)
    if not len(lines):
        return conform(pa.Table.from_pylist([], schema), schema)
    return conform(parse_json(lines, schema), schema)


def _parse_csv(lines: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """Comma-separated values; quotes must not contain line breaks; no value means null."""
    lines = _without_blank(lines)
    if not len(lines):
        return conform(pa.Table.from_pylist([], schema), schema)
    lines.cast(pa.string())  # checks that it is UTF-8
    # An open quote takes the next line into its value, so a row is missing. The last line has a
    # next one, too: a row of nulls. With one column it would be blank, and blank lines are no rows.
    end = [b"," * (len(schema) - 1)] if len(schema) > 1 else []
    text = b"\n".join([*lines.to_pylist(), *end, b""])
    if len(lines) > 1 and b"\r" in text:
        raise ValueError("for Arrow a line ends there")  # so the number of rows would prove nothing
    table = _read_csv(text, schema)
    if table.num_rows != len(lines) + len(end):
        raise ValueError("a line has a quote that is never closed, or is more than one row")
    if not end:
        _require_closed_quotes(lines[-1].as_py(), schema)
    floats = [f.name for f in schema if pa.types.is_floating(f.type)]
    if large := [name for name in floats if infinities(table.column(name))]:
        texts = _read_csv(text, _with_types(schema, large, pa.string()))
        for name in large:
            require_infinite(table.column(name), texts.column(name))
    return conform(table.slice(0, len(lines)), schema)


def _read_csv(text: bytes, schema: pa.Schema) -> pa.Table:
    # A single block, because blocks are parsed independently.
    read = pa_csv.ReadOptions(
        use_threads=False, column_names=schema.names, block_size=len(text) + 16
    )
    convert = pa_csv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    return pa_csv.read_csv(io.BytesIO(text), read_options=read, convert_options=convert)


def _require_closed_quotes(line: bytes, schema: pa.Schema) -> None:
    """Refuse a quote that is open at the end, where Arrow closes it: the line's break is in it."""
    if b'"' in line:
        table = _read_csv(line + b"\n", _with_types(schema, schema.names, pa.binary()))
        if (table.column(table.num_columns - 1)[0].as_py() or b"").endswith(b"\n"):
            raise ValueError("a quote is never closed")


def _with_types(schema: pa.Schema, names: list[str], data_type: pa.DataType) -> pa.Schema:
    return pa.schema([f.with_type(data_type) if f.name in names else f for f in schema])


def require_infinite(
    numbers: pa.Array | pa.ChunkedArray, texts: pa.Array | pa.ChunkedArray
) -> None:
    """Raise `ValueError` if a text stands for a number that is too large, and not for infinity."""
    said = pc.fill_null(pc.match_substring_regex(texts, _INFINITY), False)
    if pc.any(pc.and_not(pc.is_inf(numbers), said)).as_py():
        raise ValueError(f"a number is too large for {type_name(numbers.type)}")


def require_csv(schema: pa.Schema) -> pa.Schema:
    """The schema, if its columns can be read from CSV; raises `BadSchema`."""
    for field in schema:
        if pa.types.is_nested(field.type):
            raise BadSchema(
                f"column {field.name!r}: {field.type} cannot be read from CSV",
                remedy='read it as a "string"',
            )
    return schema


PARSERS: dict[str, Parser] = {"text": _parse_text, "json": _parse_json, "csv": _parse_csv}


def infer_schema(line_format: str, sample: list[bytes], column_names: list[str]) -> pa.Schema:
    """Guess the schema from the first lines of a file."""
    joined = io.BytesIO(b"\n".join(sample) + b"\n")
    if line_format == "json":
        return pa_json.read_json(joined).schema
    read = pa_csv.ReadOptions(column_names=column_names)
    return pa_csv.read_csv(joined, read_options=read).schema


def short_reason(error: Exception) -> str:
    """What an error of a parser says, which may be as long as the line that it quotes."""
    text = str(error)
    return text if len(text) <= _REASON_MAX else f"{text[:_REASON_MAX]}..."


def plain_reason(error: Exception, schema: pa.Schema) -> str:
    """The same without Arrow's numbers, of which the row's is always 1: lines are read alone."""
    text = str(error)
    if found := _OF_COLUMN.match(text):
        field = schema.field(int(found[1]))
        said = text[found.end() :]
        if value := _NO_VALUE.match(said):
            said = f"{value[1]!r} is no {type_name(field.type)}"
        text = f"{field.name}: {said}"
    return short_reason(ValueError(_OF_ROW.sub(r"\1", text)))


def _require_all(lines: pa.Array) -> None:
    if lines.null_count:
        raise ValueError("the line is longer than allowed")


def _without_blank(lines: pa.Array) -> pa.Array:
    _require_all(lines)
    return lines.filter(pc.greater(pc.binary_length(lines), 0))
