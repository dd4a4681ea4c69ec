"""Holders: append, fence, read, truncate, cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.core.holder import Holder
from clonos.core.log import Log, LogBook, in_pieces
from clonos.core.messages import Resolve, Run
from clonos.core.plan import Incarnation
from clonos.errors import ProtocolError

FIRST, SECOND = Incarnation(1, 0), Incarnation(1, 1)


def run(start: int, *records: bytes, by: Incarnation = FIRST, stable: int = 0) -> Run:
    return Run(7, by, start, records, stable)


def test_overlaps_are_dropped_by_position():
    book = LogBook()
    book.append(run(1, b"a", b"b"))
    book.append(run(1, b"a", b"b", b"c"))
    book.append(run(3, b"c", b"d"))
    assert book.runs(7, 1) == [run(1, b"a", b"b", b"c", b"d")]


def test_a_gap_is_legal_only_below_what_is_stable():
    book = LogBook()
    book.append(run(1, b"a"))
    with pytest.raises(ProtocolError, match="gap"):
        book.append(run(3, b"c"))
    book.append(run(3, b"c", stable=2))
    assert (book.base(7), book.length(7)) == (2, 3)


def cut(incarnation: Incarnation, length: int) -> Resolve:
    return Resolve(7, incarnation, length, 0, reset=False)


def test_a_fenced_life_adds_nothing_but_what_a_holder_had_may_be_added():
    holder = Holder()
    holder.append(run(1, b"a", b"b"))
    holder.fence(7, SECOND, 0)
    zombie = run(2, b"b", b"zombie")
    assert holder.fences.forbids(zombie)
    holder.append(zombie)
    assert holder.book.length(7) == 2
    holder.book.append(run(3, b"c"))
    holder.resolve(cut(SECOND, 3))
    holder.append(run(4, b"d", by=SECOND))
    assert holder.book.runs(7, 3) == [run(3, b"c"), run(4, b"d", by=SECOND)]
    holder.check()


def test_every_fence_stays_in_force():
    holder = Holder()
    holder.append(run(1, b"a", b"b"))
    holder.fence(7, SECOND, 0)
    holder.resolve(cut(SECOND, 1))
    third = Incarnation(1, 2)
    holder.append(run(2, b"B", b"C", by=SECOND))
    holder.fence(7, third, 0)
    holder.resolve(cut(third, 3))
    assert holder.fences.forbids(run(3, b"zombie"))
    assert holder.book.writer(7, 1) == FIRST
    assert holder.book.writer(7, 3) == SECOND


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=12),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_runs_give_back_what_was_written_and_by_whom(pieces, floor, cut):
    log = Log()
    expected: list[tuple[Incarnation, bytes]] = []
    life = 0
    for step, count in pieces:
        life = max(life, life + step - 1)
        writer = Incarnation(1, life)
        records = tuple(bytes([len(expected) + i]) for i in range(count))
        log.extend(Run(0, writer, len(expected) + 1, records))
        expected += [(writer, record) for record in records]
    log.truncate(floor := min(floor, len(expected)))
    log.cut(cut := max(min(cut, len(expected)), floor))
    got = [(r.incarnation, record) for r in log.runs(0, 1) for record in r.records]
    assert got == expected[floor:cut]
    assert (log.base, log.length) == (floor, cut)
    for position in range(floor + 1, cut + 1):
        assert log.writer(position) == expected[position - 1][0]


records = st.lists(st.binary(max_size=12), min_size=1, max_size=8)


@given(st.lists(records, max_size=5), st.integers(1, 30))
def test_pieces_are_small_and_together_the_whole(logs, nbytes_max):
    runs = [Run(n, FIRST, 5, tuple(of), stable=4) for n, of in enumerate(logs)]
    pieces = in_pieces(runs, nbytes_max)
    there, here = LogBook(), LogBook()
    for log in runs:
        there.append(log)
    for piece in pieces:
        size = sum(len(record) for part in piece for record in part.records)
        large = [r for part in piece for r in part.records if r]
        assert size <= nbytes_max or len(large) == 1
        for part in piece:
            here.append(part)
    for n in range(len(logs)):
        assert here.runs(n, 5) == there.runs(n, 5)
