"""What protection costs: the same job with causal log, checkpoints and standbys, and without.

Both kinds run in turn in one Spark session, as fast as they can, over the same rows; a pair's ratio
has most of the machine's moods cancelled. Wall time is what users see; CPU time of all slot
processes, standbys included, says the same with less noise, and on a machine with idle cores
more. Measured from when all tasks are live until all rows are
delivered.

In-flight logs cannot be switched off, they are the output queues; without checkpoints they only
grow.
"""

from __future__ import annotations

import argparse
from typing import Any, Final

from clonos.cluster.driver import RunningJob
from clonos_bench import jobs, plots, run
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import paired_ratio

AIM: Final = Aim(5.0)
"""Percent."""
RUN_S: Final = 600.0
"""One run has to end within this time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench overhead``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=10.0)
    add = parser.add_argument
    add("--rows", type=int, default=2_000_000, help="per run")
    add("--pairs", type=int, default=10, help="runs of each kind")
    add("--standbys", type=int, default=1)


def measure(arguments: argparse.Namespace) -> Report:
    """A B A B ..., then one run that shows how large the logs are."""
    out = run.folder(arguments, "overhead")
    columns = ("", "value", "low", "high", "target")
    report = Report("overhead", "overhead of causal log, checkpoints, standbys", columns)
    slots = _job(arguments, protected=True, checkpoint_ms=1).cores()
    pairs: list[tuple[run.Used, run.Used]] = []
    with run.profiled(arguments, out), run.session(f"local[{slots}]") as spark:
        for _ in range(arguments.pairs):
            ms = arguments.checkpoint_ms
            on, _job_on = _run(arguments, spark, protected=True, checkpoint_ms=ms)
            off, _job_off = _run(arguments, spark, protected=False, checkpoint_ms=None)
            pairs.append((on, off))
        _, kept = _run(arguments, spark, protected=True, checkpoint_ms=None)
    wall = paired_ratio([(on.wall_s, off.wall_s) for on, off in pairs])
    cpu = paired_ratio([(on.cpu_s, off.cpu_s) for on, off in pairs])
    driver = paired_ratio([(on.driver_cpu_s, off.driver_cpu_s) for on, off in pairs])
    rates = [(arguments.rows / on.wall_s, arguments.rows / off.wall_s) for on, off in pairs]
    means = [sum(each) / len(pairs) for each in zip(*rates, strict=True)]
    report.notes.append(f"rows/s: {means[0]:,.0f} protected, {means[1]:,.0f} unprotected")
    report.ratio("wall time (%)", wall, AIM)
    report.ratio("CPU time of the slots (%)", cpu, AIM)
    report.ratio("CPU time of the driver's Python (%)", driver, None)
    logs = _logs(kept)
    for operator, (entries, nbytes) in logs.items():
        per_row, rows = nbytes / arguments.rows, arguments.rows / entries
        report.add(f"logs held by {operator} (bytes per row)", f"{per_row:.3f}", "", "", "")
        report.add(f"rows per log entry of {operator}", f"{rows:,.0f}", "", "", "")
    report.notes.append(f"{len(pairs)} pairs; intervals of 95 %, Student's, of the logarithms")
    report.data = {"pairs": pairs, "wall": wall, "cpu": cpu, "driver_cpu": driver, "logs": logs}
    seconds = {}
    for i, (on, off) in enumerate(pairs):
        seconds[f"{i + 1} protected"] = on.cpu_s / arguments.rows * 1e6
        seconds[f"{i + 1} unprotected"] = off.cpu_s / arguments.rows * 1e6
    plots.bars(out / "cpu.png", seconds, "CPU seconds per million rows", report.title)
    return report


def _job(arguments: argparse.Namespace, *, protected: bool, checkpoint_ms: int | None) -> Any:
    return jobs.stateful(
        jobs.at_once(arguments.rows),
        keys=run.keys_of(arguments),
        value_bytes=arguments.value_bytes,
        parallelism=arguments.parallelism,
        standbys=arguments.standbys if protected else 0,
        protected=protected,
        checkpoint_ms=checkpoint_ms,
    )


def _run(
    arguments: argparse.Namespace, spark: Any, *, protected: bool, checkpoint_ms: int | None
) -> tuple[run.Used, RunningJob]:
    job = _job(arguments, protected=protected, checkpoint_ms=checkpoint_ms)
    rows: int = arguments.rows
    with run.running(job, spark, linger_ms=arguments.linger_ms) as (started, watch):
        used = run.time_all(started, watch, lambda: watch.ledger.rows, rows, RUN_S)
    watch.require_right(arguments.parallelism)
    return used, started


def _logs(job: RunningJob) -> dict[str, tuple[int, int]]:
    """Per operator: log entries written, and bytes kept of the logs that its tasks hold.

    A task holds its own log and, with a sharing depth of 1, those of the tasks before it; as
    nothing was cut off in this run, that is all there ever was of them.
    """
    last = {sample.task: sample.counters for sample in job.observer.newest()}
    result: dict[str, tuple[int, int]] = {}
    for task, counters in last.items():
        operator = job.plan.tasks[task].operator
        entries, nbytes = result.get(operator, (0, 0))
        position = counters.get("position", 0)
        result[operator] = (entries + position, nbytes + counters.get("log_bytes", 0))
    return {operator: both for operator, both in result.items() if both[0]}
