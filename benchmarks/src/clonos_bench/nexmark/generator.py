"""The events of Nexmark, as Apache Beam generates them, in columns.

Out of 50 consecutive events one is a person, three are auctions and 46 are bids. What an event is
follows from its id alone: all draws are bits of a hash of the id. Draws and distributions are
Beam's (hot auctions, sellers and bidders; persons and auctions that are still active; prices
over six orders of magnitude), its random numbers are not.

A *row number* counts the events of one kind in their order of arrival, 0, 1, 2, ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.errors import WrongType
from clonos_bench.nexmark import text
from clonos_bench.nexmark.text import GOLDEN, Int64, UInt64, scramble, split

PROPORTION: Final = 50
"""Events among which the kinds are shared out."""

FIRST_AUCTION_REST: Final = 1
FIRST_BID_REST: Final = 4
AUCTIONS: Final = FIRST_BID_REST - FIRST_AUCTION_REST
"""... so many of them auctions."""

FIRST_ID: Final = 1000
"""Of persons and auctions."""

FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5
ID_LEAD: Final = 10
"""How far events refer to persons and auctions that are still to come."""

HOT_BATCH: Final = 100
HOT_AUCTION_RATIO: Final = 2
HOT_SELLER_RATIO: Final = 4
HOT_BIDDER_RATIO: Final = 4
"""Powers of two, all ratios: their draws are masked, which costs a tenth of a division."""

ACTIVE_PEOPLE: Final = 1000
AUCTIONS_IN_FLIGHT: Final = 100

BASE_MS: Final = 1_436_918_400_000
"""Time of the first event: 2015-07-15, as in Beam."""

Ranges = Sequence[tuple[int, int]]
Columns = Mapping[str, Callable[[], pa.Array]]
"""What makes each column of some rows."""

_SHUFFLE: Final = 953
_PERSON_FILLER, _AUCTION_FILLER, _BID_FILLER = 137, 382, 68
"""Mean length of ``extra``: brings the mean sizes to 200, 500 and 100 bytes."""

_LOG_10 = math.log(10.0)
_BITS_64: Final = (1 << 64) - 1
_TIME = pa.timestamp("us", "UTC")

PERSON: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("email_address", pa.string(), nullable=False),
        pa.field("credit_card", pa.string(), nullable=False),
        pa.field("city", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("date_time", _TIME, nullable=False),
        pa.field("extra", pa.string(), nullable=False),
    ]
)
AUCTION: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("item_name", pa.string(), nullable=False),
        pa.field("description", pa.string(), nullable=False),
        pa.field("initial_bid", pa.int64(), nullable=False),
        pa.field("reserve", pa.int64(), nullable=False),
        pa.field("date_time", _TIME, nullable=False),
        pa.field("expires", _TIME, nullable=False),
        pa.field("seller", pa.int64(), nullable=False),
        pa.field("category", pa.int64(), nullable=False),
        pa.field("extra", pa.string(), nullable=False),
    ]
)
BID: Final = pa.schema(
    [
        pa.field("auction", pa.int64(), nullable=False),
        pa.field("bidder", pa.int64(), nullable=False),
        pa.field("price", pa.int64(), nullable=False),
        pa.field("date_time", _TIME, nullable=False),
        pa.field("extra", pa.string(), nullable=False),
    ]
)
EVENT: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("person", pa.struct(list(PERSON))),
        pa.field("auction", pa.struct(list(AUCTION))),
        pa.field("bid", pa.struct(list(BID))),
    ]
)
KINDS: Final = {"person": PERSON, "auction": AUCTION, "bid": BID, "event": EVENT}
"""What can be generated; "event" is all of them as they come, two of the three columns null."""


def schema_of(kind: str, columns: Sequence[str] | None = None) -> pa.Schema:
    """Of a kind, or of some of its columns."""
    schema = KINDS[kind]
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


@dataclass(frozen=True)
class Generator:
    """The first `events` events.

    Parameters
    ----------
    events
        How many, of all kinds together.
    delay_us
        Time from one event to the next.
    group
        Events are shuffled within groups of this size, ids and times alike: 1, or a multiple of
        50 that is none of 953.

    Examples
    --------
    >>> bids = Generator(events=500).batch("bid", 100, 3)
    >>> bids.num_rows, bids == Generator(events=10_000).batch("bid", 90, 20).slice(10, 3)
    (3, True)
    """

    events: int
    delay_us: int = 100
    group: int = 1

    def __post_init__(self) -> None:
        is_shuffle = self.group % PROPORTION == 0 and self.group % _SHUFFLE
        if self.events < 0 or self.delay_us < 0 or not (self.group == 1 or is_shuffle):
            raise WrongType(
                f"{self} is no generator of events",
                remedy="give events >= 0, delay_us >= 0, and a group of 1 or a multiple of 50",
            )

    def rows(self, kind: str) -> int:
        """How many of the events are of this kind."""
        layout = _layout(_known(kind), self.group)
        whole, rest = divmod(self.events, len(layout.order))
        return whole * len(layout.places) + int(np.count_nonzero(layout.arrival < rest))

    def ids(self, kind: str, first: int, rows: int) -> Int64:
        """The event ids of consecutive rows."""
        return self._rows(kind, [(first, rows)]).ids()

    def batch(self, kind: str, first: int, rows: int) -> pa.RecordBatch:
        """Consecutive rows of one kind; row numbers are not bounded by `events`."""
        return self.batch_of(kind, [(first, rows)])

    def batch_of(
        self, kind: str, ranges: Ranges, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """The rows of one kind with these numbers: each range is a first one and how many.

        Only of `columns`, if they are given; what the others would take is not done.
        """
        rows = self._rows(kind, ranges)
        if kind == "event":
            return self._mixed(rows.ids())
        of_kind = {"person": self._persons, "auction": self._auctions, "bid": self._bids}
        made = of_kind[kind](rows, ranges)
        schema = schema_of(kind, columns)
        return pa.RecordBatch.from_arrays([made[name]() for name in schema.names], schema=schema)

    def time_ms(self, ids: Int64) -> Int64:
        """When events happen."""
        return BASE_MS + ids * self.delay_us // 1000

    def _time(self, ids: Int64) -> pa.Array:
        us = ids.view(np.uint64) * np.uint64(self.delay_us)
        us //= np.uint64(1000)
        us += np.uint64(BASE_MS)
        us *= np.uint64(1000)
        return pa.array(us.view(np.int64)).view(_TIME)

    def _rows(self, kind: str, ranges: Ranges) -> _Rows:
        return _Rows(_layout(_known(kind), self.group), ranges)

    def _persons(self, rows: _Rows, ranges: Ranges) -> Columns:
        ids, draw = rows.ids(), rows.draws()

        def mail() -> pa.Array:
            user, provider = draw(2), draw(2) >> np.uint64(32)
            host = pc.binary_join_element_wise(_choose(text.strings(5, 2), provider), "com", ".")
            return pc.binary_join_element_wise(_choose(text.strings(7, 1), user), host, "@")

        def card() -> pa.Array:
            quarters = [_choose(text.four_digits(), draw(1) >> np.uint64(16 * i)) for i in range(4)]
            return pc.binary_join_element_wise(*quarters, " ")

        return {
            "id": lambda: pa.array(_last_person(ids) + FIRST_ID),
            "name": lambda: _choose(text.names(), draw(0)),
            "email_address": mail,
            "credit_card": card,
            "city": lambda: _choose(pa.array(text.CITIES), draw(0) >> np.uint64(16)),
            "state": lambda: _choose(pa.array(text.STATES), draw(0) >> np.uint64(32)),
            "date_time": lambda: self._time(ids),
            "extra": lambda: text.filler(ranges, _PERSON_FILLER, 1),
        }

    def _auctions(self, rows: _Rows, ranges: Ranges) -> Columns:
        ids, draw = rows.ids(), rows.draws()

        @cache
        def initial() -> Int64:
            return _price(draw(2))

        def expires() -> pa.Array:
            now = self.time_ms(ids)
            ahead = self.time_ms(ids + AUCTIONS_IN_FLIGHT * PROPORTION // AUCTIONS) - now
            open_for = _below(draw(4), np.maximum(2 * ahead, 1))
            return pa.array((now + 1 + open_for) * 1000).view(_TIME)

        def seller() -> pa.Array:
            hot = rows.epochs // HOT_BATCH * HOT_BATCH + FIRST_ID
            other = rows.next_person(draw(0) >> np.uint64(8))
            return pa.array(_either(_is_hot(draw(0), HOT_SELLER_RATIO), rows.spread(hot), other))

        return {
            "id": lambda: pa.array(_last_auction(ids) + FIRST_ID),
            "item_name": lambda: _choose(text.strings(20, 3), draw(1)),
            "description": lambda: _choose(text.strings(100, 4), draw(1) >> np.uint64(32)),
            "initial_bid": lambda: pa.array(initial()),
            "reserve": lambda: pa.array(initial() + _price(draw(3))),
            "date_time": lambda: self._time(ids),
            "expires": expires,
            "seller": seller,
            "category": lambda: pa.array(
                FIRST_CATEGORY + _below(draw(0) >> np.uint64(40), CATEGORIES)
            ),
            "extra": lambda: text.filler(ranges, _AUCTION_FILLER, 2),
        }

    def _bids(self, rows: _Rows, ranges: Ranges) -> Columns:
        draw = rows.draws()

        def auction() -> pa.Array:
            last = rows.epochs * AUCTIONS + AUCTIONS - 1  # bids come behind their epoch's auctions
            low = np.maximum(last - AUCTIONS_IN_FLIGHT, 0)
            other = rows.spread(low + FIRST_ID)
            other += _below(draw(0) >> np.uint64(8), rows.limit(last - low + 1 + ID_LEAD))
            hot = rows.spread(last // HOT_BATCH * HOT_BATCH + FIRST_ID)
            return pa.array(_either(_is_hot(draw(0), HOT_AUCTION_RATIO), hot, other))

        def bidder() -> pa.Array:
            hot = rows.spread(rows.epochs // HOT_BATCH * HOT_BATCH + 1 + FIRST_ID)
            is_hot = _is_hot(draw(0) >> np.uint64(2), HOT_BIDDER_RATIO)
            return pa.array(_either(is_hot, hot, rows.next_person(draw(0) >> np.uint64(32))))

        return {
            "auction": auction,
            "bidder": bidder,
            "price": lambda: pa.array(_price(draw(1))),
            "date_time": lambda: self._time(rows.ids()),
            "extra": lambda: text.filler(ranges, _BID_FILLER, 3),
        }

    def _mixed(self, ids: Int64) -> pa.RecordBatch:
        """Every event in the column of its kind."""
        rests = ids % PROPORTION
        code = (rests >= FIRST_AUCTION_REST).astype(np.int8) + (rests >= FIRST_BID_REST)
        names = ("person", "auction", "bid")
        columns = [pa.array(names).take(pa.array(code))]
        for number, kind in enumerate(names):
            places = np.flatnonzero(code == number)
            columns.append(_scatter(self._of(kind, ids[places]), places, len(ids)))
        return pa.RecordBatch.from_arrays(columns, schema=EVENT)

    def _of(self, kind: str, ids: Int64) -> pa.RecordBatch:
        """Events of one kind by id; in a mixed batch they need not be consecutive rows."""
        layout = _layout(kind, self.group)
        groups, place = split(ids, len(layout.order))
        numbers = groups * layout.size + layout.row_of[place]
        if len(ids) and np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(ids))):
            return self.batch(kind, int(numbers[0]), len(ids))
        parts = [self.batch(kind, int(number), 1) for number in numbers]
        table = pa.Table.from_batches(parts, KINDS[kind]).combine_chunks()
        empty = pa.RecordBatch.from_pylist([], KINDS[kind])
        return table.to_batches()[0] if parts else empty


@dataclass(frozen=True)
class _Layout:
    """Where in a group of events those of one kind are.

    ``order``: ids of a group in order of arrival. Of the kind: ``arrival`` when, ``places`` as
    ids; ``row_of`` the number among them by id.
    """

    order: Int64
    arrival: Int64
    places: Int64
    row_of: Int64

    @property
    def size(self) -> int:
        return len(self.places)


class _Rows:
    """Rows of one kind: of whole groups of events, less what is cut off.

    An *epoch* is 50 events, which begin with a person and auctions; a group has one or more. What
    follows from the epoch alone is computed once for each and spread over its rows.
    """

    def __init__(self, layout: _Layout, ranges: Ranges) -> None:
        self._layout = layout
        groups = [np.empty(0, np.int64)]
        self._cuts: list[slice] = []
        end = 0
        for first, rows in ranges:
            begin = first // layout.size
            groups.append(np.arange(begin, -(-(first + rows) // layout.size), dtype=np.int64))
            start = end + first - begin * layout.size
            end += len(groups[-1]) * layout.size
            stop = start + rows
            if self._cuts and self._cuts[-1].stop == start:
                start = self._cuts.pop().start
            self._cuts.append(slice(start, stop))
        self._groups = np.concatenate(groups)
        per_group = len(layout.order) // PROPORTION
        self.epochs: Int64 = (self._groups[:, None] * per_group + np.arange(per_group)).reshape(-1)
        self.ids = cache(self._ids)

    def _cut(self, of_groups: npt.NDArray[Any]) -> npt.NDArray[Any]:
        flat = of_groups.reshape(-1)
        if len(self._cuts) == 1:
            return flat[self._cuts[0]]
        return np.concatenate([flat[:0], *(flat[cut] for cut in self._cuts)])

    def _ids(self) -> Int64:
        firsts = self._groups * len(self._layout.order)
        return self._cut(firsts[:, None] + self._layout.places)

    def spread(self, per_epoch: Int64) -> Int64:
        """To each row what belongs to its epoch."""
        groups, size = len(self._groups), self._layout.size
        if len(per_epoch) == groups:
            return self._cut(np.repeat(per_epoch, size))
        return self._cut(per_epoch.reshape(groups, -1)[:, self._layout.places // PROPORTION])

    def limit(self, per_epoch: Int64) -> Int64 | int:
        """The same, or one number for all, which it is but for the first epochs."""
        first = int(per_epoch[0]) if len(per_epoch) else 0
        return first if (per_epoch == first).all() else self.spread(per_epoch)

    def draws(self) -> Callable[[int], UInt64]:
        """64 random bits per row, which are a function of its id; each number gives others."""
        state = self.ids().view(np.uint64) * np.uint64((GOLDEN << 3) & _BITS_64)
        return cache(lambda number: scramble(state + np.uint64(GOLDEN * (number + 1) & _BITS_64)))

    def next_person(self, draws: UInt64) -> Int64:
        """One of those who are active, or will come soon."""
        people = self.epochs + 1
        active = np.minimum(people, ACTIVE_PEOPLE)
        chosen = self.spread(people - active + FIRST_ID)
        return chosen + _below(draws, self.limit(active + ID_LEAD))


@lru_cache(maxsize=64)
def _layout(kind: str, group: int) -> _Layout:
    order = np.arange(PROPORTION)
    if group > 1:
        order = np.arange(group) * _SHUFFLE % group
    rests = order % PROPORTION
    limits = {
        "person": (0, FIRST_AUCTION_REST),
        "auction": (FIRST_AUCTION_REST, FIRST_BID_REST),
        "bid": (FIRST_BID_REST, PROPORTION),
        "event": (0, PROPORTION),
    }
    low, high = limits[kind]
    arrival = np.flatnonzero((rests >= low) & (rests < high))
    row_of = np.full(len(order), -1)
    row_of[order[arrival]] = np.arange(len(arrival))
    return _Layout(order, arrival, order[arrival], row_of)


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise WrongType(f"no events of kind {kind!r}", remedy=f"use one of {', '.join(KINDS)}")
    return kind


def _below(draws: UInt64, limit: Int64 | int) -> Int64:
    """Numbers from 0 to limit - 1 out of 24 bits or more."""
    share = draws & np.uint64((1 << 24) - 1)
    share *= np.asarray(limit).astype(np.uint64)
    share >>= np.uint64(24)
    below: Int64 = share.view(np.int64)
    return below


def _is_hot(draws: UInt64, ratio: int) -> Int64:
    """1 where it is, 0 where not, which is one in `ratio`."""
    bits = draws & np.uint64(ratio - 1)
    hot: Int64 = np.minimum(bits, np.uint64(1), out=bits).view(np.int64)
    return hot


def _either(is_first: Int64, first: Int64, second: Int64) -> Int64:
    """``np.where`` without branches, which nobody can predict."""
    chosen: Int64 = first - second
    chosen *= is_first
    chosen += second
    return chosen


def _price(draws: UInt64) -> Int64:
    exponent = (draws >> np.uint64(11)).astype(np.float64)
    exponent *= 6.0 / 2**53
    exponent *= _LOG_10
    prices = np.exp(exponent, out=exponent)
    prices *= 100.0
    whole: Int64 = np.rint(prices, out=prices).astype(np.int64)
    return whole


def _last_person(ids: Int64) -> Int64:
    return ids // PROPORTION


def _last_auction(ids: Int64) -> Int64:
    epoch, rest = split(ids, PROPORTION)
    # Before the first auction of an epoch the last one is of the epoch before.
    numbers: Int64 = epoch * AUCTIONS + np.minimum(rest, AUCTIONS) - 1
    return numbers


def _choose(pool: pa.Array, draws: UInt64) -> pa.Array:
    _, numbers = split((draws & np.uint64(0xFFFF)).astype(np.int64), len(pool))
    return pool.take(pa.array(numbers))


def _scatter(batch: pa.RecordBatch, places: npt.NDArray[np.intp], rows: int) -> pa.Array:
    """A struct column that has the rows of `batch` at `places`, and nulls elsewhere."""
    fields = [_spread(column, places, rows) for column in batch.columns]
    is_null = np.ones(rows, bool)
    is_null[places] = False
    return pa.StructArray.from_arrays(fields, fields=list(batch.schema), mask=pa.array(is_null))


def _spread(column: pa.Array, places: npt.NDArray[np.intp], rows: int) -> pa.Array:
    if not pa.types.is_string(column.type):
        spread = np.zeros(rows, np.int64)
        spread[places] = column.view(pa.int64()).to_numpy()
        return pa.array(spread).view(column.type)
    _, offsets, data = column.buffers()
    if offsets is None:
        return pa.array([""] * rows, pa.string())
    ends = np.frombuffer(offsets, np.int32)[: len(column) + 1]
    # A row that has no string ends where the one before it does.
    before = np.zeros(rows + 1, np.int32)
    before[1:][places] = np.diff(ends)
    np.cumsum(before, out=before)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(before), data)
