"""When the next attempt at a service may begin.

Until its turn comes, a call asks nothing, and no code of the user's runs for it. So if user code
cancels all tasks of the loop meanwhile, nothing of this call has failed: it goes on waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from clonos.operators.calls.effects import Effect, NotMade
from clonos.runtime.call_threads import CallThreads
from clonos.runtime.deadlines import T, sleep_until
from clonos.runtime.effects import Pulse

TOLD_S: Final = 10.0
"""A pause of at least so long is in the log."""

_LOG: Final = logging.getLogger("clonos")


class Life(Protocol):
    """What turns need to know of the life of a task."""

    pulse: Callable[[], Pulse]

    async def undisturbed(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait, whatever user code cancels."""

    def require_obedience(self) -> None:
        """Raise `RuntimeError` if too many coroutines go on."""


class Turns:
    """The turns of one service in one life of a task.

    Parameters
    ----------
    threads
        Where its attempts run; None: in the loop.
    effect
        Its attempts need a permission to begin.
    name
        Of the service, to be told.
    """

    def __init__(
        self,
        life: Life,
        per_second: float | None,
        threads: CallThreads | None,
        effect: Effect | None,
        name: str,
    ) -> None:
        self._name = name
        self._life, self._per_second, self._threads = life, per_second, threads
        self._effect = effect
        self._is_plain = per_second is None and threads is None and effect is None
        self._clock = asyncio.get_running_loop().time
        self._free_s = 0.0  # when the next attempt may begin
        self._wanted_s = 0.0  # ... because the service has asked for a pause

    @property
    def is_now(self) -> bool:
        """Whether every attempt may begin at once; this takes less time than to ask for a turn."""
        return self._is_plain and not self._wanted_s

    def pause(self, wait_s: float) -> None:
        """The service has asked for a pause."""
        now = self._clock()
        if wait_s >= TOLD_S and self._wanted_s < now + TOLD_S:
            said = "%s: the service asks for a pause of %.0f s; this task asks it nothing meanwhile"
            _LOG.warning(said, self._name, wait_s)
        self._wanted_s = max(self._wanted_s, now + wait_s)

    async def come(self) -> None:
        """Wait until another attempt may begin; this does not count as the service's time.

        Raises
        ------
        RuntimeError
            Too many attempts go on that had no answer.
        NotMade
            The same, for an effect.
        """
        await self._place_in_line()
        while True:
            while (wait_s := self._wanted_s - self._clock()) > 0:
                await self._sleep(wait_s)
                await self._place_in_line()  # else all that have waited would begin at once
            if not await self.permitted():
                continue
            try:
                if self._threads is None:
                    return self._life.require_obedience()
                await self._life.undisturbed(self._threads.place)
            except RuntimeError as error:
                if self._effect is not None:
                    raise NotMade(str(error)) from error
                raise
            if self._effect is None or self._life.pulse().allows(self._effect):
                return None
            self._threads.leave()

    async def permitted(self) -> bool:
        """Whether an attempt may begin now. If not, wait until an effect may be begun, and for
        another place in line: else all that have waited would begin at once."""
        if self._effect is None or self._life.pulse().allows(self._effect):
            return True
        await self._life.undisturbed(partial(self._life.pulse().permission, self._effect))
        await self._place_in_line()
        return False

    async def _place_in_line(self) -> None:
        """Wait until the rate allows one more attempt."""
        if self._per_second is not None:
            begins_s = max(self._clock(), self._free_s)
            self._free_s = begins_s + 1 / self._per_second
            await self._sleep(begins_s - self._clock())

    async def _sleep(self, wait_s: float) -> None:
        await self._life.undisturbed(partial(sleep_until, self._clock() + wait_s))
