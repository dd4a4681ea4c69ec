"""0.0 and -0.0 are equal: which of them is in a result must not depend on which came first."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException

import clonos
from clonos.errors import NotInSpark
from clonos.testing import InMemoryRun

pytestmark = pytest.mark.spark

AT = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
ORDERS = [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]]


@pytest.fixture(scope="module")
def spark(shared_spark):
    shared_spark.conf.set("spark.sql.shuffle.partitions", "1")
    return shared_spark


def rows_of(zeros: list[float], kind: str = "double") -> pa.Table:
    floats = pa.array(zeros, pa.float32() if kind == "float" else pa.float64())
    return pa.table(
        {
            "k": ["a"] * len(zeros),
            "f": floats,
            "s": pa.array([{"f": [f]} for f in zeros], pa.struct([("f", pa.list_(floats.type))])),
            "t": pa.array([AT] * len(zeros), pa.timestamp("us", "UTC")),
        }
    )


def stream_of(rows: Any) -> Any:
    source = clonos.sources.from_batches([rows]) if isinstance(rows, pa.Table) else rows
    return clonos.Job().source(source).with_watermark("t", "1 second")


def window(stream: Any) -> Any:
    return stream.key_by("k").window(clonos.tumbling("5 seconds", on="t"))


ALIKE: dict[str, Any] = {
    "keys of windows": lambda s: (
        s.key_by("f").window(clonos.tumbling("5 seconds", on="t")).agg(n=clonos.count())
    ),
    "extremes": lambda s: window(s).agg(
        a=clonos.min("f"), b=clonos.max("f"), c=clonos.sum("f"), d=clonos.avg("f")
    ),
    "deduplicate": lambda s: s.select("f", "k").key_by("f", "k").deduplicate(),
    "inside others": lambda s: s.select("s").key_by("s").deduplicate(),
}
DOUBTFUL: dict[str, Any] = {
    "deduplicate with others": lambda s: s.select("f", "k").key_by("k").deduplicate(),
    "deduplicate with others inside": lambda s: s.select("s", "k").key_by("k").deduplicate(),
    "top": lambda s: window(s.select("f", "k", "t")).top(1, "f"),
    "top by another": lambda s: window(s.select("s", "k", "t")).top(1, "t"),
}


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("what", ALIKE)
def test_there_is_one_zero(spark, what, kind):
    for zeros in ORDERS:
        stream = ALIKE[what](stream_of(rows_of(zeros, kind)))
        frame = stream.to_dataframe(spark, execution="spark")
        stream.sink(clonos.sinks.collect(), name="out")
        tasks = InMemoryRun(stream._job.compile(), seed=1).run()["out"].to_pylist()
        plan = frame.toArrow().to_pylist()
        assert len(tasks) == 1
        assert repr(tasks) == repr(plan)
        assert "-0.0" not in repr(tasks)


@pytest.mark.parametrize("what", DOUBTFUL)
def test_a_zero_that_came_first_is_not_chosen_by_chance(spark, what):
    same = DOUBTFUL[what](stream_of(rows_of([-0.0, -0.0])))
    assert "-0.0" in repr(same.to_dataframe(spark, execution="spark").collect())
    mixed = DOUBTFUL[what](stream_of(rows_of([-0.0, 0.0])))
    with pytest.raises(PySparkException, match="order of arrival"):
        mixed.to_dataframe(spark, execution="spark").collect()


def test_streams(spark, tmp_path: Path):
    late = pa.table(rows_of([9.0]).set_column(3, "t", pa.array([AT + dt.timedelta(days=1)])))
    schema = None

    def streamed(what: Any, zeros: list[float], name: str) -> list[Any]:
        nonlocal schema
        folder = tmp_path / name
        folder.mkdir()
        for number, rows in enumerate((rows_of(zeros), late)):
            pq.write_table(rows.cast(late.schema), folder / f"{number}.parquet")
        schema = spark.read.parquet(str(folder)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        frame = what(stream_of(reader.parquet(str(folder)))).to_dataframe(spark, execution="spark")
        query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        query.option("checkpointLocation", f"{folder}-checkpoint").start().awaitTermination()
        found: list[Any] = spark.table(name).toArrow().to_pylist()
        return [row for row in found if row.get("f") != 9.0]

    (row,) = streamed(ALIKE["deduplicate"], [-0.0, 0.0], "keys")
    assert repr(row["f"]) == "0.0"
    (row,) = streamed(DOUBTFUL["top"], [-0.0, -0.0], "same")
    assert repr(row["f"]) == "-0.0"
    with pytest.raises(StreamingQueryException, match="order of arrival"):
        streamed(DOUBTFUL["top"], [-0.0, 0.0], "mixed")
    with pytest.raises(NotInSpark, match="'s' Spark keeps the one that comes first"):
        streamed(ALIKE["inside others"], [-0.0, 0.0], "inside")
