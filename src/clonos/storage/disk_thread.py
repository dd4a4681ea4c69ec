"""Waiting for a disk only while it is quick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TypeVar

QUICK_S: Final = 0.02
"""A disk that takes no longer than this is waited for. On a busy machine a second thread costs two
waits for a processor per group, so it must be worth that."""

Outcome = TypeVar("Outcome")


class Worker:
    """A thread that does one job after the other; started by the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, job: Callable[[], object]) -> None:
        """Do a job when all earlier ones are done."""
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread when everything is done; does not wait."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """End the thread, and wait for it."""
        self.stop()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class DiskThread:
    """Does jobs on a disk at once while the disk is quick, and in a thread when it is not.

    One job at a time: the next one must not be given before the last one is done.

    Parameters
    ----------
    clock
        Returns monotonic seconds.

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
        """Do a job and return its result; None if the thread does it, which passes the result to
        `then`.

        Parameters
        ----------
        job
            Must not raise if the thread does it.
        is_long
            Whether it takes long on any disk, so that its time says nothing about the disk.
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
