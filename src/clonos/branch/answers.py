"""Answers to the questions of changed code: from the log, a stand-in, the service itself, or none.

The log answers a question if the job has asked the same one: the same operator, function, key and
arguments. Of several answers, the one from the nearest step is used, and each only once, unless the
function is declared to answer equal questions alike (``reuse``).
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Literal

import pyarrow as pa

from clonos.branch.original import Asked, Question
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import decode, outcome_of
from clonos.errors import Unanswered, WrongType
from clonos.graph.replaced import function_name
from clonos.nodes.events import CallsOver
from clonos.operators.calls.budget import Budget, require_budget
from clonos.operators.calls.service import ask_once
from clonos.runtime.calls import CallRunner

SHOWN_MAX: Final = 200
"""Characters of arguments in an error."""

StandIn = Callable[..., Any]


Calls = Literal["stub", "live"] | Budget


@dataclass
class Line:
    """How the questions of one operator to one function were answered."""

    matched: int = 0
    reused: int = 0
    stubbed: int = 0
    live: int = 0
    ms: int = 0
    cost: float = 0.0


BILL: Final = pa.schema(
    [
        ("operator", pa.string()),
        ("function", pa.string()),
        ("matched", pa.int64()),
        ("reused", pa.int64()),
        ("stubbed", pa.int64()),
        ("live", pa.int64()),
        ("ms", pa.int64()),
        ("cost", pa.float64()),
    ]
)
"""``matched``: answered by the log; ``reused``: by an answer already given to another question;
``stubbed``: by the stand-in; ``live``: by the service itself, with total time `ms` and `cost`."""


@dataclass
class _Known:
    """The answers to one question in one task, by step; ``free``: those not used yet."""

    all: list[tuple[int, int]] = field(default_factory=list)  # position, index
    free: list[tuple[int, int]] = field(default_factory=list)


class Answers:
    """The answers in the log, and the other ways to answer.

    Parameters
    ----------
    asked
        The questions of the original.
    calls, stand_in, ask, reuse, cost
        See :class:`~clonos.branch.Branch`.
    remembers
        How many questions of the original to remember that were not asked again; None: all.
    in_flight
        How many calls of a task may stay open while it goes on.
    """

    def __init__(
        self,
        asked: Sequence[Asked],
        calls: Calls,
        stand_in: StandIn | None,
        ask: Collection[Any],
        reuse: Collection[Any],
        cost: Callable[[Any], float] | None,
        in_flight: int = 0,
        remembers: int | None = None,
    ) -> None:
        _require_sense(calls, cost, in_flight, ask=ask, reuse=reuse)
        self._remembers, self._in_flight = remembers, in_flight
        self._in_turn: deque[tuple[Question, int, tuple[int, int]]] = deque()
        self._asked: dict[int, Asked] = {}
        self._heard = 0
        self._known: dict[tuple[Question, int], _Known] = defaultdict(_Known)
        self._calls, self._stand_in, self._cost = calls, stand_in, cost
        self._may_ask, self._may_reuse = _names(ask), _names(reuse)
        self._lines: dict[tuple[str, str], Line] = defaultdict(Line)
        self._spent = Line()
        self.used_up_at: str = ""
        """The first call for which the budget did not suffice."""
        self._over: SimpleQueue[CallsOver] = SimpleQueue()
        self._runner: CallRunner | None = None
        self._open: dict[int, dict[CallId, Question]] = defaultdict(dict)  # questions of open calls
        self._came: dict[tuple[int, CallId], Outcome] = {}
        self._n_open = 0  # open calls of services, in total
        self.add(asked)

    def add(self, asked: Iterable[Asked]) -> None:
        """Add questions of the original."""
        for one in asked:
            known, place = self._known[one.question, one.task], (one.position, self._heard)
            self._asked[self._heard] = one
            self._heard += 1
            insort(known.all, place)
            insort(known.free, place)
            if self._remembers is not None:
                self._in_turn.append((one.question, one.task, place))
                if len(self._in_turn) > self._remembers:
                    self._forget(*self._in_turn.popleft())

    def _forget(self, question: Question, task: int, place: tuple[int, int]) -> None:
        """Forget an answer, so that no question gets it any more."""
        known = self._known[question, task]
        for places in (known.all, known.free):
            at = bisect_left(places, place)
            if at < len(places) and places[at] == place:
                del places[at]
        self._asked.pop(place[1], None)
        if not known.all:
            del self._known[question, task]

    def close(self) -> None:
        """Close connections to services."""
        if self._runner is not None:
            for task in self._open:
                self._runner.withdraw(task)
            self._runner.close()

    # --- the log --------------------------------------------------------------------------------

    def match(
        self, question: Question, task: int, position: int, *, can_wait: bool = True
    ) -> Asked | None:
        """The log's answer to a question of a step. The job may have got it later; or never, if a
        row `can_wait` for it."""
        known = self._known.get((question, task))
        if known is None:
            return None
        line, may_reuse = self._line(question), question.function in self._may_reuse
        places = known.free or (known.all if may_reuse and question.arguments else [])
        if (chosen := _nearest(places, position)) is None:
            return None
        place = places[chosen]
        if not question.arguments and place[0] != position:
            return None  # arguments without a canonical form cannot be compared
        found = self._asked[place[1]]
        if found.came is None and not can_wait:
            return None
        if places is known.all:
            line.reused += 1
            return found
        line.matched += 1
        known.free.pop(chosen)
        if self._remembers is not None and not may_reuse:
            self._forget(question, task, place)
        return found

    # --- other answers --------------------------------------------------------------------------

    def answer(
        self,
        question: Question,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> tuple[bool, bytes]:
        """The answer to a call that the step waits for.

        Raises
        ------
        Unanswered
            The function must not be called, and it has no stand-in.
        """
        if self._is_live(question, args, is_effect=False):
            began_s = time.monotonic()
            ok, answer = outcome_of(lambda: fn(*args, **kwargs))
            ms = round(1000 * (time.monotonic() - began_s))
            self._pay(question, ok=ok, answer=answer, ms=ms)
            return ok, answer
        return self._stand_in_for(question, fn, args, kwargs)

    def ask(self, task: int, calls: Iterable[tuple[CallId, Request, Question]]) -> list[Outcome]:
        """Make calls for which rows of a task wait, all at the same time.

        Services are called as in production, with the policy's timeouts, attempts and rates.

        Returns
        -------
        list
            The answers to hand over now, in the order of the questions: all except those of the
            newest calls, which may stay open.
        """
        live: list[tuple[CallId, Request]] = []
        opened = self._open[task]
        for call, request, question in calls:
            opened[call] = question
            if self._is_live(question, request.arguments, is_effect=bool(request.key)):
                self._n_open += 1
                live.append((call, request))
                continue
            if request.service.instead_of is not None:  # it is made by nobody
                ok, answer = outcome_of(partial(ask_once, request.service, request.arguments, {}))
            else:
                fn = request.service.fn
                ok, answer = self._stand_in_for(question, fn, request.arguments, {})
            self._came[task, call] = Outcome(*call, request.digest, ok, answer)
        if live:
            if self._runner is None:
                self._runner = CallRunner(self._over.put)
            self._runner.make(task, live)
        return self.answered(task, self._in_flight)

    def answered(self, task: int, stay_open: int = 0) -> list[Outcome]:
        """Wait for the oldest open calls of a task, until at most `stay_open` are left.

        So the choice of calls does not depend on the speed of services.
        """
        opened = self._open[task]
        found = []
        while len(opened) > stay_open:
            call = next(iter(opened))
            while (task, call) not in self._came:
                self._hear(self._over.get())
            found.append(self._came.pop((task, call)))
            del opened[call]
        return found

    def _hear(self, over: CallsOver) -> None:
        self._n_open -= len(over.outcomes)
        for outcome in over.outcomes:
            self._came[over.life, outcome.id] = outcome
            if outcome.attempts:  # else a remembered answer was used
                question = self._open[over.life][outcome.id]
                self._pay(question, ok=outcome.ok, answer=outcome.answer, ms=outcome.ms)

    def _stand_in_for(
        self, question: Question, fn: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[bool, bytes]:
        stand_in = self._stand_in
        if stand_in is None:
            raise _unanswered(question, args, self._why(question))
        self._line(question).stubbed += 1
        return outcome_of(lambda: stand_in(fn, *args, **kwargs))

    def _why(self, question: Question) -> str:
        if self._calls == "stub":
            return (
                "give stand_in=, a function that answers in its place, or calls='live' with "
                f"ask=[{question.function!r}]"
            )
        if self.used_up_at:
            return f"the budget was used up at {self.used_up_at}: raise it, or give stand_in="
        return (
            f"add ask=[{question.function!r}] if it changes nothing in the world; or give stand_in="
        )

    def _is_live(self, question: Question, args: Sequence[Any], *, is_effect: bool) -> bool:
        """Whether the service itself may be called."""
        if self._calls == "stub" or is_effect:
            return False
        if not _is_named(question.function, self._may_ask):
            return False
        if isinstance(budget := self._calls, Budget) and (
            (budget.calls is not None and self._spent.live + self._n_open >= budget.calls)
            or (budget.cost is not None and self._spent.cost >= budget.cost)
        ):
            self.used_up_at = self.used_up_at or _call(question, args)
            return False
        return True

    # --- the bill -------------------------------------------------------------------------------

    def _line(self, question: Question) -> Line:
        return self._lines[question.operator, question.function]

    def _pay(self, question: Question, *, ok: bool, answer: bytes, ms: int) -> None:
        cost = float(self._cost(decode(answer))) if ok and self._cost is not None else 0.0
        for line in (self._line(question), self._spent):
            line.live += 1
            line.ms += ms
            line.cost += cost

    @property
    def live(self) -> int:
        """The number of calls made."""
        return self._spent.live

    @property
    def cost(self) -> float:
        """The total cost of calls."""
        return self._spent.cost

    def bill(self) -> pa.Table:
        """See :data:`BILL`."""
        rows = [
            {"operator": operator, "function": function, **vars(line)}
            for (operator, function), line in sorted(self._lines.items())
        ]
        return pa.Table.from_pylist(rows, BILL)


def _nearest(places: list[tuple[int, int]], position: int) -> int | None:
    """Index of the place nearest to a position; of two equally near ones, the earlier.

    Examples
    --------
    >>> _nearest([(3, 0), (7, 1), (7, 2)], 5), _nearest([(3, 0), (7, 1), (7, 2)], 6)
    (0, 1)
    >>> _nearest([], 5)
    """
    after = bisect_left(places, (position, -1))
    if after == len(places):
        return after - 1 if places else None
    if not after:
        return 0
    before = bisect_left(places, (places[after - 1][0], -1))
    is_after_nearer = places[after][0] - position < position - places[before][0]
    return after if is_after_nearer else before


def _require_sense(calls: Any, cost: Any, in_flight: int, **named: Any) -> None:
    """Raise `WrongType` if an option would be ignored, or would fail after something was asked."""
    if in_flight < 0:
        raise WrongType(f"in_flight={in_flight}", remedy="give a number of 0 or more")
    if cost is not None and not callable(cost):
        raise WrongType(f"cost={cost!r}", remedy="give a function of an answer")
    if isinstance(calls, Budget):
        require_budget(calls, cost, None, "")
    elif calls not in ("stub", "live"):
        raise WrongType(f"calls={calls!r}", remedy="say 'stub', 'live' or clonos.Budget(calls=200)")
    for option, functions in named.items():
        if isinstance(functions, str) or not isinstance(functions, Collection):
            raise WrongType(
                f"{option}={functions!r}", remedy=f"give a list of functions: {option}=[...]"
            )


def _names(functions: Collection[Any]) -> frozenset[str]:
    return frozenset(f if isinstance(f, str) else function_name(f) for f in functions)


def _is_named(function: str, names: Collection[str]) -> bool:
    return function in names or function.rpartition(".")[2] in names


def _call(question: Question, args: Sequence[Any]) -> str:
    text = ", ".join(map(repr, args))
    text = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
    return f"{question.function}({text})"


def _unanswered(question: Question, args: Sequence[Any], remedy: str) -> Unanswered:
    return Unanswered(
        f"the log has no answer to {_call(question, args)}",
        where=question.operator,
        remedy=remedy,
    )
