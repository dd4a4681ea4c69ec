"""Effects, from the first attempt to a known end: see :mod:`clonos.operators.effects`.

An effect is *in doubt* after a timeout or an error that does not say that nothing was done, and if
an earlier life of the task may have made it. Then nothing is tried before a check has said so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from clonos.blame import in_short
from clonos.core.calls import Request
from clonos.errors import EffectUnknown
from clonos.operators.effects import Effect, EffectCall, Made, NotMade
from clonos.operators.service import Policy

CUT_OFF_S: Final = 5.0
"""A slot that is cut off from its driver has ended by then: it finds out within 2 to 4 seconds."""
BEAT_S: Final = 0.25
"""How often the event loop looks at the clock, while there are effects."""
STALLED_S: Final = 1.0
"""A loop that has not looked for so long was stopped; so long the process then takes to hear
whether its lives are over."""


class Attempt(Protocol):
    """Asks once, within the time there is."""

    def __call__(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Awaitable[Any]: ...


class Pulse:
    """Whether this process was stopped for a while. What it meant to do then, others may have done:
    its lives may be over, and it has not heard so yet."""

    def __init__(self) -> None:
        self._beat_s = asyncio.get_running_loop().time()
        self._beating = asyncio.ensure_future(self._beat())

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(BEAT_S)
            self._beat_s = clock()

    async def steady(self) -> None:
        """Return at once, unless it was stopped: then once it has had time to hear the news."""
        if asyncio.get_running_loop().time() - self._beat_s > STALLED_S:
            await asyncio.sleep(STALLED_S)


class Known(NamedTuple):
    """What a check has found."""

    is_made: bool
    answer: Any = None


class EffectRun:
    """One effect.

    Parameters
    ----------
    attempt, check
        Ask the service, and the check.
    """

    def __init__(self, policy: Policy, request: Request, attempt: Attempt, check: Attempt) -> None:
        assert policy.effect is not None
        self._effect: Effect = policy.effect
        self._policy, self._request = policy, request
        self._attempt, self._check = attempt, check
        self._quiet_at_s = 0.0  # nothing of earlier attempts is on its way any more
        self.attempts = 0

    async def run(self) -> Any:
        """The answer of the one effect that there is.

        Raises
        ------
        EffectUnknown
            Nobody knows whether it was made.
        Exception
            It was surely not made, because of this.
        """
        effect, clock = self._effect, asyncio.get_running_loop().time
        cause: Exception = RuntimeError("an earlier life of the task may have made it")
        in_doubt = self._request.in_doubt and not effect.idempotent
        self._quiet_at_s = clock() + self._policy.timeout_s + CUT_OFF_S  # of that life's attempts
        while True:
            is_last = self.attempts >= self._policy.attempts
            if in_doubt:
                known = await self._settle()
                if known is None and (is_last or effect.on_unknown != "retry"):
                    raise self._unknown(cause) from cause
                if known is not None and known.is_made:
                    return known.answer
            if is_last:
                raise cause
            if self.attempts and not in_doubt:
                await asyncio.sleep(self._policy.pause_s(self.attempts))
            self.attempts += 1
            try:
                return await self._attempt(self._request.arguments, self._named(effect.wants_call))
            except Exception as error:  # noqa: BLE001 - user code
                self._quiet_at_s = clock() + self._policy.timeout_s
                is_refused = isinstance(error, effect.refused)
                cause, in_doubt = error, not (is_refused or effect.idempotent)
                is_last = self.attempts >= self._policy.attempts
                if effect.idempotent and is_last and not is_refused:
                    raise self._unknown(cause) from cause

    async def _settle(self) -> Known | None:
        """Find out whether it was made; None: nobody knows."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._quiet_at_s - clock())
        until_s, checks = clock() + self._effect.check_for_s, 0
        while self._effect.check is not None:
            checks += 1
            try:
                named = self._named(self._effect.check_wants_call)
                found = await self._check(self._request.arguments, named)
            except Exception as error:  # noqa: BLE001 - user code: others mean, not known yet
                found = error
            if isinstance(found, Made):
                return Known(is_made=True, answer=found.answer)
            if isinstance(found, NotMade) or found is NotMade:
                return Known(is_made=False)
            if clock() >= until_s:
                break
            await asyncio.sleep(self._policy.pause_s(checks))
        return None

    def _named(self, wants_call: bool) -> dict[str, Any]:
        return {"call": EffectCall(self._request.key, self.attempts)} if wants_call else {}

    def _unknown(self, cause: Exception) -> EffectUnknown:
        return EffectUnknown(
            f"nobody knows whether the effect {self._request.key} was made: {in_short(cause)}",
            where=self._policy.name,
            remedy="find out by its key, or by what it was asked; give check=, a function that "
            "does so, or idempotent=True if the service deduplicates by key",
        )
