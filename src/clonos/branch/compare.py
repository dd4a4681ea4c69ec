"""Compares the rows that two runs of a job have delivered to a sink."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from clonos.errors import CannotReplace, WrongType

SHOWN: Final = 10
"""How many rows are printed."""


@dataclass(frozen=True)
class Comparison:
    """The difference between two tables.

    Attributes
    ----------
    sink
        The sink's name.
    table
        A row for each difference: ``change``, which is ``"only_a"`` (delivered by the job, but not
        by the branch), ``"only_b"``, or ``"changed"``; then the keys; then each other column twice,
        as ``<name>_a`` and ``<name>_b``. Without keys: all columns, once.
    rows_a, rows_b
        How many rows were compared.
    counted
        The number of differences of each kind, if the table has only the first of them.
    """

    sink: str
    table: pa.Table
    rows_a: int
    rows_b: int
    counted: Mapping[str, int] | None = None

    def count(self, change: str) -> int:
        """How many rows have this ``change``."""
        if self.counted is not None:
            return self.counted[change]
        changes: list[str] = self.table.column("change").to_pylist()
        return changes.count(change)

    @property
    def changes(self) -> int:
        """How many rows are different; 0 if the branch delivers the same."""
        if self.counted is not None:
            return sum(self.counted.values())
        return int(self.table.num_rows)

    def dataframe(self, spark: Any) -> Any:
        """The table as a DataFrame of a Spark session."""
        return spark.createDataFrame(self.table)

    def __str__(self) -> str:
        counts = ", ".join(f"{self.count(c)} {c}" for c in ("changed", "only_a", "only_b"))
        rows = [str(row) for row in self.table.slice(0, SHOWN).to_pylist()]
        more = [f"... and {self.changes - SHOWN} more"] if self.changes > SHOWN else []
        head = f"{self.sink}: {counts}; {self.rows_a} rows of the job, {self.rows_b} of the branch"
        return "\n".join([head, *rows, *more])


def compare(sink: str, a: pa.Table, b: pa.Table, keys: Sequence[str] | None) -> Comparison:
    """Compare two tables of one schema.

    Parameters
    ----------
    keys
        Columns by which a row of `b` is matched with one of `a`. Several rows with the same key are
        matched in order. None: rows match only if they are equal in all columns.

    Examples
    --------
    >>> a = pa.table({"id": [1, 2, 3], "score": [0.1, 0.2, 0.3]})
    >>> b = pa.table({"id": [3, 1, 4], "score": [0.3, 0.9, 0.4]})
    >>> for row in compare("alerts", a, b, ["id"]).table.to_pylist():
    ...     print(row)
    {'change': 'changed', 'id': 1, 'score_a': 0.1, 'score_b': 0.9}
    {'change': 'only_a', 'id': 2, 'score_a': 0.2, 'score_b': None}
    {'change': 'only_b', 'id': 4, 'score_a': None, 'score_b': 0.4}
    >>> compare("alerts", a, b, None).count("only_a")
    2

    Raises
    ------
    CannotReplace
        A key is not a column, or is nested; or the tables have different columns.
    WrongType
        `keys` is no list.
    """
    if a.schema != b.schema:
        raise CannotReplace(
            "the branch delivers other columns than the job",
            where=sink,
            remedy="keep the columns and their types; their values may change",
        )
    require_keys(sink, a.column_names, keys)
    if nested := [key for key in keys or () if pa.types.is_nested(a.schema.field(key).type)]:
        raise CannotReplace(
            f"{nested[0]!r} is nested and cannot be a key", where=sink, remedy="name other columns"
        )
    found = _by_key(a, b, list(keys)) if keys else _whole_rows(a, b)
    return Comparison(sink, found, a.num_rows, b.num_rows)


def require_keys(sink: str, names: Sequence[str], keys: Any) -> None:
    """Raise an error unless `keys` is None, or a list of columns."""
    if isinstance(keys, str):
        raise WrongType(f"keys={keys!r}", where=sink, remedy=f"give a list: keys=[{keys!r}]")
    if missing := [key for key in keys or () if key not in names]:
        raise CannotReplace(
            f"there is no column {missing[0]!r}",
            where=sink,
            remedy=f"the columns are {', '.join(names)}",
        )


def _by_key(a: pa.Table, b: pa.Table, keys: list[str]) -> pa.Table:
    others = [name for name in a.column_names if name not in keys]
    left: dict[Any, deque[tuple[Any, ...]]] = defaultdict(deque)
    for key, row in rows_of(b, keys, others):
        left[key].append(row)
    nothing = (None,) * len(others)
    found = []
    for key, row in rows_of(a, keys, others):
        if not left[key]:
            found.append(("only_a", key, row, nothing))
        elif differ(row, other := left[key].popleft()):
            found.append(("changed", key, row, other))
    found += [("only_b", key, nothing, row) for key, rows in left.items() for row in rows]
    return table_of_changes(found, a.schema, keys, others)


def table_of_changes(
    found: Sequence[tuple[str, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]],
    schema: pa.Schema,
    keys: Sequence[str],
    others: Sequence[str],
) -> pa.Table:
    """Differences as a table; each has its kind, its key, and the rest of both rows."""
    fields = [pa.field("change", pa.string()), *(schema.field(key) for key in keys)]
    columns: list[list[Any]] = [[one[0] for one in found]]
    columns += [[one[1][i] for one in found] for i in range(len(keys))]
    for i, name in enumerate(others):
        for side, at in (("a", 2), ("b", 3)):
            fields.append(pa.field(f"{name}_{side}", schema.field(name).type))
            columns.append([one[at][i] for one in found])
    return _table(columns, pa.schema([field.with_nullable(True) for field in fields]))


def _whole_rows(a: pa.Table, b: pa.Table) -> pa.Table:
    names = a.column_names
    rows = {
        side: [row for row, _ in rows_of(table, names, [])] for side, table in (("a", a), ("b", b))
    }
    marked = {side: [repr(row) for row in of_side] for side, of_side in rows.items()}
    left = {"a": Counter(marked["b"]), "b": Counter(marked["a"])}
    found = []
    for side in ("a", "b"):
        for row, mark in zip(rows[side], marked[side], strict=True):
            if left[side][mark]:
                left[side][mark] -= 1
            else:
                found.append((f"only_{side}", *row))
    columns = [list(column) for column in zip(*found, strict=True)] or [[] for _ in (0, *names)]
    fields = [pa.field("change", pa.string()), *(a.schema.field(name) for name in names)]
    return _table(columns, pa.schema([field.with_nullable(True) for field in fields]))


def rows_of(
    table: pa.Table, keys: list[str], others: list[str]
) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The key and the rest of each row."""

    def of(names: list[str]) -> list[tuple[Any, ...]]:
        columns = [table.column(name).to_pylist() for name in names]
        return list(zip(*columns, strict=True)) if names else [()] * table.num_rows

    return list(zip(of(keys), of(others), strict=True))


def differ(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Whether two rows differ; NaN equals NaN."""
    return one != two and repr(one) != repr(two)


def _table(columns: list[list[Any]], schema: pa.Schema) -> pa.Table:
    arrays = [pa.array(values, f.type) for values, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
