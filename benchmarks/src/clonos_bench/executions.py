"""Nexmark in tasks, as Spark's batch plans of the same jobs, and as SQL written by hand.

All read the same Parquet files and collect their rows, which are compared. The queries of a job are
written with Spark's columns, as the SQL is, or with functions in Python (``--functions``). A time
is that of the whole run: of tasks with their start, of plans with making them out of a job, which
is also told by itself. How late the rows of a stream are is another question:
:mod:`~clonos_bench.streams`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import pandas as pd
import pyarrow as pa

import clonos
from clonos.errors import NotInSpark
from clonos.sources import dataframe
from clonos_bench import run
from clonos_bench.nexmark import Generator, write_parquet
from clonos_bench.nexmark.queries import QUERIES, Auctions
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import paired_ratio, percentile

KINDS: Final = ("person", "auction", "bid")
AS_FAST: Final = Aim(90, at_least=True)
"""Per cent of the speed of SQL written by hand."""

SQL: Final = {
    0: "select * from bid",
    1: "select auction, bidder, price * 89 div 100 as price, date_time, extra from bid",
    2: "select auction, price from bid where auction % 123 = 0",
    3: """
        select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
            and a.date_time <= p.date_time + interval 600 seconds
            and p.date_time <= a.date_time + interval 600 seconds
    """,
    5: """
        with counts as (
            select auction, w.start as window_start, w.end as window_end, bids from (
                select auction, window(date_time, '10 seconds', '5 seconds') as w, count(*) as bids
                from bid group by all
            )
        )
        select auction, window_start, window_end, bids from (
            select *, rank() over (partition by window_start order by bids desc) as place
            from counts
        ) where place = 1
    """,
    7: """
        select auction, bidder, price, date_time, extra, w.start, w.end from (
            select *, rank() over (partition by w order by price desc) as place
            from (select *, window(date_time, '10 seconds') as w from bid)
        ) where place = 1
    """,
    8: """
        select p.id, p.name, a.reserve
        from (select *, window(date_time, '10 seconds') as w from person) p
        join (select *, window(date_time, '10 seconds') as w from auction) a
        on p.id = a.seller and p.w = a.w
    """,
    11: """
        select bidder, w.start, w.end, bids from (
            select bidder, session_window(date_time, '10 seconds') as w, count(*) as bids
            from bid group by all
        )
    """,
}
"""Queries as somebody would write them for Spark."""


MakesStream = Callable[[clonos.Job], clonos.Stream]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench executions``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--events", type=int, default=1_000_000, help="of all kinds together")
    add("--queries", type=int, nargs="+", default=sorted(set(QUERIES) - {12}))
    add("--ways", nargs="+", choices=["tasks", "spark", "sql"], default=["tasks", "spark", "sql"])
    add("--functions", action="store_true", help="jobs have functions of Arrow's batches")
    add("--rounds", type=int, default=5, help="of each, in turn")


def measure(arguments: argparse.Namespace) -> Report:
    """A line per query."""
    columns = ["query", "rows out", "tasks", "plan", "SQL",
               "made in, s", "% of SQL's speed", f"{AS_FAST} %", "equal"]  # fmt: skip
    report = Report("executions", "Nexmark in two executions, and by hand", columns)
    config = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    config |= {"spark.driver.memory": "6g", "spark.driver.maxResultSize": "0"}  # all rows go there
    with tempfile.TemporaryDirectory() as folder, run.session("local[8]", config=config) as spark:
        write_parquet(Generator(arguments.events), folder)
        frames = dict[str, Any]()
        for kind in KINDS:
            # Spark looks into the files here, once for all ways.
            frames[kind] = spark.read.parquet(f"{folder}/{kind}.parquet")
            frames[kind].createOrReplaceTempView(kind)
        for query in arguments.queries:
            _compare(report, spark, frames, query, arguments)
    report.notes.append(
        f"{arguments.events:,} events; events per second, medians of {arguments.rounds} rounds"
    )
    return report


def _compare(
    report: Report, spark: Any, frames: dict[str, Any], query: int, arguments: argparse.Namespace
) -> None:
    made_s: list[float] = []

    def stream(job: clonos.Job) -> clonos.Stream:
        house = Auctions(
            job,
            arguments.events,
            source=lambda kind: dataframe(frames[kind]),
            in_columns=not arguments.functions,
        )
        return QUERIES[query](house)

    ways: dict[str, Callable[[], pa.Table]] = {
        "tasks": lambda: _in_tasks(spark, stream),
        "spark": lambda: _as_a_plan(spark, stream, made_s),
    }
    if query in SQL:
        ways["sql"] = lambda: spark.sql(SQL[query]).toArrow()
    ways = {how: way for how, way in ways.items() if how in arguments.ways}
    times, found = _in_turn(ways, arguments.rounds)
    cells = []
    for how in ("tasks", "spark", "sql"):
        if how in times:
            cells.append(f"{arguments.events / percentile(times[how], 50):,.0f}")
            report.data[f"q{query} {how}"] = times[how]
        else:
            cells.append("refused" if how in ways else "")
    # As for the times, the first rounds do not count.
    cells.append(f"{percentile(made_s[-arguments.rounds :], 50):.2f}" if made_s else "")
    speed, judged = "", ""
    if {"spark", "sql"} <= times.keys():
        pairs = list(zip(times["sql"], times["spark"], strict=True))
        ratio = paired_ratio(pairs)  # the SQL's time by the plan's
        percent = [100 * value for value in (ratio.value, ratio.low, ratio.high)]
        speed = "{:.0f} [{:.0f}, {:.0f}]".format(*percent)
        judged = AS_FAST.judge(percent[0])
    is_equal = all(rows == found[0] for rows in found)
    report.ok &= is_equal
    told = ("yes" if is_equal else "NO") if len(found) > 1 else ""
    report.add(f"q{query}", f"{found[0][0]:,}", *cells, speed, judged, told)


def _in_tasks(spark: Any, stream: MakesStream) -> pa.Table:
    job = clonos.Job("in tasks", standbys=0)
    stream(job).sink(clonos.sinks.collect())
    return job.run(spark).table()


def _as_a_plan(spark: Any, stream: MakesStream, made_s: list[float]) -> pa.Table:
    began = time.perf_counter()
    plan = stream(clonos.Job("a plan")).to_dataframe(spark, execution="spark")
    made_s.append(time.perf_counter() - began)
    return plan.toArrow()


def _in_turn(
    ways: dict[str, Callable[[], pa.Table]], rounds: int
) -> tuple[dict[str, list[float]], list[tuple[int, int, int]]]:
    """The times of each way but those that are refused, and what each has found.

    The ways take turns, so that what else the machine does meets all of them; two rounds before,
    in which Java compiles, do not count.
    """
    times: dict[str, list[float]] = {how: [] for how in ways}
    found: dict[str, tuple[int, int, int]] = {}
    for counted in range(-2, rounds):
        for how in list(times):
            began = time.perf_counter()
            try:
                table = ways[how]()
            except NotInSpark:
                del times[how]
                continue
            took_s = time.perf_counter() - began
            if counted >= 0:
                times[how].append(took_s)
            else:
                found[how] = _digest(table)
            del table
    return times, list(found.values())


def _digest(table: pa.Table) -> tuple[int, int, int]:
    """How many rows, with sums of their hashes: whatever their order and their columns' names."""
    columns = list(map(str, range(table.num_columns)))
    frame = table.rename_columns(columns).to_pandas()
    hashes = pd.util.hash_pandas_object(frame, index=False)
    return len(hashes), int(hashes.sum()), int((hashes * hashes).sum())
