"""Kills of executors while Structured Streaming runs the join of Nexmark's query 3 or 8.

The same events at the same pace: a Python data source gives each micro-batch the events that
exist when it begins. Two executors, so that one goes on at once when the other is killed; tasks do
not wait for a place that has their state; state in RocksDB with a changelog; micro-batches follow
each other without a pause. The join itself runs in the executors' JVMs, so these are what is
killed: the executors in turn.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.kills import PATIENCE_S
from clonos_bench.nexmark import KINDS
from clonos_bench.nexmark.parts import spark as nexmark_spark
from clonos_bench.nexmark.parts.paced import Pace, Rows
from clonos_bench.nexmark.parts.spark_queries import local_sellers, new_sellers
from clonos_bench.nexmark.source import batches
from clonos_bench.nexmark.spark import Rows as Range
from clonos_bench.processes import command_line, descendants
from clonos_bench.timelines import Timeline

JOINS: Final = {"3": local_sellers, "8": new_sellers}
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
EXECUTOR_MB: Final = 2048
SETTINGS: Final = {"spark.executor.memory": f"{EXECUTOR_MB}m", "spark.locality.wait": "0s"}
WARM_UP_S: Final = 15.0
_MARGIN_S: Final = 15.0
"""Rows of events that are younger may be in no micro-batch yet when the query is stopped."""


class PacedStream(DataSourceStreamReader):
    """The events of a kind that exist by now."""

    def __init__(self, pace: Pace, kind: str, partitions: int) -> None:
        self._pace = pace
        self._kind = kind
        self._partitions = partitions

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def latestOffset(self, *limits: Any) -> dict[str, int]:  # noqa: N802 - see above
        # Spark gives the start and a limit from 4.2 on, nothing before.
        return {"rows": self._pace.rows(self._kind, time.time())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        first, count = start["rows"], end["rows"] - start["rows"]
        edges = [first + count * i // self._partitions for i in range(self._partitions + 1)]
        return [Range(low, high) for low, high in itertools.pairwise(edges) if low < high]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        generator = self._pace.generator
        return batches(generator, self._kind, first=partition.first, last=partition.last)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""


class PacedSource(DataSource):
    """Spark's way to :class:`PacedStream`."""

    @classmethod
    def name(cls) -> str:
        return "nexmark_paced"

    def schema(self) -> StructType:
        return from_arrow_schema(KINDS[self.options["kind"]])

    def streamReader(self, schema: StructType) -> PacedStream:  # noqa: N802 - Spark's name
        options = self.options
        pace = Pace(float(options["began"]), float(options["rate"]))
        return PacedStream(pace, options["kind"], int(options["partitions"]))


def measure(query: str, arguments: Any) -> tuple[Timeline, list[str]]:
    """Run, kill, stop; the timeline, and what is wrong with the rows."""
    cores = arguments.parallelism
    master = f"local-cluster[2,{cores},{EXECUTOR_MB}]"
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch,
        run.session(master, config=SETTINGS) as spark,
    ):
        nexmark_spark.configure(spark, cores)
        spark.dataSource.register(PacedSource)
        pace = Pace(time.time(), arguments.rate)
        rows = Rows(pace, query)
        started = _start(spark, query, pace, rows, f"{scratch}/checkpoint", cores)
        try:
            _wait(started, rows, 0.0)  # until the first micro-batch, which is a long one
            _wait(started, rows, WARM_UP_S)
            rows.latency.clear()
            _wait(started, rows, arguments.spark_pause)
            kills = []
            for number in range(arguments.spark_kills):
                pid = _executor(number)
                kills.append(time.monotonic())
                os.kill(pid, signal.SIGKILL)
                _wait(started, rows, arguments.spark_pause)
        finally:
            started.stop()
    now_s = time.time()
    faults = rows.faults(now_s - _MARGIN_S, now_s)
    settings = {"master": master, "state": "RocksDB with changelog", **SETTINGS}
    name = "Structured Streaming, executor"
    return Timeline(name, query, arguments.rate, rows.latency, kills, settings), faults


def _start(spark: Any, query: str, pace: Pace, rows: Rows, checkpoint: str, cores: int) -> Any:
    def stream(kind: str) -> Any:
        options = {"kind": kind, "partitions": cores, "began": pace.began_s, "rate": pace.rate}
        events = spark.readStream.format("nexmark_paced").options(**options).load()
        return events.withWatermark("date_time", nexmark_spark.DELAY)

    def deliver(frame: Any, number: int) -> None:
        del number
        rows.put(frame.toArrow())

    names = ("id", "since", "opens", "reserve") if query == "8" else ("id", "since", "opens")
    writer = JOINS[query](stream).select(*names).writeStream.outputMode("append")
    return writer.option("checkpointLocation", checkpoint).foreachBatch(deliver).start()


def _wait(started: Any, rows: Rows, seconds: float) -> None:
    """Take what is delivered for so long, and at least until there is something."""
    until = time.monotonic() + seconds
    give_up = until + PATIENCE_S
    while time.monotonic() < until or not rows.drain():
        if not started.isActive:
            raise ClonosError(f"the query has ended: {started.exception()}", where="Spark")
        if time.monotonic() > give_up:
            raise ClonosError("nothing is delivered", where="Spark", remedy="a lower --rate")
        time.sleep(run.LOOK_S)


def _executor(number: int) -> int:
    """One of the executors, in turn; waits until both are there."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        found = sorted(p for p in descendants(os.getpid()) if EXECUTOR in command_line(p))
        if len(found) > 1:
            return found[number % 2]
        time.sleep(run.LOOK_S)
    raise ClonosError("there is no second executor", where="Spark", remedy="--spark-pause longer")
