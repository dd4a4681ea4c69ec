"""The same pace, key and kills in Spark's Structured Streaming, micro-batch after micro-batch.

A source of the same pace (rows exist as time passes, unlike in Spark's own ``rate`` source, which
makes them once per second) -> ``mapInArrow`` -> count per key, in Spark's state store ->
``foreachBatch``, which takes the batch to the driver. Batches follow each other without a pause.

Latency of a batch: its delivery less the moment when its oldest row came into being. Gap and return
to normal as in :mod:`clonos_bench.failures`, but over longer windows, as there are few batches
per second. The state is lighter here: a count per key instead of a value of some size.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from clonos.errors import ClonosError
from clonos_bench import jobs, plots, run
from clonos_bench.failures import Measured
from clonos_bench.kills import PATIENCE_S, Kill
from clonos_bench.processes import command_line, descendants
from clonos_bench.report import PERCENTILES, Report
from clonos_bench.statistics import Series, back_to_normal, output_gap, percentile, summarize

WINDOW_S: Final = 10.0
"""Before a kill, for the usual pause and latency."""
HOLD_S: Final = 3.0
"""Latency is normal if it stays there so long."""

_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_WORKER: Final = "pyspark.daemon"


class Rows(InputPartition):
    """Row numbers `start`, `start + step`, ... below `end`."""

    def __init__(self, start: int, end: int, step: int) -> None:
        self.start = start
        self.end = end
        self.step = step


class PacedStream(DataSourceStreamReader):
    """Row n exists from `began` + n / `rate` on.

    With `rows` there are only so many, and with `most` a micro-batch takes no more.
    """

    def __init__(
        self, began_s: float, rate: float, parallelism: int, rows: int = 0, most: int = 0
    ) -> None:
        self._began_s = began_s
        self._rate = rate
        self._parallelism = parallelism
        self._rows = rows
        self._most = most

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def latestOffset(self, *given: Any) -> dict[str, int]:  # noqa: N802 - see above
        # Spark gives the start and a limit from 4.2 on, nothing before.
        rows = max(0, int((time.time() - self._began_s) * self._rate))
        if self._rows:
            rows = min(rows, self._rows)
        if self._most and given:
            rows = min(rows, given[0]["rows"] + self._most)
        return {"rows": rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        first, last, step = start["rows"], end["rows"], self._parallelism
        return [Rows(first + i, last, step) for i in range(step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        ids = np.arange(partition.start, partition.end, partition.step, dtype=np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(ids)], ["id"])

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""


class PacedSource(DataSource):
    """Spark's way to :class:`PacedStream`."""

    @classmethod
    def name(cls) -> str:
        return "paced"

    def schema(self) -> str:
        return "id long"

    def streamReader(self, schema: StructType) -> PacedStream:  # noqa: N802 - Spark's name
        options = self.options
        began_s, rate = float(options["began"]), float(options["rate"])
        limits = (int(options.get(name, 0)) for name in ("rows", "most"))
        return PacedStream(began_s, rate, int(options["parallelism"]), *limits)


class Batches:
    """What ``foreachBatch`` has delivered."""

    def __init__(self, began_s: float, rate: float, keys: int) -> None:
        self._began_s = began_s
        self._rate = rate
        self._counts = np.zeros(keys, np.int64)
        self.rows = 0
        self.times: list[float] = []
        self.latencies: list[float] = []

    def __call__(self, frame: Any, number: int) -> None:
        table = frame.toArrow()
        if not table.num_rows:
            return
        oldest_s = self._began_s + self.rows / self._rate
        self.times.append(time.monotonic())
        self.latencies.append((time.time() - oldest_s) * 1000)
        # Rows come in the order of their numbers: as many as counted before are older.
        keys, counts = (table.column(name).to_numpy() for name in ("key", "seen"))
        self.rows += int((counts - self._counts[keys]).sum())
        self._counts[keys] = counts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench spark``."""
    run.common_arguments(parser)
    add = parser.add_argument
    add("--rate", type=float, default=20_000.0, help="rows per second")
    add("--keys", type=int, default=100_000, help="different keys")
    add("--kills", type=int, default=5, help="Python workers to kill, and executors")
    add("--pause", type=float, default=15.0, help="seconds before each kill")
    add("--warm-up", type=float, default=30.0, help="seconds before the first pause")
    add("--master", default="local-cluster[2,2,1024]")


def measure(arguments: argparse.Namespace) -> Report:
    """Latency without a kill, then workers and executors are killed in turn."""
    out = run.folder(arguments, "spark")
    title = f"Structured Streaming, micro-batches, {arguments.rate:,.0f} rows/s"
    report = Report("spark", title, PERCENTILES)
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch,
        run.session(arguments.master) as spark,
    ):
        began_s = time.time()
        batches = Batches(began_s, arguments.rate, arguments.keys)
        query = _start(spark, arguments, batches, began_s, scratch)
        try:
            _wait(query, arguments.warm_up)
            since = time.monotonic()
            kills = _kills(query, arguments)
        finally:
            query.stop()
    times, latencies = np.array(batches.times), np.array(batches.latencies)
    first = kills[0].at_s if kills else math.inf
    quiet = latencies[(times >= since) & (times < first)]
    report.summary("latency before any kill (ms)", summarize(quiet))
    measured = [
        _effect(kill, times, latencies, after)
        for kill, after in zip(kills, [*(k.at_s for k in kills[1:]), math.inf], strict=True)
    ]
    for kind in ("worker", "executor"):
        of_kind = [m for m in measured if m.kind == kind]
        report.summary(f"{kind}: gap (ms)", summarize([m.gap_ms for m in of_kind]))
        report.summary(f"{kind}: normal after (ms)", summarize([m.normal_ms for m in of_kind]))
    report.notes.append(f"{len(times)} batches, {batches.rows:,} rows; {arguments.master}")
    report.data = {"kills": measured, "latency_p95_ms": percentile(quiet, 95)}
    series: Mapping[str, tuple[Series, Series]] = {"batches": (times, latencies)}
    marks = [kill.at_s for kill in kills]
    plots.timeline(Path(out) / "timeline.png", series, marks, report.title)
    return report


def _start(
    spark: Any, arguments: argparse.Namespace, batches: Batches, began_s: float, scratch: str
) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    add_key = jobs.AddKey(arguments.keys)

    def keyed(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(add_key, rows)

    spark.conf.set("spark.sql.shuffle.partitions", str(arguments.parallelism))
    spark.dataSource.register(PacedSource)
    stream = (
        spark.readStream.format("paced")
        .option("began", repr(began_s))
        .option("rate", repr(arguments.rate))
        .option("parallelism", str(arguments.parallelism))
        .load()
    )
    counts = (
        stream.mapInArrow(keyed, "key long, id long").groupBy("key").agg(F.count("*").alias("seen"))
    )
    return (
        counts.writeStream.outputMode("update")
        .option("checkpointLocation", f"{scratch}/checkpoint")
        .foreachBatch(batches)
        .start()
    )


def _wait(query: Any, seconds: float) -> None:
    """Raises if the query fails."""
    if query.awaitTermination(max(1, math.ceil(seconds))):
        raise ClonosError("the query has ended")


def _kills(query: Any, arguments: argparse.Namespace) -> list[Kill]:
    done: list[Kill] = []
    for number in range(2 * arguments.kills):
        _wait(query, arguments.pause)
        kind = ("worker", "executor")[number % 2]
        pid = _victim(kind)
        at_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        done.append(Kill(kind, pid, (), at_s))
    _wait(query, arguments.pause)
    return done


def _victim(kind: str) -> int:
    """An executor, or the youngest Python worker of one: waits until there is one."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        executors = [p for p in descendants(os.getpid()) if _EXECUTOR in command_line(p)]
        if kind == "executor" and executors:
            return executors[0]
        for executor in executors:
            daemons = [p for p in descendants(executor) if _WORKER in command_line(p)]
            if len(daemons) > 1:  # the first is the daemon itself, the others are its workers
                return daemons[-1]
        time.sleep(run.LOOK_S)
    raise ClonosError(f"there is no {kind} to kill", remedy="use a local-cluster master")


def _effect(kill: Kill, times: Series, latencies: Series, until_s: float) -> Measured:
    found = output_gap(times, kill.at_s, min(until_s, kill.at_s + WINDOW_S), usual_s=WINDOW_S)
    if found is None:
        return Measured(kill.kind, (), math.inf, math.inf, math.nan, normal_ms=math.inf)
    gap, end_s = found
    normal = back_to_normal(
        times,
        latencies,
        kill.at_s,
        end_s,
        min(until_s, float(times[-1])),
        usual_s=WINDOW_S,
        hold_s=HOLD_S,
    )
    return Measured(
        kill.kind, (), gap.gap_ms, gap.pause_ms, gap.usual_ms, normal_ms=normal.after_ms
    )
