"""Events of Nexmark at a steady pace; whether and when a join gives the rows that they make."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.sources.readers import EndOfInput
from clonos.sources.spec import SourceSpec
from clonos_bench.nexmark import KINDS, Generator
from clonos_bench.nexmark.generator import BASE_MS, FIRST_ID, PROPORTION
from clonos_bench.nexmark.queries import CATEGORY, STATES
from clonos_bench.nexmark.source import NexmarkReader

FOR_EVER: Final = 1 << 40
"""Events: more than there will be."""
LINGER_MS: Final = 20.0
"""Between looks for new events: a batch of a few rows costs all tasks on its way as much as a large
one, and at the usual rate those of 5 ms have few."""

_BLOCK_EVENTS: Final = 10 * PROPORTION
_SETTLED_MS: Final = 1000.0
_WINDOW_US: Final = 10_000_000


@dataclass(frozen=True)
class Pace:
    """Event n exists from `began_s` + n / `rate` on (s since the epoch).

    Examples
    --------
    >>> Pace(1000.0, 100.0).rows("bid", 1000.5), Pace(1000.0, 100.0).rows("bid", 999.0)
    (46, 0)
    """

    began_s: float
    rate: float

    @property
    def generator(self) -> Generator:
        """Of events whose times follow each other at the rate."""
        return Generator(FOR_EVER, delay_us=round(1e6 / self.rate))

    def rows(self, kind: str, now_s: float) -> int:
        """How many of a kind exist."""
        events = max(0, int((now_s - self.began_s) * self.rate))
        return replace(self.generator, events=events).rows(kind)

    def late_ms(self, batch: Any, now_s: float) -> float:
        """How long ago the oldest row's newest event was created."""
        times = [batch.column(name).cast(pa.int64()).to_numpy() for name in ("since", "opens")]
        oldest_us = int(np.maximum(*times).min())
        return (now_s - self.began_s) * 1000 - (oldest_us / 1000 - BASE_MS)


class PacedReader(NexmarkReader):
    """One task's share of the events that exist by now; ends when `stop_file` does."""

    def __init__(
        self,
        pace: Pace,
        kind: str,
        stop_file: str,
        index: int,
        parallelism: int,
    ) -> None:
        super().__init__(pace.generator, kind, _BLOCK_EVENTS, index, parallelism)
        self._pace = pace
        self._stop_file = Path(stop_file)

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        self._rows = self._pace.rows(self._kind, time.time())
        try:
            return super().read(max_rows, max_wait_s)
        except EndOfInput:
            if self._stop_file.exists():
                raise
        time.sleep(min(max_wait_s, LINGER_MS / 1000))
        return None


def paced(pace: Pace, stop: Path, kind: str) -> SourceSpec:
    """The rows of a kind at a pace."""
    factory = partial(_paced, pace, kind, str(stop))
    return SourceSpec("nexmark", KINDS[kind], factory, True, KINDS[kind])


def _paced(pace: Pace, kind: str, stop: str, index: int, parallelism: int) -> PacedReader:
    return PacedReader(pace, kind, stop, index, parallelism)


class Rows:
    """What was delivered: when, how late, and which rows."""

    def __init__(self, pace: Pace, query: str) -> None:
        self._pace = pace
        self._query = query
        self._fresh: deque[tuple[float, float, Any, bool]] = deque()
        self._found: Counter[tuple[int, ...]] = Counter()
        self.latency: list[tuple[float, float]] = []

    def put(self, batch: Any, *, is_watched: bool = True) -> None:
        """A delivered batch (or table); cheap. Latency is taken of watched ones."""
        if batch.num_rows:
            self._fresh.append((time.monotonic(), time.time(), batch, is_watched))

    def drain(self) -> bool:
        """Take what has come; whether there has been anything to watch so far."""
        while self._fresh:
            at_s, wall_s, batch, is_watched = self._fresh.popleft()
            if is_watched:
                self.latency.append((at_s, self._pace.late_ms(batch, wall_s)))
            columns = [batch.column(name).cast(pa.int64()) for name in _NAMES[self._query]]
            self._found.update(zip(*(column.to_pylist() for column in columns), strict=True))
        return bool(self.latency)

    def are_in_time(self) -> bool:
        """Whether the newest delivery was less than a second late."""
        return self.drain() and self.latency[-1][1] < _SETTLED_MS

    def faults(self, due_s: float, now_s: float) -> list[str]:
        """What was delivered too often by now, or is missing of the events before `due_s`."""
        self.drain()
        possible = expected(self._query, self._pace, now_s)
        due = expected(self._query, self._pace, due_s)
        counted = {
            "rows too often": (self._found - possible).total(),
            "rows missing": (due - self._found).total(),
        }
        return [f"{count} {what}" for what, count in counted.items() if count]


_NAMES: Final = {"3": ("id",), "8": ("id", "reserve", "opens")}
"""What tells the rows of a join apart."""


def expected(query: str, pace: Pace, until_s: float) -> Counter[tuple[int, ...]]:
    """What the join gives of all events that exist by then, computed at once."""
    generator = pace.generator
    persons = generator.batch("person", 0, pace.rows("person", until_s))
    auctions = generator.batch("auction", 0, pace.rows("auction", until_s))
    # Persons are numbered from FIRST_ID on, in their order.
    place = auctions.column("seller").to_numpy() - FIRST_ID
    is_there = (place >= 0) & (place < persons.num_rows)
    auctions, place = auctions.filter(pa.array(is_there)), pa.array(place[is_there])
    persons = persons.take(place)
    if query == "3":
        chosen = pc.and_(
            pc.is_in(persons.column("state"), STATES),
            pc.equal(auctions.column("category"), CATEGORY),
        )
    else:
        came, sold = (rows.column("date_time").cast(pa.int64()) for rows in (persons, auctions))
        chosen = pc.equal(pc.divide(came, _WINDOW_US), pc.divide(sold, _WINDOW_US))
    auctions, persons = auctions.filter(chosen), persons.filter(chosen)
    ids = [auctions.column("id")]
    if query == "8":
        opens = auctions.column("date_time").cast(pa.int64())
        ids = [persons.column("id"), auctions.column("reserve"), opens]
    return Counter(zip(*(column.to_pylist() for column in ids), strict=True))
