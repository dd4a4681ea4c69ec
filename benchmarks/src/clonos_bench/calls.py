"""Calls that take a while: what one costs, how late rows are, what a kill repeats, who waits."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, Final

import numpy as np

import clonos
from clonos_bench import (
    call_dbos,
    call_flink,
    call_jobs,
    call_kills,
    call_latency,
    call_steps,
    jobs,
    run,
)
from clonos_bench.flink.process import DEFAULT_PYTHON
from clonos_bench.kills import kill_repeatedly, kill_workers
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.run import FILL_S
from clonos_bench.statistics import mean, paired_ratio

COST: Final = Aim(40.0)
"""Microseconds of CPU per call."""
LOG: Final = Aim(5.0)
"""Percent on top of the same job without a log."""
FENCE: Final = Aim(20.0)
"""Milliseconds until everybody has answered, while all calls hang."""
CHECKPOINT: Final = Aim(200.0)
"""Milliseconds beyond the interval, while all calls hang."""
RUN_S: Final = 600.0
HANG_S: Final = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench calls``."""
    run.common_arguments(parser)
    add = parser.add_argument
    names = ("steps", "cost", "latency", "kills", "hanging", "flink", "dbos")
    add("--parts", nargs="+", choices=names, default=names, help="all by default")
    add("--step-calls", type=int, default=2000, help="in each round beside a step per call")
    add("--rows", type=int, default=200_000, help="per run, where the cost is measured")
    add("--pairs", type=int, default=5, help="runs of each kind there")
    add("--rate", type=float, default=1000.0, help="rows per second, where latency is measured")
    add("--call-ms", type=float, default=200.0, help="how long a call takes there")
    add("--linger-ms", type=float, default=2.0, help="how long a source collects a batch there")
    add("--seconds", type=float, default=30.0, help="how long is measured")
    add("--kills", type=int, default=5, help="how often workers are killed")
    add("--open", type=int, default=500, help="calls that are open then, in all tasks together")
    add("--flink-python", default=DEFAULT_PYTHON, help="of scripts/setup_flink.sh")
    add(
        "--dbos-python", default=call_dbos.DEFAULT_PYTHON, help="of a virtual environment with dbos"
    )


def measure(arguments: argparse.Namespace) -> Report:
    """Cost, latency, kills, and a service that hangs."""
    report = Report("calls", "calls that take a while", PERCENTILES)
    parts = {
        "steps": call_steps.measure,
        "cost": _cost,
        "latency": call_latency.measure,
        "kills": call_kills.measure,
        "hanging": _hanging,
        "flink": call_flink.measure,
        "dbos": call_dbos.measure,
    }
    measured = [parts[name](arguments) for name in arguments.parts]
    report.parts = [each for part in measured for each in (part, *part.parts)]
    return report


# --- measurements ---------------------------------------------------------------------------------


def _cost(arguments: argparse.Namespace) -> Report:
    columns = ("", "value", "low", "high", "target")
    report = Report("cost", "CPU of a call that is answered at once", columns)
    kinds = {
        "calls": (call_jobs.at_once, True),
        "no log": (call_jobs.at_once, False),
        "no calls": (call_jobs.plain, True),
        "effects": (clonos.effect(call_jobs.at_once), True),
    }
    used: dict[str, list[float]] = {kind: [] for kind in kinds}
    cores = _paced_job(arguments, call_jobs.at_once).cores()
    with run.session(f"local[{cores}]") as spark:
        for _ in range(arguments.pairs):
            for kind, (fn, protected) in kinds.items():
                used[kind].append(_cpu_s(arguments, spark, fn, protected=protected))
    for kind, what in (("calls", "a call"), ("effects", "an effect")):
        each = np.array(used[kind]) - np.array(used["no calls"])
        cost = mean((each / arguments.rows * 1e6).tolist())
        aim = f"{COST}: {COST.judge(cost.value)}" if kind == "calls" else ""
        cells = (f"{micros:.1f}" for micros in (cost.value, cost.low, cost.high))
        report.add(f"{what}, beside the same job without (us)", *cells, aim)
    ratio = paired_ratio(list(zip(used["calls"], used["no log"], strict=True)))
    report.ratio("log, standby (% of the slots' CPU)", ratio, LOG)
    report.notes.append(
        f"{arguments.pairs} runs of each kind in turn, {arguments.rows:,} rows each"
    )
    report.data = {"cpu_s": used}
    return report


def _paced_job(arguments: argparse.Namespace, fn: Any, *, protected: bool = True) -> clonos.Job:
    rows = arguments.rows
    source = jobs.at_once(rows)
    how = {} if fn is call_jobs.plain else {"in_flight": 400, "ordered": False}
    return call_jobs.define(arguments, source, fn, protected=protected, **how)


def _cpu_s(arguments: argparse.Namespace, spark: Any, fn: Any, *, protected: bool) -> float:
    job = _paced_job(arguments, fn, protected=protected)
    with run.running(job, spark) as (started, watch):
        used = run.time_all(started, watch, lambda: watch.ledger.rows, arguments.rows, RUN_S)
    watch.require_right(arguments.parallelism)
    return used.cpu_s


def _hanging(arguments: argparse.Namespace) -> Report:
    columns = ("", "value", "target")
    report = Report("hanging", f"while every call takes {HANG_S:g} s", columns)
    with run.paced(100.0) as schedule:
        source = jobs.paced(schedule)
        fn = partial(call_jobs.slow, schedule.folder, HANG_S)
        job = call_jobs.define(arguments, source, fn, in_flight=100, ordered=False)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark) as (started, watch),
        ):
            full = lambda: len(call_jobs.events(schedule.folder)) >= arguments.parallelism  # noqa: E731
            run.until(started, watch, full, FILL_S, "all tasks ask")
            time.sleep(5.0)  # more rows come than may ask
            times = [time.monotonic()]
            floor = started.observer.floors
            while time.monotonic() < times[0] + 15:
                if started.observer.floors > floor:
                    floor = started.observer.floors
                    times.append(time.monotonic())
                time.sleep(0.005)
            blows = [partial(kill_workers, started, ["source[0]"])] * arguments.kills
            kill_repeatedly(started, watch, blows, 1.0)
            done = [r for r in started.observer.recoveries if r.finished]
            live_ms = [r.milliseconds()["live"] for r in done]
            fences = (r.parts()["fence"] for r in done)
            fence_ms = [1000 * (end - begin) for begin, end in fences]
            started.stop()  # it would take long to answer all that has come meanwhile
    beyond = 1000 * np.diff(times)[1:] - 500
    worst = float(beyond.max())
    report.add("checkpoints in 15 s, every 500 ms", f"{len(times) - 1}", "")
    report.add(
        "longest beyond the interval (ms)",
        f"{worst:.0f}",
        f"{CHECKPOINT}: {CHECKPOINT.judge(worst)}",
    )
    worst = max(fence_ms)
    told = ", ".join(f"{ms:.0f}" for ms in fence_ms)
    report.add(
        "a neighbour killed: fences answered after (ms)", told, f"{FENCE}: {FENCE.judge(worst)}"
    )
    told = ", ".join(f"{ms:.0f}" for ms in live_ms)
    report.add("... and it is live again after (ms)", told, "")
    report.data = {"beyond_ms": beyond.tolist(), "fence_ms": fence_ms, "live_ms": live_ms}
    return report
