"""What a killed worker (or executor) does to the output of a job with state.

The job is four tasks deep (source, map, keyed state, sink) and delivers every row. The process of
a task with state is killed with ``kill -9``, again and again, each time after the job has been
normal for a while. Measured per kill:

gap
    The longest pause in the delivered output of the partition behind the killed task that may be
    due to the kill (it ends after the kill and begins before the task is live again), less the
    median pause of the two seconds before (:func:`clonos_bench.statistics.output_gap`). If an
    executor is killed: the worst of all partitions.
normal
    Time from the kill until the partition's end-to-end latency is back within 10 % of what it
    was: the 95th percentile of the next 0.25 s is at most 1.1 times that of the second before the
    kill (:func:`clonos_bench.statistics.back_to_normal`).
stages
    When the coordinator had detected, fenced, fetched the log, activated the standby; when that had
    restored its state, and was live, all in ms after the kill.

The same run checks that every row is delivered once, and that state has counted every key right.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clonos.nodes.views import STAGES, Recovery
from clonos_bench import jobs, plots, run
from clonos_bench.kills import PATIENCE_S, Kill, kill_repeatedly
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import Series, back_to_normal, output_gap, summarize

GAP_P50: Final = Aim(50.0)
GAP_P99: Final = Aim(150.0)
NORMAL: Final = Aim(500.0)

FILL_S: Final = 600.0
"""The state has to be there within this time."""


@dataclass
class Measured:
    """One kill; ms. Infinite: not before the next kill."""

    kind: str
    tasks: tuple[str, ...]
    gap_ms: float
    pause_ms: float
    usual_pause_ms: float
    usual_latency_ms: float
    normal_ms: float
    stages: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One job with its kills."""

    kills: Sequence[Kill]
    measured: Sequence[Measured]
    series: Mapping[str, tuple[Series, Series]]
    faults: Sequence[str]
    rows: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench recovery``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=100.0)
    add = parser.add_argument
    add("--rate", type=float, default=20_000.0, help="rows per second")
    add("--kills", type=int, default=200, help="workers to kill")
    add("--executor-kills", type=int, default=20, help="executors to kill")
    add("--pause", type=float, default=2.5, help="seconds of normal work before each kill")
    add("--standbys", type=int, default=1)
    add("--checkpoints", choices=("marked", "uncoordinated"), default="marked")
    add("--executor-master", default=None, help="default: local-cluster of two executors")


def measure(arguments: argparse.Namespace) -> Report:
    """Kill workers, then executors."""
    out = run.folder(arguments, "recovery")
    title = f"recovery: {arguments.state_mb:g} MB of state, {arguments.rate:,.0f} rows/s"
    report = Report("recovery", title, PERCENTILES)
    with run.profiled(arguments, out):
        for kind, count in (("worker", arguments.kills), ("executor", arguments.executor_kills)):
            if count:
                _report(report, kind, _run(arguments, kind, count), out)
    return report


def kill_workers(arguments: argparse.Namespace, count: int) -> Run:
    """One run in which only workers are killed, for other measurements."""
    return _run(arguments, "worker", count)


def _master(arguments: argparse.Namespace, kind: str, slots: int) -> str:
    if kind == "worker":
        return f"local[{slots}]"
    # Two executors that just hold all slots: a task and its standby never share one.
    return arguments.executor_master or f"local-cluster[2,{-(-slots // 2)},2048]"


def _run(arguments: argparse.Namespace, kind: str, count: int) -> Run:
    keys = run.keys_of(arguments)
    with run.stop_file() as stop:
        job = jobs.stateful(
            jobs.paced(arguments.rate, at_once=keys, stop_file=str(stop)),
            keys=keys,
            value_bytes=arguments.value_bytes,
            parallelism=arguments.parallelism,
            standbys=arguments.standbys,
            checkpoint_ms=arguments.checkpoint_ms,
            checkpoints=arguments.checkpoints,
            is_apart=True,
        )
        victims = [f"state[{i}]" for i in range(arguments.parallelism)]
        # Half of the slots go with an executor, and every task of it needs a place at once.
        spare = len(job.compile().plan.tasks) if kind == "executor" else None
        master = _master(arguments, kind, job.cores(spare))
        options = {"linger_ms": arguments.linger_ms, "standby_slots": spare}
        with (
            run.session(master) as spark,
            run.running(job, spark, **options) as (started, watch),
        ):
            filled = lambda: watch.ledger.rows >= keys + arguments.rate  # noqa: E731
            run.until(started, watch, filled, FILL_S, "the state is filled")
            kills = kill_repeatedly(started, watch, kind, victims, count, arguments.pause)
            stop.touch()
            ended = lambda: not started.is_running  # noqa: E731
            run.until(started, watch, ended, PATIENCE_S, "the job has ended")
            started.wait(0)
        series = {started.plan.tasks[t].name: watch.series(t) for t in watch.tasks()}
        measured = analyse(kills, series, started.observer.recoveries, arguments.pause)
        faults = watch.ledger.faults(arguments.parallelism)
        return Run(kills, measured, series, faults, watch.ledger.rows)


def analyse(
    kills: Sequence[Kill],
    series: Mapping[str, tuple[Series, Series]],
    recoveries: Sequence[Recovery],
    pause_s: float,
) -> list[Measured]:
    """Every kill's effect on the delivered outputs.

    Parameters
    ----------
    series
        By the sink task's name, such as ``"sink[1]"``.
    pause_s
        What came after the last kill.
    """
    result = []
    nexts = [kill.at_s for kill in kills[1:]] + [math.inf]
    for kill, next_s in zip(kills, nexts, strict=True):
        mine = [r for r in recoveries if r.name in kill.tasks]
        mine = [r for r in mine if kill.at_s <= r.stages["detected"] < next_s]
        stages = _stages(mine, kill.at_s)
        live_s = kill.at_s + stages.get("live", pause_s * 1000) / 1000
        places = {name.partition("[")[2] for name in kill.tasks}
        is_one = kill.kind == "worker"
        partitions = [s for n, s in series.items() if not is_one or n.partition("[")[2] in places]
        each = [_effect(kill, partition, live_s, next_s, stages) for partition in partitions]
        worst = max(each, key=lambda m: m.gap_ms)
        worst.normal_ms = max(m.normal_ms for m in each)
        result.append(worst)
    return result


def _stages(recoveries: Sequence[Recovery], kill_s: float) -> dict[str, float]:
    """When the last of the tasks reached each stage, in ms after the kill."""
    return {
        stage: 1000 * (max(r.stages[stage] for r in recoveries) - kill_s)
        for stage in STAGES
        if recoveries and all(stage in r.stages for r in recoveries)
    }


def _effect(
    kill: Kill,
    partition: tuple[Series, Series],
    live_s: float,
    next_s: float,
    stages: dict[str, float],
) -> Measured:
    times, latencies = partition
    found = output_gap(times, kill.at_s, live_s)
    if found is None:
        nan, inf = math.nan, math.inf
        return Measured(kill.kind, kill.tasks, inf, inf, nan, nan, inf, stages)
    gap, end_s = found
    normal = back_to_normal(times, latencies, kill.at_s, end_s, min(next_s, float(times[-1])))
    return Measured(
        kill.kind,
        kill.tasks,
        gap.gap_ms,
        gap.pause_ms,
        gap.usual_ms,
        normal.usual_ms,
        normal.after_ms,
        stages,
    )


def _report(report: Report, kind: str, done: Run, out: Path) -> None:
    measured = done.measured
    gaps = [m.gap_ms for m in measured]
    normals = [m.normal_ms for m in measured]
    report.summary(f"{kind}: gap (ms)", summarize(gaps), p50=GAP_P50, p99=GAP_P99)
    report.summary(f"{kind}: normal after (ms)", summarize(normals), p99=NORMAL)
    for stage in STAGES:
        times = [m.stages[stage] for m in measured if stage in m.stages]
        report.summary(f"{kind}: {stage} (ms)", summarize(times))
    usual = [m.usual_latency_ms for m in measured]
    report.summary(f"{kind}: latency before (ms, p95)", summarize(usual))
    verdict = "; ".join(done.faults) or "every row delivered once, every key counted right"
    report.notes.append(f"{kind}: {len(measured)} kills, {done.rows:,} rows: {verdict}")
    late = sum(not math.isfinite(n) for n in normals)
    if late:
        report.notes.append(f"{kind}: after {late} kills latency was not normal before the next")
    report.ok = report.ok and not done.faults
    report.data[kind] = {"kills": list(measured), "rows": done.rows, "faults": list(done.faults)}
    kills = [kill.at_s for kill in done.kills]
    plots.timeline(out / f"{kind}-timeline.png", done.series, kills, f"{report.title}, {kind}s")
    plots.histograms(
        out / f"{kind}-histogram.png",
        {
            "output gap (ms)": (gaps, [GAP_P50.limit, GAP_P99.limit]),
            "back to normal after (ms)": (normals, [NORMAL.limit]),
        },
        f"{len(measured)} {kind}s killed",
    )
