"""Nexmark: the join of queries 3 and 8 is killed again and again, at a steady rate of events.

Event n exists from ``began + n / rate`` on. What runs the join's first task is killed with
``kill -9``, each time after the job has been normal for a while; latency is from the creation of
the event that completes a row to that row's delivery, the oldest row of each delivered batch
counts. What comes out is a :class:`~clonos.bench.timelines.Timeline` per system and query, of the
partition behind the killed task. What dies differs:

"1", "full"
    Ours, by sharing depth: the worker of the task, and nothing else.
"full-executor"
    Ours: the executor of the task, with all its tasks (about half of the job's) and standbys.
"spark"
    Structured Streaming: one of two executors (:mod:`clonos.bench.nexmark_spark_recovery`).
"flink-5000"
    Flink with checkpoints every 5,000 ms: the task manager of the task, with the one task of each
    operator that shares its slot (:mod:`clonos.bench.nexmark_flink_recovery`).

Others take part with what they have written in the same shape (``--beside``). The rows that were
delivered are compared with those that the events give.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import clonos
from clonos.bench import jobs, plots, run
from clonos.bench.kills import PATIENCE_S, kill_repeatedly
from clonos.bench.processes import CpuMeter, resident_bytes
from clonos.bench.report import Aim, Report
from clonos.bench.statistics import percentile, summarize
from clonos.bench.timelines import BEGINS_S, SUFFIX, Timeline
from clonos.bench.watch import Watch
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
EXECUTOR: Final = "-executor"
"""Ends the names of systems whose executors are killed."""
FLINK: Final = "flink-"
"""Of the names of systems: Flink; behind it, the ms between its checkpoints."""
SYSTEMS: Final = (*DEPTHS, f"full{EXECUTOR}", "spark", f"{FLINK}5000", f"{FLINK}1000")
NORMAL: Final = Aim(250.0)
START_S: Final = 5.0
"""Events begin so long after the job is asked for: starting processes takes that."""
FOR_EVER: Final = 1 << 40
"""Events: more than there will be."""

_BLOCK_EVENTS: Final = 10 * PROPORTION
_LINGER_MS: Final = 20.0
"""Between looks for new events: a batch of a few rows costs all tasks on its way as much as a large
one, and at the usual rate those of 5 ms have few."""
_MARGIN_S: Final = 2.0
"""Rows of events that are younger need not be delivered when the sources end."""
_SETTLE_S: Final = 3.0
_SETTLED_MS: Final = 1000.0
_WINDOW_US: Final = 10_000_000
_COST_S: Final = 5.0
"""For so long it is measured what the slots use."""
_MB: Final = 1e6
_PAPER: Final = {"Clonos on Flink": "4,000 to 11,000", "Flink": "69,000 to 96,000"}
"""Latency back within 10 %, in ms after a kill of the join's task, as the paper reports it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the part."""
    add = parser.add_argument
    add("--rate", type=float, default=50_000.0, help="events per second (recovery)")
    add("--kills", type=int, default=20, help="of our workers (recovery)")
    add("--executor-kills", type=int, default=5, help="of our executors (recovery)")
    add("--pause", type=float, default=2.5, help="seconds of normal work before each kill of ours")
    add("--spark-kills", type=int, default=6, help="executors of Spark (recovery)")
    add("--spark-pause", type=float, default=12.0, help="seconds from one to the next")
    add("--systems", default=",".join(SYSTEMS[:4]), help=f"out of {','.join(SYSTEMS)} (recovery)")
    add("--joins", default=",".join(JOINS), help="queries whose join is killed (recovery)")
    add("--beside", nargs="*", default=[], help=f"*{SUFFIX} files of other systems (recovery)")


def measure(chosen: object, arguments: argparse.Namespace, out: Path) -> Report:
    """Every join in every system; a table, and a picture per join."""
    del chosen
    rate = f"{arguments.rate:,.0f} events/s"
    title = f"Nexmark: kills of a join at {rate}, {arguments.parallelism} tasks per operator (ms)"
    report = Report("recovery", title, _COLUMNS)
    others = [Timeline.load(path) for path in arguments.beside]
    joins, systems = arguments.joins.split(","), arguments.systems.split(",")
    if not {*joins} <= {*JOINS} or not {*systems} <= {*SYSTEMS}:
        raise ClonosError(
            f"no joins {arguments.joins} in {arguments.systems}",
            remedy=f"use --joins {','.join(JOINS)} --systems {','.join(SYSTEMS)}",
        )
    for query in joins:
        timelines = _timelines(report, query, systems, arguments, out)
        timelines += [other for other in others if other.query == query]
        if timelines:
            _table(report, query, timelines)
            plots.systems(out / f"q{query}.png", timelines, f"Query {query} at {rate}")
            report.notes += _standbys(query, arguments)
    for system, normal in _PAPER.items():
        report.add(f"{system} (paper)", *[""] * 5, normal, "", "")
    report.notes += [_RULE, _THEIRS]
    return report


def _timelines(
    report: Report, query: str, systems: Sequence[str], arguments: Any, out: Path
) -> list[Timeline]:
    """Of one join in those systems that bear the rate; what became of each is noted."""
    timelines = []
    for system in systems:
        try:
            timeline, faults = _run(query, system, arguments)
        except ClonosError as error:  # what the others do is worth knowing all the same
            report.notes.append(f"q{query}, {system}: {error}")
            report.ok = False
            continue
        timeline.save(out, f"q{query}-{system}")
        timelines.append(timeline)
        remarks = timeline.settings.get("remarks", [])
        verdict = "; ".join([*faults, *remarks]) or "every row once"
        report.notes.append(f"q{query}, {timeline.system}: {verdict}")
        report.ok = report.ok and not faults
    return timelines


_COLUMNS: Final = (
    "",
    "kills",
    "latency p50",
    "p95",
    "gap p50",
    "gap max",
    "normal p50",
    "normal max",
    "aim",
)
_RULE: Final = (
    f"gap: longest pause of the output that begins before the kill or within {BEGINS_S:g} s, less "
    "the usual pause; normal: from the kill until latency (p95 of 0.25 s, or of three deliveries) "
    "is back within 10 % of its p95 in all quiet time; by the same rule for all systems"
)
_THEIRS: Final = (
    "paper: a cluster, 50,000 events/s, 5 tasks per operator, sharing depth 1, one standby, "
    "checkpoints every 5 s; the range of queries 3 and 8"
)


def _table(report: Report, query: str, timelines: Sequence[Timeline]) -> None:
    report.data[f"q{query}"] = of_query = {}
    for timeline in timelines:
        effects, quiet = timeline.effects(), timeline.quiet()
        gaps = summarize([effect.gap_ms for effect in effects])
        normals = summarize([effect.normal_ms for effect in effects])
        values = [percentile(quiet, 50), percentile(quiet, 95)]
        values += [gaps.p50, gaps.max, normals.p50, normals.max]
        cells = [_ms(value) for value in values]
        report.add(f"q{query}, {timeline.system}", str(len(effects)), *cells, _aim(timeline))
        of_query[timeline.system] = {
            "kills": effects,
            "usual_ms": timeline.usual_ms,
            "settings": timeline.settings,
        }


def _aim(timeline: Timeline) -> str:
    """Whether most kills, and whether all, are as harmless as they should be; of ours."""
    if not timeline.system.startswith(_OURS):
        return ""
    normals = summarize([effect.normal_ms for effect in timeline.effects()])
    return f"{NORMAL}: p50 {NORMAL.judge(normals.p50)}, max {NORMAL.judge(normals.max)}"


def _ms(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if math.isfinite(value) else "never"


def _run(query: str, system: str, arguments: Any) -> tuple[Timeline, list[str]]:
    if system.startswith(FLINK):
        from clonos.bench import nexmark_flink_recovery

        return nexmark_flink_recovery.measure(query, system, arguments)
    if system == "spark":
        from clonos.bench import nexmark_spark_recovery

        return nexmark_spark_recovery.measure(query, arguments)
    return _ours(query, system, arguments)


# --- our side -------------------------------------------------------------------------------------


_OURS: Final = "Clonos, "


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
        time.sleep(min(max_wait_s, _LINGER_MS / 1000))
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


def _ours(query: str, system: str, arguments: Any) -> tuple[Timeline, list[str]]:
    depth = system.removesuffix(EXECUTOR)
    kind, count = "worker", arguments.kills
    if system != depth:
        kind, count = "executor", arguments.executor_kills
    with _joining(query, depth, arguments, kind) as run_of:
        kills = kill_repeatedly(
            run_of.job,
            run_of.watch,
            kind,
            [f"q{query}[0]"],
            count,
            arguments.pause,
            run_of.rows.are_in_time,
        )
        due_s = time.time() - _MARGIN_S
        run_of.stop.touch()
        run_of.job.wait(PATIENCE_S)
    rows = run_of.rows
    faults = rows.faults(due_s, time.time())
    name = f"{_OURS}{'full sharing' if depth == 'full' else f'sharing depth {depth}'}, {kind}"
    tasks = max((len(kill.tasks) for kill in kills), default=0)
    settings = {"parallelism": arguments.parallelism, "standbys": 1, "tasks killed": tasks}
    moments = [kill.at_s for kill in kills]
    return Timeline(name, query, arguments.rate, rows.latency, moments, settings), faults


@dataclass(frozen=True)
class Joining:
    """A job of ours that has run in."""

    job: RunningJob
    watch: Watch
    rows: Rows
    stop: Path


@contextlib.contextmanager
def _joining(
    query: str, depth: str, arguments: Any, kind: str = "worker", standbys: int = 1
) -> Iterator[Joining]:
    pace = Pace(time.time() + START_S, arguments.rate)
    rows = Rows(pace, query)
    with run.stop_file() as stop:
        job = clonos.Job(
            f"q{query}",
            parallelism=arguments.parallelism,
            standbys=standbys,
            sharing_depth="full" if depth == "full" else int(depth),
            checkpoint_interval=f"{arguments.checkpoint_ms} ms",
        )
        house = Auctions(job, 0, source=partial(paced, pace, stop))
        JOINS[query](house).sink(clonos.sinks.callback(jobs.nothing), name="sink")
        # Every task that goes with an executor needs a place at once.
        spare = len(job.compile().plan.tasks) if kind == "executor" else None
        slots = run.slots_of(job, spare)
        # Two executors that just hold all slots: a task and its standby never share one.
        master = f"local-cluster[2,{-(-slots // 2)},2048]" if spare else f"local[{slots}]"
        with (
            run.session(master) as spark,
            run.running(job, spark, linger_ms=_LINGER_MS, standby_slots=spare) as (started, watch),
        ):
            watched = next(t.id for t in started.plan.tasks if t.sink is not None and t.index == 0)
            started.consumers.watch(partial(_take, rows, watched))
            run.until(started, watch, rows.drain, PATIENCE_S, "rows are delivered")
            _settle(started, rows, pace)
            yield Joining(started, watch, rows, stop)


def _standbys(query: str, arguments: Any) -> list[str]:
    """What the slots use with and without standbys, of the first depth that was asked for."""
    depth = next((system for system in arguments.systems.split(",") if system in DEPTHS), None)
    if depth is None:
        return []
    used = []
    for standbys in (1, 0):
        with _joining(query, depth, arguments, standbys=standbys) as run_of:
            meter, over, memory = CpuMeter(), time.monotonic() + _COST_S, 0
            while time.monotonic() < over and run_of.job.is_running:
                pids = [slot.pid for slot in run_of.job.slots()]
                meter.look(pids)
                memory = max(memory, sum(map(resident_bytes, pids)))
                time.sleep(run.LOOK_S)
            used.append(f"{memory / _MB:,.0f} MB, {meter.seconds / _COST_S:.2f} cores")
    return [f"q{query}, sharing depth {depth}: all slots {used[0]}; without standbys {used[1]}"]


def _take(rows: Rows, watched: int, operator: str, output: Deliver) -> None:
    del operator
    if output.item.kind is Kind.BATCH and output.item.batch is not None:
        rows.put(output.item.batch.payload, is_watched=output.task == watched)


def _settle(job: RunningJob, rows: Rows, pace: Pace) -> None:
    """What had waited while processes started is delivered, and everything has run in."""
    give_up = time.monotonic() + PATIENCE_S
    while time.time() < pace.began_s + _SETTLE_S or not rows.are_in_time():
        if not job.is_running or time.monotonic() > give_up:
            raise ClonosError(
                f"rows are {rows.latency[-1][1]:,.0f} ms late, and more and more so",
                remedy="use a lower --rate or a quieter machine",
            )
        time.sleep(run.LOOK_S)
    rows.latency.clear()
