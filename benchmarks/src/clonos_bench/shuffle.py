"""How many rows per second Arrow batches move through two shuffles."""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from clonos_bench import jobs, plots, run
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import summarize

AIM: Final = Aim(3e6, at_least=True)
RUN_S: Final = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench shuffle``."""
    run.common_arguments(parser)
    add = parser.add_argument
    add("--rows", type=int, default=30_000_000, help="per run")
    add("--runs", type=int, default=5)
    add("--batch-rows", type=int, default=65_536, help="rows per batch of the source")
    add("--keys", type=int, default=10_000, help="different keys")
    add("--standbys", type=int, default=1)
    add("--tls", action="store_true", help="encrypt all streams, as beyond this machine")


def measure(arguments: argparse.Namespace) -> Report:
    """Rows per second, from when all tasks are live until all rows are counted."""
    out = run.folder(arguments, "shuffle")
    report = Report("shuffle", "two shuffles of Arrow batches", PERCENTILES)
    job = _job(arguments)
    with run.profiled(arguments, out), run.session(f"local[{job.cores()}]") as spark:
        done = [_run(arguments, spark) for _ in range(arguments.runs)]
    rates = [rate for rate, _ in done]
    report.summary("rows/s", summarize(rates), p50=AIM)
    report.summary("CPU s of the slots per million rows", summarize([cpu for _, cpu in done]))
    cores = len(os.sched_getaffinity(0))
    report.notes.append(f"{arguments.parallelism} tasks per stage on {cores} cores")
    report.data = {"rows_per_s": rates, "cpu_s_per_million_rows": [cpu for _, cpu in done]}
    millions = {f"run {i + 1}": rate / 1e6 for i, rate in enumerate(rates)}
    plots.bars(out / "rates.png", millions, "million rows per second", report.title)
    return report


def _job(arguments: argparse.Namespace) -> Any:
    return jobs.shuffle(
        rows=arguments.rows,
        batch_rows=arguments.batch_rows,
        keys=arguments.keys,
        parallelism=arguments.parallelism,
        standbys=arguments.standbys,
    )


def _run(arguments: argparse.Namespace, spark: Any) -> tuple[float, float]:
    """Rows per second, and CPU seconds of the slots per million rows."""
    rows: int = arguments.rows
    options = {"batch_rows_max": arguments.batch_rows, "tls": arguments.tls}
    with run.running(_job(arguments), spark, **options) as (started, watch):
        used = run.time_all(started, watch, lambda: watch.counted, rows, RUN_S)
    return rows / used.wall_s, used.cpu_s / rows * 1e6
