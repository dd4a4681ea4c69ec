"""A running job gets more tasks, then fewer again, then other code: how long its rows wait."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

import clonos
from clonos.cluster.driver import RunningJob
from clonos.cluster.stages import LOGGER
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
    took, in which slots come while the job runs. The notes say what the pause consists of.
    """
    title = f"rescale: {arguments.state_mb:g} MB of state, {arguments.rate:,.0f} rows/s; ms"
    report = Report("rescale", title, _COLUMNS)
    found = _measured(report, arguments)
    for way, changes in found.items():
        pause, late, call = ([getattr(c, what) for c in changes] for what in _Change._fields[:3])
        judged = PAUSE.judge(float(np.median(pause)))
        report.add(way, str(len(changes)), spread(pause), spread(late), spread(call), judged)
        names = dict.fromkeys(stage for change in changes for stage in change.stages)
        stages = {name: [c.stages[name] for c in changes if name in c.stages] for name in names}
        parts = (f"{stage} {spread(took)}" for stage, took in stages.items())
        report.notes.append(f"{way}: {'; '.join(parts)}")
    return report


class _Change(NamedTuple):
    """One change; all times in ms. ``stages``: how long each has taken, until rows come again."""

    pause: float
    late: float
    call: float
    stages: dict[str, float]


class _Stages(logging.Handler):
    """Hears when stages begin."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[tuple[str, float]] = []
        LOGGER.setLevel(logging.DEBUG)
        LOGGER.propagate = False
        LOGGER.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.began.append((record.__dict__["stage"], time.monotonic()))

    def until(self, end_s: float) -> dict[str, float]:
        """How long each stage has taken, if the last one ended then; ms."""
        began = [(stage, at_s) for stage, at_s in self.began if at_s < end_s]
        ends = [*(at_s for _, at_s in began[1:]), end_s]
        return {stage: 1000 * (end - at) for (stage, at), end in zip(began, ends, strict=True)}


def _measured(report: Report, arguments: argparse.Namespace) -> dict[str, list[_Change]]:
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
            found: dict[str, list[_Change]] = {}
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


def _change(job: RunningJob, watch: Watch, change: Callable[[], None]) -> _Change:
    run.until(job, watch, lambda: watch.latest_ms() < 1_000, PATIENCE_S, "rows are in time")
    began_s, stages = time.monotonic(), _Stages()
    change()
    call_ms = 1000 * (time.monotonic() - began_s)
    until_s = time.monotonic() + AFTER_S
    run.until(job, watch, lambda: time.monotonic() >= until_s, PATIENCE_S, "a while has passed")
    LOGGER.removeHandler(stages)
    times, late = _outputs(watch, began_s)
    longest = int(np.diff(times).argmax())
    pause_ms = 1000 * float(times[longest + 1] - times[longest])
    return _Change(pause_ms, float(np.nanmax(late)), call_ms, stages.until(times[longest + 1]))


def _outputs(watch: Watch, since_s: float) -> tuple[Any, Any]:
    """When outputs were delivered since then, by whichever task, and how late they were."""
    series = [watch.series(task) for task in watch.tasks()]
    times = np.concatenate([times for times, _ in series])
    late = np.concatenate([late for _, late in series])
    order = np.argsort(times)
    times, late = times[order], late[order]
    return times[times >= since_s], late[times >= since_s]
