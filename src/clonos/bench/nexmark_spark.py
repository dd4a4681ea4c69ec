"""Nexmark's queries in Spark's Structured Streaming, micro-batch after micro-batch.

As Spark does best: events as Parquet files that are not compressed (they stay in the page cache,
and Spark's vectorised reader takes only the columns that a query needs), compiled SQL without
Python, state in RocksDB with a changelog instead of snapshots, one shuffle partition per core,
results into Spark's ``noop`` sink. "Source alone" reads all columns of the bids and keeps none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from clonos.bench import run
from clonos.bench.nexmark_spark_queries import INEXPRESSIBLE, QUERIES, Streams, q0, source
from clonos.bench.processes import CpuMeter, descendants
from clonos.bench.report import Report
from clonos.bench.statistics import percentile
from clonos.errors import ClonosError

SOURCE_ALONE: Final = "source alone"

_FILES_PER_BATCH: Final = 6
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_RUN_S: Final = 600
DELAY: Final = "4 seconds"
DELAYS: Final = {"expires": "12 seconds"}
"""... of the watermark: more than an auction is open."""

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def configure(spark: Any, cores: int) -> None:
    """What every streaming query here runs with."""
    spark.conf.set("spark.sql.shuffle.partitions", str(cores))
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)


@contextlib.contextmanager
def session(cores: int) -> Iterator[Any]:
    """A session in which batches follow each other only while there are rows."""
    with run.session(f"local[{cores}]") as spark:
        configure(spark, cores)
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        yield spark


def measure(report: Report, names: list[str], arguments: Any, folder: Path) -> dict[str, float]:
    """Events per second of each query that there is, from the files in `folder`."""
    rates = {}
    known = [name for name in names if name in QUERIES]
    with session(arguments.parallelism) as spark:
        time_query(spark, q0, folder)  # the first query pays for what all use
        for name in [SOURCE_ALONE, *known]:
            query = QUERIES.get(name, source)
            done = [time_query(spark, query, folder) for _ in range(arguments.runs)]
            rates[name] = arguments.events / percentile([wall for wall, _ in done], 50)
            cpu = percentile([used for _, used in done], 50) / arguments.events * 1e6
            what = name if name == SOURCE_ALONE else f"q{name}"
            cells = (f"{rates[name]:,.0f}", f"{1e9 / rates[name]:,.0f}", f"{cpu:.2f}")
            report.add(f"{what}, Spark", *cells, "", "")
    report.notes += [
        f"q{name} not in Structured Streaming: {INEXPRESSIBLE[name]}"
        for name in names
        if name in INEXPRESSIBLE
    ]
    report.notes.append(
        f"Spark: local[{arguments.parallelism}], micro-batches of {_FILES_PER_BATCH} files per "
        "kind, RocksDB with changelog; CPU: seconds of the JVM per million events"
    )
    return rates


def streams(spark: Any, folder: Path, files_per_batch: int = _FILES_PER_BATCH) -> Streams:
    """The streams of each kind, with a watermark."""

    def stream(kind: str, time_column: str = "date_time") -> Any:
        schema = spark.read.parquet(str(folder / kind)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch)
        rows = reader.parquet(str(folder / kind))
        if time_column == "processing":
            return rows.selectExpr("*", "current_timestamp() as now").withWatermark(
                "now", "0 seconds"
            )
        return rows.withWatermark(time_column, DELAYS.get(time_column, DELAY))

    return stream


def time_query(spark: Any, query: Callable[[Streams], Any], folder: Path) -> tuple[float, float]:
    """Seconds that its micro-batches took, without the query's start; and CPU seconds in all."""
    checkpoint = folder / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    rows = query(streams(spark, folder))
    writer = rows.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
    meter = CpuMeter()
    meter.look(descendants(os.getpid()))
    started = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        if not started.awaitTermination(_RUN_S):
            raise ClonosError(f"not within {_RUN_S} s", where="Spark", remedy="--events less")
        meter.look(descendants(os.getpid()))
        taken = sum(each.durationMs["triggerExecution"] for each in started.recentProgress)
    finally:
        started.stop()
    return taken / 1000, meter.seconds
