"""``groupBy`` as PySpark users write it: the same columns and rows as Spark's own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import clonos
from clonos.errors import BadGraph, NotInTasks, UnknownColumn, WrongType
from clonos.testing import InMemoryRun

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
SCHEMA = "item string, price long, time timestamp"
ROWS = [("abc"[n % 3], n, START + dt.timedelta(seconds=n)) for n in range(40)]


def stream(*, has_watermark: bool = True):
    rows = clonos.Job("grouped", parallelism=2).source(
        clonos.sources.from_batches([ROWS[:13], ROWS[13:]], SCHEMA)
    )
    return rows.withWatermark("time", "4 seconds") if has_watermark else rows


def aggregates() -> list[Any]:
    return [
        F.count("*").alias("n"),
        F.sum(F.col("price") * 2).alias("twice"),
        F.avg("price"),
        F.max("price").alias("dearest"),
    ]


GROUPS: dict[str, Callable[[], list[Any]]] = {
    "tumbling": lambda: ["item", F.window("time", "10 seconds")],
    "sliding": lambda: [F.window("time", "10 seconds", "5 seconds").alias("when"), F.col("item")],
    "session": lambda: [F.col("item").alias("what"), F.session_window("time", "2 seconds")],
    "expression": lambda: [F.upper("item").alias("ITEM"), F.window("time", "1 minute")],
    "all": lambda: [F.window("time", "10 seconds")],
}


@pytest.mark.parametrize("kind", GROUPS)
def test_the_same_as_spark(spark, kind):
    frame = spark.createDataFrame(ROWS, SCHEMA).groupBy(*GROUPS[kind]()).agg(*aggregates())
    made = stream().groupBy(*GROUPS[kind]()).agg(*aggregates())
    assert made.columns == frame.columns
    assert made.dtypes == frame.dtypes
    made.sink(clonos.sinks.collect(), name="out")
    expected = sorted(map(repr, frame.toArrow().to_pylist()))
    assert sorted(map(repr, InMemoryRun(made._job.compile()).run()["out"].to_pylist())) == expected
    plan = made._job.run(spark, execution="spark").table("out")
    assert sorted(map(repr, plan.to_pylist())) == expected


NESTED = "item string, price long, pair struct<x: int, y: string>, time timestamp"
NESTED_ROWS = [(item, n, {"x": n % 4, "y": item}, at) for item, n, at in ROWS]
NAMED: dict[str, Callable[[Any], Any]] = {
    "a key with the name of a column that is aggregated": lambda rows: (
        rows.groupBy((F.col("price") % 3).alias("price"), F.window("time", "10 seconds"))
        .agg(F.max("price"), F.sum(F.col("price") + 1).alias("time"))
    ),
    "a column under the name of another": lambda rows: (
        rows.groupBy(F.col("item").alias("price"), F.window("time", "10 seconds"))
        .agg(F.max("price").alias("item"), F.count("*").alias("name"))
    ),
    "the time of the window, cut off": lambda rows: (
        rows.groupBy(F.date_trunc("minute", "time").alias("time"), F.window("time", "10 seconds"))
        .agg(F.max("time").alias("last"), F.max(F.col("time") + F.expr("interval 1 second"))
        .alias("next"))
    ),
    "a name that differs in case": lambda rows: (
        rows.groupBy(F.upper("item").alias("ITEM"), F.window("time", "10 seconds"))
        .agg(F.max("item"), F.min(F.col("Price")).alias("lowest"))
    ),
    "a time without a zone": lambda rows: (
        rows.withColumn("local", F.col("time").cast("timestamp_ntz"))
        .groupBy("item", F.window("local", "10 seconds")).agg(F.max("local").alias("last"))
    ),
    "fields of a struct": lambda rows: (
        rows.groupBy("pair.y", F.col("pair.x"), F.window("time", "10 seconds"))
        .agg(F.sum("pair.x"), F.max(F.col("pair.y")).alias("top"), F.count("pair"))
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMED)
def test_names_are_understood_as_spark_does(spark, kind):
    frame = NAMED[kind](spark.createDataFrame(NESTED_ROWS, NESTED))
    rows = clonos.Job("named", parallelism=2).source(
        clonos.sources.from_batches([NESTED_ROWS[:13], NESTED_ROWS[13:]], NESTED)
    )
    made = NAMED[kind](rows.withWatermark("time", "4 seconds"))
    assert made.dtypes == frame.dtypes
    made.sink(clonos.sinks.collect(), name="out")
    expected = sorted(map(repr, frame.toArrow().to_pylist()))
    run = InMemoryRun(made._job.compile(), seed=1, batch_rows=7, restore=0.3)
    assert sorted(map(repr, run.run()["out"].to_pylist())) == expected
    plan = made._job.run(spark, execution="spark").table("out")
    assert sorted(map(repr, plan.to_pylist())) == expected


def test_names_that_are_there_twice(spark):
    window = F.window("time", "10 seconds")
    total = F.sum("price").alias("total")
    cases: list[tuple[list[Any], list[Any], str]] = [
        (["item"], [total, F.max("price").alias("total")], "total"),
        (["item"], [F.max("price").alias("item")], "item"),
        (["item"], [F.max("price").alias("window")], "window"),
        (["item", "item"], [total], "item"),
        (["item", F.col("price").alias("window")], [total], "window"),
    ]
    for keys, made, name in cases:
        with pytest.raises(BadGraph, match=f"two columns '{name}'"):
            stream().groupBy(*keys, window).agg(*made)
    with pytest.raises(BadGraph, match="two columns"):
        stream().groupBy("item", window).sum("price", "price")


def test_shorter_forms(spark):
    grouped = stream().groupBy(["item", F.window("time", "10 seconds")])
    assert grouped.count().columns == ["item", "window", "count"]
    assert grouped.sum("price").columns == ["item", "window", "sum(price)"]
    assert grouped.agg({"price": "max", "*": "count"}).columns[2:] == ["max(price)", "count(1)"]
    starts = grouped.count().select("item", F.col("window.start").alias("start"))
    assert starts.dtypes == [("item", "string"), ("start", "timestamp")]
    arrival = stream(has_watermark=False).groupBy(F.window(F.current_timestamp(), "1 second"))
    assert arrival.count().columns == ["window", "count"]


def test_what_is_refused(spark):
    window = F.window("time", "10 seconds")
    for column, told in [
        (F.count_distinct("item"), "count distinct"),
        (F.first("item"), "first"),
        (F.expr("count(*) as n"), "not understood"),
    ]:
        with pytest.raises(NotInTasks, match=told):
            stream().groupBy("item", window).agg(column)
    with pytest.raises(NotInTasks, match=r"'max' of \*"):
        stream().groupBy("item", window).agg({"*": "max"})
    with pytest.raises(UnknownColumn, match=r"no.*where"):
        stream().groupBy("no.where", window)
    with pytest.raises(WrongType, match="has no name"):
        stream().groupBy("item", window).agg(F.sum(F.col("price") * 2))
    with pytest.raises(BadGraph, match="two windows"):
        stream().groupBy(window, window)
    with pytest.raises(NotInTasks, match="begin at 3 seconds"):
        stream().groupBy(F.window("time", "10 seconds", "10 seconds", "3 seconds"))
    with pytest.raises(NotInTasks, match="computed for each row"):
        stream().groupBy(F.session_window("time", F.concat("item", F.lit(" seconds"))))
    with pytest.raises(BadGraph, match="without a watermark"):
        stream(has_watermark=False).groupBy(window).count()
    with pytest.raises(NotInTasks, match="as a column with a watermark"):
        stream().groupBy(F.window(F.date_trunc("hour", "time"), "10 seconds"))
