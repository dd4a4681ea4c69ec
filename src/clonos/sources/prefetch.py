"""The thread that reads a task's source, so that a waiting reader never stops the task.

The automaton says how much it wants. This thread keeps a few batches ready and wakes the loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from clonos.blame import in_short
from clonos.columns.batches import seal, to_bytes
from clonos.core.events import SourceEnded, SourceRows
from clonos.errors import ClonosError, SourceError
from clonos.sources.readers import CutReader, EndOfInput, Reader

READY_MAX: Final = 2
"""Batches read ahead: one being handled, one ready."""
AHEAD_BYTES: Final = 16 << 20
"""A replay may have many cuts to read; it reads no further while this much is ready."""
AHEAD_BATCHES: Final = 64
"""The same in batches, because even small batches have a cost."""
SKIP_ROWS: Final = 65_536
"""Rows that a standby skips at a time while it follows its task."""
PATIENCE: Final = 60
"""Seconds to wait for rows that were read before."""
LOOK_S: Final = 5.0
"""How often a reader measures its lag."""


USUAL_ROWS: Final = 8192
QUICK_S: Final = 0.03
SLOW_S: Final = 0.08
BATCH_BYTES: Final = 4 << 20
"""See :class:`BatchSize`."""


class BatchSize:
    """How many rows of a backlog form a batch: as many as downstream tasks process quickly.

    A batch of a few rows costs about as much as one of thousands, but while a step lasts, its task
    handles no other event. So batches grow beyond :data:`USUAL_ROWS` while each is handled in less
    than :data:`QUICK_S`, and shrink again, down to that size, if they take longer than
    :data:`SLOW_S`. They shrink no further, because on a busy machine small batches take as long and
    there are more of them. Batches above :data:`BATCH_BYTES` shrink as far as necessary. Without a
    backlog, rows are not held back for larger batches.

    Examples
    --------
    >>> size = BatchSize(32_768)
    >>> for second in (1.0, 1.001):
    ...     size.learn(8192, 100_000, second)
    >>> size.rows
    16384
    """

    def __init__(self, rows_max: int) -> None:
        self.rows = min(rows_max, USUAL_ROWS)
        self._rows_max = rows_max
        self._full_at: float | None = None

    def learn(self, rows: int, nbytes: int, now_s: float) -> None:
        """A batch of this many rows was read."""
        before, self._full_at = self._full_at, None
        if rows < self.rows:
            return
        self._full_at = now_s
        taken_s = 0.0 if before is None else now_s - before
        if nbytes > BATCH_BYTES:
            self.rows = max(self.rows // 2, 1)
        elif taken_s > SLOW_S:
            self.rows = max(self.rows // 2, min(self.rows, USUAL_ROWS))
        elif before is not None and taken_s < QUICK_S and 2 * nbytes <= BATCH_BYTES:
            self.rows = min(2 * self.rows, self._rows_max)


class PrefetchThread:
    """Reads ahead, within limits, in a separate thread.

    A standby's thread follows the task's floors (:meth:`advance`), so that the source is open and
    in place when the standby is promoted.

    Parameters
    ----------
    reader
        Not yet open.
    wake
        Called from the thread when new rows are ready.
    rows_per_s
        Admit no more than this (0: no limit). After a failure, up to a second's worth of rows is
        made up for.
    digests
        Whether rows that are read again are compared with those read before.
    """

    def __init__(
        self,
        reader: Reader,
        wake: Callable[[], None],
        *,
        batch_rows_max: int,
        linger_s: float,
        rows_per_s: float = 0.0,
        digests: bool = True,
    ) -> None:
        self._reader = reader
        self._stand = -1  # rows read or skipped; -1: not open
        self._wanted = -1
        self._at = self._cut = b""  # the same as cuts, for a CutReader
        self._wake = wake
        self._size = BatchSize(batch_rows_max)
        self._linger_s = linger_s
        self._rows_per_s = rows_per_s
        self._digests = digests
        self._admitted_until = time.monotonic()
        self._ready: deque[SourceRows | SourceEnded | ClonosError] = deque()
        self._ready_bytes = 0
        self._has_enough = False
        self._exact: deque[tuple[int, bytes]] = deque()
        self._reading_ahead = False
        self._lag: int | None = None
        self._look_at = 0.0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="clonos-prefetch", daemon=True)
        self._thread.start()

    @property
    def is_placed(self) -> bool:
        """Whether it knows the task's position."""
        return self._wanted >= 0

    @property
    def counters(self) -> dict[str, int]:
        """See :class:`~clonos.nodes.ports.Prefetch`."""
        found = {} if self._lag is None else {"lag": self._lag}
        if isinstance(self._reader, CutReader):
            said = {
                "source_away_s": int(self._reader.away_s),
                "missed_rows": self._reader.missed,
                "shrunk_parts": self._reader.shrunk,
            }
            found |= {name: count for name, count in said.items() if count}
        return found

    def advance(self, rows_consumed: int, cut: bytes = b"") -> None:
        """Move past the first `rows_consumed` rows, which end with `cut`; never moves back."""
        with self._changed:
            if rows_consumed >= self._wanted:
                self._wanted, self._cut = rows_consumed, cut
                self._changed.notify()

    def take(self) -> SourceRows | SourceEnded | None:
        """The next rows, if any are ready. The first call starts reading ahead.

        Raises
        ------
        ClonosError
            Reading has failed.
        """
        with self._changed:
            if not self._reading_ahead:
                self._reading_ahead = True
                self._changed.notify()
            return self._pop()

    def ask(self, cuts: Sequence[tuple[int, bytes]]) -> None:
        """Replay: read exactly these cuts; :meth:`taken` returns them.

        Each has its number of rows, and the reader's cut.
        """
        with self._changed:
            self._exact.extend(cuts)
            self._changed.notify()

    def taken(self) -> SourceRows | SourceEnded | None:
        """The next of the cuts given to :meth:`ask`, if it is ready."""
        with self._changed:
            return self._pop()

    def wait_for_taken(self) -> SourceRows | SourceEnded | None:
        """The same, as soon as it is ready; None: it does not come.

        Seconds count only while this process runs, because others may occupy the processor.
        """
        for _ in range(PATIENCE):
            with self._changed:
                if self._changed.wait_for(lambda: self._ready, 1.0):
                    return self._pop()
        return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _pop(self) -> SourceRows | SourceEnded | None:
        if not self._ready:
            return None
        first = self._ready.popleft()
        self._ready_bytes -= _nbytes(first)
        if not (self._exact and self._is_ahead()):
            self._changed.notify()
        if isinstance(first, ClonosError):
            raise first
        return first

    def _run(self) -> None:
        try:
            while self._read_next():
                pass
        except ClonosError as error:
            self._put(error)
        except Exception as error:  # noqa: BLE001 - whatever a reader raises, the task must hear
            failed = SourceError(f"reading failed: {in_short(error)}")
            failed.__cause__ = error
            self._put(failed)
        finally:
            self._reader.close()

    def _read_next(self) -> bool:
        """Read the next rows that are wanted; False when there is no more to do."""
        with self._changed:
            is_due = self._changed.wait_for(
                lambda: (
                    self._closed
                    or self._is_behind()
                    or (self._exact and not self._is_ahead())
                    or (self._reading_ahead and len(self._ready) < READY_MAX)
                ),
                LOOK_S,
            )
            if self._closed:
                return False
        self._look(is_idle=not is_due)
        if not is_due:
            return True
        with self._changed:
            wanted, cut = self._wanted, self._cut
            is_behind = self._is_behind()
            is_exact = self._exact and not is_behind and not self._is_ahead()
            exact = self._exact.popleft() if is_exact else None
        if is_behind:
            self._go_to(wanted, cut)
            return True
        try:
            if exact is not None:
                rows = self._read_again(*exact)
            else:
                rows = self._reader.read(self._admit(), self._linger_s)
        except EndOfInput:
            self._put(SourceEnded())
            return False
        if rows is not None:
            self._stand += rows.num_rows
            self._wanted = self._stand
            if isinstance(self._reader, CutReader):
                self._cut = self._at = self._reader.cut
            content = None if self._reader.replayable else to_bytes(rows)
            batch = seal(rows, digests=self._digests)
            if exact is None:
                self._size.learn(batch.rows, batch.nbytes, time.monotonic())
            self._put(SourceRows(batch, content, time.time_ns() // 1_000_000, self._at))
        return True

    def _look(self, *, is_idle: bool) -> None:
        now = time.monotonic()
        if self._reading_ahead and now >= self._look_at and isinstance(self._reader, CutReader):
            self._look_at = now + LOOK_S
            self._lag = self._reader.look(is_idle=is_idle)

    def _read_again(self, rows: int, cut: bytes) -> pa.RecordBatch:
        if isinstance(self._reader, CutReader):
            return self._reader.read_cut(cut)
        return self._reader.read_exactly(rows)

    def _go_to(self, rows_consumed: int, cut: bytes) -> None:
        if isinstance(self._reader, CutReader):
            self._reader.open(rows_consumed, cut)
        elif self._stand < 0:
            self._reader.open(rows_consumed)
        else:
            while self._stand < rows_consumed:
                skipped = min(rows_consumed - self._stand, SKIP_ROWS)
                self._reader.skip(skipped)
                self._stand += skipped
        self._stand, self._at = rows_consumed, cut

    def _is_behind(self) -> bool:
        """Whether it must still move forward; where rows have no numbers, cuts are compared."""
        if self._wanted == self._stand:
            return self._cut != self._at
        return self._wanted > self._stand

    def _admit(self) -> int:
        """How many rows may be read now; waits until reading is worthwhile."""
        if not self._rows_per_s:
            return self._size.rows
        now = time.monotonic()
        self._admitted_until = max(self._admitted_until, now - 1.0)
        wait_s = self._admitted_until + self._linger_s - now
        if wait_s > 0:
            time.sleep(wait_s)
            now = time.monotonic()
        rows = max(1, int((now - self._admitted_until) * self._rows_per_s))
        rows = min(rows, self._size.rows)
        self._admitted_until += rows / self._rows_per_s
        return rows

    def _put(self, what: SourceRows | SourceEnded | ClonosError) -> None:
        with self._changed:
            self._ready.append(what)
            self._ready_bytes += _nbytes(what)
            self._is_ahead()
            self._changed.notify_all()
        self._wake()

    def _is_ahead(self) -> bool:
        """Whether a replay has enough rows ready. Once it has, it uses up half of them first: a
        thread that is woken for each batch waits each time for the interpreter, and on a busy
        machine for a processor, and the replay with it."""
        share = 2 if self._has_enough else 1
        nbytes, batches = share * self._ready_bytes, share * len(self._ready)
        self._has_enough = nbytes >= AHEAD_BYTES or batches >= AHEAD_BATCHES
        return self._has_enough


def _nbytes(ready: SourceRows | SourceEnded | ClonosError) -> int:
    return ready.batch.nbytes if isinstance(ready, SourceRows) else 0
