"""Timers per key, as rows of a keyed store, with a heap to find the earliest.

Fired in the order (due, id), where ids count registrations.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from clonos.core.canonical import decode
from clonos.state.stores import Facts, KeyedStore

PROCESSING_TIME: Final = b"p"
EVENT_TIME: Final = b"e"

_DUE_BYTES = 8
_HEAD_BYTES = 1 + _DUE_BYTES


class Timer(NamedTuple):
    """A registered timer; the fields come in the order of firing."""

    due: int
    id: int
    address: bytes
    group: int

    @property
    def encoded_key(self) -> bytes:
        """The key that it belongs to."""
        return key_of(self.address)


class TimerTable:
    """All timers of an operator.

    The store is authoritative; a heap may hold deleted timers, which are recognised by their ids.
    """

    def __init__(self, store: KeyedStore, facts: Facts) -> None:
        self._store = store
        self._facts = facts
        self._heaps: dict[bytes, list[Timer]] = {PROCESSING_TIME: [], EVENT_TIME: []}

    def set(self, kind: bytes, due: int, encoded_key: bytes, group: int) -> None:
        """Register a timer, unless it exists already."""
        address = _address(kind, due, encoded_key)
        if address in self._store:
            return
        number = self._facts.get("timers", 0) + 1
        self._facts.set("timers", number)
        self._store.put(address, group, [number, group])
        heapq.heappush(self._heaps[kind], Timer(due, number, address, group))

    def delete(self, kind: bytes, due: int, encoded_key: bytes, group: int) -> None:
        """Delete a timer, if it exists."""
        address = _address(kind, due, encoded_key)
        if address in self._store:
            self._store.put(address, group, None)

    def next_due(self, kind: bytes) -> int | None:
        """When the earliest timer of this kind is due."""
        heap = self._heaps[kind]
        while heap and not self._is_live(heap[0]):
            heapq.heappop(heap)
        return heap[0].due if heap else None

    def take_due(self, kind: bytes, until_ms: int | None) -> list[Timer]:
        """Timers due at or before `until_ms` (None: all), taken off the heap but still stored."""
        heap = self._heaps[kind]
        due = []
        while heap and (until_ms is None or heap[0].due <= until_ms):
            timer = heapq.heappop(heap)
            if self._is_live(timer):
                due.append(timer)
        return due

    def remove(self, timer: Timer) -> bool:
        """Delete a timer from the store; False if it was deleted already."""
        if not self._is_live(timer):
            return False
        self._store.put(timer.address, timer.group, None)
        return True

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """The store took a delta: note the timers in it."""
        for address, value in zip(keys, values, strict=True):
            heap = self._heaps.get(address[:1])
            if heap is not None and value is not None:
                due = int.from_bytes(address[1:_HEAD_BYTES], "big", signed=True)
                number, group = decode(value)
                heapq.heappush(heap, Timer(due, number, address, group))

    def adopt(self, timers: Sequence[tuple[int, bytes, int]]) -> None:
        """Take over timers of other tables: old number, address and key group of each. They get
        new numbers in the order of the old ones."""
        for _, address, group in sorted(timers, key=itemgetter(0)):
            number = self._facts.get("timers", 0) + 1
            self._facts.set("timers", number)
            self._store.put(address, group, [number, group])

    def _is_live(self, timer: Timer) -> bool:
        value = self._store.get(timer.address)
        return value is not None and bool(value[0] == timer.id)


def key_of(address: bytes) -> bytes:
    """The key of the timer at an address."""
    return address[_HEAD_BYTES:]


def _address(kind: bytes, due: int, encoded_key: bytes) -> bytes:
    return kind + due.to_bytes(_DUE_BYTES, "big", signed=True) + encoded_key
