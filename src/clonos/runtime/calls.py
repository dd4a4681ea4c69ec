"""Calls that take a while, made outside of steps: in an event loop, or in threads.

One loop, in a thread of its own, serves all tasks of a slot. It begins with the first call. The
automaton names calls and knows what they mean (:mod:`clonos.core.calls`).

Whatever user code does here, each call comes to an outcome, unless its life is over before.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

from clonos.blame import awaiting_lines, in_short, your_code
from clonos.core.calls import CallId, Outcome, Request
from clonos.errors import ClonosError
from clonos.nodes.events import CallsOver
from clonos.operators.calls.cache import Cache
from clonos.operators.calls.effects import NotMade
from clonos.operators.calls.service import Policy, Service
from clonos.runtime.call_outcomes import encoded, failed, given_up
from clonos.runtime.call_threads import CallThreads
from clonos.runtime.call_watch import BEAT_S, CallWatch
from clonos.runtime.connection import Connection
from clonos.runtime.deadlines import CAN_UNCANCEL, Deadlines, T, sleep_until, undisturbed
from clonos.runtime.effects import EffectRun, Late, Pulse, by_engine, unknown
from clonos.runtime.known_answers import KnownAnswers, question_of
from clonos.runtime.shared_answers import SharedAnswers
from clonos.runtime.turns import Turns
from clonos.runtime.user_code import NoAnswer, first_of, guarded
from clonos.storage.retry_after import asked_to_wait_s

CLOSE_S: Final = 2.0
"""Time for services to close when the slot ends."""
END_S: Final = 1.0
"""Time for a coroutine to end that was cancelled after its timeout."""
STUBBORN_MAX: Final = 1000
"""If this many coroutines of a life of a task have not ended by then, no other begins."""


Named = Mapping[str, Any]
NOTHING: Final[Named] = {}

_STUBBORN: Final = "it was cancelled, and the coroutine goes on"

_Again = Callable[[asyncio.Task[Any]], None]


class CallRunner:
    """Implements :class:`clonos.nodes.ports.Calls`.

    Parameters
    ----------
    put
        Takes :class:`~clonos.nodes.events.CallsOver`; called in the threads of this module.
    """

    def __init__(self, put: Callable[[CallsOver], None]) -> None:
        self._put = put
        self._watch = CallWatch(self._give_up)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lives: dict[int, _Life] = {}  # used in the loop only, as is all below
        self._over: dict[int, list[Outcome]] = defaultdict(list)
        self._closing: set[asyncio.Future[None]] = set()
        self._pulse: Pulse | None = None
        self._until_s = inf  # see may_begin
        self._late: Late = {}
        self._shared: dict[Cache, SharedAnswers] = {}
        self._is_closed = False

    def make(self, life: int, calls: Sequence[tuple[CallId, Request]]) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, name="clonos-calls", daemon=True)
            self._thread.start()
        self._watch.asked(life, calls)
        self._loop.call_soon_threadsafe(self._begin, life, calls)

    def withdraw(self, life: int) -> None:
        self._watch.forget(life)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, life)

    def may_begin(self, until_s: float) -> None:
        self._until_s = until_s
        if self._loop is not None and self._pulse is not None:
            self._loop.call_soon_threadsafe(self._pulse.renewed)

    def close(self) -> None:
        """The slot ends: nobody waits for any call."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._leave)
            self._thread.join(2 * CLOSE_S)  # user code may hold the loop
        self._watch.close()

    def _give_up(self, life: int, calls: Sequence[tuple[CallId, Request]], lines: str) -> None:
        """User code blocks the loop, and the time of these calls is over."""
        why, trace = "a coroutine blocks the event loop", your_code("blocks it", lines)
        self._put(CallsOver(life, tuple(given_up(*call, why, trace) for call in calls)))

    # --- in the loop's thread -------------------------------------------------------------------

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._watch.start()
        self._loop.call_soon(self._beat, self._loop)
        while not self._is_closed:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # raised in a user's task
                self._loop.run_forever()
        lives = (ours.end() for ours in self._lives.values())
        closing = [*self._closing, *lives, *(shared.close() for shared in self._shared.values())]
        with contextlib.suppress(asyncio.TimeoutError, SystemExit, KeyboardInterrupt):
            self._loop.run_until_complete(asyncio.wait_for(_all(closing), CLOSE_S))
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watch.beat()
        for life, ours in self._lives.items():
            if told := self._watch.over(life, ours.give_up()):
                self._put(CallsOver(life, told))
        loop.call_later(BEAT_S, self._beat, loop)

    def _leave(self) -> None:
        self._is_closed = True
        asyncio.get_running_loop().stop()

    def _begin(self, life: int, calls: Sequence[tuple[CallId, Request]]) -> None:
        if life not in self._lives:
            self._lives[life] = _Life(self._beating, self._late, self._sharing)
        ours = self._lives[life]
        for call, request in calls:
            ours.begin(call, request, partial(self._make, life, ours, call, request))

    async def _make(self, life: int, ours: _Life, call: CallId, request: Request) -> None:
        task = ours.has_begun()
        try:
            if request.key and not self._watch.is_open(life, call):
                return  # it was given up before it began
            if (paid := request.service.instead_of) is not None:
                await ours.undisturbed(ours.asker(paid).quiet)
            outcome = await ours.asker(request.service).ask(call, request)
        except BaseException as error:  # noqa: BLE001 - a call without an outcome is a row lost
            if ours.is_over:
                return
            if request.key:  # whatever the error, something may have been done
                said = f"nobody knows whether it was made: {in_short(error)}"
                error = unknown(request, request.service, said)
            outcome = failed(call, request, error, 1, 0)
        finally:
            ours.has_ended(task)
        if not self._over:
            asyncio.get_running_loop().call_soon(self._tell)
        self._over[life].append(outcome)

    def _tell(self) -> None:
        """Tell all outcomes of one turn of the loop together."""
        over, self._over = self._over, defaultdict(list)
        for life, outcomes in over.items():
            if told := self._watch.over(life, outcomes):
                self._put(CallsOver(life, told))

    def _beating(self) -> Pulse:
        """The pulse of the loop; it begins with the first effect."""
        if self._pulse is None:
            self._pulse = Pulse(lambda: self._until_s)
        return self._pulse

    def _sharing(self, cache: Cache) -> SharedAnswers:
        """The shared answers of a cache: one connection for all lives."""
        if cache not in self._shared:
            self._shared[cache] = SharedAnswers(cache)
        return self._shared[cache]

    def _end(self, life: int) -> None:
        if (ours := self._lives.pop(life, None)) is not None:
            closing = asyncio.ensure_future(ours.end())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _all(closing: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*closing, return_exceptions=True)


def _cancelled() -> RuntimeError:
    return by_engine(RuntimeError("your code has cancelled the call"))


class _NotWanted(BaseException):  # unlike an Exception, it ends all retries
    """The call was given up: its outcome has been told."""


class _Life:
    """The calls of one life of a task.

    Attributes
    ----------
    is_over
        Whether the life is over: a call that is cancelled from now on was cancelled by us.
    stubborn
        Attempts that go on after their timeout.
    """

    def __init__(
        self,
        pulse: Callable[[], Pulse],
        late: Late,
        sharing: Callable[[Cache], SharedAnswers],
    ) -> None:
        self.began_s = asyncio.get_running_loop().time()  # by then, earlier lives were over
        self.is_over = False
        self.pulse, self.late, self.sharing = pulse, late, sharing
        self.stubborn: set[asyncio.Future[Any]] = set()
        self._under_way: dict[asyncio.Task[Any], tuple[CallId, Request, _Again]] = {}
        self._askers: dict[Policy, _Asker] = {}
        self._deadlines: dict[float, Deadlines] = {}  # by timeout
        self._memories: dict[Policy, KnownAnswers] = {}

    def begin(
        self, call: CallId, request: Request, make: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        # Not by the loop, to which user code may give another factory: an eager one, say.
        task = asyncio.Task(make(), loop=asyncio.get_running_loop())
        again = partial(self._again, make)
        self._under_way[task] = call, request, again
        task.add_done_callback(again)

    def _again(
        self, make: Callable[[], Coroutine[Any, Any, None]], task: asyncio.Task[Any]
    ) -> None:
        """User code has cancelled the call before it began: begin it again."""
        call, request, _ = self._under_way.pop(task)
        if not self.is_over:
            self.begin(call, request, make)

    def has_begun(self) -> asyncio.Task[Any]:
        """The running task makes its call: it says itself when it is over, for less than a
        callback."""
        task = asyncio.current_task()
        assert task is not None
        task.remove_done_callback(self._under_way[task][-1])
        return task

    def has_ended(self, task: asyncio.Task[Any]) -> None:
        """The call of this task is over."""
        del self._under_way[task]
        self.stubborn.discard(task)

    async def undisturbed(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait, although user code may cancel all tasks: nothing is asked meanwhile, so nothing has
        failed."""
        return await undisturbed(wait, self._may_end)

    def _may_end(self) -> bool:
        return self.is_over or asyncio.current_task() not in self._under_way

    def require_obedience(self) -> None:
        """Raise if too many coroutines do not end although they were cancelled."""
        if len(self.stubborn) >= STUBBORN_MAX:
            raise RuntimeError(
                f"{STUBBORN_MAX} coroutines go on that had no answer in time, and were cancelled"
            )

    def let_go(self, call: asyncio.Future[Any]) -> None:
        """Nobody wants this answer any more: cancel the call, and count it if it goes on."""
        if not call.done():
            call.cancel()
            loop = asyncio.get_running_loop()
            loop.call_later(END_S, self._count, weakref.ref(call))

    def _count(self, let_go: weakref.ref[asyncio.Future[Any]]) -> None:
        call = let_go()
        if call is not None and not call.done():
            self.stubborn.add(call)
            call.add_done_callback(self.stubborn.discard)

    def give_up(self) -> list[Outcome]:
        """Give up the calls that go on after their timeout; returns their outcomes."""
        end = asyncio.get_running_loop().time() - END_S
        found = []
        for task in (t for d in self._deadlines.values() for t in d.over_before(end)):
            if task in self.stubborn:
                continue
            self.stubborn.add(task)
            call, request, _ = self._under_way[task]
            lines = your_code("goes on", awaiting_lines(task.get_coro()))
            found.append(given_up(call, request, _STUBBORN, lines))
            self.asker(request.service).leave(call, request, found[-1])
        return found

    def deadlines(self, timeout_s: float) -> Deadlines:
        """The deadlines of attempts with this timeout."""
        if timeout_s not in self._deadlines:
            self._deadlines[timeout_s] = Deadlines(timeout_s)
        return self._deadlines[timeout_s]

    def asker(self, policy: Policy) -> _Asker:
        """The asker of a service for this life."""
        if policy not in self._askers:
            self._askers[policy] = _Asker(policy, self)
        return self._askers[policy]

    def memory(self, policy: Policy) -> KnownAnswers | None:
        """The answers of a service that this life remembers; the refusal of a paid service uses
        them, too."""
        if policy.cache_ttl_s is None:
            return None
        known = policy.instead_of or policy
        if known not in self._memories:
            clock = asyncio.get_running_loop().time
            self._memories[known] = KnownAnswers(policy.cache_ttl_s, clock)
        return self._memories[known]

    async def end(self) -> None:
        """Cancel the calls under way. A thread cannot be cancelled, but begins no further
        attempt."""
        self.is_over = True
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*(asker.close() for asker in self._askers.values()))


class _Asker:
    """Asks one service, according to its policy."""

    def __init__(self, policy: Policy, life: _Life, *, is_check: bool = False) -> None:
        self._policy, self._life = policy, life
        self._clock = asyncio.get_running_loop().time
        self._deadlines = life.deadlines(policy.timeout_s)
        self._effect = None if policy.instead_of is not None else policy.effect
        self._memory = life.memory(policy)
        self._shared = None if policy.cache is None else life.sharing(policy.cache)
        self._checker: _Asker | None = None
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

    def leave(self, call: CallId, request: Request, outcome: Outcome) -> None:
        """Nobody waits for this call any longer: it was given up with this outcome. Other calls
        with its question must not wait, either."""
        self._left(call)
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
            self._checker = _Asker(policy.checking, life, is_check=True)
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
        try:
            if self._connection is not None and not self._connection.is_open:
                await self._open(self._connection)
            if self._is_alone:
                return await self._alone(request, named)
            return await self._in_time(request, named)
        except Exception as error:
            if (wait_s := asked_to_wait_s(error)) > 0:
                self._turns.pause(wait_s)
            raise

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
            late = None if self._effect is None else self._life.late
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

    async def close(self) -> None:
        """The life is over."""
        if self._checker is not None:
            await self._checker.close()
        if self._threads is not None:
            self._threads.close()
        if self._connection is not None:
            await self._connection.close()
