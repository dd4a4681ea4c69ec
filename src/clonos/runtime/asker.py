"""Asks one service, according to its policy: attempts, timeouts, hedges, remembered answers.

An effect's attempts are chosen by :class:`~clonos.runtime.effects.EffectRun`, and made here.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from clonos.blame import awaiting_lines, in_short, your_code
from clonos.core.calls import CallId, Outcome, Request
from clonos.errors import ClonosError
from clonos.operators.calls.cache import Cache
from clonos.operators.calls.effects import NotMade
from clonos.operators.calls.service import Policy, Service
from clonos.runtime.call_outcomes import encoded, failed
from clonos.runtime.call_threads import CallThreads
from clonos.runtime.connection import Connection
from clonos.runtime.deadlines import CAN_UNCANCEL, Deadlines, sleep_until
from clonos.runtime.effects import EffectLife, EffectRun, by_engine, unknown
from clonos.runtime.known_answers import KnownAnswers, question_of
from clonos.runtime.outages import ServiceOutage
from clonos.runtime.shared_answers import SharedAnswers
from clonos.runtime.turns import Life as LifeOfTurns
from clonos.runtime.turns import Turns
from clonos.runtime.user_code import NoAnswer, first_of, guarded
from clonos.storage.retry_after import asked_to_wait_s
from clonos.transport.events import Away

Named = Mapping[str, Any]
NOTHING: Final[Named] = {}


class Life(LifeOfTurns, EffectLife, Protocol):
    """What asking needs to know of the life of a task.

    Attributes
    ----------
    stubborn
        Attempts that go on after their timeout.
    sharing
        The shared answers of a cache.
    """

    stubborn: set[asyncio.Future[Any]]
    sharing: Callable[[Cache], SharedAnswers]

    def deadlines(self, timeout_s: float) -> Deadlines:
        """The deadlines of attempts with this timeout."""

    def memory(self, policy: Policy) -> KnownAnswers | None:
        """The answers of a service that this life remembers."""

    def let_go(self, call: asyncio.Future[Any]) -> None:
        """Nobody wants this answer any more."""


def _cancelled() -> RuntimeError:
    return by_engine(RuntimeError("your code has cancelled the call"))


class _NotWanted(BaseException):  # unlike an Exception, it ends all retries
    """The call was given up: its outcome has been told."""


class Asker:
    """Asks one service for one life of a task.

    Parameters
    ----------
    policy
        The service, and how it is asked.
    is_check
        It is the check of an effect, which is asked about the effect's own arguments.
    """

    def __init__(self, policy: Policy, life: Life, *, is_check: bool = False) -> None:
        self._policy, self._life = policy, life
        self._clock = asyncio.get_running_loop().time
        self._deadlines = life.deadlines(policy.timeout_s)
        self._effect = None if policy.instead_of is not None else policy.effect
        self._memory = life.memory(policy)
        self._shared = None if policy.cache is None else life.sharing(policy.cache)
        self._checker: Asker | None = None
        self._fn: Callable[..., Any]
        self._connection: Connection | None = None
        self._under_way = set[CallId]()
        self._quiet = asyncio.Event()
        self._quiet.set()
        # A further attempt must not see how the first one changed its arguments.
        repeats = policy.attempts > 1 or policy.hedge_s is not None
        self._may_repeat = repeats or self._effect is not None or is_check
        self._is_alone = policy.hedge_s is None and CAN_UNCANCEL
        self._threads = None if policy.is_async else CallThreads(policy.name)
        self._outage = ServiceOutage(policy.name, policy.called, self._clock)
        self._is_check = is_check
        self._turns = Turns(life, policy.per_second, self._threads, self._effect, policy.name)
        if isinstance(policy.fn, Service):
            service = copy.copy(policy.fn)
            self._connection = Connection(service, policy.timeout_s, life.let_go)
            self._fn = service.call
        else:
            self._fn = policy.fn

    async def quiet(self) -> None:
        """Wait until no call is under way."""
        await self._quiet.wait()

    async def ask(self, call: CallId, request: Request) -> Outcome:
        """Make attempts until one succeeds or there were enough."""
        self._under_way.add(call)
        self._quiet.clear()
        try:
            if self._effect is not None:
                return await self._make(call, request)
            if self._memory is not None:
                return await self._remembered(call, request, self._memory)
            return await self._attempts(call, request)
        finally:
            self._left(call)

    def _left(self, call: CallId) -> None:
        self._under_way.discard(call)
        if not self._under_way:
            self._quiet.set()

    def leave(self, call: CallId, request: Request, outcome: Outcome, began_s: float) -> None:
        """Nobody waits any longer for this call, whose attempt began then: it was given up with
        this outcome. Other calls with its question must not wait, either."""
        self._left(call)
        self._outage.failed(began_s, self._no_answer())
        question = None if self._memory is None else question_of(request.arguments)
        if question is not None and self._memory is not None:
            self._memory.done(question, call, outcome)

    async def _remembered(self, call: CallId, request: Request, memory: KnownAnswers) -> Outcome:
        question = question_of(request.arguments)
        if question is None:
            return await self._attempts(call, request)
        turn = partial(memory.outcome_or_turn, question, call, request.digest)
        known = await self._life.undisturbed(turn)
        if known is not None:
            return known
        outcome = None
        try:
            outcome = await self._ask_for_all(call, request, question, memory)
            return outcome
        finally:
            # Another call may be paid for all the same: a refusal is none of its business.
            memory.done(question, call, outcome if self._policy.instead_of is None else None)

    async def _ask_for_all(
        self, call: CallId, request: Request, question: bytes, memory: KnownAnswers
    ) -> Outcome:
        """Make attempts, and remember the answer for calls with the same question."""
        if self._shared is not None:
            known = await self._life.undisturbed(partial(self._shared.find, question))
            if known is not None:
                memory.put(question, known.answer, known.left_s)
                return Outcome(*call, request.digest, True, known.answer, attempts=0)
        outcome = await self._attempts(call, request)
        if outcome.ok:
            memory.put(question, outcome.answer)
            if self._shared is not None and self._policy.cache_ttl_s is not None:
                self._shared.keep(question, outcome.answer, self._policy.cache_ttl_s)
        return outcome

    async def _attempts(self, call: CallId, request: Request) -> Outcome:
        # No error is kept in a variable, nor beyond its block: its traceback refers to all objects
        # of user code and to our variables, so only the garbage collector would free it.
        policy, began_s, attempts = self._policy, self._clock(), 0
        while True:
            attempts += 1
            try:
                answer = self._encoded(request, await self.attempt(request))
            except Exception as error:  # noqa: BLE001 - user code
                if attempts == policy.attempts or isinstance(error, ClonosError):
                    return self._over(call, request, began_s, attempts, error)
            else:
                return self._over(call, request, began_s, attempts, answer)
            until_s = self._clock() + policy.pause_s(attempts)
            await self._life.undisturbed(partial(sleep_until, until_s))

    async def _make(self, call: CallId, request: Request) -> Outcome:
        """Make an effect. If an earlier life has begun it, that counts as an attempt."""
        policy, life, began_s = self._policy, self._life, self._clock()
        assert policy.effect is not None
        if self._checker is None and policy.effect.check is not None:
            self._checker = Asker(policy.checking, life, is_check=True)
        check = self.attempt if self._checker is None else self._checker.attempt
        run = EffectRun(policy, request, self.attempt, check, life)
        try:
            answer = self._kept(request, await run.run())
        except Exception as error:  # noqa: BLE001 - user code
            return self._over(call, request, began_s, max(run.attempts, 1), error)
        return self._over(call, request, began_s, max(run.attempts, 1), answer)

    def _over(
        self,
        call: CallId,
        request: Request,
        began_s: float,
        attempts: int,
        answer: bytes | Exception,
    ) -> Outcome:
        ms = round(1000 * (self._clock() - began_s))
        if isinstance(answer, Exception):
            return failed(call, request, answer, attempts, ms)
        return Outcome(*call, request.digest, True, answer, attempts, ms)

    def _encoded(self, request: Request, answer: Any) -> bytes:
        return encoded(self._policy.require_answers(request.arguments, answer))

    def _kept(self, request: Request, answer: Any) -> bytes:
        """The answer of an effect. If it cannot be kept, the effect was made all the same."""
        try:
            return self._encoded(request, answer)
        except ClonosError as error:
            said = f"it was made, but its answer cannot be kept: {in_short(error)}"
            usual = unknown(request, self._policy, said).remedy
            raise unknown(request, self._policy, said, f"{error.remedy}; {usual}") from error

    async def attempt(self, request: Request, named: Named = NOTHING) -> Any:
        """Ask once, within the timeout; `named`: more arguments."""
        if self._life.stubborn and asyncio.current_task() in self._life.stubborn:
            raise _NotWanted
        if self._turns.is_now:
            self._life.require_obedience()
        else:
            await self._turns.come()
        began_s = self._clock()
        try:
            if self._connection is not None and not self._connection.is_open:
                await self._open(self._connection)
            asks = self._alone if self._is_alone else self._in_time
            answer = await asks(request, named)
        except Exception as error:
            if (wait_s := asked_to_wait_s(error)) > 0:
                self._turns.pause(wait_s)
            if self._is_check and isinstance(error, NotMade):
                self._outage.answered()
            else:
                self._outage.failed(began_s, error)
            raise
        self._outage.answered()
        return answer

    async def _in_time(self, request: Request, named: Named) -> Any:
        policy = self._policy
        until_s = self._clock() + policy.timeout_s
        calls: set[asyncio.Future[Any]] = {asyncio.ensure_future(self._call(request, named))}
        try:
            hedge_s = policy.hedge_s
            if hedge_s is not None and hedge_s < policy.timeout_s:
                is_answered = bool((await asyncio.wait(calls, timeout=hedge_s))[0])
                if not is_answered:
                    calls.add(asyncio.ensure_future(self._call_in_turn(request, named)))
            first = await first_of(calls, until_s)
        except NoAnswer:
            raise self._no_answer(trace=self._where(calls)) from None
        except asyncio.CancelledError as error:
            if self._life.is_over:
                raise
            raise _cancelled() from error
        finally:
            while calls:
                self._life.let_go(calls.pop())
        try:
            return first.result()
        except asyncio.CancelledError as error:
            raise _cancelled() from error
        finally:
            del first  # see _attempts

    def _where(self, calls: set[asyncio.Future[Any]]) -> str:
        """The user's lines in which these attempts are."""
        pending = [call for call in calls if isinstance(call, asyncio.Task) and not call.done()]
        threads = self._threads
        each = (threads.lines(c) if threads else awaiting_lines(c.get_coro()) for c in pending)
        return your_code("goes on", "\n".join(dict.fromkeys(filter(None, each))))

    def _no_answer(self, ended: BaseException | None = None, trace: str = "") -> TimeoutError:
        """The error of a timeout. ``ended``: what has ended the call; its traceback shows where."""
        error = by_engine(TimeoutError(f"no answer within {self._policy.timeout_s:g} s"))
        error.trace = getattr(ended, "trace", trace)  # type: ignore[attr-defined]
        return error.with_traceback(ended.__traceback__ if ended is not None else None)

    async def _alone(self, request: Request, named: Named) -> Any:
        """Ask by one call, without a task of its own, because tasks cost time."""
        task = asyncio.current_task()
        assert task is not None
        self._deadlines.begin(task)
        is_late = False
        try:
            try:
                return await self._call(request, named)
            finally:
                is_late = self._deadlines.end(task)
        except asyncio.CancelledError as error:
            if is_late:
                raise self._no_answer(error) from None
            if self._life.is_over:
                raise
            raise _cancelled() from error

    async def _call_in_turn(self, request: Request, named: Named) -> Any:
        await self._turns.come()
        return await self._call(request, named)

    def _call(self, request: Request, named: Named) -> Coroutine[Any, Any, Any]:
        if self._threads is not None:
            given = partial(self._given, request)
            needs_late = self._effect is not None and not self._effect.idempotent
            late = self._life.late if needs_late else None  # else it is just asked again
            return self._threads.run(partial(self._fn, **named), given, request.key, late)
        return guarded(self._fn(*self._given(request), **named))

    async def _open(self, connection: Connection) -> None:
        """Open the service; like waiting in line, this does not count as the service's time."""
        try:
            await connection.open()
        except asyncio.CancelledError as error:
            if self._life.is_over:
                raise
            raise _cancelled() from error
        except Exception as error:
            if self._effect is not None:
                raise NotMade(f"no connection: {in_short(error)}") from error
            raise
        while not await self._turns.permitted():  # it may have taken a while
            pass

    def _given(self, request: Request) -> Sequence[Any]:
        arguments: Sequence[Any] = request.arguments
        return copy.deepcopy(arguments) if self._may_repeat else self._policy.given(arguments)

    def away(self) -> Iterator[tuple[str, Away]]:
        """The service and its check, by name, if they have answered nothing for some time."""
        if self._policy.instead_of is None and (away := self._outage.away) is not None:
            yield self._policy.name, away
        if self._checker is not None:
            yield from self._checker.away()

    def stood_still(self) -> None:
        """Until now, nobody could have been heard."""
        self._outage.stood_still()
        if self._checker is not None:
            self._checker.stood_still()

    async def close(self) -> None:
        """The life is over."""
        if self._checker is not None:
            await self._checker.close()
        if self._threads is not None:
            self._threads.close()
        if self._connection is not None:
            await self._connection.close()
