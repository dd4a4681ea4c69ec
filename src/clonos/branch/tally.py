"""Compares the output of two runs while they go on; equal rows are forgotten at once."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, Final, Literal

import pyarrow as pa

from clonos.branch.compare import (
    Comparison,
    differ,
    require_keys,
    rows_of,
    table_of_changes,
)

KEPT_MAX: Final = 1000
"""How many differences of each kind are kept to be shown; all are counted."""
WAITING_MAX: Final = 100_000
"""How many rows of each side wait to be matched; older ones are given up."""

Side = Literal["a", "b"]
_Row = tuple[Any, ...]


class Tally:
    """The difference so far between the rows that two runs deliver to a sink.

    A row of one run is matched with the first unmatched row of the other that has the same key, or,
    without keys, that is equal. The last :data:`WAITING_MAX` waiting rows are searched.

    Parameters
    ----------
    keys
        Columns; see :func:`~clonos.branch.compare.compare`.

    Examples
    --------
    >>> tally = Tally("out", pa.schema([("id", pa.int64()), ("n", pa.int64())]), ["id"])
    >>> def rows(*given):
    ...     columns = map(pa.array, zip(*given))
    ...     return pa.RecordBatch.from_arrays(list(columns), ["id", "n"])
    >>> tally.add("a", rows((1, 5), (2, 6)))
    >>> tally.add("b", rows((2, 7), (1, 5), (3, 8)))
    >>> for row in tally.comparison().table.to_pylist():
    ...     print(row)
    {'change': 'changed', 'id': 2, 'n_a': 6, 'n_b': 7}
    {'change': 'only_b', 'id': 3, 'n_a': None, 'n_b': 8}
    """

    def __init__(self, sink: str, schema: pa.Schema, keys: Sequence[str] | None) -> None:
        require_keys(sink, schema.names, keys)
        self.sink, self._schema = sink, schema
        self._keys = list(schema.names if keys is None else keys)
        self._others = [name for name in schema.names if name not in self._keys]
        self._waiting: dict[Side, OrderedDict[str, deque[tuple[_Row, _Row]]]]
        self._waiting = {"a": OrderedDict(), "b": OrderedDict()}
        self._given_up: dict[Side, list[tuple[_Row, _Row]]] = {"a": [], "b": []}
        self._changed: list[tuple[str, _Row, _Row, _Row]] = []
        self.rows: dict[Side, int] = {"a": 0, "b": 0}
        self._counts = {"changed": 0, "only_a": 0, "only_b": 0}
        self._many: dict[Side, int] = {"a": 0, "b": 0}  # numbers of waiting rows

    def add(self, side: Side, batch: pa.RecordBatch) -> None:
        """Add rows that one of the runs has delivered."""
        other: Side = "b" if side == "a" else "a"
        mine, theirs = self._waiting[side], self._waiting[other]
        for key, row in rows_of(pa.Table.from_batches([batch]), self._keys, self._others):
            self.rows[side] += 1
            mark = repr(key)
            if (waiting := theirs.get(mark)) is None:
                mine.setdefault(mark, deque()).append((key, row))
                self._counts[f"only_{side}"] += 1
                self._many[side] += 1
                if self._many[side] > WAITING_MAX:
                    self._give_up(side)
                continue
            _, found = waiting.popleft()
            self._many[other] -= 1
            if not waiting:
                del theirs[mark]
            self._counts[f"only_{other}"] -= 1
            a, b = (row, found) if side == "a" else (found, row)
            if differ(a, b):
                self._counts["changed"] += 1
                if len(self._changed) < KEPT_MAX:
                    self._changed.append(("changed", key, a, b))

    def _give_up(self, side: Side) -> None:
        """Give up the row that has waited longest."""
        mine = self._waiting[side]
        mark, waiting = next(iter(mine.items()))
        one = waiting.popleft()
        if not waiting:
            del mine[mark]
        self._many[side] -= 1
        if len(self._given_up[side]) < KEPT_MAX:
            self._given_up[side].append(one)

    def comparison(self) -> Comparison:
        """The comparison: all differences are counted, the first ones shown."""
        nothing = (None,) * len(self._others)
        found = list(self._changed)
        for side in ("a", "b"):
            waiting = chain(self._given_up[side], chain.from_iterable(self._waiting[side].values()))
            for key, row in islice(waiting, KEPT_MAX):
                pair = (row, nothing) if side == "a" else (nothing, row)
                found.append((f"only_{side}", key, *pair))
        table = table_of_changes(found, self._schema, self._keys, self._others)
        return Comparison(self.sink, table, self.rows["a"], self.rows["b"], dict(self._counts))
