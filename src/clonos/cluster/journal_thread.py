"""The house-keeper's journal on a disk that may be slow, so that the driver's loop need not
wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from clonos.errors import ClonosError, JournalBroken
from clonos.nodes.events import Committed, OutsideFailed
from clonos.nodes.ports import Journal
from clonos.storage.disk_thread import DiskThread
from clonos.storage.watchdog import Watchdog
from clonos.transport.inbox import Inbox

CLOSE_S: Final = 30.0
"""Grace period for a disk that hangs while the journal is closed."""
HANGS_S: Final = 10.0
"""A write that takes longer than this is warned of."""


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

    def prove(self) -> bool:
        return self._do(self._journal.prove)

    def rotate(self, head: Sequence[bytes]) -> bool:
        return self._do(lambda: self._journal.rotate(head), is_long=True)

    def _do(self, write: Callable[[], bool], *, is_long: bool = False) -> bool:
        def attempt() -> bool:
            if self._watchdog is not None:
                self._watchdog.begin()
            try:
                return write()
            except ClonosError as error:  # it says what to do
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
