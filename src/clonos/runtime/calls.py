"""Calls that take a while, made outside of steps: in an event loop, or in threads.

One loop, in a thread of its own, serves all tasks of a slot. It begins with the first call. The
automaton names calls and knows what they mean (:mod:`clonos.core.calls`).

Whatever user code does here, each call comes to an outcome, unless its life is over before.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

from clonos.blame import awaiting_lines, in_short, your_code
from clonos.core.calls import CallId, Outcome, Request
from clonos.nodes.events import CallsOver
from clonos.operators.calls.cache import Cache
from clonos.operators.calls.service import Policy
from clonos.runtime.asker import Asker
from clonos.runtime.call_outcomes import failed, given_up
from clonos.runtime.call_watch import BEAT_S, CallWatch
from clonos.runtime.deadlines import Deadlines, T, undisturbed
from clonos.runtime.effects import STALLED_S, Late, Pulse, unknown
from clonos.runtime.known_answers import KnownAnswers
from clonos.runtime.shared_answers import SharedAnswers
from clonos.transport.events import Away

CLOSE_S: Final = 2.0
"""Time for services to close when the slot ends."""
END_S: Final = 1.0
"""Time for a coroutine to end that was cancelled after its timeout."""
STUBBORN_MAX: Final = 1000
"""If this many coroutines of a life of a task have not ended by then, no other begins."""

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
        self._away: dict[int, dict[str, Away]] = {}  # replaced, never changed
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

    def away(self, life: int) -> Mapping[str, Away]:
        return self._away.get(life, {})

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
        stood_still = self._watch.beat() > STALLED_S
        away: dict[int, dict[str, Away]] = {}
        for life, ours in self._lives.items():
            if told := self._watch.over(life, ours.give_up()):
                self._put(CallsOver(life, told))
            if stood_still:
                ours.stood_still()
            away[life] = ours.away()
        self._away = away
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
            if request.service.when_quiet:
                await ours.undisturbed(ours.asker(request.service.instead_of).quiet)
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
        self._askers: dict[Policy, Asker] = {}
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
            began_s = end - request.service.timeout_s
            self.asker(request.service).leave(call, request, found[-1], began_s)
        return found

    def deadlines(self, timeout_s: float) -> Deadlines:
        """The deadlines of attempts with this timeout."""
        if timeout_s not in self._deadlines:
            self._deadlines[timeout_s] = Deadlines(timeout_s)
        return self._deadlines[timeout_s]

    def asker(self, policy: Policy) -> Asker:
        """The asker of a service for this life."""
        if policy not in self._askers:
            self._askers[policy] = Asker(policy, self)
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

    def away(self) -> dict[str, Away]:
        """By name, the services that have answered nothing for some time. Two operators in a task
        may have given one name to theirs."""
        found: dict[str, Away] = {}
        for asker in self._askers.values():
            for name, away in asker.away():
                found[name] = max(away, found.get(name, away))
        return found

    def stood_still(self) -> None:
        """Until now, no service could have been heard."""
        for asker in self._askers.values():
            asker.stood_still()

    async def end(self) -> None:
        """Cancel the calls under way. A thread cannot be cancelled, but begins no further
        attempt."""
        self.is_over = True
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*(asker.close() for asker in self._askers.values()))
