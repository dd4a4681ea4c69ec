"""Rows of one key that wait for calls: how many may ask at a time, and which may leave."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.columns.keys import distinct_keys
from clonos.state.deltas import WHOLE_TASK
from clonos.state.stores import ADDRESS, KeyedStore

_HELD: Final = b"h"

Int64 = npt.NDArray[np.int64]


class Lanes:
    """The waiting rows of an operator by key: the rows of a key form a lane and ask in order.

    A row is *held* if later rows asked before it because its key had reached the limit of open
    calls. This is part of the state. Everything else follows from the waiting rows.

    Parameters
    ----------
    keys
        The columns of the key.
    per_key
        How many calls of a key may be open; None: any number.
    store
        Where held rows are recorded.

    Attributes
    ----------
    rows
        The key of each row that has not left, ordered by number.
    held
        How many rows are held.
    """

    def __init__(self, keys: Sequence[str], per_key: int | None, store: KeyedStore) -> None:
        self._keys, self.per_key, self._store = tuple(keys), per_key, store
        self.rows: dict[int, bytes] = {}
        self.held = 0
        self._lanes: defaultdict[bytes, deque[int]] = defaultdict(deque)
        self._open: Counter[bytes] = Counter()  # calls that are open or have been granted
        self._holds: defaultdict[bytes, deque[int]] = defaultdict(deque)
        self._due: list[int] = []  # a heap of held rows whose calls have been granted

    def came(self, rows: pa.RecordBatch, first: int) -> None:
        """New rows, numbered from `first` on."""
        self._add(rows, range(first, first + rows.num_rows))

    def restore(
        self, rows: pa.RecordBatch, numbers: Int64, asked: int, answered: Collection[int]
    ) -> Int64:
        """Take over the waiting rows of an earlier life; returns those that have asked."""
        self._add(rows, numbers.tolist())
        has_asked = []
        for number, key in self.rows.items():
            if number > asked:
                break
            if self._store.get(ADDRESS.pack(_HELD, number)):
                self.held += 1
                self._holds[key].append(number)
            else:
                has_asked.append(number)
                self._open[key] += number not in answered
        for key in self._holds:
            self._give_places(key)
        return np.array(has_asked, np.int64)

    def _add(self, rows: pa.RecordBatch, numbers: Iterable[int]) -> None:
        if not rows.num_rows:
            return
        distinct = distinct_keys(rows, self._keys)
        for number, code in zip(numbers, distinct.codes.tolist(), strict=True):
            key = self.rows[number] = distinct.encoded[code]
            self._lanes[key].append(number)

    # --- asking ---------------------------------------------------------------------------------

    def next(self, asked: int, came: int, most: int) -> tuple[list[int], int]:
        """The rows that ask now, at most `most`; held rows come first.

        Returns
        -------
        list of int, int
            Their numbers, and the last row up to which all have asked or are held.
        """
        calls: list[int] = []
        while self._due and len(calls) < most:
            number = heappop(self._due)
            self._store.put(ADDRESS.pack(_HELD, number), WHOLE_TASK, None)
            self.held -= 1
            calls.append(number)
        while asked < came and len(calls) < most:
            asked += 1
            key = self.rows[asked]
            if self.per_key is None or self._open[key] < self.per_key:
                self._open[key] += 1
                calls.append(asked)
            else:
                self._store.put(ADDRESS.pack(_HELD, asked), WHOLE_TASK, 1)
                self.held += 1
                self._holds[key].append(asked)
        return calls, asked

    def answered(self, numbers: Iterable[int]) -> None:
        """The calls of these rows are over, so that others of their keys may ask."""
        for number in numbers:
            key = self.rows[number]
            self._open[key] -= 1
            self._give_places(key)

    def _give_places(self, key: bytes) -> None:
        holds = self._holds.get(key)
        while holds and (self.per_key is None or self._open[key] < self.per_key):
            self._open[key] += 1
            heappush(self._due, holds.popleft())

    # --- going on -------------------------------------------------------------------------------

    def unblocked(self, numbers: Iterable[int], answered: Collection[int]) -> list[int]:
        """Rows in the lanes of these that are answered, as are all rows before them in the lane."""
        found: list[int] = []
        for key in {self.rows[number]: None for number in numbers}:
            for number in self._lanes[key]:
                if number not in answered:
                    break
                found.append(number)
        return sorted(found)

    def gone(self, numbers: Iterable[int]) -> None:
        """These rows have left."""
        for number in numbers:
            key = self.rows.pop(number)
            lane = self._lanes[key]
            lane.remove(number)  # near the beginning: only open calls come before it
            if not lane:
                for by_key in (self._lanes, self._open, self._holds):
                    by_key.pop(key, None)
