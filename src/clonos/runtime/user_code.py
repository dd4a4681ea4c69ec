"""Waits for user code: whatever it does, there is an answer, an error or a timeout."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from clonos.blame import in_short
from clonos.errors import WrongType
from clonos.runtime.effects import by_engine


async def guarded(code: Any, method: str = "call") -> Any:
    """Wait for user code; an exception that would end the loop becomes an ordinary error."""
    try:
        return await code
    except TypeError:
        if inspect.isawaitable(code):
            raise
        said = f"{method} of a service has returned a {type(code).__name__}, and nothing to await"
        raise WrongType(said, remedy="write it as async def") from None
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise by_engine(RuntimeError(in_short(error))) from error


class NoAnswer(Exception):
    """No call has answered in time."""


async def first_of(calls: set[asyncio.Future[Any]], until_s: float) -> asyncio.Future[Any]:
    """The first call to answer; an error counts only if no other call may still answer."""
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
