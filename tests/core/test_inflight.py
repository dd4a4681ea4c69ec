"""The in-flight log: replay, deduplication, backlog."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.core.inflight import InFlightLog
from clonos.core.messages import Kind
from clonos.core.program import Batch
from clonos.errors import Divergence, ProtocolError


def put(log: InFlightLog, number: int, nbytes: int = 10):
    return log.append(Kind.BATCH, 0, 0, Batch(number, 1, nbytes, number), {})


def filled(count: int) -> InFlightLog:
    log = InFlightLog()
    for number in range(1, count + 1):
        put(log, number)
    return log


def numbers(log: InFlightLog) -> list[int]:
    """What is sent next, as a channel without a bound sends it."""
    found = []
    while log.cursor <= log.last:
        found.append(log.item(log.cursor).seq)
        log.cursor += 1
    return found


def test_a_receiver_is_served_from_where_it_asks():
    log = filled(5)
    log.resume(3, log.item(2).chain)
    assert numbers(log) == [3, 4, 5]
    assert numbers(log) == []


def test_regenerated_items_are_not_sent_again_and_must_be_the_same():
    before = filled(4)
    log = InFlightLog()
    log.resume(4, before.item(3).chain)
    for number in range(1, 5):
        put(log, number)
    assert numbers(log) == [4]
    wrong = InFlightLog()
    wrong.resume(4, before.item(3).chain)
    put(wrong, 1)
    put(wrong, 99)
    with pytest.raises(Divergence):
        put(wrong, 3)


def test_a_known_prefix_is_verified_at_once():
    log = filled(4)
    with pytest.raises(Divergence):
        log.resume(4, 12345)


def test_nothing_below_the_floor_can_be_asked_for():
    log = filled(4)
    log.truncate(2)
    log.resume(3, filled(2).chain)
    with pytest.raises(ProtocolError):
        log.resume(2, 0)


@given(st.lists(st.integers(1, 100), max_size=20), st.data())
def test_backlog_is_what_the_receiver_has_not_done(sizes, data):
    log = InFlightLog()
    for number, nbytes in enumerate(sizes, 1):
        put(log, number, nbytes)
    processed = data.draw(st.integers(0, len(sizes)))
    log.acknowledge(processed)
    assert log.backlog_bytes == sum(sizes[processed:])
    floor = data.draw(st.integers(0, processed))
    log.truncate(floor)
    assert log.backlog_bytes == sum(sizes[processed:])
    assert log.nbytes == sum(sizes[floor:])
    back = data.draw(st.integers(floor, len(sizes)))
    known = log.item(back).chain if back > floor else None
    if known is not None:
        log.resume(back + 1, known)
        assert log.backlog_bytes == sum(sizes[back:]) or back > processed
