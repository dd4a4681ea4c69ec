"""Functions that ask, in Spark's own tasks: calls, clock and random numbers are logged."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException

import clonos
from clonos import causal
from clonos.dataframes.answers import Answers
from clonos.errors import DefinitionError, NotInSpark
from clonos.spark.session import get_or_create
from clonos.testing import InMemoryRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("new_jvm")]

ROWS = [(n,) for n in range(12)]
ASKED = "n long, token string, ms long, lucky double, key string"


@pytest.fixture(scope="module")
def spark(new_jvm) -> Iterator[Any]:
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    }
    session = get_or_create("local[2,4]", config=config)  # tasks are tried again
    yield session
    session.stop()


def note(path: Path, *what: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(what) + "\n")


def noted(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def world(folder: Path, n: int) -> str:
    """Never gives the same answer again."""
    token = uuid.uuid4().hex
    note(folder / "calls", n, token)
    return token


def answer(folder: Path, row: Any, ctx: clonos.Context) -> tuple[Any, ...]:
    token = ctx.call(partial(world, folder), row.n)
    made = (row.n, token, ctx.clock.now_ms(), ctx.random.random(), ctx.idempotency_key(row.n))
    note(folder / "made", *made)
    if row.n == 9 and not (folder / "dead").exists():
        (folder / "dead").touch()
        causal.settle()
        os._exit(9)
    return made


def source(rows: Any = ROWS, schema: str = "n long", **options: Any) -> Any:
    given = clonos.sources.from_batches([rows] if rows else [], schema)
    return clonos.Job("asking", **options).source(given, name="in")


def test_a_worker_dies_and_nothing_is_asked_again(spark, tmp_path):
    stream = source().map(partial(answer, tmp_path), ASKED, name="ask")
    stream.sink(clonos.sinks.collect(), name="out")
    result = stream._job.run(spark, execution="spark")
    rows = [tuple(row.values()) for row in result.table().to_pylist()]
    assert sorted(row[0] for row in rows) == list(range(12))
    assert (tmp_path / "dead").exists()
    calls = noted(tmp_path / "calls")
    assert set(Counter(n for n, _ in calls).values()) == {1}
    made = [tuple(one) for one in noted(tmp_path / "made")]
    assert len(made) > len(rows)
    assert set(made) == set(rows)  # every attempt has made the same of each row
    assert len({ms for _, _, ms, *_ in rows}) > 1  # a reading per batch of two rows, at most
    assert len({lucky for *_, lucky, _ in rows}) == 12
    assert len({key for *_, key in rows}) == 12
    with pytest.raises(DefinitionError, match="would ask again"):
        result.dataframe()
    again = source().map(partial(answer, tmp_path), ASKED, name="ask")
    again.sink(clonos.sinks.collect(), name="out")
    keys = again._job.run(spark, execution="spark").table()["key"].to_pylist()
    assert not {key for *_, key in rows} & set(keys)  # another run means other calls


def tenfold(n: int) -> int:
    if n % 5 == 4:
        raise ValueError("a four")
    return 10 * n


async def tenfold_later(n: int) -> int:
    return tenfold(n)


def tenfolds(numbers: list[int]) -> list[int]:
    return [10 * n for n in numbers]


@pytest.mark.parametrize("how", ["threads", "event loop", "batches"])
def test_calls_that_take_a_while_give_the_rows_of_tasks(spark, how):
    def build() -> Any:
        options: Any = {"in_flight": 4, "ordered": True}
        if how == "batches":
            options |= {"batch": 3, "batch_within": "1 hour"}
            fn: Any = tenfolds
        else:
            options |= {"on_error": lambda n, error: -n, "attempts": 2, "backoff": ("1 ms", "1 ms")}
            fn = tenfold if how == "threads" else tenfold_later
        stream = source().with_column_async("ten long", fn, "n", name="ask", **options)
        stream.sink(clonos.sinks.collect(), name="out")
        return stream._job

    plan = build().run(spark, execution="spark").table().to_pylist()
    tasks = InMemoryRun(build().compile()).run()["out"].to_pylist()
    key = lambda row: row["n"]  # noqa: E731 - the order of both
    assert sorted(plan, key=key) == sorted(tasks, key=key)
    assert len(plan) == 12


def failing(folder: Path, batch: pa.RecordBatch, ctx: clonos.Context) -> pa.RecordBatch:
    tokens = [ctx.call(partial(world, folder), n) for n in batch["n"].to_pylist()]
    if 9 in batch["n"].to_pylist() and not (folder / "mended").exists():
        causal.settle()
        raise ValueError("not yet")
    return pa.record_batch({"n": batch["n"], "token": tokens})


def test_a_stream_goes_on_with_the_answers_of_its_checkpoint(spark, tmp_path):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": range(12)}), tmp_path / "in" / "rows.parquet")

    def start() -> Any:
        files = spark.readStream.schema("n long").parquet(str(tmp_path / "in"))
        frame = spark.sql("select n from {files}", files=files)
        job = clonos.Job("asking", checkpoint_dir=str(tmp_path / "checkpoint"))
        asked = job.source(frame, name="in").map_batches(
            partial(failing, tmp_path), "n long, token string", name="ask"
        )
        asked.sink(clonos.sinks.spark("parquet", str(tmp_path / "out")), name="out")
        return job.start(spark, execution="spark", available_now=True)

    with pytest.raises(StreamingQueryException, match="not yet"):
        start().wait()
    assert Answers._open is None
    assert len(noted(tmp_path / "calls")) == 10
    (tmp_path / "mended").touch()
    start().wait()
    calls = dict(noted(tmp_path / "calls"))
    assert len(noted(tmp_path / "calls")) == len(calls) == 12
    out = spark.read.parquet(str(tmp_path / "out")).toArrow().to_pylist()
    assert {row["n"]: row["token"] for row in out} == calls


def test_what_spark_cannot_ask_is_refused_by_name(spark, tmp_path):
    @clonos.effect(idempotent=True)
    def pay(n, *, call):
        return n

    class Judge(clonos.Service):
        async def call(self, n):
            return n

    refused: Any = {
        "it makes effects": (pay, {}),
        "a clonos.Service": (Judge(), {}),
        "per_second=": (tenfold, {"per_second": 5}),
        "cache_ttl=": (tenfold, {"cache_ttl": "1 s"}),
        "budget=": (tenfold, {"budget": clonos.Budget(calls=5)}),
        "hedge=": (tenfold, {"hedge": "1 s"}),
    }
    for told, (fn, options) in refused.items():
        stream = source().with_column_async("m long", fn, "n", name="ask", **options)
        with pytest.raises(NotInSpark, match=told) as caught:
            stream.to_dataframe(spark, execution="spark")
        assert caught.value.where == "ask"
        assert "execution=" in caught.value.remedy


def test_two_plans_do_not_ask_the_same(spark):
    asked = source().map(lambda row, ctx: row, "n long", name="ask")
    asked.filter(lambda row: row.n > 3, name="some").sink(clonos.sinks.collect(), name="a")
    asked.sink(clonos.sinks.collect(), name="b")
    with pytest.raises(NotInSpark, match="b and some read what is behind it") as caught:
        asked._job.run(spark, execution="spark")
    assert "sinks.table" in caught.value.remedy
    mixed = asked.union(asked.filter(lambda row: row.n > 3))
    with pytest.raises(NotInSpark, match="each would ask for itself"):
        mixed.to_dataframe(spark, execution="spark")


def test_a_plan_needs_a_log_and_the_user_may_have_started_it(spark, tmp_path):
    asked = source().map(lambda row, ctx: (row.n, ctx.clock.now_ms()), "n long, ms long")
    with pytest.raises(causal.NotConnected, match="this driver has no log"):
        asked.to_dataframe(spark, execution="spark")
    log = causal.start(spark, tmp_path / "log")
    try:
        frame = asked.to_dataframe(spark, execution="spark")
        assert sorted(frame.collect()) == sorted(frame.collect())
        said = source().map(lambda row, ctx: (row.n, ctx.watermark), "n long, t timestamp")
        with pytest.raises(PySparkException, match="how far event time has come"):
            said.to_dataframe(spark, execution="spark").collect()
    finally:
        log.stop()
    asked.sink(clonos.sinks.collect())
    assert "with the causal log" in asked._job.explain(spark)


def test_one_log_at_a_time(spark, tmp_path):
    asked = source(checkpoint_dir="mock:///job").map(lambda row, ctx: row, "n long")
    asked.sink(clonos.sinks.collect())
    with pytest.raises(DefinitionError, match="logged on a local disk"):
        Answers.of(asked._job._graph, spark)
    local = source().map(lambda row, ctx: row, "n long")
    local.sink(clonos.sinks.collect())
    with Answers.of(local._job._graph, spark), pytest.raises(DefinitionError, match="another job"):
        local._job.run(spark, execution="spark")
