"""The in-flight log: replay, deduplication, backlog."""

from __future__ import annotations

import subprocess
import sys

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


TAKEN = """
import gc, sys
import pyarrow as pa
from clonos.columns.batches import from_bytes, seal, to_bytes
from clonos.core.inflight import InFlightLog
from clonos.core.messages import Kind

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

columns = int(sys.argv[1])
row = to_bytes(pa.RecordBatch.from_pydict({f"c{n}": [n] for n in range(columns)}))
log, before = InFlightLog(), resident()
for number in range(40_000 // columns):
    batch = seal(from_bytes(bytes(bytearray(row))))  # as it comes from another process
    log.append(Kind.BATCH, 0, 0, batch, {0: number})
print((resident() - before) / log.held_bytes)
"""


@pytest.mark.parametrize("columns", [1, 20])
def test_small_batches_count_with_the_memory_that_they_take(columns: int) -> None:
    """A row of a number per column has 8 bytes a column, and takes some 2,500 and 18,000. In a
    process of its own, which has no memory that others have left."""
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, str(columns)], capture_output=True, check=True, text=True
    )
    assert 0.5 < float(done.stdout) < 3
