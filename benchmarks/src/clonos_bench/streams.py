"""How late the rows of a stream are: one job in tasks, and as a streaming plan.

The job reads a streaming DataFrame, applies a function to batches, and hands its rows to a callback
in the driver. Latency of a batch of the callback: when it came, less the moment when its oldest row
came into being. Tasks wait for one micro-batch, the one that feeds them; the plan is one, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any, Final, Literal

import clonos
from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.edges import COLUMNS, LOOK_S, QUERIES, Counter, Load, answer, paced_rows
from clonos_bench.report import PERCENTILES, Report
from clonos_bench.spark import PacedSource
from clonos_bench.statistics import summarize

Execution = Literal["tasks", "spark"]
EXECUTIONS: Final[tuple[Execution, ...]] = ("tasks", "spark")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench streams``."""
    run.common_arguments(parser)
    add = parser.add_argument
    add("--rate", type=float, default=2_000.0, help="rows per second")
    add("--seconds", type=float, default=20.0, help="how long latency is measured")
    add("--warm-up", type=float, default=60.0, help="seconds before that")
    add("--lead", type=float, default=10.0, help="seconds from the start to the first row")


def measure(arguments: argparse.Namespace) -> Report:
    """A line per execution; they take turns, and the first turn of each only warms up."""
    title = f"a stream of {arguments.rate:,.0f} rows/s: latency (ms)"
    report = Report("streams", title, PERCENTILES)
    load = Load(int(arguments.rate * (arguments.warm_up + arguments.seconds)), arguments.rate)
    nothing = clonos.sources.from_batches([], "id long")
    cores = _job(nothing, Counter(0.0, load.rate), arguments).cores()
    with run.session(f"local[{cores + QUERIES}]") as spark:
        spark.dataSource.register(PacedSource)
        found: dict[str, Counter] = {}
        for _ in range(2):
            found |= {how: _run(spark, how, load, arguments) for how in EXECUTIONS}
    for how, counter in found.items():
        late_ms = counter.late_from(load.rate * arguments.warm_up)
        report.summary(how, summarize(late_ms))
        report.data[how] = late_ms
    report.notes.append("of the oldest row of each batch of the callback; every row came once")
    return report


def _job(
    source: Any, counter: Counter, arguments: argparse.Namespace, folder: str | None = None
) -> clonos.Job:
    job = clonos.Job("streams", parallelism=arguments.parallelism, checkpoint_dir=folder)
    done = job.source(source, name="rows").map_batches(answer, COLUMNS, name="answer")
    done.sink(clonos.sinks.callback(counter.take), name="out")
    return job


def _run(spark: Any, how: Execution, load: Load, arguments: argparse.Namespace) -> Counter:
    counter = Counter(time.time() + arguments.lead, load.rate)
    rows = paced_rows(spark, counter.began_s, load, arguments.parallelism)
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch:
        running = _job(rows, counter, arguments, scratch).start(spark, execution=how)
        give_up = counter.began_s + load.rows / load.rate + 120
        while counter.rows < load.rows:
            if not running.is_running or time.time() > give_up:
                raise ClonosError(f"{counter.rows:,} of {load.rows:,} rows have come, and no more")
            time.sleep(LOOK_S)
        running.stop()
    counter.check(load.rows)
    return counter
