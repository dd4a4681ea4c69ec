"""Waiting for a disk only while it is quick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

QUICK_S: Final = 0.02
"""A disk that takes no longer is waited for. On a busy machine a second thread costs two waits for
a processor per group, so it has to be worth that."""

Outcome = TypeVar("Outcome")


class Worker:
    """A thread that does one thing after the other; it is there from the first one on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, job: Callable[[], object]) -> None:
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
    >>> disk.do(lambda: "written", print)
    'written'
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker = Worker(name)
        self._clock = clock
        self._took_s = 0.0

    def do(
        self,
        job: Callable[[], Outcome],
        then: Callable[[Outcome], object],
        *,
        is_long: bool = False,
    ) -> Outcome | None:
        """Do it; returns what `job` returns, or None if the thread does it, which then gives it to
        `then`.

        Parameters
        ----------
        job
            In the thread it must not raise.
        is_long
            It would not be quick on any disk, and says nothing of the next one.
        """
        if is_long:
            self._worker.do(lambda: then(job()))
        elif self._took_s > QUICK_S:
            self._worker.do(lambda: then(self._timed(job)))
        else:
            return self._timed(job)
        return None

    def close(self, timeout_s: float) -> None:
        """Wait for what is under way."""
        self._worker.join(timeout_s)

    def _timed(self, job: Callable[[], Outcome]) -> Outcome:
        began_s = self._clock()
        outcome = job()
        self._took_s = self._clock() - began_s
        return outcome
