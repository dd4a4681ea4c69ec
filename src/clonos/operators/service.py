"""A service: a function outside the job, and how it is asked."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Service:
    """Base class for what is asked over a connection: derive from it and override :meth:`call`.

    An object is copied for each life of a task, and lives in an event loop beside the steps.

    Examples
    --------
    >>> class Judge(Service):
    ...     async def open(self):
    ...         self.session = aiohttp.ClientSession()
    ...
    ...     async def call(self, text):
    ...         async with self.session.post(URL, json={"text": text}) as response:
    ...             return (await response.json())["verdict"]
    ...
    ...     async def close(self):
    ...         await self.session.close()
    """

    async def open(self) -> None:
        """Called once, before the first call."""

    async def call(self, *arguments: Any) -> Any:
        """Answer one question. What it returns or raises is logged."""
        raise NotImplementedError

    async def close(self) -> None:
        """Called when the life of the task is over, unless its process dies."""


@dataclass(frozen=True, eq=False)
class Policy:
    """How calls of one operator are made; nothing of it is in the log.

    Attributes
    ----------
    fn
        A coroutine function, a plain function (called in a thread), or a :class:`Service`.
    timeout_s
        Of one attempt.
    attempts
        So often at most, with pauses in between: exponential, with jitter, within `backoff_s`.
    per_second
        Attempts per second at most, of this task; None: any number.
    hedge_s
        If an attempt takes longer, a second one begins, and the first answer counts; None: never.
    in_flight
        Calls under way at most.
    tells_trace
        An error ends the job: then the user's lines are told with it.
    """

    fn: Callable[..., Any] | Service
    name: str
    timeout_s: float
    attempts: int
    backoff_s: tuple[float, float]
    per_second: float | None
    hedge_s: float | None
    in_flight: int
    tells_trace: bool = True

    @property
    def is_async(self) -> bool:
        """Whether it runs in the event loop."""
        return isinstance(self.fn, Service) or is_async(self.fn)


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a function returns a coroutine, as far as one can see."""
    call = getattr(fn, "__call__", fn)  # noqa: B004 - an object may have an async __call__
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)
