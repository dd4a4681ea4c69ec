"""How late the rows of a stream are: one job in tasks, and as a streaming plan.

The job reads a streaming DataFrame, applies a function to batches, and hands its rows to a callback
in the driver. Latency of a batch of the callback: when it came, less the moment when its oldest row
came into being. Tasks wait for one micro-batch, the one that feeds them; the plan is one, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

import clonos
from clonos.api.streams import Execution
from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.edges import COLUMNS, answer
from clonos_bench.report import PERCENTILES, Report
from clonos_bench.spark import PacedSource
from clonos_bench.statistics import summarize

EXECUTIONS: Final[tuple[Execution, ...]] = ("tasks", "spark")
LEAD_S: Final = 10.0
"""From the start of a job to its first row."""
LOOK_S: Final = 0.1


@dataclass
class Came:
    """What the callback got, and how late the oldest row of each batch was."""

    began_s: float
    rate: float
    rows: int = 0
    ids: int = 0
    late: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, batch: pa.RecordBatch) -> None:
        ids = batch.column(0).to_numpy()
        if len(ids):
            self.late.append((oldest := int(ids.min()), self._late_ms(oldest)))
            self.ids += int(ids.sum())
            self.rows += len(ids)

    def _late_ms(self, row: int) -> float:
        return (time.time() - self.began_s - row / self.rate) * 1000


def measure(arguments: argparse.Namespace) -> Report:
    """A line per execution; they take turns, and the first turn of each only warms up."""
    title = f"a stream of {arguments.rate:,.0f} rows/s: latency (ms)"
    report = Report("executions", title, PERCENTILES)
    found: dict[str, Came] = {}
    with run.session(f"local[{8 + 2 * arguments.parallelism}]") as spark:
        spark.dataSource.register(PacedSource)
        for _ in range(2):
            found |= {how: _run(spark, how, arguments) for how in EXECUTIONS}
    for how, came in found.items():
        warm = arguments.rate * arguments.warm_up
        report.summary(how, summarize([ms for row, ms in came.late if row >= warm]))
        report.data[how] = came.late
    report.notes.append("of the oldest row of each batch of the callback; every row came once")
    return report


def _run(spark: Any, how: Execution, arguments: argparse.Namespace) -> Came:
    rows = int(arguments.rate * (arguments.warm_up + arguments.seconds))
    came = Came(time.time() + LEAD_S, arguments.rate)
    options = {"began": repr(came.began_s), "rate": repr(came.rate), "rows": str(rows)}
    options["parallelism"] = str(arguments.parallelism)
    given = spark.readStream.format("paced").options(**options).load()
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch:
        job = clonos.Job("streams", parallelism=arguments.parallelism, checkpoint_dir=scratch)
        stream = job.source(given, name="rows").map_batches(answer, COLUMNS, name="answer")
        stream.sink(clonos.sinks.callback(came), name="out")
        running = job.start(spark, execution=how)
        give_up = came.began_s + rows / came.rate + 120
        while came.rows < rows:
            if not running.is_running or time.time() > give_up:
                raise ClonosError(f"{came.rows:,} of {rows:,} rows have come, and no more")
            time.sleep(LOOK_S)
        running.stop()
    expected = int(np.arange(rows, dtype=np.int64).sum())
    if (came.rows, came.ids) != (rows, expected):
        raise ClonosError(f"count and sum are {came.rows, came.ids}, not {rows, expected}")
    return came
