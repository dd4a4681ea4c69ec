"""Calls of services and functions that do not behave: what becomes of them, and of others."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import gc
import sys
import threading
import time
import weakref
from email.utils import formatdate
from typing import Any

import pytest

from clonos.core.calls import CallId, Request
from clonos.core.canonical import decode, decode_error
from clonos.errors import BudgetSpent, EffectUnknown
from clonos.operators.calls.effects import effect
from clonos.runtime import calls
from tests.runtime.slot import LIFE, LIMIT_S, policy

needs_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups yet")


def test_a_coroutine_that_blocks_all_calls_is_named_and_nothing_hangs(slot, caplog):
    gate = threading.Event()

    async def block():
        gate.wait(LIMIT_S)

    async def quick():
        return 1

    slot.make(policy(block, timeout_s=0.3), ())
    blocked = slot.outcomes(1)[0]
    error = decode_error(blocked.answer)
    assert isinstance(error, TimeoutError)
    assert "a coroutine blocks the event loop" in str(error)
    assert "gate.wait(LIMIT_S)" in blocked.trace
    told = [record.getMessage() for record in caplog.records if record.name == "clonos"]
    assert len(told) == 1
    assert "gate.wait(LIMIT_S)" in told[0]
    slot.make(policy(quick, timeout_s=0.1), (), life=8)  # it cannot begin
    assert not slot.outcomes(1, life=8)[0].ok
    slot.make(policy(quick), (), life=9)
    gate.set()
    assert slot.outcomes(1, life=9)[0].ok, "the loop goes on when it may, and says nothing twice"


def test_a_coroutine_that_cancels_all_others_costs_them_an_attempt_and_loses_none(slot):
    """Some of them had not begun: there was nobody yet to say what became of them."""

    async def cancel_all(n):
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        return n

    async def slow(n):
        await asyncio.sleep(0.05)
        return n

    slot.make(policy(cancel_all), (1,), (2,), (3,))
    assert [decode(outcome.answer) for outcome in slot.outcomes(3)] == [1, 2, 3]
    slot.make(policy(slow, attempts=2), (1,), (2,))
    slot.make(policy(cancel_all), (7,), life=8)
    assert slot.heard.get(timeout=LIMIT_S).life == 8
    assert [decode(outcome.answer) for outcome in slot.outcomes(2)] == [1, 2]


async def cancel_all():
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


WAITS: dict[str, Any] = {
    "rate": {"per_second": 5.0},
    "backoff": {"attempts": 2, "backoff_s": (0.3, 0.3)},
    "asked to": {"attempts": 2},
    "question": {"cache_ttl_s": 60.0},
}


@pytest.mark.parametrize(
    ("kind", "waits"),
    [(k, w) for k in ("call", "effect") for w in WAITS if (k, w) != ("effect", "question")],
)
def test_who_is_cancelled_while_nothing_is_asked_goes_on_waiting(slot, kind, waits):
    """Nothing has failed then: a pause is none of the user's code."""
    began, may_answer = threading.Event(), threading.Event()
    asked: list[int] = []

    async def ask(n):
        began.set()
        asked.append(n)
        while waits == "question" and not may_answer.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
        if len(asked) == 1 and waits in {"backoff", "asked to"}:
            raise OfAPackage(0.2 if waits == "asked to" else 0)
        return n

    made: Any = {"effect": effect(ask, refused=OfAPackage)} if kind == "effect" else {}
    asking = policy(ask, **WAITS[waits], **made)
    numbers = (1, 2) if waits in {"rate", "question"} else (1,)
    keys = {n: f"KEY{n}" if made else "" for n in numbers}
    calls = [(CallId(2, n), Request(asking, (7,), n, key)) for n, key in keys.items()]
    slot.runner.make(LIFE, calls)
    assert began.wait(LIMIT_S)
    slot.make(policy(cancel_all), (), life=8)
    over = slot.heard.get(timeout=LIMIT_S)
    told = list(over.outcomes)
    while len(told) < 1 + len(numbers):
        may_answer.set()
        told += slot.heard.get(timeout=LIMIT_S).outcomes
    assert all(outcome.ok for outcome in told)


def test_attempts_side_by_side_that_are_all_cancelled_are_an_attempt(slot):
    began = threading.Event()
    asked: list[int] = []

    async def ask():
        asked.append(1)
        began.set()
        if len(asked) == 1:
            await asyncio.sleep(LIMIT_S)
        return 1

    slot.make(policy(ask, hedge_s=30.0, attempts=2), ())
    assert began.wait(LIMIT_S)
    slot.make(policy(cancel_all), (), life=8)
    told = [slot.heard.get(timeout=LIMIT_S).outcomes[0] for _ in range(2)]
    assert sorted(outcome.attempts for outcome in told) == [1, 2]
    assert all(outcome.ok for outcome in told)


class Stubborn:
    """Does not end when it is cancelled, as loops do that try again whatever is raised."""

    def __init__(self):
        self.may_end = False
        self.begun = self.ended = 0

    async def ask(self, n=0):
        self.begun += 1
        while not self.may_end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        self.ended += 1
        return n


@pytest.fixture
def stubborn(slot, monkeypatch):
    monkeypatch.setattr(calls, "END_S", 0.1)
    made = Stubborn()
    yield made
    made.may_end = True
    while made.ended < made.begun:
        time.sleep(0.01)


async def quick():
    return 1


@pytest.mark.parametrize("how", [{}, {"attempts": 3}, {"hedge_s": 0.05}])
def test_a_coroutine_that_goes_on_when_it_is_cancelled_is_given_up(slot, stubborn, how):
    outcome = slot.one(policy(stubborn.ask, timeout_s=0.2, **how))
    error = decode_error(outcome.answer)
    assert isinstance(error, TimeoutError)
    assert "no answer within 0.2 s" in str(error)
    if "hedge_s" not in how:
        assert "the coroutine goes on" in str(error)
        assert "await asyncio.sleep(0.01)" in outcome.trace
        assert stubborn.begun == 1
    assert slot.one(policy(quick)).ok
    stubborn.may_end = True
    while not stubborn.ended:
        time.sleep(0.01)
    assert slot.one(policy(quick)).ok, "what it answers at last is no outcome"


@pytest.mark.parametrize("kind", ["call", "effect"])
def test_a_coroutine_that_was_given_up_and_fails_at_last_is_not_tried_again(slot, stubborn, kind):
    async def ask():
        await stubborn.ask()
        raise ConnectionError("too late")

    how = {} if kind == "call" else {"effect": effect(ask, refused=ConnectionError)}
    asked = policy(ask, timeout_s=0.1, attempts=3, backoff_s=(0.0, 0.0), **how)
    key = "" if kind == "call" else "KEY"
    slot.runner.make(LIFE, [(CallId(2, 99), Request(asked, (), 99, key))])
    assert not slot.outcomes(1)[0].ok
    stubborn.may_end = True
    while not stubborn.ended:
        time.sleep(0.01)
    for _ in range(3):  # the loop has had its turns
        assert slot.one(policy(quick)).ok
    assert stubborn.begun == 1


def test_nobody_waits_for_a_coroutine_that_is_given_up(slot, stubborn):
    """Neither those who ask the same, nor those who are refused when all others are over."""
    how = policy(stubborn.ask, timeout_s=0.2, cache_ttl_s=60.0)
    slot.make(how, (7,), (7,))
    assert [outcome.ok for outcome in slot.outcomes(2)] == [False, False]
    assert stubborn.begun == 1, "they share the timeout"

    async def refuse(n):
        raise BudgetSpent(f"no {n}")

    outcome = slot.one(policy(refuse, instead_of=how), 8)
    assert isinstance(decode_error(outcome.answer), BudgetSpent)


def test_an_effect_that_goes_on_when_it_is_cancelled_is_in_doubt(slot, stubborn):
    how = policy(stubborn.ask, timeout_s=0.1, effect=effect(stubborn.ask))
    slot.runner.make(LIFE, [(CallId(2, 1), Request(how, (), 1, "KEY"))])
    assert isinstance(decode_error(slot.outcomes(1)[0].answer), EffectUnknown)


def test_coroutines_that_go_on_are_not_too_many(slot, stubborn, monkeypatch):
    monkeypatch.setattr(calls, "STUBBORN_MAX", 3)
    how = policy(stubborn.ask, timeout_s=0.1)
    slot.make(how, *((n,) for n in range(3)))
    assert not any(outcome.ok for outcome in slot.outcomes(3))
    assert "3 coroutines go on" in str(decode_error(slot.one(how).answer))
    stubborn.may_end = True
    while not slot.one(how).ok:
        pass


def test_second_attempts_that_go_on_are_counted_too(slot, stubborn, monkeypatch):
    monkeypatch.setattr(calls, "STUBBORN_MAX", 3)
    how = policy(stubborn.ask, timeout_s=0.05, hedge_s=0.01)
    told = (str(decode_error(slot.one(how).answer)) for _ in range(100))
    assert any("3 coroutines go on" in error for error in told)


def test_an_effect_behind_code_that_blocks_is_in_doubt(slot):
    gate = threading.Event()

    async def block():
        gate.wait(LIMIT_S)

    slot.make(policy(block, timeout_s=LIMIT_S), (), life=8)
    how = policy(block, timeout_s=0.1, effect=effect(block))
    slot.runner.make(LIFE, [(CallId(2, 1), Request(how, (), 1, "KEY"))])
    assert isinstance(decode_error(slot.outcomes(1)[0].answer), EffectUnknown)
    gate.set()
    slot.outcomes(1, life=8)


def test_a_flood_of_answers_of_100_mb_is_refused_one_by_one(slot):
    large = "x" * (100 << 20)

    async def ask(n):
        return [large] if n % 2 else {"answer": large}

    async def quick():
        return 1

    slot.make(policy(ask, in_flight=40), *((n,) for n in range(4)))
    for outcome in slot.outcomes(4):
        assert "at most 262144 are logged" in str(decode_error(outcome.answer))
        assert len(outcome.answer) < 1000
    assert decode(slot.one(policy(quick)).answer) == 1


class Large:
    """Stands for 100 MB; it cannot be logged, either."""


@pytest.mark.parametrize("what", ["answer", "error"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("how", [{}, {"attempts": 3}, {"hedge_s": 30.0}, {"batch": 2}, "effect"])
def test_nothing_keeps_what_an_attempt_has_left(slot, what, is_async, how):
    """Not even until Python looks for cycles: it counts objects for that, not their bytes."""
    left: list[weakref.ref[Large]] = []

    def answer(*_):
        large = Large()
        left.append(weakref.ref(large))
        if what == "error":
            raise ValueError("no")
        return large

    async def ask(*arguments):
        return answer(*arguments)

    fn = ask if is_async else answer
    kind = policy(fn, effect=effect(fn), timeout_s=0.1) if how == "effect" else policy(fn, **how)
    slot.one(policy(quick))
    gc.collect()
    gc.disable()
    try:
        arguments = ([1, 2],) if how == {"batch": 2} else ()
        key = "KEY" if how == "effect" else ""
        slot.runner.make(LIFE, [(CallId(2, 1), Request(kind, arguments, 1, key))])
        assert not slot.outcomes(1)[0].ok
        slot.one(policy(quick))  # the turn of the loop is over
        assert len(left) == (3 if how == {"attempts": 3} and what == "error" else 1)
        until = time.monotonic() + LIMIT_S
        while any(ref() is not None for ref in left):  # a thread lets go when it has told
            assert time.monotonic() < until, "it is kept"
            time.sleep(0.001)
    finally:
        gc.enable()


def test_a_service_that_is_down_for_a_while_costs_attempts_and_no_row(slot):
    asked: list[int] = []

    async def ask(n):
        asked.append(n)
        if len(asked) <= 60:
            raise ConnectionRefusedError(111, "nobody listens")
        return n

    slot.make(policy(ask, attempts=40, backoff_s=(0.001, 0.002)), *((n,) for n in range(10)))
    outcomes = slot.outcomes(10)
    assert [decode(outcome.answer) for outcome in outcomes] == list(range(10))
    assert sum(outcome.attempts for outcome in outcomes) == len(asked) == 70


class OfUrllib(Exception):
    name = "Retry-After"

    def __init__(self, said):
        super().__init__("429 Too Many Requests")
        self.headers = {self.name: said}


class OfADict(OfUrllib):
    """Headers that a user has put into a dict, as HTTP/2 spells them."""

    name = "retry-after"


class OfADate(OfUrllib):
    """It says until when, in a name of any case: in at least so many seconds."""

    name = "RETRY-AFTER"

    def __init__(self, said):
        super().__init__(formatdate(time.time() + 1 + float(said), usegmt=True))


class OfRequests(Exception):
    def __init__(self, said):
        super().__init__("429 Too Many Requests")
        self.response = OfUrllib(said)


class OfAPackage(Exception):
    def __init__(self, said):
        super().__init__("slow down")
        self.retry_after = float(said)


class Wrapped(Exception):
    def __init__(self, said):
        super().__init__("the model is busy")
        self.__cause__ = OfRequests(said)


def of_a_group(said):
    """As `asyncio.TaskGroup` raises."""
    group: Any = getattr(builtins, "ExceptionGroup")  # noqa: B009 - of Python 3.11
    return group("unhandled errors", [ValueError("no"), Wrapped(said)])


@pytest.mark.parametrize(
    ("kind", "said", "is_async"),
    [
        (Wrapped, "0.3", True),
        pytest.param(of_a_group, "0.3", False, marks=needs_groups),
        (OfUrllib, "1", True),
        (OfADict, "0.3", False),
        (OfADate, "1", True),
        (OfRequests, "1", False),
        (OfAPackage, "0.3", True),
    ],
)
def test_a_service_that_says_when_is_left_alone_until_then(slot, kind, said, is_async):
    refused: list[float] = []
    asked: list[float] = []

    def answer(n):
        if not refused:
            refused.append(time.monotonic())
            raise kind(said)
        asked.append(time.monotonic())
        return n

    async def ask(n):
        return answer(n)

    how = policy(ask if is_async else answer, attempts=2)
    slot.make(how, (0,))
    while not refused:
        time.sleep(0.001)
    time.sleep(0.1)  # the refusal is there: what comes from now on waits, too
    slot.runner.make(LIFE, [(CallId(2, n), Request(how, (n,), n)) for n in (2, 3)])
    assert [o.attempts for o in slot.outcomes(3)] == [2, 1, 1]
    assert min(asked) - refused[0] >= float(said)


def test_a_long_pause_that_a_service_asks_for_is_told_once(slot, caplog):
    gate = threading.Barrier(3)

    def ask(said):
        gate.wait(LIMIT_S)
        raise OfAPackage(said)

    slot.make(policy(ask), (400,), (400,), (5,))
    assert not any(outcome.ok for outcome in slot.outcomes(3))
    told = [record.getMessage() for record in caplog.records if record.name == "clonos"]
    (one,) = told
    assert "the service asks for a pause of 300 s; this task asks it nothing meanwhile" in one


def test_an_error_whose_headers_are_a_trap_is_an_error(slot):
    class Trap(Exception):
        @property
        def headers(self):
            raise RuntimeError("closed")

    async def ask():
        raise Trap("no")

    assert "Trap: no" in str(decode_error(slot.one(policy(ask)).answer))


class Unspeakable(BaseException):
    """As a panic of Rust, whose text panics again."""

    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize("is_async", [True, False])
def test_an_error_whose_text_ends_the_process_is_an_error(slot, is_async):
    def refuse():
        raise Unspeakable

    async def ask():
        refuse()

    error = decode_error(slot.one(policy(ask if is_async else refuse)).answer)
    assert "Unspeakable: <an exception that cannot be shown>" in str(error)


@needs_groups
def test_a_group_of_errors_says_what_the_first_one_is(slot):
    async def fail(n):
        await asyncio.sleep(0)
        raise ValueError(f"no {n}")

    async def ask():
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
            for n in range(3):
                group.create_task(fail(n))

    outcome = slot.one(policy(ask))
    said = str(decode_error(outcome.answer))
    assert said.startswith("ExceptionGroup: unhandled errors in a TaskGroup (")
    assert said.endswith("): ValueError: no 0")
    assert 'raise ValueError(f"no {n}")' in outcome.trace


def test_a_factory_of_tasks_that_user_code_sets_makes_none_of_ours(slot):
    """Tasks of `asyncio.eager_task_factory`, say, are over before anybody knows them."""
    made: list[str] = []

    async def ask(n):
        return n

    async def set_factory():
        def make(loop, code, **how):
            made.append(code.__qualname__)
            return asyncio.Task(code, loop=loop, **how)

        asyncio.get_running_loop().set_task_factory(make)

    slot.one(policy(set_factory))
    slot.make(policy(ask), (1,), (2,), life=8)
    assert [decode(outcome.answer) for outcome in slot.outcomes(2, life=8)] == [1, 2]
    assert made == []
