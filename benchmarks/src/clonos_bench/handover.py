"""What a planned move does to the output: how long it stands still, and how late rows are.

The job and its measures are those of ``clonos-bench failures``: four tasks deep, keyed state, rows
that are due at a moment that no move changes. One task with state after the other moves to another
slot; in between, at moments of the same kind, nothing happens, for comparison. Measured in ms:

gap
    The longest pause in the delivered output of the partition that moves, less the usual pause.
late
    How late rows were at worst until the next move.
took
    From the call of ``running.move`` until it returned: a copy and a floor are made ready first.

The same run checks that every row is delivered once, that state has counted every key right, and
that nothing was recovered.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from clonos.cluster.driver import RunningJob
from clonos.nodes.views import DriverView
from clonos_bench import jobs, run
from clonos_bench.failures import IN_TIME_MS, most_behind
from clonos_bench.kills import PATIENCE_S, Kill, kill_repeatedly
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import output_gap, percentile, spread
from clonos_bench.watch import Watch

GAP: Final = Aim(20.0)
"""Median gap of a move."""
_COLUMNS: Final = ("what", "n", "gap p50", "gap p99", "late", "took", "target")
_WITHIN_S: Final = 0.5
"""Where nothing moves, the longest pause of so long is looked at."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench handover``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=100.0)
    add = parser.add_argument
    add("--rate", type=float, default=20_000.0, help="rows per second")
    add("--rounds", type=int, default=20, help="moves")
    add("--pause", type=float, default=2.0, help="seconds of normal work before each move")
    add("--checkpoints", choices=("auto", "marked", "uncoordinated"), default="auto")


def measure(arguments: argparse.Namespace) -> Report:
    """Moves, and moments at which nothing moves, in turn."""
    title = f"handover: {arguments.state_mb:g} MB of state, {arguments.rate:,.0f} rows/s; ms"
    report = Report("handover", title, _COLUMNS)
    keys, ends = run.keys_of(arguments), list[float]()
    with run.paced(arguments.rate, keys) as schedule:
        job = jobs.stateful(
            jobs.paced(schedule),
            keys=keys,
            value_bytes=arguments.value_bytes,
            parallelism=arguments.parallelism,
            standbys=1,
            checkpoint_ms=arguments.checkpoint_ms,
            checkpoints=arguments.checkpoints,
            is_apart=True,
        )
        slots = job.cores(None)
        with (
            run.session(f"local[{slots}]") as spark,
            run.running(job, spark, schedule, linger_ms=arguments.linger_ms) as (started, watch),
        ):
            filled = lambda: watch.ledger.rows >= keys + arguments.rate  # noqa: E731
            run.until(started, watch, filled, run.FILL_S, "the state is filled")
            blows: list[Callable[[], Kill]] = []
            for number in range(arguments.rounds):
                task = f"state[{number % arguments.parallelism}]"
                blows.append(partial(_strike, started, task, ends, moves=False))
                blows.append(partial(_strike, started, task, ends, moves=True))
            in_time = lambda: watch.latest_ms() <= IN_TIME_MS  # noqa: E731
            kills = kill_repeatedly(started, watch, blows, arguments.pause, in_time)
            schedule.stop.touch()
            ended = lambda: not started.is_running  # noqa: E731
            run.until(started, watch, ended, PATIENCE_S, "the job has ended")
            started.wait(0)
    faults = watch.ledger.faults(arguments.parallelism)
    view: DriverView = started.observer.look()
    faults += [f"{len(view.recoveries)} recoveries"] if view.recoveries else []
    verdict = "; ".join(faults) or "every row delivered once, every key counted right"
    report.notes.append(f"{watch.ledger.rows:,} rows: {verdict}")
    report.ok = not faults
    _report(report, started, watch, kills, ends)
    return report


def _strike(job: RunningJob, task: str, ends: list[float], *, moves: bool) -> Kill:
    kill = Kill("a move" if moves else "nothing", 0, (task,), time.monotonic())
    if moves:
        job.move(task)
    else:
        time.sleep(_WITHIN_S)
    ends.append(time.monotonic())
    return kill


def _report(
    report: Report, job: RunningJob, watch: Watch, kills: list[Kill], ends: list[float]
) -> None:
    series = {job.plan.tasks[t].name: watch.series(t) for t in watch.tasks()}
    times, late = most_behind(list(series.values()))
    for what in ("nothing", "a move"):
        gaps, latest, took = list[float](), list[float](), list[float]()
        for kill, end_s in zip(kills, ends, strict=True):
            if kill.kind != what:
                continue
            place = kill.tasks[0].partition("[")[2]
            mine = next(s for name, (s, _) in series.items() if name.endswith(f"[{place}"))
            if (found := output_gap(mine, kill.at_s, end_s)) is not None:
                gaps.append(found[0].gap_ms)
            latest.append(float(late[(times >= kill.at_s) & (times < end_s + 1)].max(initial=0.0)))
            took.append(1000 * (end_s - kill.at_s))
        p50, p99 = (percentile(gaps, q) for q in (50, 99))
        aim = f"gap p50 {GAP}: {GAP.judge(p50)}" if what == "a move" else ""
        report.add(
            what, str(len(gaps)), f"{p50:,.0f}", f"{p99:,.0f}", spread(latest), spread(took), aim
        )
        report.data[what] = {"gaps": gaps, "late": latest, "took": took}
