"""Both borders at once: rows out of Structured Streaming, through a job, and back into it.

The same rows, the same function and the same last query, which counts what it gets in
``foreachBatch``, in three ways, in turn:

* through clonos: streaming DataFrame -> job (with log, checkpoints and standbys) ->
  ``clonos.sinks.table`` -> streaming DataFrame;
* Spark, two queries: streaming DataFrame -> ``mapInArrow`` -> a table of Parquet files -> streaming
  DataFrame. It also hands rows over in files, each once, so what it takes is Spark's part of ours;
* Spark alone: streaming DataFrame -> ``mapInArrow``, in the last query.

Latency of a micro-batch of the last query: when it was counted, less the moment when its oldest row
came into being. Throughput: all rows are there at once, in micro-batches of a fixed size.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import clonos
from clonos.errors import ClonosError
from clonos.sinks.data_source import FORMAT
from clonos_bench import plots, run
from clonos_bench.processes import CpuMeter, descendants
from clonos_bench.report import Aim, Report
from clonos_bench.spark import PacedSource
from clonos_bench.statistics import percentile, summarize

WAYS: Final = ("clonos", "Spark, two queries", "Spark alone")
COLUMNS: Final = "id long, answer long"
AT_ONCE: Final = 1e15
"""Rows per second so that all are there when the first is."""
QUERIES: Final = 2
"""Cores for Spark's own queries, beside the slots."""
LOOK_S: Final = 0.1
P50_MS: Final = Aim(800)
"""Of the latency through clonos, where Spark alone takes 450 ms."""


def answer(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What is done to the rows, either way."""
    ids = batch.column(0).to_numpy()
    return pa.RecordBatch.from_arrays([batch.column(0), pa.array(ids * 31 % 97)], ["id", "answer"])


def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for ``mapInArrow``."""
    return map(answer, batches)


@dataclass
class Counter:
    """The end of either way: what has come, and how late."""

    began_s: float
    rate: float
    rows: int = 0
    ids: int = 0
    answers: int = 0
    done_s: float = 0.0
    oldest: list[int] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)

    def __call__(self, frame: Any, _: int) -> None:
        row = frame.selectExpr("count(*)", "sum(id)", "sum(answer)", "min(id)").first()
        if row[0]:
            self._count(*row)

    def take(self, batch: pa.RecordBatch) -> None:
        """The same for a batch of a job's callback."""
        if batch.num_rows:
            ids, answers = (column.to_numpy() for column in batch.columns)
            self._count(len(ids), int(ids.sum()), int(answers.sum()), int(ids.min()))

    def _count(self, rows: int, ids: int, answers: int, oldest: int) -> None:
        self.done_s = time.time()
        self.ids, self.answers = self.ids + ids, self.answers + answers
        self.oldest.append(oldest)
        self.late_ms.append((self.done_s - self.began_s - oldest / self.rate) * 1000)
        self.rows += rows  # last, as others wait for it

    def late_from(self, row: float) -> list[float]:
        """How late they were, of those that came into being with this row or later."""
        return [ms for ms, oldest in zip(self.late_ms, self.oldest, strict=True) if oldest >= row]

    def check(self, rows: int) -> None:
        """Every row has come once, with its answer."""
        found, ids = (self.rows, self.ids, self.answers), np.arange(rows, dtype=np.int64)
        expected = (rows, int(ids.sum()), int((ids * 31 % 97).sum()))
        if found != expected:
            raise ClonosError(f"count and sums are {found}, not {expected}")


@dataclass(frozen=True)
class Load:
    """What is run: so many rows at this pace, in micro-batches of at most so many."""

    rows: int
    rate: float
    most: int = 0


@dataclass(frozen=True)
class Run:
    """One run of one way. ``cpu_s``: of all processes of the application."""

    counter: Counter
    wall_s: float
    cpu_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench edges``."""
    run.common_arguments(parser)
    add = parser.add_argument
    add("--rate", type=float, default=2_000.0, help="rows per second for the latency")
    add("--seconds", type=float, default=20.0, help="how long latency is measured")
    add("--warm-up", type=float, default=20.0, help="seconds before that")
    add("--rows", type=int, default=2_000_000, help="rows for the throughput")
    add("--batch-rows", type=int, default=250_000, help="of a micro-batch, for the throughput")
    add("--runs", type=int, default=2, help="runs of each way, for the throughput")
    add("--standbys", type=int, default=1)
    add("--lead", type=float, default=10.0, help="seconds from the start to the first row")


def measure(arguments: argparse.Namespace) -> Report:
    """Latency, then throughput, each in turn."""
    out = run.folder(arguments, "edges")
    report = Report("edges", "Spark -> clonos -> Spark, and without clonos", ("", "value", "unit"))
    paced = Load(int(arguments.rate * (arguments.warm_up + arguments.seconds)), arguments.rate)
    whole = Load(arguments.rows, AT_ONCE, arguments.batch_rows)
    nothing = clonos.sources.from_batches([], "id long")
    cores = _job(nothing, arguments, "unused", None).cores() + QUERIES
    with run.session(f"local[{cores}]") as spark:
        spark.dataSource.register(PacedSource)
        late: dict[str, Counter] = {}
        for _ in range(2):  # what the first round measures is Java's compiler
            late |= {way: _run(spark, way, paced, arguments).counter for way in WAYS}
        runs: dict[str, list[Run]] = {way: [] for way in WAYS}
        for _ in range(arguments.runs):
            for way in WAYS:
                runs[way].append(_run(spark, way, whole, arguments))
    warm, rates = arguments.rate * arguments.warm_up, {}
    for way, counter in late.items():
        found = counter.late_from(warm)
        report.data[way] = {"latency_ms": summarize(found)}
        for q in (50, 99):
            report.add(f"{way}: latency p{q}", f"{percentile(found, q):,.0f}", "ms")
    for way, timed in runs.items():
        rates[way] = percentile([whole.rows / r.wall_s for r in timed], 50)
        cpu_s = percentile([r.cpu_s / whole.rows * 1e6 for r in timed], 50)
        report.data[way] |= {"rows_per_s": rates[way], "cpu_s_per_million": cpu_s}
        report.add(f"{way}: throughput", f"{rates[way]:,.0f}", "rows/s")
        report.add(f"{way}: CPU of all processes", f"{cpu_s:,.1f}", "s per million rows")
    _pictures(out, late, warm, rates)
    p50 = report.data["clonos"]["latency_ms"].p50
    report.notes.append(f"clonos: latency p50 ({P50_MS} ms): {P50_MS.judge(p50)}")
    report.notes.append(
        f"latency: of the oldest row of each micro-batch of the last query, at "
        f"{arguments.rate:,.0f} rows/s; throughput: medians of {arguments.runs} runs of "
        f"{whole.rows:,} rows; every row was counted once"
    )
    return report


def _run(spark: Any, way: str, load: Load, arguments: argparse.Namespace) -> Run:
    began_s = time.time() + arguments.lead
    counter, meter = Counter(began_s, load.rate), CpuMeter()
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch,
        contextlib.ExitStack() as undo,
    ):
        rows = paced_rows(spark, began_s, load, arguments.parallelism)
        if way == "clonos":
            job = _job(rows, arguments, f"{scratch}/table", f"{scratch}/job")
            started, watch = undo.enter_context(run.running(job, spark))
            rows = spark.readStream.format(FORMAT).load(f"{scratch}/table")
            live = partial(run.all_live, started)
            what = "all tasks are live before the first row (see --lead)"
            run.until(started, watch, live, arguments.lead, what)
        else:
            rows = rows.mapInArrow(answers, COLUMNS)
        if way == "Spark, two queries":
            rows = _through_files(spark, rows, Path(scratch), undo)
        writer = rows.writeStream.foreachBatch(counter)
        query = writer.option("checkpointLocation", f"{scratch}/query").start()
        undo.callback(query.stop)
        time.sleep(max(0.0, began_s - time.time()))
        _wait(query, counter, load, meter)
        counter.check(load.rows)
    return Run(counter, counter.done_s - began_s, meter.seconds)


def _through_files(spark: Any, rows: Any, scratch: Path, undo: contextlib.ExitStack) -> Any:
    """Have a query write them to Parquet files; what another reads of these."""
    files, checkpoint = scratch / "files", str(scratch / "first")
    (files / "_spark_metadata").mkdir(parents=True)  # so that only what is committed is ever read
    writer = rows.writeStream.format("parquet").option("path", str(files))
    undo.callback(writer.option("checkpointLocation", checkpoint).start().stop)
    return spark.readStream.schema(COLUMNS).parquet(str(files))


def _wait(query: Any, counter: Counter, load: Load, meter: CpuMeter) -> None:
    give_up = time.monotonic() + 120 + load.rows / load.rate
    while counter.rows < load.rows:
        meter.look([os.getpid(), *descendants(os.getpid())])
        if not query.isActive:
            query.awaitTermination()  # raises why it has failed
        if time.monotonic() > give_up:
            raise ClonosError(f"{counter.rows:,} of {load.rows:,} rows have come, and no more")
        time.sleep(LOOK_S)
    meter.look([os.getpid(), *descendants(os.getpid())])


def paced_rows(spark: Any, began_s: float, load: Load, parallelism: int) -> Any:
    """A streaming DataFrame of this load."""
    options = {"began": repr(began_s), "rate": repr(load.rate), "rows": str(load.rows)}
    options |= {"most": str(load.most), "parallelism": str(parallelism)}
    return spark.readStream.format("paced").options(**options).load()


def _job(source: Any, arguments: argparse.Namespace, table: str, folder: str | None) -> clonos.Job:
    job = clonos.Job(
        "edges",
        parallelism=arguments.parallelism,
        standbys=arguments.standbys,
        checkpoint_dir=folder,
    )
    done = job.source(source, name="rows").map_batches(answer, COLUMNS, name="answer")
    done.sink(clonos.sinks.table(table, linger="50 ms"), name="sink")
    return job


def _pictures(out: Path, late: dict[str, Counter], warm: float, rates: dict[str, float]) -> None:
    series = {}
    for way, counter in late.items():
        kept = np.array(counter.oldest) >= warm
        moments = np.array(counter.oldest) / counter.rate
        series[way] = (moments[kept], np.array(counter.late_ms)[kept])
    plots.timeline(out / "latency.png", series, [], "Spark -> clonos -> Spark, and without clonos")
    plots.bars(out / "throughput.png", rates, "rows per second", "throughput")
