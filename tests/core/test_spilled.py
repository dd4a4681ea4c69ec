"""The beginning of an in-flight log on the disk."""

from __future__ import annotations

import pytest

from clonos.core import inflight
from clonos.core.inflight import InFlightLog
from clonos.core.messages import Kind
from clonos.core.program import Batch
from clonos.core.spilled import KEPT_BYTES, ON_DISK

SIZE = 1000


def filled(count: int) -> InFlightLog:
    log = InFlightLog()
    for number in range(1, count + 1):
        batch = Batch(number, 1, SIZE, number) if number % 3 else None
        log.append(Kind.BATCH if batch else Kind.MARKER, 0, 0, batch, {})
    return log


def spill(log: InFlightLog, upto: int) -> tuple[int, list[Batch]]:
    work = log.spill(upto)
    assert work is not None
    assert log.wrote(work[0], is_written=True)
    log.check()
    return work


def test_batches_on_the_disk_take_no_memory_but_count_as_kept() -> None:
    log = filled(9)
    _, batches = spill(log, 5)
    assert [batch.payload for batch in batches] == [1, 2, 4, 5]
    assert (log.nbytes, log.backlog_bytes) == (6 * SIZE, 6 * SIZE)
    assert log.held_bytes == 2 * SIZE + 5 * KEPT_BYTES
    assert [item.batch.payload is ON_DISK for item in map(log.item, (1, 5, 7)) if item.batch] == [
        True, True, False,
    ]  # fmt: skip


def test_what_was_read_back_is_sent_as_it_was() -> None:
    log = filled(6)
    number, batches = spill(log, 5)
    assert log.complete(log.item(1)) is None
    assert log.spilled.to_load(1) == [number]
    assert log.spilled.to_load(1) == []  # asked once
    assert log.read_back(number, batches)
    came = [log.complete(log.item(seq)) for seq in range(1, 7)]
    assert [item.batch.payload for item in came if item and item.batch] == [1, 2, 4, 5]
    assert all(came)


def test_a_receiver_that_comes_again_is_read_for_again() -> None:
    log = filled(5)
    number, batches = spill(log, 5)
    log.spilled.to_load(1)
    log.read_back(number, batches)
    log.resume(3, log.item(2).chain)
    assert log.complete(log.item(4)) is None
    assert log.spilled.to_load(4) == [number]


def test_rot_is_noticed() -> None:
    log = filled(5)
    number, batches = spill(log, 5)
    log.spilled.to_load(1)
    assert not log.read_back(number, batches[:-1])
    assert not log.read_back(number, [*batches[:-1], batches[-1]._replace(digest=77)])
    assert not log.spilled.loaded


def test_a_full_disk_leaves_all_in_memory() -> None:
    log = filled(5)
    work = log.spill(5)
    assert work is not None
    assert log.spill(5) is None  # one at a time
    assert not log.wrote(work[0], is_written=False)
    log.check()
    assert log.held_bytes == log.nbytes
    assert spill(log, 5)[1] == work[1]


def test_files_go_with_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "FILE_BYTES", 2 * SIZE)
    log = filled(8)
    first, second = spill(log, 8)[0], spill(log, 8)[0]
    assert log.truncate(2) == []
    log.check()
    assert log.truncate(4) == [first]
    log.check()
    third = log.spill(8)
    assert third is not None
    assert log.truncate(8) == [second]  # the third is on its way
    assert not log.wrote(third[0], is_written=True)
    log.check()
    assert log.held_bytes == 0
