"""The queries of Nexmark as Beam defines them (0 to 9, 11 to 14), with the public API.

Where the Flink SQL set says it more exactly, that is noted. What users would write themselves is
here in three ways: functions of Arrow's batches, Spark's columns (``Auctions(in_columns=True)``,
which needs a session), and row by row in Python (:data:`ROW_QUERIES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

import clonos
from clonos.sources.spec import SourceSpec
from clonos_bench.nexmark.source import SIDE_ROWS, events, side_input

STATES: Final = pa.array(["OR", "ID", "CA"])
CATEGORY: Final = 10
EVERY: Final = 123
"""Query 2 takes the auctions whose id is a multiple of this."""

WAIT: Final = "600 seconds"
"""How long query 3 keeps a person for auctions, and an auction for its person."""

BID: Final = "auction long, bidder long, price long, date_time timestamp, extra string"


class Change(NamedTuple):
    """What a query does to its rows, written in two ways.

    Attributes
    ----------
    batches
        As a function of Arrow's batches.
    columns
        As Spark's columns.
    schema
        Of the function's result; None: that of its input.
    """

    batches: Callable[[pa.RecordBatch], pa.RecordBatch]
    columns: Callable[[clonos.Stream], clonos.Stream]
    schema: str | None = None


class Auctions:
    """The streams of one job's auction house; each is made when it is first asked for.

    Parameters
    ----------
    job
        Where to.
    count
        How many events, of all kinds.
    source
        Makes the source of a kind; by default :func:`~clonos_bench.nexmark.source.events`.
    in_columns
        Whether queries are written with Spark's columns; else, with functions of batches.
    options
        Of :func:`~clonos_bench.nexmark.source.events`.
    """

    def __init__(
        self,
        job: clonos.Job,
        count: int,
        *,
        source: Callable[[str], SourceSpec] | None = None,
        in_columns: bool = False,
        **options: Any,
    ) -> None:
        self._job, self._in_columns = job, in_columns
        self._source = source or (lambda kind: events(kind, count, **options))
        self._made: dict[str, clonos.Stream] = {}

    @property
    def persons(self) -> clonos.Stream:
        """Who bids and sells."""
        return self._stream("person")

    @property
    def auctions(self) -> clonos.Stream:
        """What is sold."""
        return self._stream("auction")

    @property
    def bids(self) -> clonos.Stream:
        """What is offered."""
        return self._stream("bid")

    def change(self, stream: clonos.Stream, change: Change, name: str) -> clonos.Stream:
        """What becomes of a stream."""
        if self._in_columns:
            return change.columns(stream)
        return stream.map_batches(change.batches, change.schema, name=name)

    def _stream(self, kind: str) -> clonos.Stream:
        if kind not in self._made:
            stream = self._job.source(self._source(kind), name=f"{kind}s")
            self._made[kind] = stream.with_watermark("date_time", "0 ms", name=f"{kind}_times")
        return self._made[kind]


def q0(house: Auctions) -> clonos.Stream:
    """Pass-through: all bids, encoded and decoded once (the bids, as in the Flink SQL set)."""
    return house.bids


def q1(house: Auctions) -> clonos.Stream:
    """Currency: prices times 89 / 100."""
    return house.change(house.bids, IN_EUROS, "q1")


def q2(house: Auctions) -> clonos.Stream:
    """Selection: bids on some auctions."""
    return house.change(house.bids.select("auction", "price"), SOME, "q2")


def q3(house: Auctions) -> clonos.Stream:
    """Who sells in particular states in one category; a join without windows, with clean-up."""
    return local_sellers(house).select("name", "city", "state", "id")


def local_sellers(house: Auctions) -> clonos.Stream:
    """The join of query 3, all columns."""
    persons = house.persons.select("name", "city", "state", "id", "date_time")
    persons = persons.withColumnsRenamed({"id": "person", "date_time": "since"})
    sellers = house.change(persons, LOCAL, "local")
    auctions = house.auctions.select("id", "seller", "category", "date_time")
    auctions = auctions.withColumnRenamed("date_time", "opens")
    items = house.change(auctions, IN_CATEGORY, "in_category")
    return sellers.key_by("person").join(
        items.key_by("seller"), keep=WAIT, on=("since", "opens"), name="q3"
    )


def winning_bids(house: Auctions) -> clonos.Stream:
    """Per auction the highest bid of at least the reserve, the earliest of these, at its close.

    A bid counts from when the auction opens until before it expires.
    """
    offers = house.auctions.select(
        "id", "expires", "reserve", "category", "seller", "date_time"
    ).withColumnRenamed("date_time", "opens")
    bids = house.bids.select("auction", "bidder", "price", "date_time")
    bids = bids.withColumnRenamed("date_time", "bid_time")
    sales = offers.key_by("id").join(
        bids.key_by("auction"), between=("opens", "expires"), on="bid_time", name="sales"
    )
    valid = cast("clonos.KeyedStream", house.change(sales, VALID, "valid"))
    return valid.window(clonos.between("opens", "expires")).top(
        1, "price", clonos.asc("bid_time"), clonos.asc("bidder"), name="winning"
    )


def q4(house: Auctions) -> clonos.Stream:
    """Mean price of winning bids per category, in sliding windows of 10 s every 5 s.

    A win has the last millisecond of its auction as event time, as in Beam.
    """
    wins = house.change(winning_bids(house), WINS, "wins")
    window = wins.key_by("category").window(clonos.sliding("10 seconds", "5 seconds", on="closed"))
    return window.agg(price=clonos.avg("price"), name="q4")


def q5(house: Auctions) -> clonos.Stream:
    """Hot items: the auctions with most bids, in sliding windows of 10 s every 5 s."""
    window = clonos.sliding("10 seconds", "5 seconds", on="date_time")
    counts = house.bids.key_by("auction").window(window).agg(bids=clonos.count(), name="counts")
    ranked = counts.window(clonos.between("window_start", "window_end"))
    return ranked.top(1, "bids", ties=True, name="q5")


def q6(house: Auctions) -> clonos.Stream:
    """Per seller the mean price of the last ten sales, at every sale, in order of closing."""
    wins = house.change(winning_bids(house), WINS, "wins")
    sales = wins.key_by("seller").in_order("closed", "id", name="sorted")
    return sales.last(10, mean=clonos.avg("price"), name="q6")


def q7(house: Auctions) -> clonos.Stream:
    """The highest bids in each 10 s."""
    window = clonos.tumbling("10 seconds", on="date_time")
    return house.bids.window(window).top(1, "price", ties=True, name="q7")


def q8(house: Auctions) -> clonos.Stream:
    """New users: persons who sell in the 10 s in which they came."""
    return new_sellers(house).select("id", "name", "reserve")


def new_sellers(house: Auctions) -> clonos.Stream:
    """The join of query 8, all columns."""
    persons = house.persons.select("id", "name", "date_time")
    persons = persons.withColumnRenamed("date_time", "since")
    auctions = house.auctions.select("seller", "reserve", "date_time")
    auctions = auctions.withColumnRenamed("date_time", "opens")
    return persons.key_by("id").join(
        auctions.key_by("seller"), window=clonos.tumbling("10 seconds"), on=("since", "opens"),
        name="q8",
    )  # fmt: skip


def q9(house: Auctions) -> clonos.Stream:
    """Winning bids."""
    return winning_bids(house).select(
        "id", "seller", "category", "expires", "bidder", "price", "bid_time"
    )


def q11(house: Auctions) -> clonos.Stream:
    """Bids per user and session of activity, which ends after 10 s without."""
    window = clonos.session("10 seconds", on="date_time")
    return house.bids.key_by("bidder").window(window).agg(bids=clonos.count(), name="q11")


def q12(house: Auctions) -> clonos.Stream:
    """Bids per user in 10 s of processing time."""
    window = clonos.tumbling("10 seconds")
    return house.bids.key_by("bidder").window(window).agg(bids=clonos.count(), name="q12")


def q13(house: Auctions) -> clonos.Stream:
    """Bids with something about the bidder out of a side input."""
    return _enriched(house)


def q14(house: Auctions) -> clonos.Stream:
    """Bids with something about the bidder and the bounds of the session (gap of 10 minutes)."""
    enriched = _enriched(house)
    window = clonos.session("10 minutes", on="date_time")
    rows = enriched.key_by("bidder").window(window).rows(name="sessions")
    return house.change(rows, WITH_BOUNDS, "q14")


def q1_rows(house: Auctions) -> clonos.Stream:
    """Query 1, row by row in Python."""
    return house.bids.map(
        lambda row: (row.auction, row.bidder, row.price * 89 // 100, row.date_time, row.extra),
        BID,
        name="q1",
    )


def q2_rows(house: Auctions) -> clonos.Stream:
    """Query 2, row by row in Python."""
    some = house.bids.filter(lambda row: row.auction % EVERY == 0, name="some")
    return some.map(lambda row: (row.auction, row.price), "auction long, price long", name="q2")


def q13_rows(house: Auctions) -> clonos.Stream:
    """Query 13, row by row in Python."""
    side = dict(zip(*side_input().to_pydict().values(), strict=True))
    return house.bids.map(
        lambda row: (
            row.auction, row.bidder, row.price, row.date_time, side[row.bidder % SIDE_ROWS]
        ),
        BID,
        name="q13",
    )  # fmt: skip


Query = Callable[[Auctions], clonos.Stream]

QUERIES: Final[Mapping[int, Query]] = {
    0: q0, 1: q1, 2: q2, 3: q3, 4: q4, 5: q5, 6: q6, 7: q7, 8: q8, 9: q9, 11: q11, 12: q12,
    13: q13, 14: q14,
}  # fmt: skip
ROW_QUERIES: Final[Mapping[int, Query]] = {1: q1_rows, 2: q2_rows, 13: q13_rows}


# Functions of batches.


def _in_euros(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("price")
    price = pc.divide(pc.multiply(batch.column(at), 89), 100)
    return batch.set_column(at, batch.schema.field(at), price)


def _some(batch: pa.RecordBatch) -> pa.RecordBatch:
    auction = batch.column("auction")
    rest = pc.subtract(auction, pc.multiply(pc.divide(auction, EVERY), EVERY))
    return batch.filter(pc.equal(rest, 0))


def _local(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.is_in(batch.column("state"), STATES))


def _in_category(batch: pa.RecordBatch) -> pa.RecordBatch:
    chosen = batch.filter(pc.equal(batch.column("category"), CATEGORY))
    return chosen.select(["id", "seller", "opens"])


def _at_least_reserve(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.greater_equal(batch.column("price"), batch.column("reserve")))


def _wins(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = ["id", "seller", "category", "price"]
    expires = batch.column("expires")
    closed = pc.subtract(expires, pa.scalar(1000, pa.duration("us")))
    return pa.RecordBatch.from_arrays(
        [*(batch.column(name) for name in names), closed], [*names, "closed"]
    )


def _with_bounds(batch: pa.RecordBatch) -> pa.RecordBatch:
    bounds = [
        pc.cast(pc.divide(batch.column(name).cast(pa.int64()), 1000), pa.string())
        for name in ("window_start", "window_end")
    ]
    extra = pc.binary_join_element_wise(batch.column("extra"), *bounds, ":")
    columns = [batch.column(name) for name in ("auction", "bidder", "price", "date_time")]
    names = ["auction", "bidder", "price", "date_time", "extra"]
    return pa.RecordBatch.from_arrays([*columns, extra], names)


def _enriched(house: Auctions) -> clonos.Stream:
    bids = house.bids.select("auction", "bidder", "price", "date_time")
    found = house.change(bids, SIDE_KEY, "keys").look_up(side_input(), "key")
    return found.drop("key").withColumnRenamed("value", "extra")


def _side_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    bidder = batch.column("bidder")
    key = pc.subtract(bidder, pc.multiply(pc.divide(bidder, SIDE_ROWS), SIDE_ROWS))
    return batch.append_column("key", key)


# What users would write.

IN_EUROS: Final = Change(
    _in_euros,
    lambda bids: bids.selectExpr(
        "auction", "bidder", "price * 89 div 100 as price", "date_time", "extra"
    ),
)
SOME: Final = Change(_some, lambda bids: bids.where(f"auction % {EVERY} = 0"))
LOCAL: Final = Change(_local, lambda persons: persons.where("state in ('OR', 'ID', 'CA')"))
IN_CATEGORY: Final = Change(
    _in_category,
    lambda auctions: auctions.where(f"category = {CATEGORY}").select("id", "seller", "opens"),
    "id long, seller long, opens timestamp",
)
VALID: Final = Change(_at_least_reserve, lambda sales: sales.where("price >= reserve"))
WINS: Final = Change(
    _wins,
    lambda wins: wins.selectExpr(
        "id", "seller", "category", "price", "expires - interval 1 millisecond as closed"
    ),
    "id long, seller long, category long, price long, closed timestamp",
)
SIDE_KEY: Final = Change(
    _side_key,
    lambda bids: bids.selectExpr("*", f"bidder % {SIDE_ROWS} as key"),
    "auction long, bidder long, price long, date_time timestamp, key long",
)
WITH_BOUNDS: Final = Change(
    _with_bounds,
    lambda rows: rows.selectExpr(
        "auction", "bidder", "price", "date_time",
        "concat(extra, ':', cast(unix_millis(window_start) as string), "
        "':', cast(unix_millis(window_end) as string)) as extra",
    ),
    BID,
)  # fmt: skip
