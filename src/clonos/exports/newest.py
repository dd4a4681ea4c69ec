"""The newest progress of each job and whether it runs, for all exports."""

from __future__ import annotations

import threading

from clonos.cluster.listener import Listener
from clonos.nodes.views import JobProgress, JobStarted, JobTerminated, Recovery


class NewestListener(Listener):
    """Remembers the newest progress of each job; can be read from any thread.

    The progress of a job is kept after its end, until another job of the same name begins.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, JobProgress] = {}
        self._up: dict[str, float] = {}

    def on_started(self, started: JobStarted) -> None:
        with self._lock:
            self._up[started.name] = 1.0

    def on_progress(self, progress: JobProgress) -> None:
        with self._lock:
            self._up[progress.name] = 1.0
            self._newest[progress.name] = progress

    def on_terminated(self, terminated: JobTerminated) -> None:
        with self._lock:
            self._up[terminated.name] = 0.0

    def newest(self) -> list[JobProgress]:
        """The newest progress of each job."""
        with self._lock:
            return list(self._newest.values())

    def up(self) -> dict[str, float]:
        """For each job, 1 while it runs, 0 when it has ended."""
        with self._lock:
            return dict(self._up)


def whole(recovery: Recovery) -> tuple[float, float]:
    """When a recovery began and ended (s, monotonic clock)."""
    return recovery.stages["detected"], max(end for _, end in recovery.parts().values())
