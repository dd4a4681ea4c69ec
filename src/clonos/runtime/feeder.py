"""The thread that reads a task's source, so that a reader that waits never stops the task.

The automaton says how much it wants; the feeder keeps a few batches ready and wakes the loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from clonos.core.events import SourceEnded, SourceRows
from clonos.errors import ClonosError, SourceError
from clonos.operators.batches import seal, to_bytes
from clonos.operators.readers import EndOfInput, Reader

READY_MAX: Final = 2
"""Batches read ahead: one being handled, one ready."""
SKIP_ROWS: Final = 65_536
"""A standby that follows its task reads over so many rows at a time."""


class Feeder:
    """Reads ahead, within limits, in a thread of its own.

    A standby's feeder follows the task's floors (:meth:`advance`), so that at its promotion the
    source is open and in place.

    Parameters
    ----------
    reader
        Not yet open.
    wake
        Called (from the thread) when something new is ready.
    rows_per_s
        Admit no more than that (0: no limit). What a failure delayed is made up for, up to a
        second's worth.
    """

    def __init__(
        self,
        reader: Reader,
        wake: Callable[[], None],
        *,
        batch_rows_max: int,
        linger_s: float,
        rows_per_s: float = 0.0,
    ) -> None:
        self._reader = reader
        self._stand = -1  # rows behind us; -1: not open
        self._wanted = -1
        self._wake = wake
        self._batch_rows_max = batch_rows_max
        self._linger_s = linger_s
        self._rows_per_s = rows_per_s
        self._admitted_until = time.monotonic()
        self._ready: deque[SourceRows | SourceEnded | ClonosError] = deque()
        self._exact: deque[int] = deque()
        self._reading_ahead = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="clonos-feeder", daemon=True)
        self._thread.start()

    @property
    def is_placed(self) -> bool:
        """Whether it has been told where the task stands."""
        return self._wanted >= 0

    def advance(self, rows_consumed: int) -> None:
        """Stand behind the first `rows_consumed` rows; never goes back."""
        with self._changed:
            self._wanted = rows_consumed
            self._changed.notify()

    def take(self) -> SourceRows | SourceEnded | None:
        """The next rows, if any are ready. Asking starts reading ahead.

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

    def ask(self, cuts: Sequence[int]) -> None:
        """Replay: read exactly so many rows, one after the other; :meth:`taken` gives them."""
        with self._changed:
            self._exact.extend(cuts)
            self._changed.notify()

    def taken(self) -> SourceRows | SourceEnded | None:
        """What :meth:`ask` has asked for, if it is there."""
        with self._changed:
            return self._pop()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _pop(self) -> SourceRows | SourceEnded | None:
        if not self._ready:
            return None
        first = self._ready.popleft()
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
            self._put(SourceError(f"reading failed: {type(error).__name__}: {error}"))
        finally:
            self._reader.close()

    def _read_next(self) -> bool:
        """Read what is wanted next; False when there is no more to do."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or self._wanted > self._stand
                    or self._exact
                    or (self._reading_ahead and len(self._ready) < READY_MAX)
                )
            )
            if self._closed:
                return False
            wanted = self._wanted
            exact = self._exact.popleft() if self._exact and wanted <= self._stand else 0
        if wanted > self._stand:
            self._go_to(wanted)
            return True
        try:
            if exact:
                rows = self._reader.read_exactly(exact)
            else:
                rows = self._reader.read(self._admit(), self._linger_s)
        except EndOfInput:
            self._put(SourceEnded())
            return False
        if rows is not None:
            self._stand += rows.num_rows
            self._wanted = self._stand
            content = None if self._reader.replayable else to_bytes(rows)
            self._put(SourceRows(seal(rows), content, time.time_ns() // 1_000_000))
        return True

    def _go_to(self, rows_consumed: int) -> None:
        if self._stand < 0:
            self._reader.open(rows_consumed)
        else:
            while self._stand < rows_consumed:
                skipped = min(rows_consumed - self._stand, SKIP_ROWS)
                self._reader.skip(skipped)
                self._stand += skipped
        self._stand = rows_consumed

    def _admit(self) -> int:
        """How many rows may be read now; waits until it is worth reading."""
        if not self._rows_per_s:
            return self._batch_rows_max
        now = time.monotonic()
        self._admitted_until = max(self._admitted_until, now - 1.0)
        wait_s = self._admitted_until + self._linger_s - now
        if wait_s > 0:
            time.sleep(wait_s)
            now = time.monotonic()
        rows = max(1, int((now - self._admitted_until) * self._rows_per_s))
        rows = min(rows, self._batch_rows_max)
        self._admitted_until += rows / self._rows_per_s
        return rows

    def _put(self, what: SourceRows | SourceEnded | ClonosError) -> None:
        with self._changed:
            self._ready.append(what)
        self._wake()
