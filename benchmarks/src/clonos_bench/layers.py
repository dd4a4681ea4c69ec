"""Checkpoints with markers and without: what a slow branch does to a fast one, what each costs.

*behind*: two sources meet in one task. One way there is slow and always some seconds behind. A
marker on it waits in its queue, and the task that both meet in takes nothing from the other way
until the marker has come. Without markers nothing waits.

*cost*: the same rows through a keyed job, with the one kind of checkpoint and the other in turn.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

import clonos
from clonos_bench import jobs, run
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import paired_ratio, summarize

KINDS: Final = ("marked", "uncoordinated")
LATE: Final = {"p99": Aim(20.0)}
"""Milliseconds, of the fast branch without markers."""
COST: Final = Aim(0.0)
"""Percent that it may cost beside markers."""
FILL_S: Final = 60.0
SLOW_MS: Final = 5.0
"""What a row takes on the slow way."""
SLOW_RATE: Final = 190.0
"""Rows per second there: nearly as many as it can take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench layers``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=10.0)
    add = parser.add_argument
    add("--parts", nargs="+", choices=("behind", "cost"), default=("behind", "cost"))
    add("--rate", type=float, default=1000.0, help="rows per second of the fast branch")
    add("--behind", type=float, default=2.0, help="how far behind the slow one is, in seconds")
    add("--seconds", type=float, default=20.0, help="how long is measured")
    add("--rows", type=int, default=2_000_000, help="per run, where the cost is measured")
    add("--pairs", type=int, default=5, help="runs of each kind")


def measure(arguments: argparse.Namespace) -> Report:
    """A slow branch beside a fast one, then the cost."""
    report = Report("layers", "checkpoints with markers and without", PERCENTILES)
    parts = {"behind": _behind, "cost": _cost}
    report.parts = [parts[name](arguments) for name in arguments.parts]
    return report


# --- a slow branch --------------------------------------------------------------------------------


def in_lane(lane: int, ms: float, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Say which way the rows have come, and take a while for each of them."""
    time.sleep(len(batch) * ms / 1000)
    ids = batch.column(0)
    lanes = pa.array(np.full(len(batch), lane), pa.int64())
    return pa.RecordBatch.from_arrays([ids, ids, lanes], ["key", "id", "lane"])


def one(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every row is the first of its key."""
    ones = pa.array(np.ones(len(batch)), pa.int64())
    return pa.RecordBatch.from_arrays(
        [batch.column(0), batch.column(1), ones], ["key", "id", "seen"]
    )


def _branches(
    arguments: argparse.Namespace, checkpoints: Any, schedule: jobs.Schedule
) -> clonos.Job:
    schema = "key long, id long, lane long"
    job = clonos.Job("branches", checkpoints=checkpoints, checkpoint_interval="1 second")
    fast = job.source(jobs.paced(schedule), name="fast source")
    fast = fast.map_batches(partial(in_lane, 0, 0.0), schema, name="fast way")
    backlog = int(arguments.behind * SLOW_RATE)
    source = jobs.paced(replace(schedule, rate=SLOW_RATE, at_once=backlog))
    slow = job.source(source, name="slow source").start_new_chain().slot_group("slow")
    slow = slow.map_batches(partial(in_lane, 1, SLOW_MS), schema, name="slow way")
    both = fast.union(slow, name="both").start_new_chain().slot_group("both")
    for lane, name in enumerate(("fast", "slow")):
        mine = both.filter(lambda row, lane=lane: row.lane == lane, name=f"{name} rows")
        if name == "fast":  # its rows are counted
            mine = mine.map_batches(one, "key long, id long, seen long", name="fast out")
        mine.sink(clonos.sinks.callback(jobs.nothing), name=name)
    return job


def _behind(arguments: argparse.Namespace) -> Report:
    title = f"{arguments.rate:,.0f} rows/s beside a branch that is {arguments.behind:g} s behind"
    report = Report("behind", title, PERCENTILES)
    late: dict[str, list[np.ndarray[Any, Any]]] = {kind: [] for kind in KINDS}
    floors: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for _ in range(arguments.pairs):
        for kind in KINDS:
            series, count = _fast_rows(arguments, kind)
            late[kind].append(series)
            floors[kind].append(count)
    for kind in KINDS:
        aims = LATE if kind == "uncoordinated" else {}
        report.summary(
            f"{kind}: the fast branch (ms)", summarize(np.concatenate(late[kind])), **aims
        )
    counts = {kind: f"{min(n)} to {max(n)}" for kind, n in floors.items()}
    report.notes.append(
        f"{arguments.pairs} runs of each kind in turn, {arguments.seconds:g} s each; floors moved "
        f"{counts['marked']} times with markers, {counts['uncoordinated']} times without"
    )
    report.notes.append("from when the oldest row of an output was due to its durable delivery")
    report.data = {"floors": floors}
    return report


def _fast_rows(arguments: argparse.Namespace, kind: str) -> tuple[np.ndarray[Any, Any], int]:
    with run.paced(arguments.rate) as schedule:
        job = _branches(arguments, kind, schedule)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark, schedule) as (started, watch),
        ):
            (task,) = [t.id for t in started.plan.tasks if t.sink == "fast"]
            begun = lambda: len(watch.series(task)[0]) > 100  # noqa: E731
            run.until(started, watch, begun, FILL_S, "rows are through")
            time.sleep(2.0)  # the slow branch falls behind as far as it will
            began, floors = time.monotonic(), started.observer.floors
            over = lambda: time.monotonic() >= began + arguments.seconds  # noqa: E731
            run.until(started, watch, over, arguments.seconds + 10, "measuring")
            ended, moved = time.monotonic(), started.observer.floors - floors
            schedule.stop.touch()
            started.wait(120)
            watch.drain()
        watch.require_right(parallelism=1)
        times, ms = watch.series(task)
    return ms[(times >= began) & (times < ended)], moved


# --- the cost -------------------------------------------------------------------------------------


def _cost(arguments: argparse.Namespace) -> Report:
    columns = ("", "value", "low", "high", "target")
    report = Report("cost", "without markers beside markers", columns)
    used: dict[str, list[run.Used]] = {kind: [] for kind in KINDS}
    cores = _keyed(arguments, "marked").cores()
    with run.session(f"local[{cores}]") as spark:
        for _ in range(arguments.pairs):
            for kind in KINDS:
                used[kind].append(_time(arguments, spark, kind))
    pairs = list(zip(used["uncoordinated"], used["marked"], strict=True))
    for what, seconds in (("wall time", "wall_s"), ("CPU time of the slots", "cpu_s")):
        ratio = paired_ratio([(getattr(a, seconds), getattr(b, seconds)) for a, b in pairs])
        report.ratio(f"{what} (%)", ratio, COST)
    report.notes.append(f"{len(pairs)} pairs; intervals of 95 %, Student's, of the logarithms")
    report.data = {"used": used}
    return report


def _keyed(arguments: argparse.Namespace, kind: str) -> clonos.Job:
    return jobs.stateful(
        jobs.at_once(arguments.rows),
        keys=run.keys_of(arguments),
        value_bytes=arguments.value_bytes,
        parallelism=arguments.parallelism,
        checkpoint_ms=arguments.checkpoint_ms,
        checkpoints=kind,
    )


def _time(arguments: argparse.Namespace, spark: Any, kind: str) -> run.Used:
    with run.running(_keyed(arguments, kind), spark) as (started, watch):
        used = run.time_all(started, watch, lambda: watch.ledger.rows, arguments.rows, 600.0)
    watch.require_right(arguments.parallelism)
    return used
