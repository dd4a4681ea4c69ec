"""The queries as Structured Streaming has them give the rows that ours give."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import clonos
from clonos.bench import nexmark_files, nexmark_spark
from clonos.bench.nexmark_functions import CASES
from clonos.bench.nexmark_spark_queries import INEXPRESSIBLE, QUERIES
from clonos.nexmark import KINDS, Generator
from clonos.nexmark import queries as ours
from clonos.spark.session import get_or_create
from clonos.testing import InMemoryRun

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("new_jvm")]

GENERATOR = Generator(20_000, delay_us=2_000)
"""Lasts 40 s: several windows."""
NOBODY = -1
FEW = Generator(2_000)


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


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    path = tmp_path_factory.mktemp("few")
    nexmark_files.write(path, FEW)
    return path


def rows_of(spark, folder, query, checkpoint, mode="append"):
    table = "rows"
    query = (
        query(nexmark_spark.streams(spark, folder, files_per_batch=13))
        .writeStream.format("memory").queryName(table).outputMode(mode)
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    return spark.table(table).toArrow()


def test_every_query_is_there_or_known_to_be_impossible():
    assert {*QUERIES, *INEXPRESSIBLE} == {str(number) for number in ours.QUERIES}


QUICK = {"3", "4", "7", "11", "q1 by batch, mapInArrow", "state by row, transformWithState"}
"""The others take as long together as all other tests on Spark: they run with the soak tests."""


def cases(names):
    return [
        pytest.param(*n, marks=() if ", ".join(n) in QUICK else pytest.mark.soak) for n in names
    ]


@pytest.mark.parametrize("name", cases([(name,) for name in QUERIES if name != "12"]))
def test_the_rows_are_those_of_ours(spark, folder, reference, tmp_path, name):
    table = rows_of(spark, folder, QUERIES[name], tmp_path)
    found = [row for row in reference.found(table) if NOBODY not in row[:2]]
    expected = reference.expected(int(name), GENERATOR)
    assert len(expected) > 3
    assert found == expected


@pytest.mark.soak
def test_processing_time_counts_every_bid(spark, folder, tmp_path):
    table = rows_of(spark, folder, QUERIES["12"], tmp_path, mode="complete")
    bids = [row["bids"] for row in table.to_pylist() if row["bidder"] != NOBODY]
    assert sum(bids) == GENERATOR.rows("bid")


def nth(bids):
    """The n-th bid of each bidder, for every n: in whatever order they came."""
    numbers = []
    counts: Counter[int] = Counter()
    for bidder in bids:
        counts[bidder] += 1
        numbers.append((bidder, counts[bidder]))
    return sorted(numbers)


@pytest.mark.parametrize("name", list(CASES))
def test_our_functions_do_what_is_asked(reference, name):
    job = clonos.Job("functions", parallelism=2)
    house = ours.Auctions(job, FEW.events, block_events=500)
    CASES[name].ours(house).sink(clonos.sinks.collect(), name="out")
    check(reference, name, InMemoryRun(job.compile()).run()["out"])


WAYS = [(name, way) for name, case in CASES.items() for way in case.theirs]


@pytest.mark.parametrize(("name", "way"), cases(WAYS))
def test_their_functions_do_the_same(spark, few, reference, tmp_path, name, way):
    check(reference, name, rows_of(spark, few, CASES[name].theirs[way], tmp_path))


def check(reference, name, table):
    if name.startswith("q"):
        number = int(name.split()[0].removeprefix("q"))
        assert reference.found(table) == reference.expected(number, FEW)
    else:
        bids = FEW.batch("bid", 0, FEW.rows("bid"))
        assert sorted(table["auction"].to_pylist()) == sorted(bids["auction"].to_pylist())
        found = zip(table["bidder"].to_pylist(), table["nth"].to_pylist(), strict=True)
        assert sorted(found) == nth(bids["bidder"].to_pylist())
