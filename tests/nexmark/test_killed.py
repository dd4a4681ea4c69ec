"""The same queries in both executions, whose processes die in the middle: the same verdict."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.spark.session import get_or_create
from clonos_bench.nexmark import Generator
from clonos_bench.nexmark.parts import files
from clonos_bench.nexmark.parts import spark as nexmark_spark
from clonos_bench.nexmark.queries import QUERIES, Auctions

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

GENERATOR = Generator(5_000, delay_us=8_000)
BATCH = 40
"""Rows, so that there is a second batch of bids."""
STREAMS = (0, 1, 2, 3, 5, 7, 8, 11, 14)
"""Those that Spark computes of streams, but 13, whose side input is a stream there."""


@pytest.fixture(scope="module")
def spark(new_jvm):
    config = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH),
    }
    session = get_or_create("local[8,4]", "killed", config=config)  # a task is tried four times
    yield session
    session.stop()


def dying(flag: Path, after: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Passes batches on, and takes its process with it, once, after so many of them."""
    calls = [0]

    def same(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls[0] += 1
        if calls[0] > after and flag.exists():
            flag.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return same


class Fatal(Auctions):
    """Its streams kill the process that reads them, each once."""

    def __init__(self, job: clonos.Job, flags: Path, source: Callable[[str], Any]) -> None:
        super().__init__(job, 0, source=source)
        self._flags = flags

    def _stream(self, kind: str) -> clonos.Stream:
        if kind not in self._made:
            flag = self._flags / kind
            flag.touch()
            rows = self._job.source(self._source(kind), name=f"{kind}s")
            rows = rows.map_batches(dying(flag, kind == "bid"), name=f"{kind}s_die")
            self._made[kind] = rows.with_watermark("date_time", "0 ms", name=f"{kind}_times")
        return self._made[kind]


def batches(kind: str) -> Any:
    rows = GENERATOR.rows(kind)
    made = [GENERATOR.batch(kind, at, min(BATCH, rows - at)) for at in range(0, rows, BATCH)]
    return clonos.sources.from_batches(made)


def streamed(spark: Any, folder: Path, kind: str, *, ends: bool) -> Any:
    """In two micro-batches, and one that ends event time."""
    schema = spark.read.parquet(str(folder / kind)).schema
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files.FILES // 2)
    end = f",{kind}-{files.END}" if ends else ""
    return reader.parquet(f"{folder}/{{{kind}{end}}}")


@pytest.mark.parametrize("execution", ["tasks", "spark"])
@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=() if n == 5 else pytest.mark.soak) for n in sorted({*QUERIES} - {12})],
)
def test_the_rows_are_those_of_the_reference(spark, reference, tmp_path, number, execution):
    if number == 6 and execution == "spark":
        pytest.skip("has no plan")
    house = Fatal(clonos.Job("killed"), tmp_path, batches)
    QUERIES[number](house).sink(clonos.sinks.collect(), name="out")
    result = house._job.run(spark, execution=execution)
    assert not list(tmp_path.iterdir()), "each stream has killed a process"
    assert reference.found(result.table("out")) == reference.expected(number, GENERATOR)


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=() if n == 7 else pytest.mark.soak) for n in STREAMS]
)
def test_streaming_plans_give_the_rows_of_the_reference(spark, reference, tmp_path, number):
    for folder in ("flags", "in"):
        (tmp_path / folder).mkdir()
    files.write(tmp_path / "in", GENERATOR)
    ends = str(number) not in nexmark_spark.STATELESS
    frames = partial(streamed, spark, tmp_path / "in", ends=ends)
    job = clonos.Job("killed", checkpoint_dir=str(tmp_path / "checkpoint"))
    house = Fatal(job, tmp_path / "flags", frames)
    out = str(tmp_path / "out")
    QUERIES[number](house).sink(clonos.sinks.spark("parquet", out), name="out")
    job.start(spark, execution="spark", available_now=True).wait(600)
    assert not list((tmp_path / "flags").iterdir()), "each stream has killed a process"
    found = reference.found(spark.read.parquet(out).toArrow())
    assert found == reference.expected(number, GENERATOR)
    assert found
