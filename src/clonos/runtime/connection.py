"""The :class:`~clonos.operators.calls.service.Service` of one life: opened once, and closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from clonos.blame import awaiting_lines, in_short, users_traceback, your_code
from clonos.errors import masked
from clonos.operators.calls.service import Service
from clonos.runtime.effects import by_engine
from clonos.runtime.user_code import guarded

_LOG: Final = logging.getLogger("clonos")


class Connection:
    """Opens a service before its first call; belongs to the running loop.

    Parameters
    ----------
    timeout_s
        How long opening may take. It is none of the time of the calls that wait for it.
    let_go
        Cancels what nobody waits for any more.

    Attributes
    ----------
    is_open
        Whether calls may be made.
    """

    def __init__(
        self,
        service: Service,
        timeout_s: float,
        let_go: Callable[[asyncio.Future[Any]], None],
    ) -> None:
        self._service, self._timeout_s, self._let_go = service, timeout_s, let_go
        self._opening: asyncio.Future[None] | None = None
        self.is_open = False

    async def open(self) -> None:
        """Open the service, or wait until another call has. If that fails, the next call tries
        again.

        Raises
        ------
        Exception
            What ``open`` has raised.
        TimeoutError
            It has not returned in time; ``trace`` has the lines where it is.
        """
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        opening = asyncio.ensure_future(guarded(self._service.open(), "open"))
        try:
            await asyncio.wait([opening], timeout=self._timeout_s)
            if opening.cancelled():
                raise by_engine(RuntimeError("your code has cancelled the opening of the service"))
            if not opening.done():
                raise self._is_late(awaiting_lines(opening.get_coro()))
            opening.result()
            self.is_open = True
        finally:
            self._let_go(opening)
            del opening  # it has the error, whose traceback refers to this frame: a cycle

    def _is_late(self, lines: str) -> TimeoutError:
        name = type(self._service).__name__
        error = TimeoutError(f"{name}.open has not returned within {self._timeout_s:g} s")
        error.trace = your_code("has not returned", lines)  # type: ignore[attr-defined]
        return by_engine(error)

    async def close(self) -> None:
        """Close the service if it was ever opened, or tried."""
        if self._opening is not None:
            self._opening.cancel()
            try:
                await guarded(self._service.close(), "close")
            except Exception as error:  # noqa: BLE001 - user code, and nothing depends on it
                name = type(self._service).__name__
                shown = masked(users_traceback(error) or in_short(error))
                _LOG.warning("%s.close has failed:\n%s", name, shown)
