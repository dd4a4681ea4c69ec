"""Timers per key, in a store of values. Fired in the order (due, id): ids count registrations.

In a run (:mod:`clonos.state.runs`) the place of a timer is not the hash of its address. It begins
with the kind and the time, so timers that are due next lie together, and above all other values::

    another value   0 | hash 63 bits
    a timer         1 | kind 1 bit | due 46 bits | hash 16 bits
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from clonos.core.canonical import decode, encode
from clonos.state.runs import HASH
from clonos.state.stores import Facts

if TYPE_CHECKING:
    from clonos.state.values import ValueStore

PROCESSING_TIME: Final = b"p"
EVENT_TIME: Final = b"e"

_HEAD: Final = Struct(">cq")
_HASH_BITS: Final = 16
_HASHES: Final = (1 << _HASH_BITS) - 1
_PLACES: Final = 1 << 62
"""Number of places for each kind."""
_BEGINS: Final = {EVENT_TIME: 2 * _PLACES, PROCESSING_TIME: 3 * _PLACES}
_LATEST: Final = 1 << 45
"""Times beyond this many ms (over 1000 years) before or after 1970 share one place."""
_READ_BLOCKS: Final = 4
"""So many blocks of each run, about, are read at once."""
_FIRED_AT_ONCE: Final = 1024
_NOT_LATELY: Final = object()
_NEVER: Final = 1 << 64


class Timer(NamedTuple):
    """A registered timer; the fields come in the order of firing."""

    due: int
    id: int
    address: bytes
    group: int
    kept: bytes
    """What the store has kept of it."""

    @property
    def encoded_key(self) -> bytes:
        """The key that it belongs to."""
        return key_of(self.address)


class TimerTable:
    """All timers of an operator, kept in a store beside other values."""

    def __init__(self, store: ValueStore, facts: Facts) -> None:
        self._store = store
        self._facts = facts
        self._queues = {kind: _Queue(kind, store) for kind in _BEGINS}
        store.when_written = self._written

    def set(self, kind: bytes, due: int, encoded_key: bytes, group: int) -> None:
        """Register a timer, unless it exists already."""
        address = _address(kind, due, encoded_key)
        if address in self._store:
            return
        number = self._facts.get("timers", 0) + 1
        self._facts.set("timers", number)
        kept = encode([number, group])
        self._store.put_kept(address, group, kept)
        self._queues[kind].push(Timer(due, number, address, group, kept))

    def delete(self, kind: bytes, due: int, encoded_key: bytes, group: int) -> None:
        """Delete a timer, if it exists."""
        address = _address(kind, due, encoded_key)
        if address in self._store:
            self._store.put_kept(address, group, None)

    def next_due(self, kind: bytes) -> int | None:
        """When the earliest timer of this kind is due."""
        first = self._queues[kind].first(-_NEVER)
        return first.due if first is not None else None

    def due(self, kind: bytes, until_ms: int | None) -> Iterator[list[Timer]]:
        """The timers due at or before `until_ms` (None: all), some at a time. They are still
        stored. What is set meanwhile is not among them."""
        queue, newest = self._queues[kind], self._facts.get("timers", 0)
        some: list[Timer] = []
        until_ms = _NEVER if until_ms is None else until_ms
        while (timer := queue.first(until_ms)) is not None and timer.due <= until_ms:
            (some if timer.id <= newest else queue.later).append(queue.pop())
            if len(some) == _FIRED_AT_ONCE:
                yield some
                some = []
        yield some
        queue.resume()

    def remove(self, timer: Timer) -> bool:
        """Take a timer out of the store; False if it is not there any more."""
        if not _is_live(self._store, timer):
            return False
        self._store.put_kept(timer.address, timer.group, None)
        return True

    def restore(self, loaded: Mapping[bytes, bytes | None] | None) -> None:
        """The store has loaded these values; None: it has a run more, and all else is in runs."""
        if loaded is None:
            for queue in self._queues.values():
                queue.forget()
            return
        for address, value in loaded.items():
            if value is not None and address[:1] in self._queues:
                self._queues[address[:1]].push(_timer(address, value))

    def _written(self, values: Mapping[bytes, Any]) -> None:
        """What was kept of these is in a run now."""
        earliest = dict.fromkeys(self._queues, _PLACES)
        for address, kept in values.items():
            kind = address[:1]
            if kept is not None and kind in earliest:
                earliest[kind] = min(earliest[kind], _slot(_due(address)))
        for kind, slot in earliest.items():
            self._queues[kind].drop(values, slot)


class _Queue:
    """The timers of one kind, the earliest first.

    All that are in memory are in a heap; so are those in runs that lie below a place. There may be
    others in it that are gone. Those that were set while others fire are put off.
    """

    def __init__(self, kind: bytes, store: ValueStore) -> None:
        self._kind, self._store = kind, store
        self._heap: list[Timer] = []
        self.later: list[Timer] = []
        self._until = 0  # what lies below was read; counted from the first place of this kind

    def push(self, timer: Timer) -> None:
        """One that is in memory now."""
        heapq.heappush(self._heap, timer)

    def first(self, until_ms: int) -> Timer | None:
        """The earliest that is there. If it is due at `until_ms`, it is the one that was set first
        of all that are due at the same time: these are read."""
        heap, store = self._heap, self._store
        while True:
            while heap and not _is_live(store, heap[0]):
                heapq.heappop(heap)
            if self._until == _PLACES or not store.has_runs:
                return heap[0] if heap else None
            if heap:
                due = heap[0].due
                is_enough = due > until_ms and -_LATEST < due < _LATEST - 1
                if _slot(due) + (0 if is_enough else _HASHES) < self._until:
                    return heap[0]
            self._read()

    def pop(self) -> Timer:
        """Take the first."""
        return heapq.heappop(self._heap)

    def forget(self) -> None:
        """All are in runs."""
        self._heap, self.later, self._until = [], [], 0

    def resume(self) -> None:
        """Those that were put off are as all others."""
        for timer in self.later:
            heapq.heappush(self._heap, timer)
        self.later = []

    def drop(self, written: Mapping[bytes, Any], slot: int) -> None:
        """A run has these values now, and no timer below this slot."""
        self._until = until = min(self._until, slot)
        lately = self._store.lately

        def stays(timer: Timer) -> bool:
            is_read = _slot(timer.due) < until and timer.address not in written
            return is_read or bool(lately(timer.address) == timer.kept)

        self._heap, self.later = (list(filter(stays, some)) for some in (self._heap, self.later))
        heapq.heapify(self._heap)

    def _read(self) -> None:
        """Read on in the runs, to where a block begins."""
        begin, runs = _BEGINS[self._kind], self._store.runs
        low, wanted = begin + self._until, _READ_BLOCKS * len(runs)
        blocks = []
        for run in runs:
            firsts = run.index.firsts
            start = int(np.searchsorted(firsts, np.uint64(low), "right"))
            blocks.append(firsts[start : start + wanted])
        ahead = np.sort(np.concatenate(blocks))[:wanted]
        high = begin + _PLACES
        if len(ahead) == wanted:
            high = min(high, int(ahead[-1]))
        newest: dict[bytes, Any] = {}
        for run in runs:
            for rows in run.parts(low, high):
                newest.update(zip(rows.keys.to_pylist(), rows.values.to_pylist(), strict=True))
        for address, value in newest.items():
            if value is not None and address[:1] == self._kind:
                heapq.heappush(self._heap, _timer(address, value))
        self._until = high - begin


def key_of(address: bytes) -> bytes:
    """The key that the timer at an address belongs to."""
    return address[_HEAD.size :]


def place_of(address: bytes) -> int:
    """The place of a timer, or of another value, in runs."""
    place = HASH(address)
    begin = _BEGINS.get(address[:1])
    if begin is None:
        return place >> 1
    return begin + _slot(_due(address)) + (place & _HASHES)


def _slot(due: int) -> int:
    """The first of the places of timers that are due then."""
    if not -_LATEST <= due < _LATEST:
        due = -_LATEST if due < 0 else _LATEST - 1
    return (due + _LATEST) << _HASH_BITS


def _timer(address: bytes, value: bytes) -> Timer:
    number, group = decode(value)
    return Timer(_due(address), number, address, group, value)


def _is_live(store: ValueStore, timer: Timer) -> bool:
    """Whether nothing was put in its place since it was set or read."""
    kept = store.lately(timer.address, _NOT_LATELY)
    return bool(kept == timer.kept) or (kept is _NOT_LATELY and store.has_runs)


def _address(kind: bytes, due: int, encoded_key: bytes) -> bytes:
    return _HEAD.pack(kind, due) + encoded_key


def _due(address: bytes) -> int:
    due: int = _HEAD.unpack_from(address)[1]
    return due
