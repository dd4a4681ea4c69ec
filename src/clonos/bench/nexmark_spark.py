"""Nexmark's queries in Spark's Structured Streaming, micro-batch after micro-batch.

As Spark does best: events as Parquet files, compiled SQL without Python, state in RocksDB, results
into Spark's ``noop`` sink, one shuffle partition per core. Queries for which Structured Streaming
has no form that gives the same rows are left out: 4, 6, 7, 9 (rankings that are not aggregates), 12
(windows of processing time in a run over files mean nothing), 13 and 14.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from clonos.bench import run
from clonos.bench.report import Report
from clonos.bench.statistics import percentile
from clonos.nexmark import KINDS, Generator
from clonos.nexmark.source import batches

_FILES: Final = 24
"""Files per kind."""

_FILES_PER_BATCH: Final = 6

_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_RUN_S: Final = 600


def measure(report: Report, names: list[str], arguments: Any) -> dict[str, float]:
    """Events per second of each query that there is."""
    rates = {}
    missing = [name for name in names if name not in QUERIES]
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch,
        run.session(f"local[{arguments.parallelism}]") as spark,
    ):
        _write(Path(scratch), Generator(arguments.events))
        spark.conf.set("spark.sql.shuffle.partitions", str(arguments.parallelism))
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        _run(spark, "0", Path(scratch))  # the first query pays for what all use
        for name in names:
            if name in missing:
                continue
            seconds = [_run(spark, name, Path(scratch)) for _ in range(arguments.runs)]
            rates[name] = arguments.events / percentile(seconds, 50)
            nanoseconds = f"{1e9 / rates[name]:,.0f}"
            report.add(f"q{name}, Spark", f"{rates[name]:,.0f}", nanoseconds, "", "", "")
    if missing:
        report.notes.append(f"not in Structured Streaming: {', '.join(f'q{n}' for n in missing)}")
    return rates


def _write(scratch: Path, generator: Generator) -> None:
    """Files that follow each other in time."""
    for kind in ("person", "auction", "bid"):
        folder = scratch / kind
        folder.mkdir()
        rows = generator.rows(kind)
        for i in range(_FILES):
            first, last = rows * i // _FILES, rows * (i + 1) // _FILES
            with pq.ParquetWriter(folder / f"{i:03d}.parquet", KINDS[kind]) as writer:
                for batch in batches(generator, kind, first=first, last=last):
                    writer.write_batch(batch)


def _run(spark: Any, name: str, scratch: Path) -> float:
    """Seconds from the start of the query to its end."""

    def stream(kind: str) -> Any:
        reader = spark.readStream.schema(spark.read.parquet(str(scratch / kind)).schema)
        files = reader.option("maxFilesPerTrigger", _FILES_PER_BATCH).parquet(str(scratch / kind))
        return files.withWatermark("date_time", "4 seconds")

    checkpoint = scratch / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = QUERIES[name](stream).writeStream.format("noop").outputMode("append")
    began = time.monotonic()
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination(_RUN_S)
    finally:
        query.stop()
    return time.monotonic() - began


Streams = Callable[[str], Any]


def _q0(stream: Streams) -> Any:
    return stream("bid")


def _q1(stream: Streams) -> Any:
    return stream("bid").selectExpr(
        "auction", "bidder", "price * 89 div 100 as price", "date_time", "extra"
    )


def _q2(stream: Streams) -> Any:
    return stream("bid").where("auction % 123 = 0").select("auction", "price")


def _q3(stream: Streams) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    persons = stream("person").where("state in ('OR', 'ID', 'CA')")
    persons = persons.selectExpr("id as person", "name", "city", "state", "date_time as since")
    auctions = stream("auction").where("category = 10")
    auctions = auctions.selectExpr("id", "seller", "date_time as opens")
    near = (
        "seller = person and opens between since - interval 600 seconds "
        "and since + interval 600 seconds"
    )
    return persons.join(auctions, F.expr(near)).select("name", "city", "state", "id")


def _q5(stream: Streams) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    window = F.window("date_time", "10 seconds", "5 seconds")
    counts = stream("bid").groupBy(window, "auction").agg(F.count("*").alias("n"))
    ranked = counts.groupBy("window").agg(
        F.max("n").alias("most"), F.collect_list(F.struct("auction", "n")).alias("items")
    )
    return ranked.selectExpr("window", "filter(items, item -> item.n = most) as items")


def _q8(stream: Streams) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    persons = stream("person").select(
        "id", "name", F.window("date_time", "10 seconds").alias("came")
    )
    auctions = stream("auction").select(
        "seller", "reserve", F.window("date_time", "10 seconds").alias("sold")
    )
    return persons.join(auctions, F.expr("id = seller and came = sold")).select(
        "id", "name", "reserve"
    )


def _q11(stream: Streams) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    session = F.session_window("date_time", "10 seconds")
    return stream("bid").groupBy(session, "bidder").agg(F.count("*").alias("bids"))


QUERIES: Final[dict[str, Callable[[Streams], Any]]] = {
    "0": _q0, "1": _q1, "2": _q2, "3": _q3, "5": _q5, "8": _q8, "11": _q11,
}  # fmt: skip
