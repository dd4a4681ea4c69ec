"""Calls that take a while, made beside the steps: in an event loop, or in threads.

One loop, in a thread of its own, serves all tasks of a slot. It begins with the first call. What
tells calls apart, and what they mean, is the automaton's business (:mod:`clonos.core.calls`).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from clonos.blame import users_traceback
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import encode, encode_error
from clonos.core.plan import Incarnation
from clonos.errors import AnswerTooLarge, ClonosError
from clonos.nodes.events import CallsOver
from clonos.operators.service import Policy, Service

ANSWER_BYTES_MAX: Final = 256 << 10
"""Answers are kept in logs and memories until a floor passes them."""
THREADS_MAX: Final = 128
"""For calls of plain functions, per operator."""


class CallRunner:
    """Implements :class:`clonos.nodes.ports.Calls`.

    Parameters
    ----------
    put
        Takes :class:`~clonos.nodes.events.CallsOver`; called in the loop's thread.
    """

    def __init__(self, put: Callable[[CallsOver], None]) -> None:
        self._put = put
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lives: dict[int, _Life] = {}  # the loop's own, as is all below
        self._over: dict[int, list[Outcome]] = defaultdict(list)

    def make(
        self,
        life: int,
        task: int,
        incarnation: Incarnation,
        calls: Sequence[tuple[CallId, Request]],
    ) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run, name="clonos-calls", daemon=True).start()
        self._loop.call_soon_threadsafe(self._begin, life, calls)

    def withdraw(self, life: int) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end, life)

    def close(self) -> None:
        """The slot ends: nobody waits for any call."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    # --- in the loop's thread -------------------------------------------------------------------

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    def _begin(self, life: int, calls: Sequence[tuple[CallId, Request]]) -> None:
        if life not in self._lives:
            self._lives[life] = _Life()
        ours = self._lives[life]
        for call, request in calls:
            ours.begin(self._make(life, ours, call, request))

    async def _make(self, life: int, ours: _Life, call: CallId, request: Request) -> None:
        outcome = await ours.asker(request.service).ask(call, request)
        if not self._over:
            asyncio.get_running_loop().call_soon(self._tell)
        self._over[life].append(outcome)

    def _tell(self) -> None:
        """What has come to an end in one turn of the loop is told together."""
        over, self._over = self._over, defaultdict(list)
        for life, outcomes in over.items():
            self._put(CallsOver(life, tuple(outcomes)))

    def _end(self, life: int) -> None:
        if (ours := self._lives.pop(life, None)) is not None:
            ours.end()


class _Life:
    """The calls of one life of a task."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()
        self._askers: dict[int, _Asker] = {}

    def begin(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def asker(self, policy: Policy) -> _Asker:
        """Who asks a service for this life."""
        if id(policy) not in self._askers:
            self._askers[id(policy)] = _Asker(policy)
        return self._askers[id(policy)]

    def end(self) -> None:
        """Cancel what is under way; a thread cannot be, but begins no attempt any more."""
        for task in self._under_way:
            task.cancel()
        for asker in self._askers.values():
            asker.close()


class _Asker:
    """Asks one service, as its policy says."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._fn: Callable[..., Any]
        self._service: Service | None = None
        self._opened: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._free_s = 0.0  # when the next attempt may begin
        self._threads: ThreadPoolExecutor | None = None
        if isinstance(policy.fn, Service):
            self._service = copy.copy(policy.fn)
            self._fn = self._service.call
            return
        self._fn = policy.fn
        if not policy.is_async:
            threads = min(policy.in_flight, THREADS_MAX)
            self._threads = ThreadPoolExecutor(threads, f"clonos-call-{policy.name}")

    async def ask(self, call: CallId, request: Request) -> Outcome:
        """Make attempts until one succeeds, or there were enough."""
        policy, clock = self._policy, asyncio.get_running_loop().time
        began_s, attempts = clock(), 0
        while True:
            attempts += 1
            try:
                await self._wait_for_turn()
                answer = encode(await self._attempt(request.arguments))
                if len(answer) > ANSWER_BYTES_MAX:
                    raise AnswerTooLarge(
                        f"an answer of {len(answer)} bytes; at most {ANSWER_BYTES_MAX} are logged",
                        remedy="keep large values in a store and answer with their names",
                    )
            except Exception as raised:  # noqa: BLE001 - user code
                error = raised
            else:
                ms = round(1000 * (clock() - began_s))
                return Outcome(*call, request.digest, True, answer, attempts, ms)
            if attempts < policy.attempts and not isinstance(error, ClonosError):
                await asyncio.sleep(self._pause_s(attempts))
                continue
            ms = round(1000 * (clock() - began_s))
            trace = users_traceback(error) if policy.tells_trace else ""
            answer = encode_error(error)
            return Outcome(*call, request.digest, False, answer, attempts, ms, trace)

    def _pause_s(self, attempts: int) -> float:
        first, most = self._policy.backoff_s
        pause_s: float = min(most, first * 2 ** (attempts - 1))
        return pause_s * random.uniform(0.5, 1.0)

    async def _wait_for_turn(self) -> None:
        if self._policy.per_second is None:
            return
        now = asyncio.get_running_loop().time()
        begins_s = max(now, self._free_s)
        self._free_s = begins_s + 1 / self._policy.per_second
        await asyncio.sleep(begins_s - now)

    async def _attempt(self, arguments: Sequence[Any]) -> Any:
        """An answer within the time there is."""
        timeout_s = self._policy.timeout_s
        calls: set[asyncio.Future[Any]] = {asyncio.ensure_future(self._call(arguments))}
        try:
            if (hedge_s := self._policy.hedge_s) is not None and hedge_s < timeout_s:
                done, _ = await asyncio.wait(calls, timeout=hedge_s)
                if not done:
                    calls.add(asyncio.ensure_future(self._call(arguments)))
                timeout_s -= hedge_s
            return await _first(calls, timeout_s)
        except NoAnswer:
            raise TimeoutError(f"no answer within {self._policy.timeout_s:g} s") from None
        finally:
            for call in calls:
                call.cancel()

    async def _call(self, arguments: Sequence[Any]) -> Any:
        try:
            if self._threads is not None:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, partial(self._fn, *arguments))
            if self._service is not None:
                await self._open(self._service)
            return await self._fn(*arguments)
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    async def _open(self, service: Service) -> None:
        """Once; if that fails, the next call tries again."""
        if self._opened is None or (self._opened.done() and self._opened.exception()):
            self._opened = asyncio.ensure_future(service.open())
        await asyncio.shield(self._opened)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._opened is not None and self._service is not None:
            self._closing = asyncio.ensure_future(self._close(self._service))

    @staticmethod
    async def _close(service: Service) -> None:
        with contextlib.suppress(Exception):  # user code, and nothing depends on it
            await service.close()


class NoAnswer(Exception):
    """Time is over."""


async def _first(calls: set[asyncio.Future[Any]], timeout_s: float) -> Any:
    """The first answer; an error counts if no call is left that may still answer."""
    running = calls
    while True:
        done, running = await asyncio.wait(
            running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise NoAnswer
        good = [call for call in done if not call.cancelled() and call.exception() is None]
        if good or not running:
            (first, *_) = good or done
            if first.cancelled():
                raise RuntimeError("the call has cancelled itself")
            return first.result()
