"""Timeouts that are all equally long share one timer.

So a call that is answered at once sets no timer of its own, as it would with
:func:`asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

CAN_UNCANCEL: Final = sys.version_info >= (3, 11)
"""Whether tasks count their cancellations, which deadlines need."""

Task = Any
"""An :class:`asyncio.Task`; ``uncancel`` and ``cancelling`` are there from Python 3.11 on."""


class Deadlines:
    """Cancels tasks whose time is over; belongs to the running loop.

    Parameters
    ----------
    timeout_s
        The time of every task.
    """

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._until_s: dict[Task, float] = {}  # the earliest first
        self._over: dict[Task, tuple[float, int]] = {}  # ... and how often they were cancelled
        self._rings = False

    def begin(self, task: Task) -> None:
        """The time of a task begins."""
        until_s = self._loop.time() + self._timeout_s
        self._until_s[task] = until_s
        if not self._rings:
            self._rings = True
            self._loop.call_at(until_s, self._ring)

    def end(self, task: Task) -> bool:
        """The task has ended what its time was for. Return whether that was cancelled because its
        time was over, and not for another reason since."""
        if self._until_s.pop(task, None) is not None:
            return False
        _, cancelled_before = self._over.pop(task)
        cancelled: int = task.uncancel()
        return cancelled <= cancelled_before

    def over_before(self, when_s: float) -> list[Task]:
        """Tasks that go on although they were cancelled before `when_s`."""
        return [task for task, (until_s, _) in self._over.items() if until_s < when_s]

    def _ring(self) -> None:
        now_s = self._loop.time()
        due = []
        for task, until_s in self._until_s.items():
            if until_s > now_s:
                self._loop.call_at(until_s, self._ring)
                break
            due.append(task)
        else:
            self._rings = False
        for task in due:
            self._over[task] = self._until_s.pop(task), task.cancelling()
            task.cancel()
