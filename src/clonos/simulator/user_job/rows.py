"""Rows in place of sources that a simulation cannot read: Spark, Kafka, a socket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from clonos import sources
from clonos.columns.batches import concat, conform, empty, from_table, to_bytes
from clonos.errors import CannotSimulate
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.operators.by_key.look_up import VERSIONS, SideTable
from clonos.operators.operations import LookUp, Operation
from clonos.simulator.jobs.arrow import FixedRows
from clonos.sources.readers import EndOfInput
from clonos.sources.spec import SourceSpec

AS_THEY_ARE: Final = {"batches", "files"}
"""Sources that a simulation can read as they are: unchanging, and on this machine."""
FORMATS: Final = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
ROWS_MAX: Final = 100_000
"""How many rows a task may read: they are in memory, and each batch costs some events."""

Given = Any
"""Rows, an Arrow table, a path, or a source of :mod:`clonos.sources`."""


def with_rows(compiled: CompiledJob, rows: Mapping[str, Given] | Given | None) -> CompiledJob:
    """The same job with sources that need neither Spark nor a network.

    Raises
    ------
    CannotSimulate
        A source needs rows and has none, or rows were given that no source reads or that do not
        match its schema.
    """
    names = {code.source_name: code for code in compiled.codes if code.source is not None}
    given = _by_name(rows, names)
    if unknown := given.keys() - names.keys():
        raise CannotSimulate(
            f"rows for {', '.join(sorted(unknown))}, which is not a source of {compiled.name}",
            remedy=f"its sources are {', '.join(names)}",
        )
    if needed := [_what(c) for n, c in names.items() if _needs_rows(c) and n not in given]:
        raise CannotSimulate(
            f"a simulation reads neither Spark nor a network, and has no rows for "
            f"{', '.join(needed)}",
            where=compiled.name,
            remedy="give rows={name: rows}, or --rows NAME=FILE.jsonl",
        )
    side_tables: dict[int, pa.RecordBatch] = {}
    codes = [_with_tables(_with_source(code, given), side_tables) for code in compiled.codes]
    return replace(compiled, codes=tuple(codes))


def rows_of(code: TaskCode) -> FixedRows:
    """All rows of one source task.

    Raises
    ------
    CannotSimulate
        The task reads more than :data:`ROWS_MAX` rows.
    """
    assert code.source is not None
    reader = code.source.reader(code.task.index, code.parallelism)
    reader.open(0)
    batches, left = [empty(code.source.schema)], ROWS_MAX
    try:
        while left > 0:
            batch = reader.read(left, 0.0)
            if batch is not None:
                batches.append(batch)
                left -= batch.num_rows
    except EndOfInput:
        return FixedRows(concat(batches))
    finally:
        reader.close()
    raise CannotSimulate(
        f"a task reads more than {ROWS_MAX} rows",
        where=code.source_name,
        remedy="give fewer with rows=: a few hundred rows are enough to find faults",
    )


def _by_name(rows: Mapping[str, Given] | Given | None, names: Mapping[str, TaskCode]) -> Any:
    if rows is None or isinstance(rows, Mapping):
        return {name: _kept(given) for name, given in (rows or {}).items()}
    wanted = [name for name, code in names.items() if _needs_rows(code)] or list(names)
    if len(wanted) != 1:
        raise CannotSimulate(
            f"these rows name no source, and there are several: {', '.join(wanted)}",
            remedy="name it: rows={name: rows}, or --rows NAME=FILE.jsonl",
        )
    return {wanted[0]: _kept(rows)}


def _kept(rows: Given) -> Given:
    """The rows, copied if they can be read only once: each task reads them."""
    return list(rows) if isinstance(rows, Iterator) else rows


def _needs_rows(code: TaskCode) -> bool:
    return code.source is not None and code.source.kind not in {*AS_THEY_ARE, "versions"}


def _what(code: TaskCode) -> str:
    assert code.source is not None
    return f"{code.source_name!r} ({code.source.kind})"


def _with_source(code: TaskCode, given: Mapping[str, Given]) -> TaskCode:
    if code.source is None:
        return code
    rows = given.get(code.source_name)
    if code.source.kind == "versions":
        spec = _versions(rows or ())
    elif rows is None:
        return code
    else:
        spec = _source(rows, code.source.rows_schema, code)
    spec = replace(spec, rows_per_second=None)
    head = (code.source_name, code.operators[0][1] if spec.schema is VERSIONS else spec.head)
    return replace(code, source=spec, operators=(head, *code.operators[1:]))


def _source(rows: Given, schema: pa.Schema, code: TaskCode) -> SourceSpec:
    """A source that delivers these rows."""
    where = code.source_name
    if isinstance(rows, (str, Path)):
        suffix = Path(rows).suffix
        if suffix not in FORMATS:
            raise CannotSimulate(
                f"rows cannot be read from {str(rows)!r}",
                where=where,
                remedy=f"give a file that ends with {', '.join(FORMATS)}",
            )
        return sources.files(str(rows), FORMATS[suffix], schema)
    if isinstance(rows, SourceSpec):
        if rows.rows_schema != schema or rows.kind not in AS_THEY_ARE:
            raise CannotSimulate(
                f"a source of {rows.rows_schema.names} ({rows.kind}) in place of one of "
                f"{schema.names}",
                where=where,
                remedy="give from_batches or files with the same columns and types",
            )
        return rows
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        table = from_table(rows) if isinstance(rows, pa.Table) else rows
        return _shared_out(conform(table.select(schema.names), schema), schema, code.parallelism)
    named = [_named(row, schema, where) if isinstance(row, dict) else row for row in rows]
    share = range(code.parallelism)
    return sources.from_batches([named[i :: code.parallelism] for i in share], schema)


def _named(row: Mapping[str, Any], schema: pa.Schema, where: str) -> dict[str, Any]:
    """The columns of a row. A missing one is null, unless it seems to be misspelt."""
    missing = [name for name in schema.names if name not in row]
    if missing and (unknown := [name for name in row if name not in schema.names]):
        raise CannotSimulate(
            f"a row has no {', '.join(missing)}, but {', '.join(unknown)}",
            where=where,
            remedy=f"the columns are {', '.join(schema.names)}",
        )
    return {name: row[name] for name in schema.names if name in row}


def _shared_out(rows: pa.RecordBatch, schema: pa.Schema, tasks: int) -> SourceSpec:
    each = -(-rows.num_rows // tasks)
    return sources.from_batches([rows.slice(i * each, each) for i in range(tasks)], schema)


def _versions(tables: Iterable[Any]) -> SourceSpec:
    """The later versions of a table that is looked up, one after the other."""
    rows = [(number, to_bytes(_content(table))) for number, table in enumerate(tables, 1)]
    return replace(sources.from_batches([rows], VERSIONS), schema=VERSIONS)


def _content(table: pa.Table | pa.RecordBatch) -> pa.RecordBatch:
    return from_table(table) if isinstance(table, pa.Table) else table


def _with_tables(code: TaskCode, known: dict[int, pa.RecordBatch]) -> TaskCode:
    """The task with the content of its look-up tables, which the driver provides in production."""
    operators = tuple((name, _with_content(operation, known)) for name, operation in code.operators)
    return replace(code, operators=operators)


def _with_content(operation: Operation, known: dict[int, pa.RecordBatch]) -> Operation:
    if not isinstance(operation, LookUp) or not isinstance(operation.table, SideTable):
        return operation
    table = operation.table
    return operation.showing(known.setdefault(id(table), table.read()))
