"""Nexmark in tasks, as Spark's batch plans of the same jobs, and as SQL written by hand.

All read the same Parquet files and collect their rows, which are compared. A time is that of the
whole run: of tasks with their start, of plans with Spark's planning. The streaming plan is left
out: its micro-batches make it a matter of latency.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import clonos
from clonos.errors import NotInSpark
from clonos.sources import dataframe
from clonos_bench import run
from clonos_bench.nexmark import Generator
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench executions``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--events", type=int, default=1_000_000, help="of all kinds together")
    add("--queries", type=int, nargs="+", default=sorted(set(QUERIES) - {12}))
    add("--ways", nargs="+", choices=["tasks", "spark", "sql"], default=["tasks", "spark", "sql"])
    add("--rounds", type=int, default=5, help="of each, in turn")


def measure(arguments: argparse.Namespace) -> Report:
    """A line per query."""
    columns = ["query", "rows out", "tasks, events/s", "batch plan, events/s", "SQL, events/s",
               "plan's speed, % of the SQL's", "aim", "equal"]  # fmt: skip
    report = Report("executions", "Nexmark in two executions, and by hand", columns)
    config = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    with tempfile.TemporaryDirectory() as folder, run.session("local[8]", config=config) as spark:
        generator, frames = Generator(arguments.events), dict[str, Any]()
        for kind in KINDS:
            rows = generator.batch(kind, 0, generator.rows(kind))
            pq.write_table(pa.Table.from_batches([rows]), f"{folder}/{kind}.parquet")
            # Spark looks into the files here, once for all ways.
            frames[kind] = spark.read.parquet(f"{folder}/{kind}.parquet")
            frames[kind].createOrReplaceTempView(kind)
        for query in arguments.queries:
            _compare(report, spark, frames, query, arguments)
    report.notes.append(f"{arguments.events:,} events; medians of {arguments.rounds} runs in turn")
    return report


def _compare(
    report: Report, spark: Any, frames: dict[str, Any], query: int, arguments: argparse.Namespace
) -> None:
    ways: dict[str, Callable[[], pa.Table]] = {
        how: partial(_run, spark, frames, query, arguments.events, how)
        for how in ("tasks", "spark")
        if how in arguments.ways
    }
    if query in SQL and "sql" in arguments.ways:
        ways["sql"] = lambda: spark.sql(SQL[query]).toArrow()
    times, found = _in_turn(ways, arguments.rounds)
    cells = []
    for how in ("tasks", "spark", "sql"):
        if how in times:
            cells.append(f"{arguments.events / percentile(times[how], 50):,.0f}")
            report.data[f"q{query} {how}"] = times[how]
        else:
            cells.append("refused" if how in ways else "")
    speed, judged = "", ""
    if {"spark", "sql"} <= times.keys():
        pairs = list(zip(times["sql"], times["spark"], strict=True))
        ratio = paired_ratio(pairs)  # the SQL's time by the plan's
        percent = [100 * value for value in (ratio.value, ratio.low, ratio.high)]
        speed = "{:.0f} [{:.0f}, {:.0f}]".format(*percent)
        judged = f"{AS_FAST} %: {AS_FAST.judge(percent[0])}"
    is_equal = all(bag == found[0] for bag in found)
    report.ok &= is_equal
    told = ("yes" if is_equal else "NO") if len(found) > 1 else ""
    report.add(f"q{query}", f"{found[0].total():,}", *cells, speed, judged, told)


def _run(spark: Any, frames: dict[str, Any], query: int, events: int, execution: Any) -> pa.Table:
    job = clonos.Job(f"q{query}", standbys=0)
    house = Auctions(job, events, source=lambda kind: dataframe(frames[kind]))
    QUERIES[query](house).sink(clonos.sinks.collect())
    return job.run(spark, execution=execution).table()


def _in_turn(
    ways: dict[str, Callable[[], pa.Table]], rounds: int
) -> tuple[dict[str, list[float]], list[Counter[tuple[Any, ...]]]]:
    """The times of each way but those that are refused, and what each has found.

    The ways take turns, so that what else the machine does meets all of them; a first round, in
    which Spark compiles, does not count.
    """
    times: dict[str, list[float]] = {how: [] for how in ways}
    tables: dict[str, pa.Table] = {}
    for counted in range(-1, rounds):
        for how in list(times):
            began = time.perf_counter()
            try:
                tables[how] = ways[how]()
            except NotInSpark:
                del times[how]
                continue
            if counted >= 0:
                times[how].append(time.perf_counter() - began)
    return times, [_bag(table) for table in tables.values()]


def _bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows, whatever their columns are called."""
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
