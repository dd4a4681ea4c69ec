"""Tumbling windows over keyed rows, in processing time or event time.

A window [start, end) fires when processing time reaches its end or the watermark its last
millisecond; rows that come later are dropped and counted. At the end of the input all windows
that are still open fire. Output is ordered by window, then by first appearance of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.core.canonical import decode, encode
from clonos.operators.aggregates import Accumulator, Aggregate, Slots, output_schema
from clonos.operators.base import Operator
from clonos.operators.batches import concat
from clonos.operators.keys import DistinctKeys, distinct_keys
from clonos.operators.schema import TIMESTAMP
from clonos.operators.state import Changes
from clonos.operators.watermark import event_ms

_START_BYTES = 8
_FIRST_CAPACITY = 64


class WindowOperator(Operator):
    """Aggregates per (window, key).

    Each such pair has a slot, an index into the accumulators' arrays; slots are reused. What is
    stored per pair is its order of appearance and the accumulators' values.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        size_ms: int,
        event_time: str | None,
        aggregates: dict[str, Aggregate],
    ) -> None:
        super().__init__()
        self._keys = tuple(keys)
        self._size_ms = size_ms
        self._event_time = event_time
        self._columns = [aggregate.column for aggregate in aggregates.values()]
        self._accumulators: list[Accumulator] = [
            aggregate.accumulator(schema, "window") for aggregate in aggregates.values()
        ]
        named = list(zip(aggregates, self._accumulators, strict=True))
        self.schema = output_schema(schema, self._keys, named)
        self._windows: dict[int, dict[bytes, int]] = {}
        self._capacity = _FIRST_CAPACITY
        self._free = list(range(_FIRST_CAPACITY - 1, -1, -1))
        self._key_of: list[tuple[Any, ...]] = [()] * _FIRST_CAPACITY
        self._address: list[bytes] = [b""] * _FIRST_CAPACITY
        self._order = np.zeros(_FIRST_CAPACITY, np.int64)
        self._group = np.zeros(_FIRST_CAPACITY, np.int64)
        self._is_dirty = np.zeros(_FIRST_CAPACITY, bool)
        self._is_stored = np.zeros(_FIRST_CAPACITY, bool)
        self._gone: dict[bytes, int] = {}

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        if self._event_time is None:
            starts = self._window_of(np.array([self.services.step.clock_ms()]))
            self._add(int(starts[0]), batch)
            return None
        batch, times = self._with_event_time(batch, self._event_time)
        windows = self._window_of(times)
        for start in np.unique(windows).tolist():
            rows = windows == start
            part = batch if rows.all() else batch.filter(pa.array(rows))
            if self._is_over(start, self.watermark_ms):
                self.facts.set("late_rows", self.facts.get("late_rows", 0) + part.num_rows)
            else:
                self._add(start, part)
        return None

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        if self._event_time is None:
            return None
        return self._fire([s for s in self._windows if self._is_over(s, watermark_ms)])

    def on_timer(self, now_ms: int) -> pa.RecordBatch | None:
        return self._fire([start for start in self._windows if start + self._size_ms <= now_ms])

    def next_due_ms(self) -> int | None:
        if self._event_time is not None or not self._windows:
            return None
        return min(self._windows) + self._size_ms

    def on_end(self) -> pa.RecordBatch | None:
        return self._fire(list(self._windows))

    def _window_of(self, times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return times_ms // self._size_ms * self._size_ms

    def _is_over(self, start: int, watermark_ms: int | None) -> bool:
        return watermark_ms is not None and start + self._size_ms - 1 <= watermark_ms

    def _with_event_time(
        self, batch: pa.RecordBatch, column: str
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """The rows that have an event time, and that time in ms."""
        times = event_ms(batch.column(column))
        if times.null_count:
            missing = batch.filter(times.is_null())
            for row in missing.to_pylist():
                self.reject(ValueError(f"no event time in column {column!r}"), row)
            batch, times = batch.filter(times.is_valid()), times.drop_null()
        return batch, times.to_numpy(zero_copy_only=False)

    def _add(self, start: int, batch: pa.RecordBatch) -> None:
        distinct = distinct_keys(batch, self._keys)
        slots = self._slots(start, distinct)[distinct.codes]
        for column, accumulator in zip(self._columns, self._accumulators, strict=True):
            values = None if column is None else batch.column(column)
            accumulator.add(slots, values, batch.num_rows)
        self._is_dirty[slots] = True

    def _slots(self, start: int, distinct: DistinctKeys) -> Slots:
        """The slot of each distinct key in this window, new ones where there is none."""
        window = self._windows.setdefault(start, {})
        fresh = [i for i, encoded in enumerate(distinct.encoded) if encoded not in window]
        if fresh:
            prefix = start.to_bytes(_START_BYTES, "big", signed=True)
            encoded = [distinct.encoded[i] for i in fresh]
            slots = self._take_slots(
                [prefix + e for e in encoded],
                [distinct.keys[i] for i in fresh],
                [distinct.groups[i] for i in fresh],
            )
            order = self.facts.get("order", 0)
            self.facts.set("order", order + len(fresh))
            self._order[slots] = np.arange(order, order + len(fresh))
            for accumulator in self._accumulators:
                accumulator.clear(slots)
            window.update(zip(encoded, slots.tolist(), strict=True))
        return np.array([window[encoded] for encoded in distinct.encoded], np.int64)

    def _take_slots(
        self, addresses: list[bytes], keys: list[tuple[Any, ...]], groups: list[int]
    ) -> Slots:
        while len(self._free) < len(keys):
            self._grow()
        slots = [self._free.pop() for _ in keys]
        for slot, address, key in zip(slots, addresses, keys, strict=True):
            self._address[slot] = address
            self._key_of[slot] = key
        self._group[slots] = groups
        return np.array(slots, np.int64)

    def _grow(self) -> None:
        old, self._capacity = self._capacity, self._capacity * 2
        self._free[:0] = range(self._capacity - 1, old - 1, -1)
        self._key_of.extend([()] * old)
        self._address.extend([b""] * old)
        for name in ("_order", "_group", "_is_dirty", "_is_stored"):
            held = getattr(self, name)
            setattr(self, name, np.concatenate([held, np.zeros_like(held)]))
        for accumulator in self._accumulators:
            accumulator.grow(self._capacity)

    def _fire(self, starts: list[int]) -> pa.RecordBatch | None:
        batches = []
        for start in sorted(starts):
            window = self._windows.pop(start)
            slots = np.fromiter(window.values(), np.int64, len(window))
            slots = slots[np.argsort(self._order[slots])]
            batches.append(self._result(start, slots))
            stored = slots[self._is_stored[slots]].tolist()
            self._gone.update((self._address[slot], int(self._group[slot])) for slot in stored)
            self._is_dirty[slots] = False
            self._is_stored[slots] = False
            self._free.extend(reversed(slots.tolist()))
        return concat(batches) if batches else None

    def _result(self, start: int, slots: Slots) -> pa.RecordBatch:
        keys = zip(*(self._key_of[slot] for slot in slots.tolist()), strict=True)
        key_fields = [self.schema.field(key) for key in self._keys]
        bounds = (start * 1000, (start + self._size_ms) * 1000)
        columns = [
            *(pa.array(values, field.type) for values, field in zip(keys, key_fields, strict=True)),
            *(pa.array(np.full(len(slots), b), pa.int64()).cast(TIMESTAMP) for b in bounds),
            *(accumulator.result(slots) for accumulator in self._accumulators),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def changes(self) -> Changes:
        slots = np.flatnonzero(self._is_dirty)
        # Slot numbers depend on the past of this object, the order of appearance does not.
        slots = slots[np.argsort(self._order[slots])]
        groups = self._group[slots].tolist()
        order = self._order[slots].tolist()
        saved = [accumulator.save(slots) for accumulator in self._accumulators]
        values = [encode(list(row)) for row in zip(groups, order, *saved, strict=True)]
        self._is_stored[slots] = True
        self._is_dirty[:] = False
        gone, self._gone = self._gone, {}
        return Changes(
            [*gone.values(), *groups],
            [*gone, *(self._address[slot] for slot in slots.tolist())],
            [*[None] * len(gone), *values],
        )

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        new: list[bytes] = []
        groups, order, saved = [], [], []
        for address, value in zip(keys, values, strict=True):
            if value is None:
                self._forget(address)
            else:
                group, number, *fields = decode(value)
                new.append(address)
                groups.append(group)
                order.append(number)
                saved.append(fields)
        if not new:
            return
        slots = self._slots_at(new, groups)
        self._order[slots] = order
        self._is_stored[slots] = True
        for accumulator, column in zip(self._accumulators, zip(*saved, strict=True), strict=True):
            accumulator.load(slots, column)

    def _slots_at(self, addresses: list[bytes], groups: list[int]) -> Slots:
        """The slots of restored pairs, new ones where there are none."""
        places = [(_start_of(address), address[_START_BYTES:]) for address in addresses]
        windows = [self._windows.setdefault(start, {}) for start, _ in places]
        fresh = [i for i, (_, key) in enumerate(places) if key not in windows[i]]
        taken = self._take_slots(
            [addresses[i] for i in fresh],
            [tuple(decode(places[i][1])) for i in fresh],
            [groups[i] for i in fresh],
        )
        for i, slot in zip(fresh, taken.tolist(), strict=True):
            windows[i][places[i][1]] = slot
        return np.array([windows[i][key] for i, (_, key) in enumerate(places)], np.int64)

    def _forget(self, address: bytes) -> None:
        start = _start_of(address)
        window = self._windows.get(start, {})
        slot = window.pop(address[_START_BYTES:], None)
        if slot is not None:
            self._is_stored[slot] = False
            self._free.append(slot)
        if not window:
            self._windows.pop(start, None)


def _start_of(address: bytes) -> int:
    return int.from_bytes(address[:_START_BYTES], "big", signed=True)
