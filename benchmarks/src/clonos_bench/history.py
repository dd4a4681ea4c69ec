"""What it costs to keep a history, and what it is good for: how fast branches and bundles are.

`keeping`: the same job with ``history=`` and without it, in turn, in one Spark session, as fast as
it can. In every second pair the other one is first. A pair's ratio has most of the machine's moods
cancelled. Measured from when all tasks are live until all rows are delivered.

`past`: a job that asks a service about each row, and one that asks nobody. Then a branch with
unchanged code goes through all that they have done, a bundle is made of it, and the bundle is
replayed. A branch has one process and does everything twice, with the job's code and with the
changed code; it waits for no service. It is checked that it delivers the same rows, and makes no
call.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import clonos
from clonos.cluster.driver import RunningJob
from clonos_bench import jobs, run
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import paired_ratio, percentile

COST: Final = Aim(2.0)
"""Percent."""
RUN_S: Final = 900.0
"""One run has to end within this time."""
SINK: Final = "sink"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench history``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=10.0)
    add = parser.add_argument
    add("--parts", nargs="+", choices=("keeping", "past"), default=("keeping", "past"))
    add("--rows", type=int, default=2_000_000, help="keeping: per run")
    add("--pairs", type=int, default=10, help="keeping: runs of each kind")
    add("--interval-s", type=float, default=5.0, help="keeping: from one point to the next")
    add("--asked", type=int, default=20_000, help="past: rows of the job that asks a service")
    add("--unasked", type=int, default=200_000, help="past: rows of the job that asks nobody")
    add("--service-ms", type=float, default=20.0, help="past: how long an answer takes")
    add("--in-flight", type=int, default=64, help="past: calls that are open in a task")


def measure(arguments: argparse.Namespace) -> Report:
    """Both parts."""
    report = Report("history", "history", ("",))
    if "keeping" in arguments.parts:
        report.parts.append(_keeping(arguments))
    if "past" in arguments.parts:
        report.parts.append(_past(arguments))
    return report


# --- what it costs --------------------------------------------------------------------------------


def _keeping(arguments: argparse.Namespace) -> Report:
    columns = ("", "value", "low", "high", "target")
    report = Report("keeping", "cost of keeping a history", columns)
    pairs: list[tuple[run.Used, run.Used]] = []
    kept: list[float] = []
    points: list[float] = []
    slots = _touch(arguments, keeps=True).cores(None)
    with run.session(f"local[{slots}]") as spark:
        for number in range(arguments.pairs):
            used: dict[bool, run.Used] = {}
            for keeps in (True, False) if number % 2 else (False, True):
                used[keeps], job = _used(arguments, spark, keeps=keeps)
                if keeps and job.last_progress is not None:
                    history = job.last_progress.history
                    kept.append(history.kept_bytes / arguments.rows)
                    points.append(history.points)
            pairs.append((used[True], used[False]))
    wall = paired_ratio([(on.wall_s, off.wall_s) for on, off in pairs])
    cpu = paired_ratio([(on.cpu_s, off.cpu_s) for on, off in pairs])
    driver = paired_ratio([(on.driver_cpu_s, off.driver_cpu_s) for on, off in pairs])
    report.ratio("wall time (%)", wall, COST)
    report.ratio("CPU time of the slots (%)", cpu, COST)
    report.ratio("CPU time of the driver's Python (%)", driver, None)
    report.add("kept (bytes per row)", f"{percentile(kept, 50):.2f}", "", "", "")
    report.add("points at the end of a run", f"{percentile(points, 50):.0f}", "", "", "")
    seconds = percentile([on.wall_s for on, _ in pairs], 50)
    report.notes.append(f"{len(pairs)} pairs of {arguments.rows:,} rows; {seconds:.1f} s a run")
    report.notes.append("intervals of 95 %, Student's, of the logarithms")
    report.data = {"pairs": pairs, "kept": kept, "points": points}
    return report


def _touch(arguments: argparse.Namespace, *, keeps: bool) -> clonos.Job:
    settings: dict[str, Any] = {}
    if keeps:
        settings = {"history": "1 day", "history_interval": f"{arguments.interval_s} seconds"}
    empty = clonos.Job(
        "touch",
        parallelism=arguments.parallelism,
        checkpoint_interval=jobs.interval(arguments.checkpoint_ms),
        **settings,
    )
    keys = run.keys_of(arguments)
    source = jobs.at_once(arguments.rows)
    return jobs.stateful(source, keys=keys, value_bytes=arguments.value_bytes, job=empty)


def _used(arguments: argparse.Namespace, spark: Any, *, keeps: bool) -> tuple[run.Used, RunningJob]:
    job = _touch(arguments, keeps=keeps)
    with run.running(job, spark, linger_ms=arguments.linger_ms) as (started, watch):
        used = run.time_all(started, watch, lambda: watch.ledger.rows, arguments.rows, RUN_S)
    watch.require_right(arguments.parallelism)
    return used, started


# --- what it is good for --------------------------------------------------------------------------


def asking(ms: float) -> Callable[[int], Any]:
    """A service that takes so long."""

    async def ask(number: int) -> int:
        await asyncio.sleep(ms / 1000)
        return 3 * number

    return ask


def _past(arguments: argparse.Namespace) -> Report:
    columns = ("", "rows", "s", "rows/s", "times the job's", "bytes a row")
    report = Report("past", "branches and bundles of all that a job has done", columns)
    for what, rows, asks in (
        (f"a service of {arguments.service_ms:g} ms", arguments.asked, True),
        ("no service", arguments.unasked, False),
    ):
        with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
            job = _judging(arguments, rows, Path(folder) / "checkpoint", asks=asks)
            _look_back(report, arguments, job, rows, what, Path(folder))
    return report


def _judging(arguments: argparse.Namespace, rows: int, folder: Path, *, asks: bool) -> clonos.Job:
    job = clonos.Job(
        "judging",
        parallelism=arguments.parallelism,
        checkpoint_dir=str(folder),
        checkpoint_interval=jobs.interval(arguments.checkpoint_ms),
        history="1 day",
    )
    ids = job.source(jobs.at_once(rows), name="source")
    keys = jobs.AddKey(run.keys_of(arguments))
    keyed = ids.map_batches(keys, schema="key long, id long", name="keys")
    if asks:
        ask = asking(arguments.service_ms)
        how = {"in_flight": arguments.in_flight, "name": "judge"}
        keyed = keyed.with_column_async("answer long", ask, "id", **how)
    process = jobs.Touch(arguments.value_bytes)
    seen = keyed.key_by("key").process(process, "key long, id long, seen long", name="state")
    seen.sink(clonos.sinks.callback(jobs.nothing), name=SINK)
    return job


def _look_back(
    report: Report,
    arguments: argparse.Namespace,
    job: clonos.Job,
    rows: int,
    what: str,
    folder: Path,
) -> None:
    with (
        run.session(f"local[{job.cores(None)}]") as spark,
        run.running(job, spark, linger_ms=arguments.linger_ms) as (started, watch),
    ):
        used = run.time_all(started, watch, lambda: watch.ledger.rows, rows, RUN_S)
    watch.require_right(arguments.parallelism)
    rate = rows / used.wall_s
    report.add(f"the job, {what}", f"{rows:,}", f"{used.wall_s:,.1f}", f"{rate:,.0f}", "", "")
    branch, branch_s = _timed(lambda: job.branch(at="oldest", replace={}))
    changes, again = branch.compare(SINK).changes, branch.rows(SINK).num_rows
    path = folder / "past.clonos"
    bundle, bundle_s = _timed(lambda: clonos.bundle(job, path, at="oldest"))
    steps, replay_s = _timed(lambda: _replayed(job, path))
    nbytes = f"{bundle.nbytes / again:,.1f}" if again else ""
    for name, took_s, size in (
        ("a branch, unchanged code", branch_s, ""),
        ("a bundle is made", bundle_s, nbytes),
        ("the bundle is replayed", replay_s, ""),
    ):
        times = f"{again / took_s / rate:,.2f}"
        report.add(name, f"{again:,}", f"{took_s:,.1f}", f"{again / took_s:,.0f}", times, size)
    is_right = (
        not changes and not branch.calls and again > 0 and steps == sum(bundle.steps.values())
    )
    verdict = "the branch delivers the same, and makes no call"
    if not is_right:
        verdict = (
            f"WRONG: {changes} rows of the branch differ, it has made {branch.calls} calls, and "
            f"{again} rows and {steps} steps were done again"
        )
    report.notes.append(f"{what}: {verdict}; {steps:,} steps")
    report.ok &= is_right
    report.data[what] = {"job": used, "branch_s": branch_s, "rows": again, "steps": steps}
    report.data[what] |= {"bundle_s": bundle_s, "bytes": bundle.nbytes, "replay_s": replay_s}


def _replayed(job: clonos.Job, path: Path) -> int:
    with clonos.Replay(job, str(path)) as replay:
        steps = 0
        while replay.step() is not None:
            steps += 1
    return steps


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began_s = time.monotonic()
    found = work()
    return found, time.monotonic() - began_s
