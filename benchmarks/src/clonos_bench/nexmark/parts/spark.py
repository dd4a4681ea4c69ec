"""Nexmark's queries in Spark's Structured Streaming, micro-batch after micro-batch.

As Spark does best: events as Parquet files that are not compressed (they stay in the page cache,
and Spark's vectorised reader takes only the columns that a query needs), compiled SQL without
Python, one shuffle partition per core, few and large micro-batches, results into Spark's ``noop``
sink, and per query the settings that took least CPU time (:data:`TUNED`). "Source alone" reads all
columns of the bids and keeps none.

A virtual machine of its own, with 3 GB and the parallel collector, as Flink has it, runs all
queries. Each is run before it counts on a part of the files, which is enlarged until it says how
many of them take ``--run-seconds`` (a sixteenth of them at least). Its last windows close with a
row from long after all others, so that a run gives all rows. Wall and CPU time are those from the
beginning of the first micro-batch until the query has ended, without its compilation and start.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.gates import Ran
from clonos_bench.nexmark.parts.files import END, FILES
from clonos_bench.nexmark.parts.spark_queries import INEXPRESSIBLE, QUERIES, Streams, source
from clonos_bench.processes import machine_cpu_seconds
from clonos_bench.report import Report
from clonos_bench.statistics import percentile, spread

SOURCE_ALONE: Final = "source alone"
JVM: Final[Mapping[str, str]] = {
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
BATCHES: Final = 4
"""Micro-batches with rows, per run: so many events that what each costs by itself is little."""

_RUN_S: Final = 600
_TRIAL_FILES: Final = max(1, FILES // 16)
"""The fewest for a run, too: what it costs by itself should not be all that is measured."""
_TRIAL_SHARE: Final = 0.5
"""A trial that takes so much of what a run is to take says how long the run takes."""

DELAY: Final = "4 seconds"
DELAYS: Final = {"expires": "12 seconds"}
"""... of the watermark: more than an auction is open."""
_NOW: Final = "if(bidder < 0, current_timestamp() + interval 1 day, current_timestamp()) as now"
"""Processing time, which goes on at the end of the input, too."""

_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_STATE: Final = "org.apache.spark.sql.execution.streaming.state"
SETTINGS: Final[Mapping[str, str]] = {
    _PROVIDER: f"{_STATE}.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

STATELESS: Final = frozenset({SOURCE_ALONE, "0", "1", "2", "13"})
"""They need no end of event time, which would be one more row, and a micro-batch."""

_ON_HEAP: Final = {_PROVIDER: f"{_STATE}.HDFSBackedStateStoreProvider"}
_MERGED: Final = {
    "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition": "true",
}
TUNED: Final[Mapping[str, Mapping[str, str]]] = {
    "3": _ON_HEAP, "4": _ON_HEAP, "5": _ON_HEAP, "8": _ON_HEAP, "9": _ON_HEAP,
    "11": {**_ON_HEAP, **_MERGED}, "14": _MERGED,
}  # fmt: skip
"""By query, what is set beyond :data:`SETTINGS`: what took least CPU time out of what was tried.

Single runs on a busy machine decided, so this is a choice and no result. State on the heap took
less than RocksDB where there is much of it in small rows (3, 4, 5, 8, 9, 11). Formats 3 and 4 of a
join's state help RocksDB (3, 9; not 8), but heap, which has only format 2, takes less than either.
7 and 12 are the same on both: their state is a few rows, or changes once per key and micro-batch.
Sessions merged before the shuffle help 14 a lot, 11 a little. 14, which keeps all bids for
ten minutes, is then the same on both, and stays in RocksDB, as it might not fit into the heap.
RocksDB without a count of its rows made no difference (12).
"""


def configure(spark: Any, cores: int) -> None:
    """What every streaming query here runs with."""
    spark.conf.set("spark.sql.shuffle.partitions", str(cores))
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)


@contextlib.contextmanager
def session(cores: int) -> Iterator[Any]:
    """A session with the heap and the collector that Flink has."""
    with run.session(f"local[{cores}]", config=JVM) as spark:
        configure(spark, cores)
        yield spark


def measure(report: Report, names: list[str], arguments: Any, folder: Path) -> dict[str, float]:
    """Events per second of each query that there is, from the files in `folder`."""
    done: dict[str, tuple[int, list[Ran]]] = {}
    with session(arguments.parallelism) as spark:
        for name in [SOURCE_ALONE, *(name for name in names if name in QUERIES)]:
            query = QUERIES.get(name, source)
            with tuned(spark, name):
                files = _enough(spark, name, query, folder, arguments.run_seconds)
                ends = name not in STATELESS
                runs = [
                    run_query(spark, query, folder, files, ends=ends) for _ in range(arguments.runs)
                ]
            events = arguments.events * files // FILES
            done[name] = events, runs
            _line(report, name, events, runs)
    report.data["structured_streaming"] = {
        name: {"events": events, "runs": [asdict(each) for each in runs], "tuned": TUNED.get(name)}
        for name, (events, runs) in done.items()
    }
    report.notes += [
        f"q{name} not in Structured Streaming: {INEXPRESSIBLE[name]}"
        for name in names
        if name in INEXPRESSIBLE
    ]
    report.notes.append(
        f"Spark: local[{arguments.parallelism}], {BATCHES} micro-batches per run of about "
        f"{arguments.run_seconds:g} s, {JVM['spark.driver.memory']} of heap; median of "
        f"{arguments.runs} runs [lowest, highest]; CPU: seconds of the whole "
        "machine per million events"
    )
    return {name: _rate(events, runs) for name, (events, runs) in done.items()}


def _rate(events: int, runs: list[Ran]) -> float:
    return percentile([events / each.wall_s for each in runs], 50)


def _line(report: Report, name: str, events: int, runs: list[Ran]) -> None:
    rate = _rate(events, runs)
    cpu = percentile([each.cpu_s for each in runs], 50) / events * 1e6
    what = name if name == SOURCE_ALONE else f"q{name}"
    report.add(
        f"{what}, Spark ({events:,} events)",
        spread([events / each.wall_s for each in runs]),
        f"{1e9 / rate:,.0f}",
        f"{cpu:.2f}",
        f"{runs[-1].rows_out:,}",
        "",
    )


def _enough(
    spark: Any, name: str, query: Callable[[Streams], Any], folder: Path, seconds: float
) -> int:
    """How many of the files take about so long; the runs that tell are the warm-up, too.

    The first one says nothing: it pays for what all use. Of the others those are believed that take
    long enough for what a micro-batch costs by itself not to matter.
    """

    def took(files: int) -> float:
        return run_query(spark, query, folder, files, ends=name not in STATELESS).wall_s

    files = _TRIAL_FILES
    took(files)
    while (wall_s := took(files)) < seconds * _TRIAL_SHARE and files < FILES:
        files = min(FILES, files * 4)
    return max(_TRIAL_FILES, min(FILES, round(files * seconds / wall_s)))


@contextlib.contextmanager
def tuned(spark: Any, name: str) -> Iterator[None]:
    """While this lasts, the session has the query's own settings."""
    settings = TUNED.get(name, {})
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


def streams(
    spark: Any,
    folder: Path,
    files: int = FILES,
    *,
    ends: bool = True,
    batches: int = BATCHES,
) -> Streams:
    """The streams of each kind, with a watermark: the first files, and the end of event time."""
    names = [f"{number:03d}" for number in range(files)] + [END] * ends
    options = {
        "pathGlobFilter": f"{{{','.join(names)}}}.parquet",
        "maxFilesPerTrigger": math.ceil(files / batches),
    }

    def stream(kind: str, time_column: str = "date_time") -> Any:
        schema = spark.read.parquet(str(folder / kind)).schema
        reader = spark.readStream.schema(schema).options(**options)
        rows = reader.parquet(f"{folder}/{{{kind},{kind}-{END}}}")
        if time_column == "processing":
            return rows.selectExpr("*", _NOW).withWatermark("now", "0 seconds")
        return rows.withWatermark(time_column, DELAYS.get(time_column, DELAY))

    return stream


def run_query(
    spark: Any,
    query: Callable[[Streams], Any],
    folder: Path,
    files: int = FILES,
    *,
    ends: bool = True,
) -> Ran:
    """One run over the first files, measured from when its first micro-batch begins."""
    checkpoint = folder / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    rows = query(streams(spark, folder, files, ends=ends))
    writer = rows.writeStream.format("noop").outputMode("append").trigger(availableNow=True)
    started = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        while started.isActive and not started.status["isTriggerActive"]:
            time.sleep(run.LOOK_S / 10)
        cpu, wall = machine_cpu_seconds(), time.monotonic()
        if not started.awaitTermination(_RUN_S):
            raise ClonosError(f"not within {_RUN_S} s", where="Spark", remedy="--events less")
        wall, cpu = time.monotonic() - wall, machine_cpu_seconds() - cpu
    finally:
        started.stop()
    # Sinks of this kind count what is written to them.
    return Ran(wall, cpu, sum(each.sink.numOutputRows for each in started.recentProgress))
