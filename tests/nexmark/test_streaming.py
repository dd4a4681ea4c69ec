"""The queries as Structured Streaming has them give the rows that ours give."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clonos.bench import nexmark_files, nexmark_spark
from clonos.bench.nexmark_spark_queries import INEXPRESSIBLE, QUERIES
from clonos.nexmark import KINDS, Generator
from clonos.nexmark import queries as ours
from clonos.spark.session import get_or_create

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("new_jvm")]

GENERATOR = Generator(20_000, delay_us=2_000)
"""Lasts 40 s: several windows."""
NOBODY = -1


@pytest.fixture(scope="module")
def spark(new_jvm):
    session = get_or_create("local[2]", "nexmark in spark")
    nexmark_spark.configure(session, 1)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files, and behind them one row per kind from a day later: event time goes on."""
    path = tmp_path_factory.mktemp("nexmark")
    nexmark_files.write(path, GENERATOR)
    later = dt.datetime(2015, 7, 16, tzinfo=dt.timezone.utc)
    for kind in nexmark_files.KINDS_APART:
        schema = KINDS[kind]
        row = {
            field.name: later
            if pa.types.is_timestamp(field.type)
            else (NOBODY if pa.types.is_integer(field.type) else "")
            for field in schema
        }
        pq.write_table(pa.Table.from_pylist([row], schema), path / kind / "999.parquet")
    return path


def rows_of(spark, folder, name, checkpoint):
    table = f"out_{name}"
    query = (
        QUERIES[name](nexmark_spark.streams(spark, folder, files_per_batch=13))
        .writeStream.format("memory").queryName(table).outputMode("append")
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    return spark.table(table).toArrow()


def test_every_query_is_there_or_known_to_be_impossible():
    assert {*QUERIES, *INEXPRESSIBLE} == {str(number) for number in ours.QUERIES}


@pytest.mark.parametrize("name", [name for name in QUERIES if name != "12"])
def test_the_rows_are_those_of_ours(spark, folder, reference, tmp_path, name):
    table = rows_of(spark, folder, name, tmp_path)
    found = [row for row in reference.found(table) if NOBODY not in row[:2]]
    expected = reference.expected(int(name), GENERATOR)
    assert len(expected) > 3
    assert found == expected


def test_processing_time_counts_every_bid(spark, folder, tmp_path):
    table = rows_of(spark, folder, "12", tmp_path)
    counts = table.filter(pa.compute.not_equal(table["bidder"], NOBODY))["bids"].to_pylist()
    assert 0 < sum(counts) <= GENERATOR.rows("bid")
