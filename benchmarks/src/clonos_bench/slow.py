"""A task that falls behind its peers because its process is slow: with speculation and without.

Keyed state, half of the keys in each of two tasks, at a pace that takes both about a third of their
time. Then one of their processes is stopped and let go on again, many times a second, so that it
gets on with a part of its speed, as on a machine that has lost most of its power; it does not know.
It stays so; with speculation its standby overtakes it. Measured, from the moment when it becomes
slow:

noticed, over
    Until the job has noticed, and until the task is live in another process, in ms.
normal
    Until rows are as late as before (p95, and 10 %), in s; "never": not before the run ended.
kept
    Rows of this task that were delivered while it was slow, of those that were due.

The same run checks that every row is delivered once, and that state has counted every key right.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

import clonos
from clonos.cluster.driver import RunningJob
from clonos.nodes.views import JobEvent
from clonos_bench import jobs, plots, run
from clonos_bench.kills import PATIENCE_S
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import back_to_normal, percentile, spread
from clonos_bench.watch import Watch

NORMAL: Final = Aim(3.0)
"""Seconds until rows are in time again."""
PIECE_S: Final = 0.001
PERIOD_S: Final = 0.04
"""So often a slow process is stopped: too briefly for anybody to take it for dead."""
TASK: Final = "state[0]"
_COLUMNS: Final = ("speculation", "n", "noticed", "over", "normal, s", "kept, %", "target")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench slow``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=10.0)
    add = parser.add_argument
    add("--rate", type=float, default=2_000.0, help="rows per second")
    add("--row-us", type=float, default=300.0, help="work of a row, in microseconds")
    add("--speed", type=float, default=0.25, help="what a slow process has of a processor")
    add("--runs", type=int, default=5, help="with speculation, and as many without")
    add("--before", type=float, default=6.0, help="seconds of normal work before")
    add("--seconds", type=float, default=15.0, help="how long it is slow")


class Working(jobs.Touch):
    """Works for a while before it touches the state of a row's key, a little at a time.

    Working is sleeping, for :data:`PIECE_S` each time: who is stopped does not get on, and nothing
    depends on how busy the machine is with other things.
    """

    def __init__(self, value_bytes: int, row_us: float) -> None:
        super().__init__(value_bytes)
        self._row_s, self._owed_s = row_us / 1e6, 0.0

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> list[tuple[int, int, int]]:
        """See :class:`clonos.Process`."""
        self._owed_s += self._row_s
        while self._owed_s >= PIECE_S:
            began_s = time.monotonic()
            time.sleep(PIECE_S)
            # What it has overslept is done, too; what it was stopped for is not.
            self._owed_s -= min(time.monotonic() - began_s, 2 * PIECE_S)
        return super().on_row(row, ctx)


class Slowed(NamedTuple):
    """What a process that became slow has done: ms, ms, s, share, and the latency around it."""

    noticed: float
    over: float
    normal: float
    kept: float
    series: tuple[Any, Any]
    at_s: float


def measure(arguments: argparse.Namespace) -> Report:
    """Runs with speculation and without, in turn."""
    title = (
        f"slow: a process at {arguments.speed:.0%} of its speed, {arguments.rate:,.0f} rows/s; ms"
    )
    report = Report("slow", title, _COLUMNS)
    found: dict[bool, list[Slowed]] = {True: [], False: []}
    for number in range(arguments.runs):
        for speculation in (True, False) if number % 2 else (False, True):
            found[speculation].append(_once(report, arguments, speculation=speculation))
    for speculation, all_ in found.items():
        normal = percentile([each.normal for each in all_], 50)
        report.add(
            "on" if speculation else "off",
            str(len(all_)),
            *(_spread([getattr(each, what) for each in all_]) for what in ("noticed", "over")),
            _seconds([each.normal for each in all_]),
            spread([100 * each.kept for each in all_]),
            f"{NORMAL}: {NORMAL.judge(normal)}" if speculation else "",
        )
        report.data["on" if speculation else "off"] = [
            {what: getattr(each, what) for what in ("noticed", "over", "normal", "kept")}
            for each in all_
        ]
    out = run.folder(arguments, "slow")
    first = {f"speculation {'on' if on else 'off'}": all_[0] for on, all_ in found.items()}
    moved = {name: (each.series[0] - each.at_s, each.series[1]) for name, each in first.items()}
    plots.timeline(out / "latency.png", moved, [0.0], report.title)
    report.notes.append(f"{arguments.runs} runs of each kind, in turn; median [lowest, highest]")
    return report


def _spread(values: list[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return spread(finite) if finite else "-"


def _seconds(values: list[float]) -> str:
    low, middle, high = (percentile(values, q) for q in (0, 50, 100))
    shown = [f"{s:.1f}" if math.isfinite(s) else "never" for s in (middle, low, high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def _job(arguments: argparse.Namespace, schedule: jobs.Schedule, *, speculation: bool) -> Any:
    keys = run.keys_of(arguments)
    job = clonos.Job(
        "slow",
        parallelism=arguments.parallelism,
        checkpoint_interval=jobs.interval(arguments.checkpoint_ms),
        speculation=speculation,
    )
    ids = job.source(jobs.paced(schedule), name="source", parallelism=1)
    keyed = ids.map_batches(jobs.AddKey(keys), schema="key long, id long", name="map")
    touched = (
        keyed.slot_group("state")
        .key_by("key")
        .process(
            Working(arguments.value_bytes, arguments.row_us),
            schema="key long, id long, seen long",
            name="state",
        )
    )
    touched.sink(clonos.sinks.callback(jobs.nothing), name="sink")
    return job


def _once(report: Report, arguments: argparse.Namespace, *, speculation: bool) -> Slowed:
    events: list[JobEvent] = []
    with run.paced(arguments.rate) as schedule:
        job = _job(arguments, schedule, speculation=speculation)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark, schedule, linger_ms=arguments.linger_ms) as (started, watch),
        ):
            started.on_event(events.append)
            _wait_for(started, watch, arguments.before)
            (pid,) = [task.pid for task in started.tasks() if task.name == TASK]
            assert pid is not None
            with slowed(pid, arguments.speed) as at_s:
                over = lambda: time.monotonic() >= at_s + arguments.seconds  # noqa: E731
                run.until(started, watch, over, arguments.seconds + 10, "it is slow")
            schedule.stop.touch()
            ended = lambda: not started.is_running  # noqa: E731
            run.until(started, watch, ended, PATIENCE_S, "the job has ended")
            started.wait(0)
    faults = watch.ledger.faults(1)
    report.ok &= not faults
    if faults:
        report.notes.append(f"WRONG output: {'; '.join(faults)}")
    (sink,) = [t.id for t in started.plan.tasks if t.name == TASK]  # the sink shares it
    return judged(arguments, events, watch.series(sink), at_s)


def _wait_for(job: RunningJob, watch: Watch, seconds: float) -> None:
    """Normal work for so long."""
    since_s = time.monotonic()

    def steady() -> bool:
        nonlocal since_s
        if not (watch.tasks() and run.all_live(job)):
            since_s = time.monotonic()
        return time.monotonic() - since_s >= seconds

    run.until(job, watch, steady, run.FILL_S, "all is live")


@contextlib.contextmanager
def slowed(pid: int, speed: float) -> Iterator[float]:
    """The process has so much of its time, from now on until this ends; the moment."""
    is_over, at_s = threading.Event(), time.monotonic()

    def alternate() -> None:
        periods = (at_s + number * PERIOD_S for number in itertools.count())
        with contextlib.suppress(ProcessLookupError):
            for period_s in periods:  # by the clock: who wakes up late has no less of it
                if is_over.wait(max(0.0, period_s + PERIOD_S * speed - time.monotonic())):
                    return
                os.kill(pid, signal.SIGSTOP)
                is_over.wait(max(0.0, period_s + PERIOD_S - time.monotonic()))
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=alternate, name="slows a process")
    thread.start()
    try:
        yield at_s
    finally:
        is_over.set()
        thread.join()


def judged(
    arguments: argparse.Namespace, events: list[JobEvent], series: tuple[Any, Any], at_s: float
) -> Slowed:
    """The figures of one run; `series` is the output of the task."""
    times, late = series
    until_s = at_s + arguments.seconds

    def first_ms(what: str) -> float:
        found = [event.at_s for event in events if event.what == what and event.at_s >= at_s]
        return 1000 * (found[0] - at_s) if found else math.inf

    normal = back_to_normal(times, late, at_s, _worst_s(times, late, at_s, until_s), until_s)
    usual_ms = percentile(late[(times >= at_s - arguments.before / 2) & (times < at_s)], 50)
    last = late[(times >= at_s) & (times < until_s)]
    behind_ms = max(0.0, float(last[-1]) - usual_ms) if len(last) else 1000 * arguments.seconds
    kept = 1 - behind_ms / (1000 * arguments.seconds)
    return Slowed(first_ms("rival"), first_ms("moved"), normal.after_ms / 1000, kept, series, at_s)


def _worst_s(times: Any, late: Any, at_s: float, until_s: float) -> float:
    """When rows were latest: before that, nothing had become normal again."""
    chosen = np.flatnonzero((times >= at_s) & (times < until_s))
    return float(times[chosen[np.argmax(late[chosen])]]) if len(chosen) else until_s
