"""Nexmark's queries in Structured Streaming's SQL, with the columns that ours give.

All are written for append mode: a row is given out when it can no longer change. Where several
operators with state follow each other, event time is carried through all of them, as Spark asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from clonos_bench.nexmark.source import SIDE_ROWS

Streams = Callable[..., Any]
"""Kind, and the column of event time if it is not ``date_time`` -> a streaming DataFrame."""

_LONGEST: Final = "interval 10 seconds"
"""No auction is open longer, if events follow each other within 3 ms: bounds the joins' state."""

_HIGHEST: Final = 16
"""So many bids per window are kept: more than tie."""

_PLAIN_TIME: Final = "timestamp_micros(unix_micros(date_time)) as date_time"
"""What has gone through a function is no event time any more; a stream may have only one."""


def q0(stream: Streams) -> Any:
    """Pass-through."""
    return stream("bid")


def source(stream: Streams) -> Any:
    """Reads every column of the bids and keeps no row: what reading and decoding costs."""
    return stream("bid").where(
        "price + length(extra) + auction + bidder + unix_micros(date_time) < 0"
    )


def q1(stream: Streams) -> Any:
    """Currency."""
    return stream("bid").selectExpr(
        "auction", "bidder", "price * 89 div 100 as price", "date_time", "extra"
    )


def q2(stream: Streams) -> Any:
    """Selection."""
    return stream("bid").where("auction % 123 = 0").select("auction", "price")


def local_sellers(stream: Streams) -> Any:
    """The join of query 3, with its times."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    persons = stream("person").where("state in ('OR', 'ID', 'CA')")
    persons = persons.selectExpr("id as person", "name", "city", "state", "date_time as since")
    auctions = stream("auction").where("category = 10")
    auctions = auctions.selectExpr("id", "seller", "date_time as opens")
    near = (
        "seller = person and opens between since - interval 600 seconds "
        "and since + interval 600 seconds"
    )
    return persons.join(auctions, F.expr(near))


def q3(stream: Streams) -> Any:
    """Who sells in particular states in one category."""
    return local_sellers(stream).select("name", "city", "state", "id")


def winning_bids(stream: Streams) -> Any:
    """Per auction its best bid, when it has expired.

    Event time of an auction is when it expires, so that what is aggregated per auction is given
    out then. Its watermark therefore trails by more than an auction is open.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    auctions = stream("auction", "expires").selectExpr(
        "id", "seller", "category", "reserve", "date_time as opens", "expires"
    )
    bids = stream("bid").selectExpr("auction", "bidder", "price", "date_time as bid_time")
    valid = (
        "auction = id and bid_time >= opens and bid_time < expires and price >= reserve "
        f"and bid_time >= expires - {_LONGEST}"
    )
    best = F.expr("max(struct(price, -unix_micros(bid_time) as early, -bidder as low))")
    return (
        auctions.join(bids, F.expr(valid))
        .groupBy("expires", "id", "seller", "category")
        .agg(best.alias("best"))
        .selectExpr(
            "id", "seller", "category", "expires", "-best.low as bidder", "best.price as price",
            "timestamp_micros(-best.early) as bid_time",
        )
    )  # fmt: skip


def q4(stream: Streams) -> Any:
    """Mean price of winning bids per category, in sliding windows.

    A win happens in the last millisecond before it expires: windows begin a millisecond later.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    window = F.window("expires", "10 seconds", "5 seconds", "1 millisecond")
    means = winning_bids(stream).groupBy(window, "category").agg(F.avg("price").alias("price"))
    return means.selectExpr(
        "category",
        "window.start - interval 1 millisecond as window_start",
        "window.end - interval 1 millisecond as window_end",
        "price",
    )


def q5(stream: Streams) -> Any:
    """Hot items, all that tie."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    window = F.window("date_time", "10 seconds", "5 seconds")
    counts = stream("bid").groupBy(window, "auction").agg(F.count("*").alias("bids"))
    items = F.collect_list(F.struct("auction", "bids"))
    ranked = counts.groupBy("window").agg(F.max("bids").alias("most"), items.alias("items"))
    best = ranked.selectExpr("window", "inline(filter(items, item -> item.bids = most))")
    return best.selectExpr("auction", "window.start", "window.end", "bids")


def q7(stream: Streams) -> Any:
    """The highest bids in each 10 s, all that tie: out of the highest few of each window.

    To join the bids with their windows' maxima would keep every bid in state, as would a list of
    bids per price, prices being nearly all different. Should so many tie for the maximum that they
    may not be all, the query fails instead of leaving bids out.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    window = F.window("date_time", "10 seconds")
    bid = f"struct(auction, bidder, price, {_PLAIN_TIME}, extra)"
    highest = F.expr(f"max_by({bid}, price, {_HIGHEST})").alias("bids")
    best = (
        f"if(get(bids, {_HIGHEST - 1}).price = bids[0].price, "
        "raise_error('too many bids tie for the maximum'), "
        "filter(bids, bid -> bid.price = bids[0].price))"
    )
    rows = stream("bid").groupBy(window).agg(highest).selectExpr("window", f"inline({best})")
    return rows.selectExpr(
        "auction", "bidder", "price", "date_time", "extra", "window.start", "window.end"
    )


def new_sellers(stream: Streams) -> Any:
    """The join of query 8, with its times."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    came, sold = (F.window("date_time", "10 seconds").alias(name) for name in ("came", "sold"))
    plain = F.expr(_PLAIN_TIME)
    persons = stream("person").select("id", "name", came, plain.alias("since"))
    auctions = stream("auction").select("seller", "reserve", sold, plain.alias("opens"))
    return persons.join(auctions, F.expr("id = seller and came = sold"))


def q8(stream: Streams) -> Any:
    """New users who sell."""
    return new_sellers(stream).select("id", "name", "reserve")


def q11(stream: Streams) -> Any:
    """Bids per user and session."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    session = F.session_window("date_time", "10 seconds").alias("session")
    counts = stream("bid").groupBy(session, "bidder").agg(F.count("*").alias("bids"))
    return counts.selectExpr("bidder", "session.start", "session.end", "bids")


def q12(stream: Streams) -> Any:
    """Bids per user in 10 s of processing time, which is that of the micro-batch."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    window = F.window("now", "10 seconds").alias("window")
    counts = stream("bid", "processing").groupBy(window, "bidder").agg(F.count("*").alias("bids"))
    return counts.selectExpr("bidder", "window.start", "window.end", "bids")


def _enriched(stream: Streams) -> Any:
    """A broadcast join: the side input is numbers and their digits."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    bids = stream("bid")
    side = bids.sparkSession.range(SIDE_ROWS)
    side = F.broadcast(side.selectExpr("id as key", "cast(id as string) as value"))
    return bids.join(side, F.expr(f"bidder % {SIDE_ROWS} = key"))


def q13(stream: Streams) -> Any:
    """Bids with something about the bidder out of a side input."""
    return _enriched(stream).selectExpr("auction", "bidder", "price", "date_time", "value as extra")


def q14(stream: Streams) -> Any:
    """Enriched bids with the bounds of their session: the session keeps the list of its bids."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    session = F.session_window("date_time", "10 minutes").alias("session")
    bids = F.collect_list(F.struct("auction", "price", "date_time", "value"))
    sessions = _enriched(stream).groupBy(session, "bidder").agg(bids.alias("bids"))
    rows = sessions.selectExpr("session", "bidder", "inline(bids)")
    extra = "concat_ws(':', value, unix_millis(session.start), unix_millis(session.end)) as extra"
    return rows.selectExpr("auction", "bidder", "price", "date_time", extra)


QUERIES: Final[Mapping[str, Callable[[Streams], Any]]] = {
    "0": q0, "1": q1, "2": q2, "3": q3, "4": q4, "5": q5, "7": q7, "8": q8, "9": winning_bids,
    "11": q11, "12": q12, "13": q13, "14": q14,
}  # fmt: skip

INEXPRESSIBLE: Final[Mapping[str, str]] = {
    "6": "the last ten sales per seller are a window over rows, and streams have only windows of "
    "time (`OVER (... ROWS BETWEEN 9 PRECEDING ...)` is refused); what remains is a function in "
    "Python with state, which is no SQL",
}
