"""Waiting that user code does not end by cancelling all tasks of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from clonos.runtime.deadlines import CAN_UNCANCEL

T = TypeVar("T")


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
