"""The content of windows: aggregates of their rows, or their top rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.keys import densify, factorise, key_columns
from clonos.columns.schema import TIMESTAMP
from clonos.operators.aggregates import Aggregate, Fold
from clonos.operators.windows.kinds import Given, Session, Window, sessions
from clonos.state.pieces import END, INTERVAL, START, Combined, numbers

ROWS: Final = "~rows"
WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
BOUNDS: Final = [
    pa.field(WINDOW_START, TIMESTAMP, nullable=False),
    pa.field(WINDOW_END, TIMESTAMP, nullable=False),
]

Int64 = npt.NDArray[np.int64]


class Content:
    """Base of both kinds. ``keys`` and ``window`` define which pieces belong together."""

    schema: pa.Schema
    output: pa.Schema
    keys: Sequence[str]
    is_exact = True
    """Whether it does not matter which neighbouring pieces are combined first."""

    def __init__(self, keys: Sequence[str], window: Window) -> None:
        self.keys = tuple(keys)
        self.time = window.time
        self._window = window

    def start(self, batch: pa.RecordBatch, starts: Int64, ends: Int64) -> pa.RecordBatch:
        """Make pieces of rows."""
        raise NotImplementedError

    def thinned(self, pieces: pa.RecordBatch) -> pa.RecordBatch:
        """Reduce the pieces of one batch to as few as possible."""
        return pieces

    def combine(self, pieces: pa.RecordBatch) -> Combined:
        """See :class:`~clonos.state.pieces.Combiner`."""
        raise NotImplementedError

    def result(self, pieces: pa.RecordBatch) -> pa.RecordBatch:
        """The output for combined pieces whose interval is their window."""
        raise NotImplementedError

    def rows(self, pieces: pa.RecordBatch) -> int:
        """How many rows the pieces were made of."""
        raise NotImplementedError

    def _groups(self, batch: pa.RecordBatch, starts: Int64, ends: Int64) -> tuple[Int64, Int64]:
        """Group codes of rows in order of appearance, and the first row of each group."""
        columns = key_columns(batch, self.keys)
        if isinstance(self._window, Session):
            codes, _ = factorise(columns, batch.num_rows)
            return densify(sessions(codes, starts, ends))
        columns.append(pa.array(starts))
        if isinstance(self._window, Given):
            columns.append(pa.array(ends))
        return factorise(columns, batch.num_rows)


class Folded(Content):
    """Aggregates."""

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        window: Window,
        aggregates: Mapping[str, Aggregate],
        where: str = "window",
    ) -> None:
        super().__init__(keys, window)
        self._columns = [aggregate.column for aggregate in aggregates.values()]
        self._folds: list[Fold] = [a.fold(schema, where) for a in aggregates.values()]
        self.is_exact = all(fold.is_exact for fold in self._folds)
        partials = [
            pa.field(f"~{i}.{j}", data_type)
            for i, fold in enumerate(self._folds)
            for j, data_type in enumerate(fold.partial_types)
        ]
        of_keys = [schema.field(key) for key in keys]
        self.schema = pa.schema([*of_keys, *INTERVAL, pa.field(ROWS, pa.int64()), *partials])
        results = [
            pa.field(name, fold.data_type)
            for name, fold in zip(aggregates, self._folds, strict=True)
        ]
        self.output = pa.schema([*of_keys, *BOUNDS, *results])

    def start(self, batch: pa.RecordBatch, starts: Int64, ends: Int64) -> pa.RecordBatch:
        codes, firsts = self._groups(batch, starts, ends)
        columns = self._heads(key_columns(batch, self.keys), starts, ends, codes, firsts)
        groups = len(firsts)
        columns.append(pa.array(np.bincount(codes, minlength=groups).astype(np.int64, copy=False)))
        for name, fold in zip(self._columns, self._folds, strict=True):
            values = None if name is None else batch.column(name)
            columns += fold.start(values, codes, groups)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def combine(self, pieces: pa.RecordBatch) -> Combined:
        starts, ends = numbers(pieces, START), numbers(pieces, END)
        codes, firsts = self._groups(pieces, starts, ends)
        groups = len(firsts)
        if groups == len(codes):
            return Combined(pieces, firsts, codes)
        keys = [pieces.column(key) for key in self.keys]
        columns = self._heads(keys, starts, ends, codes, firsts)
        rows = np.zeros(groups, np.int64)
        np.add.at(rows, codes, numbers(pieces, ROWS))
        columns.append(pa.array(rows))
        at = len(columns)
        for fold in self._folds:
            partials = pieces.columns[at : at + len(fold.partial_types)]
            columns += fold.combine(partials, codes, groups)
            at += len(fold.partial_types)
        return Combined(pa.RecordBatch.from_arrays(columns, schema=self.schema), firsts, codes)

    def result(self, pieces: pa.RecordBatch) -> pa.RecordBatch:
        columns = [pieces.column(key) for key in self.keys]
        columns += [instants(numbers(pieces, name)) for name in (START, END)]
        at = len(columns) + 1
        for fold in self._folds:
            columns.append(fold.result(pieces.columns[at : at + len(fold.partial_types)]))
            at += len(fold.partial_types)
        return pa.RecordBatch.from_arrays(columns, schema=self.output)

    def rows(self, pieces: pa.RecordBatch) -> int:
        return int(numbers(pieces, ROWS).sum())

    def _heads(
        self, keys: list[pa.Array], starts: Int64, ends: Int64, codes: Int64, firsts: Int64
    ) -> list[pa.Array]:
        """Keys and interval of each group."""
        chosen = pa.array(firsts)
        group_starts, group_ends = starts[firsts], ends[firsts]
        if isinstance(self._window, Session):
            np.minimum.at(group_starts, codes, starts)
            np.maximum.at(group_ends, codes, ends)
        columns = [key.take(chosen) for key in keys]
        return [*columns, pa.array(group_starts), pa.array(group_ends)]


class Ranking(NamedTuple):
    """A column by which rows are ranked."""

    column: str
    is_descending: bool


class Top(Content):
    """The top `number` rows of each key and window.

    Rows of equal rank keep their order of arrival; with `ties`, all rows that rank the same as the
    last one are included.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        window: Window,
        number: int,
        by: Sequence[Ranking],
        *,
        ties: bool,
    ) -> None:
        super().__init__(keys, window)
        self._columns = list(schema.names)
        self._number = number
        self._by = tuple(by)
        self._ties = ties
        self.schema = pa.schema([*schema, *INTERVAL])
        self.output = pa.schema([*schema, *(f for f in BOUNDS if f.name not in schema.names)])

    def start(self, batch: pa.RecordBatch, starts: Int64, ends: Int64) -> pa.RecordBatch:
        columns = [*batch.columns, pa.array(starts), pa.array(ends)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def thinned(self, pieces: pa.RecordBatch) -> pa.RecordBatch:
        return self.combine(pieces).pieces

    def combine(self, pieces: pa.RecordBatch) -> Combined:
        chosen = np.sort(self._rank(pieces))
        codes = np.full(pieces.num_rows, -1)
        codes[chosen] = np.arange(len(chosen))
        kept = pieces if len(chosen) == pieces.num_rows else pieces.take(pa.array(chosen))
        return Combined(kept, chosen, codes)

    def result(self, pieces: pa.RecordBatch) -> pa.RecordBatch:
        is_alone = self._number == 1 and not self._ties  # one row per group: they are in order
        ranked = pieces if is_alone else pieces.take(pa.array(self._rank(pieces)))
        bounds = {WINDOW_START: START, WINDOW_END: END}
        columns = [ranked.column(name) for name in self._columns]
        columns += [
            instants(numbers(ranked, bounds[name]))
            for name in self.output.names[len(self._columns) :]
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)

    def rows(self, pieces: pa.RecordBatch) -> int:
        return int(pieces.num_rows)

    def _rank(self, pieces: pa.RecordBatch) -> Int64:
        """The top rows, ordered by appearance of window and key, then by rank."""
        starts, ends = numbers(pieces, START), numbers(pieces, END)
        codes, firsts = self._groups(pieces, starts, ends)
        rows = self._candidates(pieces, codes, len(firsts))
        pieces = pieces.select([o.column for o in self._by])
        if rows is not None:
            if len(rows) == len(firsts):  # one row per group: nothing to rank
                alone = np.empty(len(rows), np.int64)
                alone[codes[rows]] = rows
                return alone
            pieces, codes = pieces.take(pa.array(rows)), codes[rows]
        table, keys = _sort_keys(pieces, codes, self._by)
        order = pc.sort_indices(table, sort_keys=keys).to_numpy().astype(np.int64)
        codes = codes[order]
        at = np.arange(len(codes))
        is_new = np.diff(codes, prepend=-1) != 0
        first = np.maximum.accumulate(np.where(is_new, at, 0))
        kept = at - first < self._number
        if self._ties:
            columns = key_columns(pieces, [o.column for o in self._by])
            ranked = [column.take(pa.array(order)) for column in columns]
            same, _ = factorise(ranked, len(codes))
            last = np.minimum(first + self._number - 1, len(codes) - 1)
            kept |= (same == same[last]) & (codes == codes[last])
        chosen = order[kept]
        foremost: Int64 = chosen if rows is None else rows[chosen]
        return foremost

    def _candidates(self, pieces: pa.RecordBatch, codes: Int64, groups: int) -> Int64 | None:
        """The rows that can be on top, found without sorting; None if that is not simple."""
        column = pieces.column(self._by[0].column)
        is_simple = pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)
        is_simple &= column.type != pa.uint64()  # which may not fit a long
        if self._number > 1 or not is_simple or column.null_count:
            return None
        values = column.cast(pa.int64()).to_numpy()
        if self._by[0].is_descending:
            best = np.full(groups, np.iinfo(np.int64).min)
            np.maximum.at(best, codes, values)
        else:
            best = np.full(groups, np.iinfo(np.int64).max)
            np.minimum.at(best, codes, values)
        return np.flatnonzero(values == best[codes])


def _sort_keys(
    pieces: pa.RecordBatch, codes: Int64, by: Sequence[Ranking]
) -> tuple[pa.Table, list[Any]]:
    """The sort columns; as in Spark, NaN is the largest value and null comes last."""
    columns: dict[str, Any] = {"": codes}
    keys: list[Any] = [("", "ascending")]
    for number, (name, is_descending) in enumerate(by):
        column = columns[f"{number}"] = pieces.column(name)
        if pa.types.is_floating(column.type) and is_descending:  # Arrow puts NaN at the end
            columns[f"{number} is NaN"] = pc.is_nan(column).cast(pa.int8())
            keys.append((f"{number} is NaN", "descending"))
        keys.append((f"{number}", "descending" if is_descending else "ascending"))
    return pa.table(columns), keys


def instants(times_ms: Int64) -> pa.Array:
    """Times in ms as a column of timestamps."""
    return pa.array(times_ms * 1000).cast(TIMESTAMP)
