"""User code that is waited for: whatever it does, it comes to an answer, an error, or an end."""

from __future__ import annotations

import asyncio
from typing import Any

from clonos.blame import in_short
from clonos.runtime.effects import by_engine


async def guarded(code: Any) -> Any:
    """Wait for user code; what would end the loop, or nobody would catch, is an error of it."""
    try:
        return await code
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise by_engine(RuntimeError(in_short(error))) from error


class NoAnswer(Exception):
    """Time is over."""


async def first_of(calls: set[asyncio.Future[Any]], until_s: float) -> asyncio.Future[Any]:
    """Who answers first; an error counts if no call is left that may still answer."""
    clock = asyncio.get_running_loop().time
    running = calls
    while True:
        left_s = max(until_s - clock(), 0.0)
        done, running = await asyncio.wait(
            running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise NoAnswer
        good = [call for call in done if not call.cancelled() and call.exception() is None]
        if good or not running:
            first: asyncio.Future[Any] = good[0] if good else done.pop()
            return first
