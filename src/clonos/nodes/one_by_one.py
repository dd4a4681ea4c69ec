"""Calls of a slot. While one of its lives looks for a call that kills, one is made at a time.

Not only the calls of that life: another task's call would kill the process just the same, and the
death would be put down to the wrong one. If earlier lives have ended within calls, these come
first, but none is made for a while: who dies meanwhile did not die of them.

A call is known by what it asks, which may follow from an answer or a clock reading of just now. If
that is lost with the process, the next life asks something else, and no call is ever convicted. So
each call waits a moment, in which the log entries that led to it usually come elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from clonos.core.calls import CallId, Outcome, Request
from clonos.core.life import Phase
from clonos.core.watch import Watch
from clonos.nodes.ports import Calls, Clock

ELSEWHERE_S: Final = 0.1
"""By then, log entries have usually come out of the process and its executor. Far less than the
time without calls (:data:`~clonos.core.blame.HOLD_MS`), which is to outlast kills from outside."""


class Machine(Protocol):
    """The automaton of a life."""

    watch: Watch | None

    @property
    def phase(self) -> Phase: ...


def _may_kill(machine: Machine) -> bool:
    """Whether a call of this life may yet be made that ends its process."""
    return machine.watch is not None and machine.phase is not Phase.FINISHED


class _Call(NamedTuple):
    life: int
    machine: Machine
    call: CallId
    request: Request
    asked_s: float


class OneByOne:
    """Has calls made, all at once if nobody minds.

    Parameters
    ----------
    calls
        Makes them.
    clock
        Says for how long none was made.
    """

    def __init__(self, calls: Calls, clock: Clock) -> None:
        self._calls, self._clock = calls, clock
        self._held_until_s = 0.0
        self._searching: dict[int, Machine] = {}  # by life
        self._waiting: deque[_Call] = deque()
        self._under_way: _Call | None = None

    def make(self, life: int, machine: Machine, calls: Sequence[tuple[CallId, Request]]) -> None:
        """Have these calls made."""
        watch = machine.watch
        if watch is not None and watch.finds_calls and life not in self._searching:
            self._searching[life] = machine
            held_until_s = self._clock.ticks_s() + watch.hold_ms / 1000
            self._held_until_s = max(self._held_until_s, held_until_s)
        if not self._searching:
            self._calls.make(life, calls)
            return
        for asked in calls:
            is_suspect = watch is not None and watch.suspects(*asked)
            add = self._waiting.appendleft if is_suspect else self._waiting.append
            add(_Call(life, machine, *asked, self._clock.ticks_s()))

    def over(self, life: int, outcomes: Iterable[Outcome]) -> None:
        """These calls have come to an end."""
        now = self._under_way
        if now is None or now.life != life or all(o.id != now.call for o in outcomes):
            return
        self._under_way = None
        if now.machine.watch is not None:
            now.machine.watch.calls(now.call, now.request, is_over=True)

    def withdraw(self, life: int) -> None:
        """A life is over."""
        self._calls.withdraw(life)
        self._searching.pop(life, None)
        self._waiting = deque(one for one in self._waiting if one.life != life)
        if self._under_way is not None and self._under_way.life == life:
            self._under_way = None

    @property
    def wait_s(self) -> float:
        """How long no call is made yet."""
        if not self._waiting or not self._searching:
            return 0.0
        until_s = max(self._held_until_s, self._waiting[0].asked_s + ELSEWHERE_S)
        return max(until_s - self._clock.ticks_s(), 0.0)

    def go_on(self) -> None:
        """No step is under way: a death that follows at once is that of the next call."""
        if not self._waiting:
            return
        self._searching = {n: m for n, m in self._searching.items() if _may_kill(m)}
        if self.wait_s > 0:
            return
        while self._waiting and (self._under_way is None or not self._searching):
            following = self._waiting.popleft()
            if self._searching:
                self._under_way = following
                if following.machine.watch is not None:
                    following.machine.watch.calls(following.call, following.request)
            self._calls.make(following.life, ((following.call, following.request),))
