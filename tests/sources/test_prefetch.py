"""Reading a source in a thread: ahead, exactly, from where a standby's task stands."""

from __future__ import annotations

import threading
import time
import weakref
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from clonos.core.events import SourceEnded, SourceRows
from clonos.errors import SourceError
from clonos.sources.outage import Outage
from clonos.sources.prefetch import (
    AHEAD_BATCHES,
    AHEAD_BYTES,
    BATCH_BYTES,
    USUAL_ROWS,
    BatchSize,
    PrefetchThread,
)
from clonos.sources.readers import BaseReader, BatchesReader, CutReader

SCHEMA = pa.schema([("n", pa.int64())])


def reader(count: int = 10) -> BatchesReader:
    batch = pa.RecordBatch.from_pydict({"n": list(range(count))}, schema=SCHEMA)
    return BatchesReader([batch], SCHEMA)


class Fed:
    """A thread and what it has woken us for."""

    def __init__(self, source: Any, **options: Any) -> None:
        self.woken: SimpleQueue[None] = SimpleQueue()
        options = {"batch_rows_max": 4, "linger_s": 0.0, **options}
        self.prefetch = PrefetchThread(source, lambda: self.woken.put(None), **options)

    def get(self, take: Any) -> Any:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            ready = take()
            if ready is not None:
                return ready
            self.woken.get(timeout=5)
        raise AssertionError("nothing came")

    def rows(self, take: Any) -> Any:
        ready = self.get(take)
        if isinstance(ready, SourceEnded):
            return "end"
        assert isinstance(ready, SourceRows)
        return ready.batch.payload.column("n").to_pylist()


def test_reads_ahead_from_where_the_task_stands():
    fed = Fed(reader())
    fed.prefetch.advance(3)
    assert fed.rows(fed.prefetch.take) == [3, 4, 5, 6]
    assert fed.rows(fed.prefetch.take) == [7, 8, 9]
    assert fed.rows(fed.prefetch.take) == "end"
    fed.prefetch.close()


def test_a_standby_follows_and_then_replays_exactly():
    fed = Fed(reader())
    for floor in (0, 2, 5):
        fed.prefetch.advance(floor)
    fed.prefetch.ask([(2, b""), (1, b"")])
    assert fed.rows(fed.prefetch.taken) == [5, 6]
    assert fed.rows(fed.prefetch.taken) == [7]
    assert fed.rows(fed.prefetch.take) == [8, 9]
    fed.prefetch.close()


class LongReader(BaseReader):
    """Any number of large rows; counts how many bytes of them somebody holds."""

    schema = pa.schema([("x", pa.binary())])

    def __init__(self, row_bytes: int) -> None:
        self._row = bytes(row_bytes)
        self.row_bytes = row_bytes
        self.held = self.most_held = self.batches = 0

    def open(self, rows_consumed: int) -> None:
        pass

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_pydict({"x": [self._row] * max_rows}, schema=self.schema)
        self.batches += 1
        self.held += max_rows * self.row_bytes
        self.most_held = max(self.most_held, self.held)
        weakref.finalize(batch, self._let_go, max_rows * self.row_bytes)
        return batch

    def _let_go(self, nbytes: int) -> None:
        self.held -= nbytes


def replay(source: LongReader, cuts: list[int], ahead: int) -> None:
    """A task that begins when the reader has read ahead as far as it goes: so many batches."""
    fed = Fed(source)
    fed.prefetch.advance(0)
    fed.prefetch.ask([(rows, b"") for rows in cuts])
    for _ in range(ahead):
        fed.woken.get(timeout=5)
    with pytest.raises(Empty):
        fed.woken.get(timeout=0.3)
    for rows in cuts:
        ready = fed.get(fed.prefetch.taken)
        assert ready.batch.rows == rows
        del ready
    fed.prefetch.close()
    assert source.batches == len(cuts)


def test_a_replay_reads_ahead_a_few_bytes_only():
    source = LongReader(row_bytes=1 << 20)
    replay(source, [2] * 40, AHEAD_BYTES // (2 * source.row_bytes))
    assert AHEAD_BYTES <= source.most_held <= AHEAD_BYTES + 2 * source.row_bytes


def test_a_replay_reads_a_few_small_cuts_ahead_only():
    source = LongReader(row_bytes=1)
    replay(source, [1] * 200, AHEAD_BATCHES)
    assert AHEAD_BATCHES <= source.most_held <= AHEAD_BATCHES + 1


def test_a_reader_that_is_ahead_is_woken_when_half_is_used_up(monkeypatch):
    """Before, for each batch: two threads that take turns wait for a busy machine each time."""
    fed = Fed(LongReader(row_bytes=1))
    fed.prefetch.advance(0)
    fed.prefetch.ask([(1, b"")] * 3 * AHEAD_BATCHES)
    for _ in range(AHEAD_BATCHES):
        fed.woken.get(timeout=5)
    notify, notified = fed.prefetch._changed.notify, list[None]()
    waking = lambda *n: notify(*n) if n else notified.append(notify())  # noqa: E731
    monkeypatch.setattr(fed.prefetch._changed, "notify", waking)
    for _ in range(AHEAD_BATCHES // 2):
        assert fed.prefetch.taken() is not None
    assert not notified
    assert fed.prefetch.taken() is not None
    assert len(notified) == 1
    for _ in range(AHEAD_BATCHES // 2 + 1):
        fed.woken.get(timeout=5)
    fed.prefetch.close()


def test_what_reading_raises_reaches_the_task():
    fed = Fed(reader(2))
    fed.prefetch.advance(5)
    with pytest.raises(SourceError, match="fewer rows"):
        fed.get(fed.prefetch.take)


def test_no_more_than_the_rate_is_admitted():
    fed = Fed(reader(1000), rows_per_s=200.0, linger_s=0.02, batch_rows_max=100)
    fed.prefetch.advance(0)
    start, rows = time.monotonic(), 0
    while rows < 40:
        rows += len(fed.rows(fed.prefetch.take))
    assert rows / 200.0 <= time.monotonic() - start + 0.1
    fed.prefetch.close()


def learned(size, *, cycle_s, row_bytes=10, batches=20):
    """Batches of a backlog, each handled in `cycle_s(rows)`."""
    now = 0.0
    for _ in range(batches):
        now += cycle_s(size.rows)
        size.learn(size.rows, size.rows * row_bytes, now)
    return size.rows


def test_batches_of_a_backlog_grow_as_long_as_they_are_handled_quickly():
    assert learned(BatchSize(32_768), cycle_s=lambda _: 0.001) == 32_768
    assert learned(BatchSize(65_536), cycle_s=lambda rows: rows * 1e-6) == 32_768
    assert learned(BatchSize(100), cycle_s=lambda _: 0.001) == 100


def test_batches_that_have_grown_shrink_where_rows_become_slow():
    size = BatchSize(32_768)
    learned(size, cycle_s=lambda _: 0.001)
    assert learned(size, cycle_s=lambda rows: rows * 1e-5) == USUAL_ROWS
    assert learned(size, cycle_s=lambda _: 10.0) == USUAL_ROWS
    assert learned(BatchSize(10), cycle_s=lambda _: 10.0) == 10


def test_batches_of_large_rows_are_small():
    rows = learned(BatchSize(32_768), cycle_s=lambda _: 0.001, row_bytes=10_000)
    assert rows * 10_000 <= BATCH_BYTES < 4 * rows * 10_000


def test_without_a_backlog_the_size_of_batches_stays():
    size = BatchSize(32_768)
    for second in range(20):
        size.learn(100, 1000, second)
        size.learn(USUAL_ROWS, 1000, second + 0.5)
    assert size.rows == USUAL_ROWS


class CountingDown(CutReader):
    """What it gives depends on when it is asked: the next of a number that only it knows."""

    schema = SCHEMA

    def __init__(self, first: int) -> None:
        self.first, self.opened = first, list[bytes]()

    def open(self, rows_consumed: int, cut: bytes = b"") -> None:
        self.cut = cut
        self.opened.append(cut)

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        if not self.cut:
            self.cut = b"%d" % self.first
            return self.rows()
        self.cut = b"%d" % (int(self.cut) - 1)
        return self.rows(int(self.cut))

    def read_cut(self, cut: bytes) -> pa.RecordBatch:
        is_first = not self.cut
        self.cut = cut
        return self.rows() if is_first else self.rows(int(cut))

    @staticmethod
    def rows(*numbers: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA)


def test_what_a_reader_calls_its_rows_is_offered_with_them():
    fed = Fed(CountingDown(9))
    fed.prefetch.advance(0)
    given = [fed.get(fed.prefetch.take) for _ in range(3)]
    assert [rows.cut for rows in given] == [b"9", b"8", b"7"]
    assert [rows.batch.rows for rows in given] == [0, 1, 1]
    fed.prefetch.close()


def test_rows_are_read_again_by_their_cuts():
    fed = Fed(CountingDown(1000))
    fed.prefetch.advance(0)
    fed.prefetch.ask([(0, b"9"), (1, b"8"), (1, b"7")])
    assert [fed.rows(fed.prefetch.taken) for _ in range(3)] == [[], [8], [7]]
    assert fed.rows(fed.prefetch.take) == [6]
    fed.prefetch.close()


@pytest.mark.parametrize("rows", [0, 5])
def test_a_standby_goes_where_its_task_is_though_it_has_read_no_row(rows):
    reader = CountingDown(1000)
    fed = Fed(reader)
    fed.prefetch.advance(0)
    fed.prefetch.advance(rows, b"9")
    assert fed.rows(fed.prefetch.take) == [8]
    assert reader.opened[-1] == b"9"
    fed.prefetch.close()


class Away(CutReader):
    """Its server is away."""

    schema = SCHEMA

    def __init__(self) -> None:
        self.has_failed = threading.Event()
        self.now_s = 5.0
        self._outage = Outage("a server", sleep=lambda _: None, now=lambda: self.now_s)

    def open(self, rows_consumed: int, cut: bytes = b"") -> None:
        del rows_consumed, cut

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        del max_rows
        self._outage.wait("it does not answer")
        self.has_failed.set()
        time.sleep(max_wait_s)
        return None

    def close(self) -> None:
        pass


def test_it_says_for_how_long_the_source_is_away_and_what_it_has_missed():
    source = Away()
    fed = Fed(source, linger_s=0.01)
    assert fed.prefetch.counters == {}
    fed.prefetch.advance(0)
    fed.prefetch.take()
    assert source.has_failed.wait(30)
    source.now_s += 12.5
    assert fed.prefetch.counters == {"source_away_s": 12}
    source.missed = 7
    assert fed.prefetch.counters == {"source_away_s": 12, "missed_rows": 7}
    fed.prefetch.close()
