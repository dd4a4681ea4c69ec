"""The house-keeper's journal on a disk that may be slow, so that the driver's loop need not
wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from clonos.errors import JournalBroken, UnusableStore
from clonos.nodes.events import Committed, OutsideFailed
from clonos.nodes.ports import Journal
from clonos.storage.disk_thread import DiskThread
from clonos.transport.inbox import Inbox

CLOSE_S: Final = 30.0
"""Grace period for a disk that hangs while the journal is closed."""
HANGS_S: Final = 10.0
"""After so long without an end, a write is warned of."""


class Watchdog:
    """Warns of a write that does not end: the driver's loop may be what waits for it.

    Parameters
    ----------
    warn
        Called once for each such write, in a thread of the watchdog's own.
    """

    def __init__(self, warn: Callable[[], object], hangs_s: float = HANGS_S) -> None:
        self._warn, self._hangs_s = warn, hangs_s
        self._began_s: float | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clonos-watchdog", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """A write begins."""
        self._began_s = time.monotonic()

    def end(self) -> None:
        """It has ended."""
        self._began_s = None

    def close(self) -> None:
        """Warn of nothing more."""
        self._is_closed.set()

    def _run(self) -> None:
        told_s: float | None = None
        while not self._is_closed.wait(self._hangs_s / 10):
            began_s = self._began_s
            if began_s in (None, told_s) or time.monotonic() < began_s + self._hangs_s:
                continue
            told_s = began_s
            self._warn()


class JournalThread:
    """The :class:`~clonos.nodes.ports.Journal` of a driver: a group is written at once while the
    disk is quick, and by a thread when it is not. The driver goes on meanwhile.

    Parameters
    ----------
    journal
        Writes at once, and reports failures itself.
    inbox
        Gets a `Committed` when a group is durable that was not when `append` returned.
    watchdog
        Hears of each write.
    """

    def __init__(
        self,
        journal: Journal,
        inbox: Inbox,
        disk: DiskThread | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._journal, self._inbox = journal, inbox
        self._disk = disk or DiskThread("clonos-journal")
        self._watchdog = watchdog

    @property
    def nbytes(self) -> int:
        return self._journal.nbytes

    def append(self, records: Sequence[bytes]) -> bool:
        return self._do(lambda: self._journal.append(records))

    def rotate(self, head: Sequence[bytes]) -> bool:
        return self._do(lambda: self._journal.rotate(head), is_long=True)

    def _do(self, write: Callable[[], bool], *, is_long: bool = False) -> bool:
        def attempt() -> bool:
            if self._watchdog is not None:
                self._watchdog.begin()
            try:
                return write()
            except UnusableStore as error:  # it says what to do
                self._inbox.put(OutsideFailed(error))
                return False
            except Exception as error:  # noqa: BLE001 - a thread could not raise it
                what = f"the journal cannot be written: {type(error).__name__}: {error}"
                self._inbox.put(OutsideFailed(JournalBroken(what)))
                return False
            finally:
                if self._watchdog is not None:
                    self._watchdog.end()

        return self._disk.do(attempt, self._tell, is_long=is_long) is True

    def _tell(self, is_durable: bool) -> None:
        if is_durable:  # a failure was reported already
            self._inbox.put(Committed())

    def close(self) -> None:
        """Wait for the write under way."""
        self._disk.close(CLOSE_S)
        if self._watchdog is not None:
            self._watchdog.close()
