"""Virtual time, and the outside world that the simulated job talks to."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

import msgpack
import pyarrow as pa
import xxhash

from clonos.core.digest import content_digest
from clonos.core.events import Trial
from clonos.core.plan import Incarnation
from clonos.core.program import Batch, Program
from clonos.simulator.checks.violations import Violation
from clonos.simulator.world.service import Service

EPOCH_MS = 1_700_000_000_000
"""Processing time at the start of every simulation."""
_TICK = struct.Struct("<dq").pack
_PACK = msgpack.Packer().pack
"""Making a packer takes longer than packing."""


class TraceDigest:
    """A running digest of all events: simulations with equal digests took the same course.

    It is made of numbers and bytes, not of names, so it does not change when code is renamed.
    """

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, *what: Any) -> None:
        self._hash.update(_PACK(what))

    def tick(self, now: float, number: int) -> None:
        """The same for the most frequent events."""
        self._hash.update(_TICK(now, number))

    @property
    def value(self) -> str:
        return self._hash.hexdigest()


class Scheduler:
    """The only clock and the only queue: events are ordered by time, then by arrival."""

    def __init__(self) -> None:
        self.now = 0.0
        self.digest = TraceDigest()
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.steps = 0
        """How many events have been scheduled."""

    def at(self, time: float, do: Callable[..., None], *args: Any) -> None:
        self.steps += 1
        heapq.heappush(self._queue, (max(time, self.now), self.steps, do, args))

    def after(self, delay: float, do: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, do, *args)

    def run_next(self) -> bool:
        """Let the next event happen. False: none is left."""
        if not self._queue:
            return False
        self.now, number, do, args = heapq.heappop(self._queue)
        self.digest.tick(self.now, number)
        do(*args)
        return True


def batch_of(rows: tuple[tuple[int, int], ...]) -> Batch:
    """Rows are (id, value) pairs."""
    return Batch(rows, len(rows), 16 * len(rows), content_digest(_PACK(rows)))


class SourceData:
    """The rows of one source task, the same whenever they are read."""

    def __init__(self, first_id: int, count: int) -> None:
        self.rows = tuple((first_id + i, (first_id + i) * 2654435761 % 65521) for i in range(count))

    def read(self, offset: int, count: int) -> Batch:
        return batch_of(self.rows[offset : offset + count])


class MachineClock:
    """The clock of a machine: a little wrong, and adjusted now and then."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ahead_ms = 0

    def set_by(self, ms: int) -> None:
        self._ahead_ms += ms

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._scheduler.now) + self._ahead_ms


class Poisoned(BaseException):
    """Raised by a poison record: kills the process."""


def picked(wrap: Callable[[Any], Batch], batch: Batch, rows: Sequence[int]) -> Batch:
    """These rows of a batch."""
    payload = batch.payload
    if isinstance(payload, tuple):
        return wrap(tuple(payload[number] for number in rows))
    return wrap(payload.take(pa.array(rows, pa.int64())))


class Trials:
    """Trials: copies of processes take steps whose rows are suspect.

    Parameters
    ----------
    wrap
        Makes a batch of rows.
    random
        A generator of its own, so that watched lives change nothing else in a seed.

    Attributes
    ----------
    misfortune
        The probability that a trial hangs, or is killed from outside. The latter happens at most
        once in a life of a task: after two such deaths the record would count as poison.
    """

    def __init__(self, wrap: Callable[[Any], Batch], random: Random) -> None:
        self._wrap, self.random = wrap, random
        self._struck: list[Program] = []
        self.misfortune = 0.0

    def attempt(self, program: Program, do: Callable[[Program], None]) -> Trial:
        if self.random.random() < self.misfortune:
            if self.random.random() < 0.5 or any(program is struck for struck in self._struck):
                return Trial.UNKNOWN
            self._struck.append(program)
            return Trial.DIED
        try:
            do(deepcopy(program))
        except Poisoned:
            return Trial.DIED
        return Trial.SURVIVED

    def pick(self, batch: Batch, rows: Sequence[int]) -> Batch:
        return picked(self._wrap, batch, rows)

    def show(self, batch: Batch) -> str:
        payload = batch.payload
        return str(payload[0] if isinstance(payload, tuple) else payload.slice(0, 1).to_pylist()[0])


class TaskWorld:
    """The world as one incarnation of a task sees it (a :class:`clonos.core.events.World`)."""

    def __init__(
        self,
        scheduler: Scheduler,
        service: Service,
        task: int,
        incarnation: Incarnation,
        clock: MachineClock,
        skew_ms: int,
        decode_rows: Callable[[bytes], Batch],
        trials: Trials,
    ) -> None:
        self._trials = trials
        self._scheduler = scheduler
        self._service = service
        self._task = task
        self._incarnation = incarnation
        self._clock = clock
        self._skew_ms = skew_ms
        self._decode_rows = decode_rows

    def __deepcopy__(self, _: Any) -> TaskWorld:
        return self  # a copy of a program lives in the same world

    def clock_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms

    def ticks_ms(self) -> int:
        return int(self._scheduler.now)

    def call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        return self._service.call(self._task, self._incarnation, fn, args, kwargs)

    def decode_rows(self, content: bytes) -> Batch:
        return self._decode_rows(content)

    def attempt(self, program: Program, do: Callable[[Program], None]) -> Trial:
        return self._trials.attempt(program, do)

    def pick(self, batch: Batch, rows: Sequence[int]) -> Batch:
        return self._trials.pick(batch, rows)

    def show(self, batch: Batch) -> str:
        return self._trials.show(batch)


class NoWorld:
    """The world of a re-run, which must never be asked: the log is complete."""

    def __init__(
        self,
        decode_rows: Callable[[bytes], Batch],
        wrap: Callable[[Any], Batch] | None = None,
    ) -> None:
        self._decode_rows, self._wrap = decode_rows, wrap or batch_of

    def clock_ms(self) -> int:
        raise Violation("equivalence", "a replay reads the clock")

    def ticks_ms(self) -> int:
        raise Violation("equivalence", "a replay reads the clock")

    def call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        raise Violation("calls", "a replay makes a call")

    def decode_rows(self, content: bytes) -> Batch:
        return self._decode_rows(content)

    def attempt(self, program: Program, do: Callable[[Program], None]) -> Trial:
        raise Violation("blame", "a replay is on trial")

    def pick(self, batch: Batch, rows: Sequence[int]) -> Batch:
        return picked(self._wrap, batch, rows)

    def show(self, batch: Batch) -> str:
        raise Violation("blame", "a replay is on trial")
