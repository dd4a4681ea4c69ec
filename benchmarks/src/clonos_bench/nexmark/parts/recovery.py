"""Nexmark: the join of queries 3 and 8 is killed again and again, at a steady rate of events.

Event n exists from ``began + n / rate`` on. What runs the join's first task is killed with
``kill -9``, each time after the job has been normal for a while; latency is from the creation of
the event that completes a row to that row's delivery, the oldest row of each delivered batch
counts. What comes out is a :class:`~clonos_bench.timelines.Timeline` per system and query, of the
partition behind the killed task. What dies differs:

"1", "full"
    Ours, by sharing depth: the worker of the task, and nothing else.
"full-executor"
    Ours: the executor of the task, with all its tasks (about half of the job's) and standbys.
"spark"
    Structured Streaming: one of two executors (:mod:`clonos_bench.nexmark.parts.spark_recovery`).
"flink-5000"
    Flink with checkpoints every 5,000 ms: the task manager of the task, with the one task of each
    operator that shares its slot (:mod:`clonos_bench.nexmark.parts.flink_recovery`).

Others take part with what they have written in the same shape (``--beside``). The rows that were
delivered are compared with those that the events give.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import clonos
from clonos.cluster.driver import RunningJob
from clonos.core.housekeeper import Deliver
from clonos.core.messages import Kind
from clonos.errors import ClonosError
from clonos_bench import jobs, plots, run
from clonos_bench.kills import PATIENCE_S, kill_executors, kill_repeatedly, kill_workers
from clonos_bench.nexmark.parts import flink_recovery, spark_recovery
from clonos_bench.nexmark.parts.flink_recovery import FLINK
from clonos_bench.nexmark.parts.paced import LINGER_MS, Pace, Rows, paced
from clonos_bench.nexmark.queries import Auctions, local_sellers, new_sellers
from clonos_bench.processes import CpuMeter, resident_bytes
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import percentile, summarize
from clonos_bench.timelines import BEGINS_S, SUFFIX, Timeline
from clonos_bench.watch import Watch

JOINS: Final[Mapping[str, Callable[[Auctions], clonos.Stream]]] = {
    "3": local_sellers,
    "8": new_sellers,
}
DEPTHS: Final = ("1", "full")
EXECUTOR: Final = "-executor"
"""Ends the names of systems whose executors are killed."""
SYSTEMS: Final = (*DEPTHS, f"full{EXECUTOR}", "spark", f"{FLINK}5000", f"{FLINK}1000")
NORMAL: Final = Aim(250.0)
START_S: Final = 5.0
"""Events begin so long after the job is asked for: starting processes takes that."""
_MARGIN_S: Final = 2.0
"""Rows of events that are younger need not be delivered when the sources end."""
_SETTLE_S: Final = 3.0
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
    "target",
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
        return flink_recovery.measure(query, system, arguments)
    if system == "spark":
        return spark_recovery.measure(query, arguments)
    return _ours(query, system, arguments)


# --- our side -------------------------------------------------------------------------------------


_OURS: Final = "Clonos, "


def _ours(query: str, system: str, arguments: Any) -> tuple[Timeline, list[str]]:
    depth = system.removesuffix(EXECUTOR)
    kind, count = "worker", arguments.kills
    if system != depth:
        kind, count = "executor", arguments.executor_kills
    with _joining(query, depth, arguments, kind) as run_of:
        victim = f"q{query}[0]"
        blow = partial(kill_workers, run_of.job, [victim])
        if kind == "executor":
            blow = partial(kill_executors, run_of.job, victim)
        kills = kill_repeatedly(
            run_of.job,
            run_of.watch,
            [blow] * count,
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
    with run.paced(arguments.rate) as schedule:
        job = clonos.Job(
            f"q{query}",
            parallelism=arguments.parallelism,
            standbys=standbys,
            sharing_depth="full" if depth == "full" else int(depth),
            checkpoint_interval=jobs.interval(arguments.checkpoint_ms),
        )
        house = Auctions(job, 0, source=partial(paced, pace, schedule.stop))
        JOINS[query](house).sink(clonos.sinks.callback(jobs.nothing), name="sink")
        # Every task that goes with an executor needs a place at once.
        spare = len(job.compile().plan.tasks) if kind == "executor" else None
        slots = job.cores(spare)
        # Two executors that just hold all slots: a task and its standby never share one.
        master = f"local-cluster[2,{-(-slots // 2)},2048]" if spare else f"local[{slots}]"
        with (
            run.session(master) as spark,
            run.running(job, spark, linger_ms=LINGER_MS, standby_slots=spare) as (started, watch),
        ):
            watched = next(t.id for t in started.plan.tasks if t.sink is not None and t.index == 0)
            started.consumers.watch(partial(_take, rows, watched))
            run.until(started, watch, rows.drain, PATIENCE_S, "rows are delivered")
            _settle(started, rows, pace)
            yield Joining(started, watch, rows, schedule.stop)


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
