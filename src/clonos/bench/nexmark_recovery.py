"""Nexmark: the join of queries 3 and 8 is killed again and again, at a steady rate of events.

Event n exists from ``began + n / rate`` on. The worker of the join's first task is killed with
``kill -9``, each time after the job has been normal for a while; latency is from the creation of
the event that completes a row to that row's delivery, the oldest row of each delivered batch
counts. What comes out is a :class:`~clonos.bench.timelines.Timeline` per system and query, of the
partition behind the killed task: ours with sharing depth 1 and full, Structured Streaming
(:mod:`clonos.bench.nexmark_spark_recovery`), and what others have written in the same shape
(``--beside``). The rows that were delivered are compared with those that the events give.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import clonos
from clonos.bench import jobs, plots, run
from clonos.bench.kills import PATIENCE_S, kill_repeatedly
from clonos.bench.report import Report
from clonos.bench.statistics import percentile, summarize
from clonos.bench.timelines import SUFFIX, Timeline
from clonos.cluster.driver import RunningJob
from clonos.core.housekeeper import Deliver
from clonos.core.messages import Kind
from clonos.errors import ClonosError
from clonos.nexmark import KINDS, Generator
from clonos.nexmark.generator import BASE_MS, FIRST_ID, PROPORTION
from clonos.nexmark.queries import CATEGORY, STATES, Auctions, local_sellers, new_sellers
from clonos.nexmark.source import NexmarkReader
from clonos.operators.readers import EndOfInput
from clonos.operators.specs import SourceSpec

JOINS: Final[Mapping[str, Callable[[Auctions], clonos.Stream]]] = {
    "3": local_sellers,
    "8": new_sellers,
}
DEPTHS: Final = ("1", "full")
SYSTEMS: Final = (*DEPTHS, "spark")
START_S: Final = 5.0
"""Events begin so long after the job is asked for: starting processes takes that."""
WINDOW_MS: Final = 10_000
FOR_EVER: Final = 1 << 40

_BLOCK_EVENTS: Final = 10 * PROPORTION
_NAP_S: Final = 0.002
_MARGIN_MS: Final = 2_000
_LINGER_MS: Final = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the part."""
    add = parser.add_argument
    add("--rate", type=float, default=50_000.0, help="events per second (recovery)")
    add("--kills", type=int, default=20, help="of each system but Spark (recovery)")
    add("--pause", type=float, default=2.0, help="seconds of normal work before each kill")
    add("--spark-kills", type=int, default=6, help="executors of Spark (recovery)")
    add("--spark-pause", type=float, default=12.0, help="seconds from one to the next")
    add("--systems", default=",".join(SYSTEMS), help=f"out of {','.join(SYSTEMS)} (recovery)")
    add("--joins", default=",".join(JOINS), help="queries whose join is killed (recovery)")
    add("--beside", nargs="*", default=[], help=f"*{SUFFIX} files of other systems (recovery)")


def measure(chosen: object, arguments: argparse.Namespace, out: Path) -> Report:
    """Every join in every system; a table, and a picture per join."""
    del chosen
    title = f"Nexmark: kills of a join at {arguments.rate:,.0f} events/s"
    columns = ("", "kills", "latency p50 (ms)", "p99", "gap p50", "p90", "p99")
    report = Report("recovery", title, (*columns, "normal p50", "p90", "p99"))
    others = [Timeline.load(path) for path in arguments.beside]
    report.data["faults"] = {}
    for query in arguments.joins.split(","):
        timelines = []
        for system in arguments.systems.split(","):
            timeline, faults = _run(query, system, arguments)
            timeline.save(out, f"q{query}-{system}")
            timelines.append(timeline)
            verdict = "; ".join(faults) or "every row once"
            report.notes.append(f"q{query}, {timeline.system}: {verdict}")
            report.ok = report.ok and not faults
        timelines += [other for other in others if other.query == query]
        for timeline in timelines:
            report.add(f"q{query}, {timeline.system}", *_cells(timeline))
        picture = out / f"q{query}.png"
        plots.systems(picture, timelines, f"Query {query} at {arguments.rate:,.0f} events/s")
        report.data[f"q{query}"] = {each.system: each.effects() for each in timelines}
    report.notes.append(
        "ms; gap: longest pause of the output after a kill, less the usual pause; normal: from the "
        "kill until latency (p95) is back within 10 % of before"
    )
    return report


def _cells(timeline: Timeline) -> list[str]:
    effects = timeline.effects()
    quiet = timeline.before()
    gaps = summarize([effect.gap_ms for effect in effects])
    normals = summarize([effect.normal_ms for effect in effects])
    values = [percentile(quiet, 50), percentile(quiet, 99)]
    values += [gaps.p50, gaps.p90, gaps.p99, normals.p50, normals.p90, normals.p99]
    return [str(len(effects)), *(_ms(value) for value in values)]


def _ms(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if math.isfinite(value) else "never"


def _run(query: str, system: str, arguments: Any) -> tuple[Timeline, list[str]]:
    if query not in JOINS or system not in SYSTEMS:
        raise ClonosError(
            f"no join of query {query} in {system!r}",
            remedy=f"use --joins {','.join(JOINS)} --systems {','.join(SYSTEMS)}",
        )
    if system == "spark":
        from clonos.bench import nexmark_spark_recovery

        return nexmark_spark_recovery.measure(query, arguments)
    return _ours(query, system, arguments)


# --- our side -------------------------------------------------------------------------------------


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
        time.sleep(min(max_wait_s, _NAP_S))
        return None


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


def paced(pace: Pace, stop: Path, kind: str) -> SourceSpec:
    """The rows of a kind at a pace."""
    factory = partial(_paced, pace, kind, str(stop))
    return SourceSpec("nexmark", KINDS[kind], factory, True, KINDS[kind])


def _paced(pace: Pace, kind: str, stop: str, index: int, parallelism: int) -> PacedReader:
    return PacedReader(pace, kind, stop, index, parallelism)


class Rows:
    """What was delivered: when, how late, and the rows' ids."""

    def __init__(self, pace: Pace, query: str) -> None:
        self._pace = pace
        self._columns = ("id",) if query == "3" else ("id", "opens")
        self._fresh: deque[tuple[float, float, Any, bool]] = deque()
        self._found: list[npt.NDArray[np.int64]] = []
        self.latency: list[tuple[float, float]] = []

    def put(self, batch: Any, *, is_watched: bool) -> None:
        """A delivered batch; cheap. Latency is taken of watched ones."""
        self._fresh.append((time.monotonic(), time.time(), batch, is_watched))

    def drain(self) -> None:
        """Take what has come."""
        while self._fresh:
            at_s, wall_s, batch, is_watched = self._fresh.popleft()
            if is_watched:
                self.latency.append((at_s, self._pace.late_ms(batch, wall_s)))
            columns = [batch.column(c).cast(pa.int64()).to_numpy() for c in self._columns]
            self._found.append(np.stack(columns, axis=1))

    def faults(self, query: str) -> list[str]:
        """What is missing or was delivered twice, of the rows older than the last two seconds."""
        self.drain()
        found = np.concatenate(self._found) if self._found else np.empty((0, 1), np.int64)
        expected = expected_rows(query, self._pace, time.time())
        rows, counts = np.unique(found, axis=0, return_counts=True)
        have = {tuple(row) for row in rows.tolist()}
        wanted = {tuple(row) for row in expected.tolist()}
        known = {tuple(row) for row in expected_rows(query, self._pace, math.inf).tolist()}
        counted = {
            "rows delivered more than once": int((counts > 1).sum()),
            "rows missing": len(wanted - have),
            "rows that should not be": len(have - known),
        }
        return [f"{count} {what}" for what, count in counted.items() if count]
