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
from clonos_bench.report import Report

KINDS: Final = ("person", "auction", "bid")

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
    add = parser.add_argument
    add("--out", default="out/bench", help="where the results go")
    add("--markdown", action="store_true", help="print tables as Markdown")
    add("--events", type=int, default=1_000_000, help="of all kinds together")
    add("--queries", type=int, nargs="+", default=sorted(set(QUERIES) - {12}))
    add("--rounds", type=int, default=3, help="of each; the fastest counts")


def measure(arguments: argparse.Namespace) -> Report:
    """A line per query."""
    columns = ["query", "rows out", "tasks, events/s", "batch plan, events/s", "SQL, events/s",
               "equal"]  # fmt: skip
    report = Report("executions", "Nexmark in two executions, and by hand", columns)
    config = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    with tempfile.TemporaryDirectory() as folder, run.session("local[8]", config=config) as spark:
        generator = Generator(arguments.events)
        for kind in KINDS:
            rows = generator.batch(kind, 0, generator.rows(kind))
            pq.write_table(pa.Table.from_batches([rows]), f"{folder}/{kind}.parquet")
            _read(spark, folder, kind).createOrReplaceTempView(kind)
        for query in arguments.queries:
            _compare(report, spark, folder, query, arguments)
    report.notes.append(f"{arguments.events:,} events; the fastest of {arguments.rounds} runs")
    return report


def _read(spark: Any, folder: str, kind: str) -> Any:
    return spark.read.parquet(f"{folder}/{kind}.parquet")


def _compare(
    report: Report, spark: Any, folder: str, query: int, arguments: argparse.Namespace
) -> None:
    ways: dict[str, Callable[[], pa.Table]] = {
        how: partial(_run, spark, folder, query, arguments.events, how)
        for how in ("tasks", "spark")
    }
    if query in SQL:
        ways["sql"] = lambda: spark.sql(SQL[query]).toArrow()
    cells, found = [], []
    for how in ("tasks", "spark", "sql"):
        if how not in ways:
            cells.append("")
            continue
        try:
            seconds, table = _fastest(ways[how], arguments.rounds)
        except NotInSpark:
            cells.append("refused")
            continue
        cells.append(f"{arguments.events / seconds:,.0f}")
        report.data[f"q{query} {how}"] = seconds
        found.append(_bag(table))
    is_equal = all(bag == found[0] for bag in found)
    report.ok &= is_equal
    told = ("yes" if is_equal else "NO") if len(found) > 1 else ""
    report.add(f"q{query}", f"{found[0].total():,}", *cells, told)


def _run(spark: Any, folder: str, query: int, events: int, execution: Any) -> pa.Table:
    job = clonos.Job(f"q{query}", standbys=0)
    house = Auctions(job, events, source=lambda kind: dataframe(_read(spark, folder, kind)))
    QUERIES[query](house).sink(clonos.sinks.collect())
    return job.run(spark, execution=execution).table()


def _fastest(way: Callable[[], pa.Table], rounds: int) -> tuple[float, pa.Table]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        table = way()
        times.append(time.perf_counter() - began)
    return min(times), table


def _bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows, whatever their columns are called."""
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
