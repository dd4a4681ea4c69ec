"""State by key that has no room in memory: what a kill costs, by how much of it there is.

The job is that of ``clonos-bench failures``, with one partition; or, with ``--kind join``, one that
joins rows with the first row of their key; or, with ``--kind timer``, one that has a timer for each
key, and lets rows out by timers; or, with ``--kind window``, one that counts the rows of each key
in a window that does not end, and lets rows out by short ones. Its state is filled first, and
stored; then rows come for random keys, and when they are in time the process with the state is
killed again and again.
Every size has the same memory for it (``--state-memory``). With ``--cold``, the system's cache
forgets all files of the state before each kill, as on a machine that has never read them. Measured:

gap
    The longest pause in the output after a kill, less the usual pause, in ms.
memory
    What the process with the state and the process with its copy keep of their own, in MB.
stored
    What the checkpoint takes on the disk, in MB.

The same run checks that every row is delivered once, and that state has counted every key right.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import clonos
from clonos.cluster.driver import RunningJob
from clonos.nodes.views import Recovery
from clonos_bench import jobs, run
from clonos_bench.kills import (
    PATIENCE_S,
    Kill,
    ends_of,
    gaps_of,
    kill_repeatedly,
    kill_workers,
    stages_of,
)
from clonos_bench.processes import forget, open_files, resident_bytes
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import percentile

FLAT: Final = Aim(1.5)
"""Median gap, as a multiple of that of the smallest state."""
_KINDS: Final = {
    "values": "values",
    "join": "rows of a join",
    "timer": "timers",
    "window": "pieces of a window",
}
_COLUMNS: Final = (
    "state",
    "standbys",
    "kills",
    "gap p50",
    "max",
    "memory",
    "of the copy",
    "stored",
    "gap, times that of the first",
)
IN_TIME_MS: Final = 1000.0
"""Rows that are later than this still wait for those with which the state was filled. Steps are
long then, and a kill costs several of them, however much state there is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench state``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--gb", type=float, nargs="+", default=[0.1, 1.0], help="sizes of the state")
    add("--standbys", type=int, nargs="+", default=[1, 0], help="copies of the task")
    add("--kind", choices=tuple(_KINDS), default="values", help="what the state is")
    add(
        "--value-bytes",
        type=int,
        default=1000,
        help="state per key; of timers and windows: its key",
    )
    add("--state-memory", default="64 MiB", help="memory for it, per slot")
    add("--rate", type=float, default=1000.0, help="rows per second, when the state is there")
    add("--kills", type=int, default=5, help="of each case")
    add("--checkpoint-ms", type=int, default=500, help="time between checkpoints; 0: auto")
    add("--pause", type=float, default=3.0, help="seconds of normal work before each kill")
    add(
        "--settle",
        type=float,
        default=0.0,
        help="seconds of work after that before the first kill",
    )
    add("--cold", action="store_true", help="no file of the state is in the system's cache")


def measure(arguments: argparse.Namespace) -> Report:
    """All sizes, with and without a copy."""
    what = _KINDS[arguments.kind]
    cold = ", cold" if arguments.cold else ""
    title = f"state: {arguments.state_memory} for {what}, {arguments.rate:,.0f} rows/s{cold}"
    report = Report("state", title, _COLUMNS)
    for standbys in arguments.standbys:
        first: float | None = None
        for gigabytes in arguments.gb:
            gaps, sizes = _measured(report, arguments, gigabytes, standbys)
            p50 = percentile(gaps, 50)
            first = first or p50
            times = p50 / first
            report.add(
                f"{gigabytes:g} GB",
                str(standbys),
                str(len(gaps)),
                *(f"{x:,.0f}" for x in (p50, max(gaps), *sizes)),
                f"{times:.2f} ({FLAT}: {FLAT.judge(times)})",
            )
            report.data[f"{gigabytes:g} GB, {standbys} standbys"] = {"gaps": gaps, "mb": sizes}
    return report


def _measured(
    report: Report, arguments: argparse.Namespace, gigabytes: float, standbys: int
) -> tuple[list[float], tuple[float, float, float]]:
    keys = max(1, round(gigabytes * 1e9 / arguments.value_bytes))
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder,
        run.paced(arguments.rate, keys) as schedule,
    ):
        job = clonos.Job(
            "state",
            parallelism=1,
            standbys=standbys,
            checkpoint_interval=jobs.interval(arguments.checkpoint_ms),
            checkpoint_dir=folder,
            state_memory=arguments.state_memory,
        )
        how = {"keys": keys, "value_bytes": arguments.value_bytes, "job": job}
        if arguments.kind == "join":
            jobs.joined(jobs.paced(schedule), **how)
        elif arguments.kind == "timer":
            jobs.reminded(jobs.paced(schedule), **how)
        elif arguments.kind == "window":
            jobs.windowed(jobs.paced(schedule), **how)
        else:
            jobs.stateful(jobs.paced(schedule), is_apart=True, **how)
        with (
            run.session(f"local[{job.cores(None)}]") as spark,
            run.running(job, spark, schedule) as (started, watch),
        ):
            filled = lambda: watch.ledger.rows >= keys + arguments.rate  # noqa: E731
            run.until(started, watch, filled, 3 * run.FILL_S, "the state is filled")
            floor = started.observer.look().floor
            stored = lambda: started.observer.look().floor > floor + 1  # noqa: E731
            run.until(started, watch, stored, 3 * run.FILL_S, "the state is in a checkpoint")
            in_time = lambda: watch.latest_ms() <= IN_TIME_MS  # noqa: E731
            run.until(started, watch, in_time, 3 * run.FILL_S, "rows are in time")
            if arguments.settle:  # layers are merged meanwhile
                settled_s = time.monotonic() + arguments.settle
                settled = lambda: time.monotonic() >= settled_s  # noqa: E731
                run.until(started, watch, settled, arguments.settle + PATIENCE_S, "time is up")
            cold = Path(folder) if arguments.cold else None
            blows = [partial(_kill, started, cold)] * arguments.kills
            kills = kill_repeatedly(started, watch, blows, arguments.pause, in_time)
            sizes = (*_memory(started), _nbytes(Path(folder)) / 1e6)
            recoveries = started.observer.recoveries
            stopped_s = time.monotonic()  # the end releases what is left, which may take long
            schedule.stop.touch()
            ended = lambda: not started.is_running  # noqa: E731
            run.until(started, watch, ended, PATIENCE_S, "the job has ended")
            started.wait(0)
    faults = watch.ledger.faults(1)
    verdict = "; ".join(faults) or "every row delivered once, every key counted right"
    report.notes.append(f"{gigabytes:g} GB, {standbys} standbys: {verdict}")
    report.ok &= not faults
    until_s = ends_of(kills, stopped_s)
    report.notes.append(
        f"{gigabytes:g} GB, {standbys} standbys: {_stages(recoveries, kills, until_s)}"
    )
    return gaps_of(watch, kills, stopped_s), sizes


def _kill(job: RunningJob, cold: Path | None) -> Kill:
    """Kill the process with the state, after the system's cache has forgotten what is in `cold`,
    and the files without a name that slots have open."""
    if cold is not None:
        for path in [*cold.rglob("*"), *open_files(slot.pid for slot in job.slots())]:
            forget(path)
    return kill_workers(job, ["state[0]"])


def _stages(recoveries: Sequence[Recovery], kills: Sequence[Kill], until_s: list[float]) -> str:
    """When the state reached each stage of its recovery, in ms after the kill: median and most."""
    found: dict[str, list[float]] = {}
    for kill, end_s in zip(kills, until_s, strict=True):
        for stage, ms in stages_of(recoveries, kill, end_s).items():
            found.setdefault(stage, []).append(ms)
    return ", ".join(f"{s} {percentile(ms, 50):,.0f} ({max(ms):,.0f})" for s, ms in found.items())


def _memory(job: RunningJob) -> tuple[float, float]:
    """Of the slots with the state and with its copy, in MB."""
    task = "state[0]"
    runs = [resident_bytes(slot.pid) for slot in job.slots() if task in slot.runs]
    keeps = [resident_bytes(slot.pid) for slot in job.slots() if task in slot.keeps]
    return sum(runs) / 1e6, sum(keeps) / 1e6


def _nbytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # a layer that was just deleted
            continue
    return total
