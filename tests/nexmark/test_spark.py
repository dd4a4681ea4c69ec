"""The generator as Spark's data source, and queries on real Spark."""

from __future__ import annotations

import pytest

import clonos
from clonos.testing import InMemoryRun
from clonos_bench.nexmark import Generator
from clonos_bench.nexmark.queries import QUERIES, Auctions
from clonos_bench.nexmark.spark import NexmarkSource, write_table

pytestmark = pytest.mark.spark


def house(job, generator, **options):
    def source(kind):
        return clonos.sources.from_batches([generator.batch(kind, 0, generator.rows(kind))])

    return Auctions(job, generator.events, source=source, **options)


QUICK = [(3, True), (5, False), (9, False)]


@pytest.mark.parametrize(
    ("query", "in_columns"),
    [
        pytest.param(query, way, marks=() if (query, way) in QUICK else pytest.mark.soak)
        for query in sorted(set(QUERIES) - {6, 12})
        for way in (False, True)
    ],
)
def test_plans_give_the_rows_of_the_reference(spark, reference, query, in_columns):
    generator = Generator(5000)
    stream = QUERIES[query](house(clonos.Job(), generator, in_columns=in_columns))
    table = stream.to_dataframe(spark, execution="spark").toArrow()
    assert reference.found(table) == reference.expected(query, generator)


@pytest.mark.parametrize("query", [1, 2, 3, 4, 6, 9, 13, 14])
def test_tasks_give_the_rows_of_the_reference_in_columns_too(spark, reference, query):
    generator = Generator(5000)
    job = clonos.Job("nexmark")
    QUERIES[query](house(job, generator, in_columns=True)).sink(clonos.sinks.collect(), name="out")
    found = reference.found(InMemoryRun(job.compile()).run()["out"])
    assert found == reference.expected(query, generator)


@pytest.mark.soak
def test_tables_and_streams_have_the_generators_rows(spark, tmp_path, reference):
    spark.dataSource.register(NexmarkSource)
    generator = Generator(5000)
    bids = generator.batch("bid", 0, generator.rows("bid"))
    options = {"kind": "bid", "events": 5000, "partitions": 3, "rows_per_batch": 1500}
    table = spark.read.format("nexmark").options(**options).load().toArrow()
    assert reference.found(table) == reference.found(bids)
    query = (
        spark.readStream.format("nexmark").options(**options).load().writeStream
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .format("memory").queryName("bids").trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(60)
    assert reference.found(spark.table("bids").toArrow()) == reference.found(bids)
    events = spark.read.format("nexmark").option("events", 200).load()
    kinds = {row["kind"]: row["count"] for row in events.groupBy("kind").count().collect()}
    assert kinds == {"person": 4, "auction": 12, "bid": 184}


def test_a_table_is_written(spark, reference):
    generator = Generator(2000)
    write_table(spark, generator, "person", "nexmark_persons")
    try:
        found = reference.found(spark.table("nexmark_persons").toArrow())
        assert found == reference.found(generator.batch("person", 0, generator.rows("person")))
    finally:
        spark.sql("drop table nexmark_persons")


@pytest.mark.parametrize("number", [3, 5])
def test_queries_on_spark(spark, reference, number):
    job = clonos.Job("nexmark", parallelism=1, standbys=0)
    house = Auctions(job, 50_000, delay_us=1000)
    QUERIES[number](house).sink(clonos.sinks.collect(), name="out")
    result = job.run(spark, timeout_s=60)
    found = reference.found(result.table("out"))
    assert found == reference.expected(number, Generator(50_000, 1000))
