"""Effects, from the first attempt to a known outcome: see :mod:`clonos.operators.calls.effects`.

An effect is *in doubt* after a timeout, after an error that does not prove that nothing was done,
or if an earlier life of the task may have made it. Then no attempt is made before a check has said
that it was not made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import Any, Final, Protocol, TypeVar

from clonos.blame import in_short
from clonos.columns.rows import short
from clonos.core.calls import Request
from clonos.errors import EffectUnknown
from clonos.operators.calls.effects import Effect, EffectCall, Made, NotMade
from clonos.operators.calls.service import Policy
from clonos.runtime.deadlines import Undisturbed, sleep_until
from clonos.runtime.ticks import ticks_s

CUT_OFF_S: Final = 5.0
"""By then, a slot that is cut off from its driver has ended: it finds out within 2 to 4 seconds."""
BEAT_S: Final = 0.25
"""How often the event loop looks at the clock, while there are effects."""
STALLED_S: Final = 1.0
"""A loop that has not looked for this long was stopped. After that, the process needs as long to
hear whether its lives are over."""

Late = MutableMapping[str, "Future[Any]"]
"""By effect: attempts that were given up and go on in their threads."""
E = TypeVar("E", bound=Exception)


def by_engine(error: E) -> E:
    """Mark an error as raised by the engine: whatever its class, it is no refusal by a service."""
    error.is_by_engine = True  # type: ignore[attr-defined]
    return error


def _wall_ms() -> int:
    """The clock that steps read, too."""
    return round(time.time() * 1000)


class Attempt(Protocol):
    """Asks once, within the timeout."""

    def __call__(self, request: Request, named: Mapping[str, Any]) -> Awaitable[Any]: ...


class Pulse:
    """Whether effects may be begun now.

    Not if this process was stopped for a while: its lives may be over then without its knowing, and
    others may have made the effects that it was about to make. Nor without a mandate
    (:mod:`clonos.core.mandate`), because the driver's term may be over without its knowing.

    Parameters
    ----------
    until_s
        How long the mandate lasts.
    """

    def __init__(self, until_s: Callable[[], float] = lambda: inf) -> None:
        self._until_s, self._renewed = until_s, asyncio.Event()
        self._looked_s = ticks_s()
        self._steady_at_s = 0.0
        self._beat(asyncio.get_running_loop())

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look, again and again; not in a task, which user code could cancel."""
        self._look()
        loop.call_later(BEAT_S, self._beat, loop)

    def _look(self) -> float:
        """How long until the process is steady; at most 0 if it is."""
        now, before = ticks_s(), self._looked_s
        if now - before > STALLED_S:  # it was stopped
            self._steady_at_s = now + STALLED_S
        self._looked_s = now
        return self._steady_at_s - now

    def allows(self, effect: Effect) -> bool:
        """Whether an attempt may begin now: the process was not stopped, or has had time to hear
        whether its lives are over; and it has a mandate, unless the service recognises a second
        attempt."""
        return self._look() <= 0 and self._has_mandate(effect)

    def _has_mandate(self, effect: Effect) -> bool:
        return effect.idempotent or self._looked_s < self._until_s()

    def renewed(self) -> None:
        """The mandate lasts longer now: wake those that wait for it."""
        self._renewed.set()
        self._renewed.clear()

    async def permission(self, effect: Effect) -> None:
        """Return when an attempt may begin."""
        while True:
            if (wait_s := self._look()) > 0:
                await asyncio.sleep(wait_s)
            elif not self._has_mandate(effect):
                await self._renewed.wait()
            else:
                return


class EffectLife(Protocol):
    """What an effect needs to know of the life of a task.

    Attributes
    ----------
    late
        Attempts of all lives that still run in threads.
    is_over
        Whether it is over. Then nothing more is begun, even if user code ignores a cancellation.
    began_s
        When it began; all earlier lives had ended by then.
    undisturbed
        How to wait while nothing is asked.
    """

    @property
    def late(self) -> Late: ...
    @property
    def is_over(self) -> bool: ...
    @property
    def began_s(self) -> float: ...
    @property
    def undisturbed(self) -> Undisturbed: ...


class EffectRun:
    """One effect.

    Parameters
    ----------
    attempt, check
        Ask the service; ask the check.
    life
        The life of the task.

    Attributes
    ----------
    attempts
        How many were begun.
    """

    def __init__(
        self,
        policy: Policy,
        request: Request,
        attempt: Attempt,
        check: Attempt,
        life: EffectLife,
    ) -> None:
        assert policy.effect is not None
        self._effect: Effect = policy.effect
        self._policy, self._request = policy, request
        self._attempt, self._check, self._life = attempt, check, life
        # By then, no earlier attempt is still under way: at first, none of an earlier life.
        self._asked_ms = request.asked_ms if request.in_doubt else 0  # 0: not in doubt yet
        self._quiet_at_s = life.began_s + policy.timeout_s + CUT_OFF_S
        self._cause: Exception = RuntimeError(
            "an earlier life of the task may have made it, or a past that the job went back from"
        )
        self._not_found: Exception | None = None  # what the last check has raised
        self._checked = ""  # what it knew, in a few words
        self.attempts = 0

    async def run(self) -> Any:
        """Make the effect once, and return its answer.

        Raises
        ------
        EffectUnknown
            Nobody knows whether it was made.
        Exception
            It was certainly not made, because of this error.
        """
        try:
            return await self._run()
        finally:
            # The traceback refers to all objects of user code, and to this frame: a cycle.
            self._cause, self._not_found = RuntimeError("it is over"), None

    async def _run(self) -> Any:
        effect, clock = self._effect, asyncio.get_running_loop().time
        in_doubt = self._request.in_doubt
        while True:
            is_last = self.attempts >= self._policy.attempts
            pause_s = self._policy.pause_s(self.attempts) if self.attempts else 0.0
            if in_doubt and not (effect.idempotent and self._is_recognised()):
                pause_s = 0.0
                found = await self._settle()
                if isinstance(found, Made):
                    return found.answer
                in_doubt = found is None
                if in_doubt and (is_last or effect.on_unknown != "retry"):
                    raise self._unknown() from self._not_found or self._cause
            if is_last and in_doubt:
                raise self._unknown() from self._cause
            if is_last:
                raise self._cause
            await self._sleep_until(clock() + pause_s)
            self._require_life()
            self.attempts += 1
            self._asked_ms = self._asked_ms or _wall_ms()
            try:
                return await self._attempt(self._request, self._named(effect.wants_call))
            except Exception as error:  # noqa: BLE001 - user code
                self._quiet_at_s = clock() + self._policy.timeout_s
                self._cause = error
                in_doubt = in_doubt or not self._is_refused(error)

    def _is_recognised(self) -> bool:
        """Whether the service still recognises the key of an earlier attempt."""
        kept_ms = self._effect.keys_kept_ms
        if kept_ms is None or not self._asked_ms:
            return True
        ago_ms = _wall_ms() - self._asked_ms
        self._checked = (
            f"it was asked for {ago_ms / 3_600_000:.1f} hours ago, and the service may no longer "
            "recognise its key"
        )
        return ago_ms <= kept_ms

    def _is_refused(self, error: Exception) -> bool:
        """Whether an error proves that nothing was done. With hedging it proves that of one attempt
        only."""
        is_said = isinstance(error, self._effect.refused) and not hasattr(error, "is_by_engine")
        return is_said and self._policy.hedge_s is None

    async def _settle(self) -> Made | NotMade | None:
        """Find out whether the effect was made; None: nobody knows."""
        clock = asyncio.get_running_loop().time
        late = self._life.late.get(self._request.key)
        if late is not None:
            if (known := await self._wait_for(late)) is not None:
                return known
            if not late.done():
                return None
            del self._life.late[self._request.key]
        if self._effect.check is None and self._effect.on_unknown != "retry":
            return None  # no further attempt is made that could collide with one under way
        await self._sleep_until(self._quiet_at_s)
        until_s, checks = clock() + self._effect.check_for_s, 0
        while self._effect.check is not None:
            self._require_life()
            checks += 1
            try:
                found = await self._check(self._request, self._named(self._effect.check_wants_call))
                if found is Made or found is NotMade:
                    found = found()
                if isinstance(found, (Made, NotMade)):
                    return found
                self._checked, self._not_found = f"its check returned {short(found)}", None
            except NotMade:
                return NotMade()
            except Exception as error:  # noqa: BLE001 - user code: it is not known yet
                self._checked, self._not_found = f"its check: {in_short(error)}", error
            if clock() >= until_s:
                break
            await self._sleep_until(clock() + self._policy.pause_s(checks))
        return None

    async def _wait_for(self, late: Future[Any]) -> Made | NotMade | None:
        """The outcome of an attempt that was given up but could not be ended."""
        clock, waiting = asyncio.get_running_loop().time, asyncio.wrap_future(late)
        until_s = clock() + self._effect.check_for_s
        await self._life.undisturbed(lambda: asyncio.wait([waiting], timeout=until_s - clock()))
        if not waiting.done():
            return None
        error = waiting.exception()
        if error is None:
            return Made(waiting.result())
        return NotMade() if isinstance(error, Exception) and self._is_refused(error) else None

    async def _sleep_until(self, when_s: float) -> None:
        await self._life.undisturbed(partial(sleep_until, when_s))

    def _require_life(self) -> None:
        if self._life.is_over:
            raise asyncio.CancelledError

    def _named(self, wants_call: bool) -> dict[str, Any]:
        return {"call": EffectCall(self._request.key, self.attempts)} if wants_call else {}

    def _unknown(self) -> EffectUnknown:
        why = "; ".join(filter(None, (in_short(self._cause), self._checked)))
        said = f"nobody knows whether it was made: {why}"
        return unknown(self._request, self._policy, said)


def unknown(request: Request, policy: Policy, what: str, remedy: str = "") -> EffectUnknown:
    """The error of an effect whose outcome is unknown or cannot be kept."""
    remedy = remedy or (policy.effect.remedy if policy.effect is not None else "")
    return EffectUnknown(f"the effect {request.key}: {what}", where=policy.name, remedy=remedy)
