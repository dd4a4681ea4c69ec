"""What the queries are to give, in SQL over the whole input, computed by DuckDB.

Times are in ms since the epoch, as integers.
"""

from __future__ import annotations

from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest

from clonos_bench.nexmark import Generator, side_input

SALES = """
    sales as (
        select a.id, a.seller, a.category, a.expires, b.bidder, b.price, b.date_time as bid_time,
            row_number() over (
                partition by a.id order by b.price desc, b.date_time, b.bidder
            ) as place
        from auction a join bid b
            on b.auction = a.id and b.date_time >= a.date_time and b.date_time < a.expires
        where b.price >= a.reserve
    ),
    wins as (select *, expires - 1 as closed from sales where place = 1)
"""


def windows(table: str, time: str, size: int, slide: int) -> str:
    """Rows of a table, once for each window that they are in."""
    return f"""
        select *, {time} // {slide} * {slide} - back * {slide} as window_start,
            {time} // {slide} * {slide} - back * {slide} + {size} as window_end
        from {table}, range({size // slide}) as r(back)
    """


def sessions(gap: int) -> str:
    return f"""
        marked as (
            select *,
                case when date_time - lag(date_time) over w <= {gap} then 0 else 1 end as fresh
            from bid window w as (partition by bidder order by date_time)
        ),
        numbered as (
            select *, sum(fresh) over (
                partition by bidder order by date_time range unbounded preceding
            ) as session from marked
        ),
        bounded as (
            select *, min(date_time) over s as window_start,
                max(date_time) over s + {gap} as window_end
            from numbered window s as (partition by bidder, session)
        )
    """


SQL = {
    0: "select auction, bidder, price, date_time, extra from bid",
    1: "select auction, bidder, price * 89 // 100, date_time, extra from bid",
    2: "select auction, price from bid where auction % 123 = 0",
    3: """
        select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
            and abs(a.date_time - p.date_time) <= 600000
    """,
    4: f"""
        with {SALES}, windowed as ({windows("wins", "closed", 10_000, 5_000)})
        select category, window_start, window_end, sum(price)::double / count(*)
        from windowed group by all
    """,
    5: f"""
        with windowed as ({windows("bid", "date_time", 10_000, 5_000)}),
        counts as (
            select auction, window_start, window_end, count(*) as n from windowed group by all
        )
        select * from counts
        qualify n = max(n) over (partition by window_start)
    """,
    6: f"""
        with {SALES}
        select id, seller, category, price, closed, sum(price) over w::double / count(*) over w
        from wins window w as (
            partition by seller order by closed, id rows between 9 preceding and current row
        )
    """,
    7: f"""
        with windowed as ({windows("bid", "date_time", 10_000, 10_000)})
        select auction, bidder, price, date_time, extra, window_start, window_end from windowed
        qualify price = max(price) over (partition by window_start)
    """,
    8: """
        select p.id, p.name, a.reserve from person p join auction a
            on p.id = a.seller and p.date_time // 10000 = a.date_time // 10000
    """,
    9: f"with {SALES} select id, seller, category, expires, bidder, price, bid_time from wins",
    11: f"""
        with {sessions(10_000)}
        select bidder, window_start, window_end, count(*) from bounded group by all
    """,
    13: """
        select auction, bidder, price, date_time, value from bid join side on key = bidder % 500
    """,
    14: f"""
        with {sessions(600_000)}
        select auction, bidder, price, date_time,
            value || ':' || window_start || ':' || window_end
        from bounded join side on key = bidder % 500
    """,
}


def expected(query: int, generator: Generator) -> list[tuple[object, ...]]:
    """The rows that a query is to give, sorted."""
    connection = duckdb.connect()
    connection.register("side", pa.Table.from_batches([side_input()]))
    for kind in ("person", "auction", "bid"):
        batch = generator.batch(kind, 0, generator.rows(kind))
        connection.register(kind, with_ms(pa.Table.from_batches([batch])))
    return sorted(connection.execute(SQL[query]).fetchall())


def with_ms(table: pa.Table) -> pa.Table:
    """Times as integers in ms."""
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            ms = table.column(i).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            table = table.set_column(i, field.name, ms)
    return table


def found(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows that a query has given, sorted."""
    table = with_ms(table)
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(scope="session")
def reference():
    """The functions of this file, for tests."""
    return SimpleNamespace(SQL=SQL, expected=expected, found=found)
