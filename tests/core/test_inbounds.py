"""Which input goes first, and for which a sender should make no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core.channels import Inbound
from clonos.core.determinants import Order
from clonos.core.fences import Trust
from clonos.core.inbounds import QUEUE_AHEAD, QUEUE_MAX, Inbounds
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec
from clonos.core.program import Batch

LIFE = Incarnation(1, 0)
PLAN = Plan(
    (
        TaskSpec(0, "old[0]", "old", 0, (), (0,), is_source=True),
        TaskSpec(1, "new[0]", "new", 0, (), (1,), is_source=True),
        TaskSpec(2, "join[0]", "join", 0, (0, 1), (2,), sink="join"),
    ),
    (ChannelSpec(0, 0, 2, 0), ChannelSpec(1, 1, 2, 1), ChannelSpec(2, 2, HOUSE_KEEPER)),
)


class Trusting:
    """A holder with no log that was ever cut."""

    book = None
    fences = SimpleNamespace(judge=lambda _: Trust.VALID, pending=lambda _: False)


def inbounds(*, waits_for_time: bool) -> Inbounds:
    holder: Any = Trusting()
    ends = [Inbound(PLAN, PLAN.channels[channel], 0, 0) for channel in (0, 1)]
    return Inbounds(ends, holder, lambda action: None, waits_for_time=waits_for_time)


def put(into: Inbounds, channel: int, *marks: int | None, kind: Kind = Kind.BATCH) -> None:
    """Batches, and the watermark that follows each."""
    end = into.ends[channel]
    for mark in marks:
        seq = end.consumed + len(end.queue) + 1
        batch = Batch(None, 1, 0, 0) if kind is Kind.BATCH else None
        dep = {channel: Dependency(LIFE, seq)}
        end.queue.append(Item(seq, kind, 0, 0, batch, dep, 0, watermark=mark))


def taken(of: Inbounds) -> list[int]:
    """The channels in the order in which their items are taken."""
    order = []
    while (cause := of.choose()[0]) is not None:
        order.append(cause.channel)
    return order


def test_channels_take_turns():
    two = inbounds(waits_for_time=False)
    put(two, 0, 1, 2, 3, 4)
    put(two, 1, 100, 200)
    assert taken(two) == [0, 1, 0, 1, 0, 0]


def test_a_backlog_is_taken_in_parts_of_so_many_rows():
    one = inbounds(waits_for_time=False)
    put(one, 0, *[None] * 10)
    one.rows_max = 3
    orders = [one.choose()[0] for _ in range(5)]
    assert [order.taken for order in orders if order is not None] == [3, 3, 3, 1]


def test_what_is_behind_in_event_time_goes_first():
    two = inbounds(waits_for_time=True)
    put(two, 0, 1, 2, 150, 160)
    put(two, 1, 100, 200)
    assert taken(two) == [0, 1, 0, 0, 1, 0]


def test_what_is_ahead_is_taken_if_there_is_nothing_else():
    two = inbounds(waits_for_time=True)
    put(two, 0, 1)
    put(two, 1, 100, 200)
    assert taken(two) == [0, 1, 1]


def test_a_channel_that_has_not_told_the_time_is_not_held_back():
    two = inbounds(waits_for_time=True)
    put(two, 0, None, None)
    put(two, 1, 100, 200)
    first, _ = two.choose()
    assert first == Order(0, 2, 2, *LIFE)
    assert two.choose()[0] == Order(1, 1, 1, *LIFE)


def test_one_that_has_ended_holds_nobody_back():
    two = inbounds(waits_for_time=True)
    put(two, 0, None, kind=Kind.END)
    put(two, 1, *range(QUEUE_AHEAD + 1))
    assert two.has_room(1)


@pytest.mark.parametrize("waits_for_time", [False, True])
def test_a_sender_should_wait_when_the_queue_is_long(waits_for_time):
    two = inbounds(waits_for_time=waits_for_time)
    put(two, 1, 10**6)
    put(two, 0, *range(QUEUE_MAX))
    assert two.has_room(0)
    put(two, 0, QUEUE_MAX)
    assert not two.has_room(0)


def test_a_sender_should_wait_earlier_when_its_items_are_ahead():
    two = inbounds(waits_for_time=True)
    put(two, 0, 50)
    put(two, 1, *range(100, 100 + QUEUE_AHEAD))
    assert two.has_room(1)
    put(two, 1, 200)
    assert not two.has_room(1)
    put(two, 0, 300)
    assert two.has_room(1)


def test_one_that_starts_over_is_not_taken_for_one_that_has_ended():
    two = inbounds(waits_for_time=True)
    put(two, 0, None, kind=Kind.END)
    put(two, 1, 50)
    assert taken(two) == [0, 1]
    two.ends[0].start_over(0)  # that END is void, too
    two.ends[0].restart(0, 0)
    put(two, 0, None)
    put(two, 1, 100, 200)
    assert taken(two)[0] == 0
