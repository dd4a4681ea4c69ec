"""A running job gets more tasks, then fewer again, then other code: how long its rows wait."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import clonos
from clonos.cluster.driver import RunningJob
from clonos_bench import jobs, run
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import spread
from clonos_bench.watch import Watch

PAUSE: Final = Aim(300.0)
"""Median pause; the target is for 1 GB of state."""
AFTER_S: Final = 3.0
"""Rows that are delivered until so long after a change may have waited for it."""
PATIENCE_S: Final = 120.0
_COLUMNS: Final = ("tasks", "n", "pause", "late", "call", "target")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench rescale``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=100.0)
    add = parser.add_argument
    add("--rate", type=float, default=5_000.0, help="rows per second")
    add("--rounds", type=int, default=5, help="times up, and as often down, and other code")
    add("--to", type=int, default=4, help="tasks of the stateful operator, after each time up")
    add("--standbys", type=int, default=0)


def measure(arguments: argparse.Namespace) -> Report:
    """Up, down, other code, under load; whether all rows came once, and all keys are counted right.

    ``pause``: the longest time without any output around a change; ``late``: how late the latest
    row was, counted from when it was due; ``call``: how long `running.rescale` or `running.upgrade`
    took, in which slots come while the job runs.
    """
    title = f"rescale: {arguments.state_mb:g} MB of state, {arguments.rate:,.0f} rows/s; ms"
    report = Report("rescale", title, _COLUMNS)
    found = _measured(report, arguments)
    for way, changes in found.items():
        pause, late, call = zip(*changes, strict=True)
        judged = PAUSE.judge(float(np.median(pause)))
        report.add(way, str(len(changes)), spread(pause), spread(late), spread(call), judged)
    return report


def _measured(
    report: Report, arguments: argparse.Namespace
) -> dict[str, list[tuple[float, float, float]]]:
    keys = run.keys_of(arguments)
    few, many = arguments.parallelism, arguments.to
    with tempfile.TemporaryDirectory() as folder, run.paced(arguments.rate, keys) as schedule:

        def define() -> clonos.Job:
            empty = clonos.Job(
                "touch",
                parallelism=few,
                standbys=arguments.standbys,
                checkpoint_dir=folder,
                checkpoint_interval=jobs.interval(arguments.checkpoint_ms),
            )
            return jobs.stateful(
                jobs.paced(schedule), keys=keys, value_bytes=arguments.value_bytes, job=empty
            )

        job = define()
        cores = 2 * (len(job.compile().plan.tasks) + many) * (1 + arguments.standbys)
        options = {"linger_ms": arguments.linger_ms, "graph": job.graph}
        with (
            run.session(f"local[{cores}]") as spark,
            run.running(job, spark, schedule, **options) as (started, watch),
        ):
            filled = lambda: watch.ledger.rows >= keys + arguments.rate  # noqa: E731
            run.until(started, watch, filled, run.FILL_S, "the state is filled")
            found: dict[str, list[tuple[float, float, float]]] = {}
            for _ in range(arguments.rounds):
                for what, change in (
                    (f"{few} to {many}", lambda: started.rescale({"state": many})),
                    (f"{many} to {few}", lambda: started.rescale({"state": few})),
                    ("upgrade", lambda: started.upgrade(define())),
                ):
                    found.setdefault(what, []).append(_change(started, watch, change))
            schedule.stop.touch()
            ended = lambda: not started.is_running  # noqa: E731
            run.until(started, watch, ended, PATIENCE_S, "the job has ended")
            started.wait(0)
    faults = watch.ledger.faults(few)
    verdict = "; ".join(faults) or "every row delivered once, every key counted right"
    report.notes.append(f"{watch.ledger.rows:,} rows: {verdict}")
    report.ok = not faults
    return found


def _change(
    job: RunningJob, watch: Watch, change: Callable[[], None]
) -> tuple[float, float, float]:
    """One change: the pause, how late the latest row was, how long the call took; ms."""
    run.until(job, watch, lambda: watch.latest_ms() < 1_000, PATIENCE_S, "rows are in time")
    began_s = time.monotonic()
    change()
    call_ms = 1000 * (time.monotonic() - began_s)
    until_s = time.monotonic() + AFTER_S
    run.until(job, watch, lambda: time.monotonic() >= until_s, PATIENCE_S, "a while has passed")
    times, late = _outputs(watch, began_s)
    return 1000 * float(np.diff(times).max()), float(np.nanmax(late)), call_ms


def _outputs(watch: Watch, since_s: float) -> tuple[Any, Any]:
    """When outputs were delivered since then, by whichever task, and how late they were."""
    series = [watch.series(task) for task in watch.tasks()]
    times = np.concatenate([times for times, _ in series])
    late = np.concatenate([late for _, late in series])
    order = np.argsort(times)
    times, late = times[order], late[order]
    return times[times >= since_s], late[times >= since_s]
