"""Cutting one log voids entries of others, transitively."""

from __future__ import annotations

from clonos.core.cuts import consistent_cut
from clonos.core.determinants import Order, Source, encode_record
from clonos.core.messages import Run
from clonos.core.plan import ChannelSpec, Incarnation, Plan, TaskSpec

OLD, NEW = Incarnation(1, 0), Incarnation(1, 1)
#: source 0 -> task 1 -> task 2
PLAN = Plan(
    (
        TaskSpec(0, "s[0]", "s", 0, (), (0,), is_source=True),
        TaskSpec(1, "a[0]", "a", 0, (0,), (1,)),
        TaskSpec(2, "b[0]", "b", 0, (1,), ()),
    ),
    (ChannelSpec(0, 0, 1), ChannelSpec(1, 1, 2)),
)


def took(channel: int, *positions: int) -> list[Run]:
    records = tuple(encode_record([Order(channel, 1, p, *OLD)]) for p in positions)
    return [Run(channel + 1, OLD, 1, records)]


def test_a_cut_travels_down_the_graph():
    logs = {
        0: [Run(0, OLD, 1, (encode_record([Source(1, 0, None)]),) * 2)],
        1: took(0, 1, 2, 3),
        2: took(1, 1, 2, 3),
    }
    fences = {0: (NEW, 2), 1: (NEW, 3), 2: (NEW, 3)}
    # The source lost entry 3, so task 1's third entry is void, and so is task 2's.
    assert consistent_cut(PLAN, logs, fences) == {0: 2, 1: 2, 2: 2}


def test_nothing_is_cut_that_still_exists():
    logs = {1: took(0, 1, 2, 3)}
    assert consistent_cut(PLAN, logs, {0: (NEW, 3), 1: (NEW, 3)}) == {0: 3, 1: 3}


def test_a_new_life_may_be_depended_on_beyond_the_cut():
    record = encode_record([Order(0, 1, 9, *NEW)])
    logs = {1: [Run(1, OLD, 1, (record,))]}
    assert consistent_cut(PLAN, logs, {0: (NEW, 2), 1: (NEW, 1)})[1] == 1
