"""Waiting for a disk only while it is quick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

QUICK_S: Final = 0.02
"""A disk that takes no longer is waited for. On a busy machine a second thread costs two waits for
a processor per group, so it has to be worth that."""


class Worker:
    """A thread that does one thing after the other; it is there from the first one on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, job: Callable[[], None]) -> None:
        """Do it when all before it is done."""
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread when everything is done; does not wait."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """End it, and wait."""
        self.stop()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class DiskThread:
    """Does what is asked of a disk at once while it is quick, and in a thread when it is not.

    One thing at a time: the next must not be asked for before the last one is done.

    Parameters
    ----------
    clock
        In s; monotonic.

    Examples
    --------
    >>> disk = DiskThread("clonos-disk")
    >>> written = []
    >>> disk.do(lambda: written.append(1), lambda: None)
    True
    >>> written
    [1]
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker = Worker(name)
        self._clock = clock
        self._took_s = 0.0

    def do(
        self, job: Callable[[], None], then: Callable[[], None], *, is_long: bool = False
    ) -> bool:
        """Do it; True: it is done. Else `then` is called behind it, by the thread.

        Parameters
        ----------
        is_long
            It would not be quick on any disk.
        """
        if self._took_s <= QUICK_S and not is_long:
            self._timed(job)
            return True

        def later() -> None:
            if is_long:  # says nothing of the next one
                job()
            else:
                self._timed(job)
            then()

        self._worker.do(later)
        return False

    def close(self, timeout_s: float) -> None:
        """Wait for what is under way."""
        self._worker.join(timeout_s)

    def _timed(self, job: Callable[[], None]) -> None:
        began_s = self._clock()
        try:
            job()
        finally:
            self._took_s = self._clock() - began_s
