"""The queries as Structured Streaming has them give the rows that ours give."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest

import clonos
from clonos.testing import InMemoryRun
from clonos_bench.nexmark import Generator
from clonos_bench.nexmark import queries as ours
from clonos_bench.nexmark.parts import files
from clonos_bench.nexmark.parts import spark as nexmark_spark
from clonos_bench.nexmark.parts.functions import CASES
from clonos_bench.nexmark.parts.spark_queries import INEXPRESSIBLE, QUERIES

pytestmark = pytest.mark.spark

GENERATOR = Generator(20_000, delay_us=2_000)
"""Lasts 40 s: several windows."""
FEW = Generator(2_000)


@pytest.fixture(scope="module")
def spark(shared_spark):
    nexmark_spark.configure(shared_spark, 1)
    return shared_spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("nexmark")
    files.write(path, GENERATOR)
    return path


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    path = tmp_path_factory.mktemp("few")
    files.write(path, FEW)
    return path


def rows_of(spark, folder, query, checkpoint, *, ends):
    table = "rows"
    query = (
        query(nexmark_spark.streams(spark, folder, ends=ends, batches=2))
        .writeStream.format("memory").queryName(table).outputMode("append")
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    return spark.table(table).toArrow()


def test_every_query_is_there_or_known_to_be_impossible():
    assert {*QUERIES, *INEXPRESSIBLE} == {str(number) for number in ours.QUERIES}


QUICK = {"3", "7", "11", "q1 by batch, mapInArrow", "state by row, transformWithState"}
"""The others take as long together as all other tests on Spark: they run with the soak tests."""


def cases(names):
    return [
        pytest.param(*n, marks=() if ", ".join(n) in QUICK else pytest.mark.soak) for n in names
    ]


@pytest.mark.parametrize("name", cases([(name,) for name in QUERIES if name != "12"]))
def test_the_rows_are_those_of_ours(spark, folder, reference, tmp_path, name):
    with nexmark_spark.tuned(spark, name):
        ends = name not in nexmark_spark.STATELESS
        found = reference.found(rows_of(spark, folder, QUERIES[name], tmp_path, ends=ends))
    expected = reference.expected(int(name), GENERATOR)
    assert len(expected) > 3
    assert found == expected


def highest(spark, prices):
    """Query 7's answer to bids of one window."""
    row = {"bidder": 1, "date_time": dt.datetime(2015, 7, 15, tzinfo=dt.timezone.utc), "extra": ""}
    bids = [{"auction": n, "price": price, **row} for n, price in enumerate(prices)]
    rows = QUERIES["7"](lambda kind: spark.createDataFrame(bids)).collect()
    return sorted((row.auction, row.price) for row in rows)


def test_all_bids_that_tie_for_the_maximum_are_given_or_none(spark):
    assert highest(spark, [7, 9, 5, 9, *range(9)]) == [(1, 9), (3, 9)]
    with pytest.raises(Exception, match="too many bids tie"):
        highest(spark, [9] * 16)


def test_a_run_counts_its_rows_and_takes_a_part_of_the_files(spark, folder):
    whole = nexmark_spark.run_query(spark, QUERIES["0"], folder, ends=False)
    assert whole.rows_out == GENERATOR.rows("bid")
    assert whole.wall_s > 0
    assert whole.cpu_s > 0
    half = nexmark_spark.run_query(spark, QUERIES["0"], folder, 24, ends=False)
    assert half.rows_out == GENERATOR.rows("bid") // 2


@pytest.mark.soak
def test_processing_time_counts_every_bid(spark, folder, tmp_path):
    table = rows_of(spark, folder, QUERIES["12"], tmp_path, ends=True)
    assert sum(table["bids"].to_pylist()) == GENERATOR.rows("bid")


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
    check(reference, name, rows_of(spark, few, CASES[name].theirs[way], tmp_path, ends=False))


def check(reference, name, table):
    if name.startswith("q"):
        number = int(name.split()[0].removeprefix("q"))
        assert reference.found(table) == reference.expected(number, FEW)
    else:
        bids = FEW.batch("bid", 0, FEW.rows("bid"))
        assert sorted(table["auction"].to_pylist()) == sorted(bids["auction"].to_pylist())
        found = zip(table["bidder"].to_pylist(), table["nth"].to_pylist(), strict=True)
        assert sorted(found) == nth(bids["bidder"].to_pylist())
