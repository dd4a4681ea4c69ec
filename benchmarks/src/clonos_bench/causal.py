"""What causal services cost in plain PySpark: per call, per batch, on disk, and in recovery.

The same ``mapInArrow`` job runs with a function as it is and with the same function as a causal
service, in turn; the difference of a pair's wall times is what the services cost. A job is cut into
Arrow batches of 1, 100 and 10,000 calls: each batch waits once for its answers to be durable.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from clonos import causal
from clonos.causal.entries import CALL, Entry, digest_of, encode_chunk
from clonos.causal.holder import ServedHolder
from clonos.causal.messages import AnswerKey
from clonos.causal.server import LogServer
from clonos.causal.task import OperatorLog
from clonos.core import canonical
from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import percentile

CALL_AIM: Final = Aim(20.0)
"""Microseconds per call, where a batch has many."""
SLOW_AIM: Final = Aim(5.0)
"""Percent, on calls that take a millisecond."""

PARTITIONS: Final = 8
"""Of the log that is recovered."""
CHUNK_ENTRIES: Final = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench causal``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--pairs", type=int, default=5, help="runs of each kind")
    add("--answers", type=int, default=1_000_000, help="logged answers to recover")


@dataclass(frozen=True)
class Shape:
    """A job: so many batches of so many calls, each taking so long."""

    calls: int
    batches: int
    call_ms: float = 0.0

    @property
    def total(self) -> int:
        return self.calls * self.batches


FAST: Final = (Shape(1, 1_000), Shape(100, 200), Shape(10_000, 10))
SLOW: Final = (Shape(100, 20, 1.0), Shape(10_000, 1, 1.0))


def answer(number: int) -> float:
    """The service, when it takes no time."""
    return number * 0.5


def slow_answer(number: int) -> float:
    """The service, when it takes a millisecond, as waiting for a network does."""
    time.sleep(0.001)
    return number * 0.5


class Enrich:
    """Calls a function for every row."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ask = self._ask
        for batch in batches:
            answers = [ask(number) for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"answer": pa.array(answers, pa.float64())})


def measure(arguments: argparse.Namespace) -> Report:
    """All of it."""
    columns = ("", "value", "unit", "target")
    report = Report("causal", "causal services in plain PySpark", columns)
    data: dict[str, Any] = {}
    with run.session("local[1]") as spark:
        for shape in FAST:
            data[f"fast {shape.calls}"] = _fast(spark, shape, arguments.pairs, report)
        for shape in SLOW:
            data[f"slow {shape.calls}"] = _slow(spark, shape, arguments.pairs, report)
    data["recovery"] = _recovery(arguments.answers, report)
    report.notes.append(f"medians of {arguments.pairs} pairs; one task, log durable (fdatasync)")
    report.data = data
    return report


def _fast(spark: Any, shape: Shape, pairs: int, report: Report) -> dict[str, float]:
    plain, logged, nbytes = _pairs(spark, shape, answer, pairs)
    extra_s = percentile([b - a for a, b in zip(plain, logged, strict=True)], 50)
    per_call, per_batch = extra_s / shape.total * 1e6, extra_s / shape.batches * 1e3
    what = f"{shape.calls:,} calls per batch"
    judged = f"{CALL_AIM}: {CALL_AIM.judge(per_call)}" if shape.calls > 1 else ""
    report.add(f"{what}: overhead per call", f"{per_call:,.1f}", "us", judged)
    report.add(f"{what}: overhead per batch", f"{per_batch:,.2f}", "ms", "")
    report.add(f"{what}: log per call", f"{nbytes / shape.total:,.0f}", "bytes", "")
    return {
        "plain_s": percentile(plain, 50),
        "causal_s": percentile(logged, 50),
        "per_call_us": per_call,
        "per_batch_ms": per_batch,
        "log_bytes_per_call": nbytes / shape.total,
    }


def _slow(spark: Any, shape: Shape, pairs: int, report: Report) -> dict[str, float]:
    plain, logged, _ = _pairs(spark, shape, slow_answer, pairs)
    percent = 100 * (percentile([b / a for a, b in zip(plain, logged, strict=True)], 50) - 1)
    what = f"{shape.calls:,} calls of {shape.call_ms:g} ms per batch: overhead"
    report.add(what, f"{percent:+.1f}", "%", f"{SLOW_AIM}: {SLOW_AIM.judge(percent)}")
    return {
        "plain_s": percentile(plain, 50),
        "causal_s": percentile(logged, 50),
        "percent": percent,
    }


def _pairs(spark: Any, shape: Shape, fn: Any, pairs: int) -> tuple[list[float], list[float], float]:
    """Wall times of the plain jobs and of the causal ones, and the log's bytes of one of these."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(shape.calls))
    plain, logged, nbytes = [], [], 0.0
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder,
        causal.start(spark, Path(folder) / "log", run="bench") as log,
    ):
        ask = causal.service(fn)
        _time(spark, shape, fn)
        with log.batch("warm"):
            _time(spark, shape, ask)
        for number in range(pairs):
            plain.append(_time(spark, shape, fn))
            with log.batch(str(number)):
                before = _journal_bytes(Path(folder))
                logged.append(_time(spark, shape, ask))
                nbytes = _journal_bytes(Path(folder)) - before
    return plain, logged, nbytes


def _journal_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.journal"))


def _time(spark: Any, shape: Shape, ask: Any) -> float:
    frame = spark.range(shape.total, numPartitions=1).mapInArrow(Enrich(ask), "answer double")
    began = time.perf_counter()
    total = frame.agg({"answer": "sum"}).first()[0]
    took = time.perf_counter() - began
    if total != sum(number * 0.5 for number in range(shape.total)):
        raise ClonosError(f"wrong answers: their sum is {total}")
    return took


def _recovery(answers: int, report: Report) -> dict[str, float]:
    """A driver that starts with a full log, and tasks that take all of it up again."""
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        nbytes = _fill(Path(folder), answers)
        began = time.perf_counter()
        with LogServer(folder) as server:
            started_s = time.perf_counter() - began
            holder = ServedHolder(server.address, server.job, server.secret)
            began = time.perf_counter()
            for partition in range(PARTITIONS):
                key = AnswerKey("run", 0, "f", partition)
                log = OperatorLog(holder, key, "attempt", "execution", 1.0)
                for number in range(partition, answers, PARTITIONS):
                    entry = log.take(digest_of(number))
                    if entry is None or canonical.decode(entry.answer) != number * 0.5:
                        raise ClonosError(f"answer {number} was not recovered")
            read_s = time.perf_counter() - began
            holder.close()
    what = f"{answers:,} logged answers"
    report.add(f"{what}: journal", f"{nbytes / 1e6:,.0f}", "MB", "")
    report.add(f"{what}: house-keeper started", f"{started_s:,.2f}", "s", "")
    report.add(f"{what}: all used again by {PARTITIONS} tasks in turn", f"{read_s:,.2f}", "s", "")
    return {"journal_bytes": nbytes, "started_s": started_s, "used_again_s": read_s}


def _fill(folder: Path, answers: int) -> int:
    with LogServer(folder) as server:
        holder = ServedHolder(server.address, server.job, server.secret)
        for partition in range(PARTITIONS):
            key = AnswerKey("run", 0, "f", partition)
            holder.open(key, "first", "execution")
            numbers = range(partition, answers, PARTITIONS)
            for first in range(0, len(numbers), CHUNK_ENTRIES):
                entries = [
                    Entry(digest_of(number), CALL, True, canonical.encode(number * 0.5))
                    for number in numbers[first : first + CHUNK_ENTRIES]
                ]
                holder.append(key, "execution", encode_chunk(entries))
        holder.close()
        return server.journal_bytes
