"""Nexmark's queries in Flink SQL, giving the rows that ours give.

Queries 4 and 9 are a ranking that is corrected as higher bids come, since Flink's SQL cannot wait
for the close of an auction: what the corrections leave in the end is what ours give. Query 6 is
missing: ``OVER`` with a number of rows does not take corrections. Query 7 collects the highest bids
in an aggregate function in Java: to join all bids with the maximum takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clonos_bench.nexmark.generator import AUCTIONS, AUCTIONS_IN_FLIGHT, PROPORTION

_TABLES: Final = {
    "person": """
        id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING,
        state STRING, date_time TIMESTAMP(3), extra STRING
    """,
    "auction": """
        id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT,
        date_time TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING
    """,
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, date_time TIMESTAMP(3), extra STRING",
}
_WINDOW: Final = "window_start TIMESTAMP(3), window_end TIMESTAMP(3)"
_MS: Final = "INTERVAL '0.001' SECOND"
_BIDDERS_SIDE: Final = """
    JOIN side FOR SYSTEM_TIME AS OF b.now_time AS s ON s.`key` = MOD(b.bidder, 500)
"""

_WINNING: Final = """
    SELECT id, seller, category, expires, bidder, price, bid_time FROM (
        SELECT *, ROW_NUMBER() OVER (
            PARTITION BY id ORDER BY price DESC, bid_time ASC, bidder ASC
        ) AS place
        FROM (
            SELECT a.id, a.seller, a.category, a.expires, b.bidder, b.price,
                CAST(b.date_time AS TIMESTAMP(3)) AS bid_time
            FROM auction a JOIN bid b ON a.id = b.auction
                AND b.date_time BETWEEN a.date_time AND a.date_time + {longest}
            WHERE b.date_time < a.expires AND b.price >= a.reserve
        )
    ) WHERE place = 1
"""

_COUNTS: Final = """
    SELECT auction, window_start, window_end, COUNT(*) AS bids
    FROM HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '5' SECOND, INTERVAL '10' SECOND)
    GROUP BY auction, window_start, window_end
"""

QUERIES: Final[dict[str, tuple[str, str]]] = {
    "0": (_TABLES["bid"], "SELECT auction, bidder, price, date_time, extra FROM bid"),
    "1": (_TABLES["bid"], "SELECT auction, bidder, price * 89 / 100, date_time, extra FROM bid"),
    "2": (
        "auction BIGINT, price BIGINT",
        "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    ),
    "3": (
        "name STRING, city STRING, state STRING, id BIGINT",
        """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
            AND a.date_time BETWEEN p.date_time - INTERVAL '10' MINUTE
                AND p.date_time + INTERVAL '10' MINUTE
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
        """,
    ),
    "4": (
        "category BIGINT, window_start BIGINT, window_end BIGINT, price DOUBLE",
        f"""
        SELECT category, window_start, window_start + 10000, AVG(CAST(price AS DOUBLE))
        FROM (
            SELECT category, price,
                (EXTRACT(EPOCH FROM expires - {_MS}) / 5 - back) * 5000 AS window_start
            FROM ({_WINNING}) CROSS JOIN UNNEST(ARRAY[0, 1]) AS slides (back)
        )
        GROUP BY category, window_start
        """,
    ),
    "5": (
        f"auction BIGINT, {_WINDOW}, bids BIGINT",
        f"""
        SELECT c.auction, c.window_start, c.window_end, c.bids
        FROM ({_COUNTS}) c JOIN (
            SELECT window_start, window_end, MAX(bids) AS most FROM ({_COUNTS})
            GROUP BY window_start, window_end
        ) m
        ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.bids = m.most
        """,
    ),
    "7": (
        f"{_TABLES['bid']}, {_WINDOW}",
        """
        SELECT auction, bidder, most, bid_time, extra, window_start, window_end
        FROM (
            SELECT window_start, window_end, MAX(price) AS most,
                highest(price, auction, bidder, CAST(date_time AS TIMESTAMP(3)), extra) AS tied
            FROM TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND)
            GROUP BY window_start, window_end
        ) CROSS JOIN UNNEST(tied) AS bids (auction, bidder, bid_time, extra)
        """,
    ),
    "8": (
        "id BIGINT, name STRING, reserve BIGINT",
        """
        SELECT p.id, p.name, a.reserve
        FROM TUMBLE(TABLE person, DESCRIPTOR(date_time), INTERVAL '10' SECOND) p
        JOIN TUMBLE(TABLE auction, DESCRIPTOR(date_time), INTERVAL '10' SECOND) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
        """,
    ),
    "9": (
        """id BIGINT, seller BIGINT, category BIGINT, expires TIMESTAMP(3), bidder BIGINT,
        price BIGINT, bid_time TIMESTAMP(3)""",
        _WINNING,
    ),
    "11": (
        f"bidder BIGINT, {_WINDOW}, bids BIGINT",
        """
        SELECT bidder, window_start, window_end, COUNT(*)
        FROM SESSION(
            TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND
        )
        GROUP BY bidder, window_start, window_end
        """,
    ),
    "12": (
        f"bidder BIGINT, {_WINDOW}, bids BIGINT",
        """
        SELECT bidder, window_start, window_end, COUNT(*)
        FROM TUMBLE(TABLE bid, DESCRIPTOR(now_time), INTERVAL '10' SECOND)
        GROUP BY bidder, window_start, window_end
        """,
    ),
    "13": (
        _TABLES["bid"],
        f"SELECT b.auction, b.bidder, b.price, b.date_time, s.`value` FROM bid b {_BIDDERS_SIDE}",
    ),
    "14": (
        _TABLES["bid"],
        f"""
        SELECT b.auction, b.bidder, b.price, b.date_time,
            s.`value` || ':' || CAST(b.start_ms AS STRING) || ':' || CAST(b.end_ms AS STRING)
        FROM (
            SELECT auction, bidder, price, date_time, PROCTIME() AS now_time,
                EXTRACT(EPOCH FROM window_start) * 1000
                    + EXTRACT(MILLISECOND FROM window_start) AS start_ms,
                EXTRACT(EPOCH FROM window_end) * 1000
                    + EXTRACT(MILLISECOND FROM window_end) AS end_ms
            FROM SESSION(
                TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '600' SECOND(3)
            )
        ) b {_BIDDERS_SIDE}
        """,
    ),
}
"""By number: the columns of the result, and the query."""


def job(
    name: str, events: int, *, delay_us: int = 100, folder: str | None = None, **options: object
) -> str:
    """A query's statements, in one line.

    Parameters
    ----------
    folder
        Where the sink writes rows; by default it counts them.
    options
        Of the tables of events, see ``Tables.java``.

    Examples
    --------
    >>> job("2", 1000).rpartition('; ')[2]
    'INSERT INTO output SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0'
    """
    columns, query = QUERIES[name]
    # An auction is open for less than this: what bounds the join's state.
    longest_ms = 2 * (AUCTIONS_IN_FLIGHT * PROPORTION // AUCTIONS * delay_us // 1000 + 1) + 1
    longest = f"INTERVAL '{longest_ms / 1000:.3f}' SECOND(3)"
    made = tables(columns, events, folder=folder, **{"delay-us": delay_us, **options})
    return " ".join(f"{made}; INSERT INTO output {query.replace('{longest}', longest)}".split())


def tables(columns: str, events: int, *, folder: str | None = None, **options: object) -> str:
    """The statements that make all tables; `columns` are those of the table ``output``.

    Examples
    --------
    >>> tables("n BIGINT", 1000).rpartition(";")[2]
    "CREATE TABLE output (n BIGINT) WITH ('connector' = 'nexmark', 'kind' = 'sink')"
    """
    statements = [
        _table(
            kind,
            f"{of_kind}, now_time AS PROCTIME(), WATERMARK FOR date_time AS SOURCE_WATERMARK()",
            {"kind": kind, "events": events, **options},
        )
        for kind, of_kind in _TABLES.items()
    ]
    statements.append("CREATE TEMPORARY FUNCTION highest AS 'nexmark.Highest'")
    statements.append(_table("side", "`key` BIGINT, `value` STRING", {"kind": "side"}))
    sink = {"kind": "sink"} if folder is None else {"kind": "sink", "folder": folder}
    statements.append(_table("output", columns, sink))
    return " ".join(";".join(statements).split())


def _table(name: str, columns: str, options: Mapping[str, object]) -> str:
    shown = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ('connector' = 'nexmark', {shown})"
