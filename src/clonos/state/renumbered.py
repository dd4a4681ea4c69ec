"""New numbers for rows and pieces in runs that several tasks have numbered.

The new numbers keep the order of the old ones; where two are equal, that of the tasks. Rows are
renumbered while they are read, so only their numbers must fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from clonos.columns.row_codec import RowCodec
from clonos.state.placed import found_in
from clonos.state.runs import Int64, Mask, Rows, Run

_NUMBER: Final = np.dtype(">u8")
_IN_ROW: Final = np.dtype("<i8")


class Numbered(NamedTuple):
    """Rows of a store: the range of their numbers, and their schema, which ends with the number."""

    orders: range
    schema: pa.Schema


class Ranks:
    """The ranks of rows among those of all tasks.

    Parameters
    ----------
    runs
        By task, its runs, which have no deleted rows.
    stores
        The stores whose rows they mix.
    """

    def __init__(self, runs: Sequence[Sequence[Run]], stores: Sequence[Numbered]) -> None:
        self._tasks, self._stores = len(runs), stores
        found: list[list[Int64]] = [[np.empty(0, np.int64)] for _ in stores]
        for task, of_task in enumerate(runs):
            for rows in (rows for run in of_task for rows in run.parts()):
                entries = found_in(rows)
                orders = entries.orders[entries.columns == 0]
                for store, parts in zip(stores, found, strict=True):
                    parts.append(self._places(orders[_are_in(orders, store)], store, task))
        self._sorted = [np.concatenate(parts) for parts in found]
        for places in self._sorted:
            places.sort()

    def ends(self) -> list[int]:
        """By store, the first number that no row has."""
        return [
            store.orders.start + len(places)
            for store, places in zip(self._stores, self._sorted, strict=True)
        ]

    def of(self, orders: Int64, task: int) -> Int64:
        """The new numbers of rows of a task."""
        ranks: Int64 = orders.copy()
        for store, places in zip(self._stores, self._sorted, strict=True):
            mine = _are_in(orders, store)
            wanted = self._places(orders[mine], store, task)
            ranks[mine] = store.orders.start + np.searchsorted(places, wanted)
        return ranks

    def _places(self, orders: Int64, store: Numbered, task: int) -> Int64:
        return (orders - store.orders.start) * self._tasks + task


class Renumbered(Run):
    """A run of a task, with new numbers in its rows."""

    def __init__(self, run: Run, ranks: Ranks, task: int, stores: Sequence[Numbered]) -> None:
        super().__init__(run.index, run.blocks)
        self._ranks, self._task = ranks, task
        self._heads = [(store, RowCodec(store.schema).head_bytes) for store in stores]

    def parts(self, low: int = 0, high: int = 1 << 64) -> Iterator[Rows]:
        return map(self._renumbered, super().parts(low, high))

    def _renumbered(self, rows: Rows) -> Rows:
        found = found_in(rows)
        orders = self._ranks.of(found.orders, self._task)
        has_row = found.columns == 0
        ends = np.zeros(len(orders), np.int64)
        for store, head_bytes in self._heads:
            ends[_are_in(found.orders, store)] = head_bytes
        keys = _patched(rows.keys, orders.astype(_NUMBER), np.zeros(len(orders), np.int64))
        at = np.where(has_row, ends - _IN_ROW.itemsize, -1)
        return rows._replace(keys=keys, values=_patched(rows.values, orders.astype(_IN_ROW), at))


def _are_in(orders: Int64, store: Numbered) -> Mask:
    mask: Mask = (orders >= store.orders.start) & (orders <= store.orders.stop - 1)
    return mask


def _patched(column: pa.Array, numbers: Int64, at: Int64) -> pa.Array:
    """Binary values without nulls, with a number put over the 8 bytes at a place (-1: not)."""
    assert not column.null_count
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].copy()
    starts, is_there = ends[:-1] - ends[0], at >= 0
    width = np.arange(numbers.itemsize)
    fresh = numbers.view(np.uint8).reshape(-1, len(width))
    raw[(starts + at)[is_there, None] + width] = fresh[is_there]
    buffers = [None, pa.py_buffer(ends - ends[0]), pa.py_buffer(raw)]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)
