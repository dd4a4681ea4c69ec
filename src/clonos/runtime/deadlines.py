"""Waiting in an event loop: timeouts that share a timer, and waits that user code does not end.

Timeouts that are all equally long need one timer. So a call that is answered at once sets none of
its own, as it would with :func:`asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

CAN_UNCANCEL: Final = sys.version_info >= (3, 11)
"""Whether tasks count their cancellations, which deadlines need."""

T = TypeVar("T")
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


class Undisturbed(Protocol):
    """Waits, whatever user code cancels."""

    def __call__(self, wait: Callable[[], Awaitable[T]]) -> Awaitable[T]: ...


async def undisturbed(wait: Callable[[], Awaitable[T]], may_end: Callable[[], bool]) -> T:
    """Wait, again if that is cancelled, unless it was we who have cancelled it.

    Parameters
    ----------
    wait
        What to wait for; it may be asked more than once.
    may_end
        Whether the running task may be cancelled.
    """
    while True:
        try:
            return await wait()
        except asyncio.CancelledError:
            if may_end():
                raise
            task: Any = asyncio.current_task()
            if CAN_UNCANCEL:
                task.uncancel()


async def sleep_until(when_s: float) -> None:
    """Sleep until the running loop's clock says so."""
    await asyncio.sleep(when_s - asyncio.get_running_loop().time())
