"""Readers, which bring rows from outside to a source task.

A reader does I/O and runs outside the automaton. It can be opened again at a row number. If it is
``replayable``, it then delivers the same rows, and the log keeps no copy of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from clonos.columns.batches import concat, conform
from clonos.columns.schema import TIMESTAMP
from clonos.errors import SourceError
from clonos.sources.outage import Outage

_READ_AGAIN_WAIT_S = 1.0
_US_PER_S = 1_000_000


class EndOfInput(Exception):
    """The source has no more rows."""


class Reader(Protocol):
    """One task's share of a source."""

    replayable: bool
    schema: pa.Schema

    def open(self, rows_consumed: int) -> None:
        """Begin, or begin again, after the first `rows_consumed` rows."""

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """The next rows, at least one; None if there are none yet.

        Raises
        ------
        EndOfInput
            There will be no more.
        """

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """The next `rows` rows, which were read before."""

    def skip(self, rows: int) -> None:
        """Skip the next `rows` rows, which another process has read."""

    def close(self) -> None:
        """Free what was opened; may be called at any time, more than once."""


class BaseReader:
    """Base of all readers."""

    replayable = True
    schema: pa.Schema

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        raise NotImplementedError

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """See :meth:`Reader.read_exactly`."""
        batches = []
        missing = rows
        while missing:
            try:
                batch = self.read(missing, _READ_AGAIN_WAIT_S)
            except EndOfInput:
                raise SourceError(
                    f"the source ended {missing} rows before the {rows} that it had delivered",
                    remedy="do not change the data of a source while a job reads it",
                ) from None
            if batch is not None:
                batches.append(batch)
                missing -= batch.num_rows
        return concat(batches)

    def skip(self, rows: int) -> None:
        """See :meth:`Reader.skip`."""
        self.read_exactly(rows)

    def close(self) -> None:
        """See :meth:`Reader.close`."""


class CutReader(BaseReader):
    """A reader of a source without a single order, such as the partitions of a topic.

    There the number of rows read does not determine which rows they are. So each batch has a *cut*:
    bytes in the reader's own format, which the log keeps. From it the reader can read the same rows
    again, in the same order, and continue after them.

    A batch may have no rows; its cut then says where the reader begins. Thereby a starting point
    that depends on the time ("from now on") is logged, too.

    Attributes
    ----------
    cut
        The cut of the rows read last; empty before the first.
    missed
        The number of rows that are known to have been gone before it could read them.
    shrunk
        How many parts of the source were found to end before what was read of them.
    """

    cut = b""
    missed = 0
    shrunk = 0
    _outage = Outage("")  # without one of its own it never waits

    @property
    def away_s(self) -> float:
        """For how long its server has answered nothing. Other threads may ask, too."""
        return self._outage.away_s

    def look(self, *, is_idle: bool) -> int | None:
        """The number of unread rows; None: unknown.

        Called now and then between reads. `is_idle`: there are no reads at present, so what the
        last read has reported may be outdated.
        """
        del is_idle
        return None

    def open(self, rows_consumed: int, cut: bytes = b"") -> None:
        """Begin, or begin again, after `cut`; if it is empty, at the source's starting point.

        Called again and again while a standby follows its task, so it should cost little.
        """
        raise NotImplementedError

    def read_cut(self, cut: bytes) -> pa.RecordBatch:
        """The rows of `cut`, which come right after the cut of :meth:`open` or of the last read.

        Raises
        ------
        SourceError
            The rows are gone.
        """
        raise NotImplementedError


class BufferedReader(BaseReader):
    """Cuts the batches of :meth:`_pieces` to the requested size; skips by reading."""

    def __init__(self) -> None:
        self._source: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        """All rows from the first on, in batches of any size."""
        raise NotImplementedError

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self.close()
        self._source = self._pieces()
        self._rest = None
        while rows_consumed:
            try:
                skipped = self.read(rows_consumed, 0.0)
            except EndOfInput:
                raise SourceError(
                    f"the source has {rows_consumed} fewer rows than it had delivered",
                    remedy="do not change the data of a source while a job reads it",
                ) from None
            assert skipped is not None
            rows_consumed -= skipped.num_rows

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`; never waits."""
        del max_wait_s
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(self._source, None)
            if self._rest is None:
                raise EndOfInput
        batch = self._rest.slice(0, max_rows)
        self._rest = self._rest.slice(batch.num_rows)
        return batch


class BatchesReader(BufferedReader):
    """Given batches; each is delivered on its own."""

    def __init__(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
        super().__init__()
        self.schema = schema
        self._batches = tuple(batches)

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches)


class IteratorReader(BufferedReader):
    """The batches of an iterator, such as the input of Spark's ``mapInArrow``.

    It can be opened only once; it is replayable if a new iterator yields the same rows.
    """

    def __init__(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, replayable: bool = True
    ) -> None:
        super().__init__()
        self.schema = schema
        self.replayable = replayable
        self._batches: Iterator[pa.RecordBatch] | None = iter(batches)

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        if self._batches is None:
            raise SourceError(
                "an iterator cannot be read a second time", remedy="make a new reader"
            )
        batches, self._batches = self._batches, None
        return (conform(batch, self.schema) for batch in batches)


class RateReader(BaseReader):
    """Rows ``(timestamp, value)`` at a steady rate: values 0, 1, 2, ... distributed over the tasks.

    Both columns are functions of the row's number, so the reader can replay; timestamps begin at
    `start_us`. The pace counts from the moment of opening: delays by failures are not made up for.
    """

    schema = pa.schema([pa.field("timestamp", TIMESTAMP), pa.field("value", pa.int64())])

    def __init__(
        self,
        rows_per_second: float,
        rows: int | None,
        start_us: int,
        task_index: int,
        parallelism: int,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._rate = rows_per_second / parallelism
        self._total_rate = rows_per_second
        self._rows = None if rows is None else len(range(task_index, rows, parallelism))
        self._start_us = start_us
        self._task_index = task_index
        self._parallelism = parallelism
        self._now = now
        self._sleep = sleep
        self._next = 0
        self._opened_at = 0.0
        self._opened_with = 0

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self._next = self._opened_with = rows_consumed
        self._opened_at = self._now()

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        if self._rows is not None and self._next >= self._rows:
            raise EndOfInput
        missing = min(max_rows, self._rest()) - self._due()
        if missing > 0:  # wait, but not long, for a worthwhile batch
            self._sleep(min(missing / self._rate, max_wait_s))
        due = self._due()
        return self.read_exactly(min(due, max_rows)) if due > 0 else None

    def _due(self) -> int:
        """How many rows are due and not yet delivered."""
        elapsed = self._now() - self._opened_at
        return self._opened_with + int(elapsed * self._rate) + 1 - self._next

    def _rest(self) -> int:
        return sys.maxsize if self._rows is None else self._rows - self._next

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """See :meth:`Reader.read_exactly`; does not keep the pace."""
        last = self._next + rows
        if self._rows is not None:
            last = min(last, self._rows)
        values = np.arange(self._next, last, dtype=np.int64) * self._parallelism + self._task_index
        times = self._start_us + (values * (_US_PER_S / self._total_rate)).astype(np.int64)
        self._next = last
        return pa.RecordBatch.from_arrays(
            [pa.array(times).cast(TIMESTAMP), pa.array(values)], schema=self.schema
        )

    def skip(self, rows: int) -> None:
        """See :meth:`Reader.skip`; makes no rows."""
        self._next += rows
