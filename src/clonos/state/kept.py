"""The content of a layer by operator, for code that redistributes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.core.canonical import encode
from clonos.core.content import Content
from clonos.state.deltas import (
    FACTS,
    SCHEMA,
    Changes,
    Frozen,
    column_of,
    open_delta,
    table_of,
)
from clonos.state.runs import Rows, Run, UInt64, in_order
from clonos.state.stores import Facts


class Kept(NamedTuple):
    """Facts, and rows of state by key, of one operator or (without rows) the chain.

    ``in_run``: which rows were in a run, under these ``hashes``. ``runs``: runs that were not read.
    """

    facts: dict[str, Any]
    groups: npt.NDArray[np.int64]
    keys: pa.Array
    values: pa.Array
    in_run: npt.NDArray[np.bool_]
    hashes: UInt64
    runs: tuple[Run, ...] = ()

    def chosen(self, is_chosen: npt.NDArray[np.bool_]) -> Kept:
        """The same facts, and some of the rows."""
        mask = pa.array(is_chosen)
        columns = self.keys.filter(mask), self.values.filter(mask)
        marks = self.in_run[is_chosen], self.hashes[is_chosen]
        return Kept(self.facts, self.groups[is_chosen], *columns, *marks, self.runs)

    def changes(self) -> list[Changes | Frozen]:
        """Everything, in a layer's form."""
        return [fact_changes(self.facts), self.rows, lambda: self.runs]

    def rows(self) -> list[Changes | Rows]:
        """Everything that was read, except the facts."""
        table, run = self.chosen(~self.in_run), self.chosen(self.in_run)
        return [
            Changes(table.groups, table.keys, table.values),
            in_order([Rows(run.hashes, run.groups, run.keys, run.values)]),
        ]


def nothing_kept() -> Kept:
    """The content for an operator without state."""
    none = pa.array([], pa.large_binary())
    numbers = np.empty(0, np.int64)
    return Kept({}, numbers, none, none, numbers.astype(np.bool_), numbers.astype(np.uint64))


def fact_changes(facts: dict[str, Any]) -> Changes:
    """Facts in a layer's form."""
    values = [encode(value) for value in facts.values()]
    return Changes([FACTS] * len(facts), [name.encode() for name in facts], values)


def kept_of(base: bytes | Content, *, reads_runs: bool = True) -> dict[int, Kept]:
    """The content of a task's merged layers, by operator number.

    ``reads_runs``: else runs stay where they are, and need not fit into memory.
    """
    found: dict[int, Kept] = {}
    if not len(base):
        return found
    opened = open_delta(base)
    tables = [SCHEMA.empty_table(), *([table_of(opened.table)] if opened.table else [])]
    in_table = sum(map(len, tables))
    hashes = [np.zeros(in_table, np.uint64)]
    left: dict[int, tuple[Run, ...]] = {}
    for operator, run in opened.runs:
        if not reads_runs:
            left[operator] = (*left.get(operator, ()), run)
            continue
        for rows in run.parts():
            tables.append(_table(operator, rows))
            hashes.append(rows.hashes)
    table = pa.concat_tables([t.replace_schema_metadata(None) for t in tables])
    in_run, all_hashes = np.arange(len(table)) >= in_table, np.concatenate(hashes)
    numbers = table["operator"].to_numpy()
    for number in sorted({*numbers.tolist(), *left}):
        is_mine = numbers == number
        part = table.filter(pa.array(is_mine))
        groups = part["key_group"].to_numpy().astype(np.int64)
        is_fact = groups == FACTS
        facts, said = Facts(), part.filter(pa.array(is_fact))
        facts.restore(said["key"].to_pylist(), said["value"].to_pylist())
        rows = part.filter(pa.array(~is_fact))
        columns = column_of(rows, "key"), column_of(rows, "value")
        rest = groups[~is_fact], *columns, in_run[is_mine][~is_fact], all_hashes[is_mine][~is_fact]
        found[number] = Kept(dict(facts.as_dict()), *rest, left.get(number, ()))
    return found


def _table(operator: int, rows: Rows) -> pa.Table:
    numbers = np.full(len(rows.hashes), operator)
    columns = [pa.array(n.astype(np.int16)) for n in (rows.groups, numbers)]
    return pa.Table.from_arrays([*columns, rows.keys, rows.values], schema=SCHEMA)
