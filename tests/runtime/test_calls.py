"""Calls beside the steps: attempts, limits, threads, connections."""

from __future__ import annotations

import asyncio
import gc
import queue
import sys
import threading
import time

import pytest

from clonos.core.calls import CallId, Request
from clonos.core.canonical import decode, decode_error, encode_error
from clonos.errors import AnswerTooLarge, UnencodableValue, WrongLength
from clonos.operators.calls.effects import effect
from clonos.operators.calls.service import Service, policy_of
from clonos.runtime import call_threads
from clonos.runtime.call_outcomes import ANSWER_BYTES_MAX
from clonos.runtime.calls import CallRunner
from tests.runtime.slot import LIFE, LIMIT_S, Slot, policy


def test_coroutines_are_asked_at_once(slot):
    everybody = asyncio.Event()
    inside = 0

    async def ask(n):
        nonlocal inside
        inside += 1
        if inside == 10:
            everybody.set()
        await everybody.wait()
        return n * n

    slot.make(policy(ask), *((n,) for n in range(10)))
    assert [decode(o.answer) for o in slot.outcomes(10)] == [n * n for n in range(10)]


def test_functions_are_asked_in_threads(slot):
    everybody = threading.Barrier(5)

    def ask(n):
        everybody.wait(LIMIT_S)
        return threading.current_thread().name, n

    slot.make(policy(ask, in_flight=5), *((n,) for n in range(5)))
    answers = [decode(o.answer) for o in slot.outcomes(5)]
    assert [n for _, n in answers] == list(range(5))
    assert len({name for name, _ in answers}) == 5


def test_what_comes_together_is_told_together(slot):
    gate = threading.Event()

    async def ask(n):
        return n

    async def wait():
        gate.wait(LIMIT_S)  # nobody should, but then the others come together
        return 0

    slot.make(policy(wait), ())
    slot.make(policy(ask), *((n,) for n in range(50)), life=8)
    gate.set()
    assert slot.heard.get(timeout=LIMIT_S).life == LIFE
    assert len(slot.heard.get(timeout=LIMIT_S).outcomes) == 50


def test_attempts_until_one_succeeds(slot):
    tried = []

    async def ask():
        tried.append(time.monotonic())
        if len(tried) < 3:
            raise ConnectionError("try later")
        return "here"

    outcome = slot.one(policy(ask, attempts=5, backoff_s=(0.02, 1.0)))
    assert (outcome.ok, outcome.attempts, decode(outcome.answer)) == (True, 3, "here")
    assert tried[2] - tried[1] >= 0.02  # of the pauses each is half of twice the last, at least
    assert tried[1] - tried[0] >= 0.01


def test_the_last_error_counts(slot):
    async def ask():
        raise KeyError("which")

    outcome = slot.one(policy(ask, attempts=2, tells_trace=False))
    assert (outcome.ok, outcome.attempts, outcome.trace) == (False, 2, "")
    error = decode_error(outcome.answer)
    assert type(error) is KeyError
    assert error.args == ("which",)


@pytest.mark.parametrize("is_thread", [False, True])
def test_the_place_is_logged_only_if_it_is_told(slot, is_thread):
    def fail():
        raise KeyError("which")

    async def ask():
        fail()

    asked = fail if is_thread else ask
    told = decode_error(slot.one(policy(asked, tells_place=True)).answer)
    line = fail.__code__.co_firstlineno + 1
    assert told.raised_at == f"test_calls.py:{line}, in fail"  # type: ignore[attr-defined]
    assert (type(told), told.args) == (KeyError, ("which",))
    assert slot.one(policy(asked)).answer == encode_error(KeyError("which"))


def test_the_users_lines_are_told(slot):
    def inner():
        return 1 / 0

    async def ask():
        return inner()

    trace = slot.one(policy(ask)).trace
    assert "in ask" in trace
    assert "return 1 / 0" in trace
    assert "runtime/calls.py" not in trace


@pytest.mark.parametrize("is_async", [True, False])
def test_no_answer_in_time(slot, is_async):
    gate = threading.Event()

    async def coroutine():
        await asyncio.sleep(LIMIT_S)

    def function():
        gate.wait(LIMIT_S)

    how = policy(coroutine if is_async else function, timeout_s=0.05)
    outcome = slot.one(how)
    gate.set()
    error = decode_error(outcome.answer)
    assert type(error) is TimeoutError
    assert str(error) == "no answer within 0.05 s"


@pytest.mark.parametrize("hedge_s", [None, 0.02])
def test_where_a_coroutine_was_when_its_time_was_over_is_said(slot, hedge_s):
    async def ask():
        await asyncio.sleep(LIMIT_S)

    outcome = slot.one(policy(ask, timeout_s=0.05, hedge_s=hedge_s))
    assert "no answer within 0.05 s" in str(decode_error(outcome.answer))
    assert outcome.trace.count("await asyncio.sleep(LIMIT_S)") == 1
    assert "runtime/calls.py" not in outcome.trace


@pytest.mark.parametrize(("key", "hedge"), [("", None), ("", "20 ms"), ("key7", None)])
def test_where_a_thread_is_when_its_time_is_over_is_said(slot, key, hedge):
    may_end = threading.Event()

    def ask():
        may_end.wait(LIMIT_S)

    made = effect(ask, check_for="50 ms") if key else ask
    how = {"timeout": "50 ms", "hedge": hedge, "backoff": ("1 ms", "2 ms")}
    asked = policy_of(made, "ask", in_flight=9, **how)
    slot.runner.make(LIFE, [(CallId(2, 1), Request(asked, (), 1, key))])
    trace = slot.outcomes(1)[0].trace
    may_end.set()
    assert "Your code, which goes on:" in trace
    assert trace.count("may_end.wait(LIMIT_S)") == 1
    assert "runtime/call_threads.py" not in trace


def test_a_timeout_of_the_users_own(slot):
    async def ask():
        raise TimeoutError("mine")

    assert str(decode_error(slot.one(policy(ask)).answer)) == "mine"


def test_a_second_attempt_beside_a_slow_one(slot):
    asked = 0

    async def ask():
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.sleep(LIMIT_S)
        return asked

    outcome = slot.one(policy(ask, hedge_s=0.02))
    assert decode(outcome.answer) == 2
    assert outcome.attempts == 1


def test_of_two_attempts_the_good_one_counts(slot):
    asked = 0
    failed = asyncio.Event()

    async def ask():
        nonlocal asked
        asked += 1
        if asked == 2:
            failed.set()
            raise ConnectionError
        await failed.wait()
        await asyncio.sleep(0.02)
        return "first"

    assert decode(slot.one(policy(ask, hedge_s=0.01)).answer) == "first"


def test_no_more_per_second(slot):
    times = []

    async def ask():
        times.append(time.monotonic())

    before = time.monotonic()
    slot.make(policy(ask, per_second=100), *(() for _ in range(8)))
    slot.outcomes(8)
    assert times[-1] - before >= 0.07


def test_who_was_told_to_wait_comes_no_faster_afterwards(slot):
    """Those whose turn came while all had to wait do not come together when the wait is over."""
    times = []

    class Busy(Exception):
        retry_after = 0.3

    async def ask():
        times.append(time.monotonic())
        if len(times) == 1:
            raise Busy

    slot.make(policy(ask, per_second=50), *(() for _ in range(11)))
    slot.outcomes(11)
    assert times[1] - times[0] >= 0.29
    assert times[-1] - times[1] >= 9 / 50


def test_a_connection_is_opened_once_per_life_and_closed(slot):
    happened: queue.Queue[tuple[str, int]] = queue.Queue()

    class Connected(Service):
        async def open(self):
            await asyncio.sleep(0)
            happened.put(("open", id(self)))
            self.session = "session"

        async def call(self, n):
            return self.session, n

        async def close(self):
            happened.put(("close", id(self)))

    original = Connected()
    how = policy(original)
    slot.make(how, (1,), (2,))
    assert [decode(o.answer) for o in slot.outcomes(2)] == [("session", 1), ("session", 2)]
    slot.make(how, (3,), life=8)
    slot.outcomes(1, life=8)
    slot.runner.withdraw(LIFE)
    (first, a), (second, b), (third, c) = (happened.get(timeout=LIMIT_S) for _ in range(3))
    assert (first, second, third) == ("open", "open", "close")
    assert c == a != b
    assert not hasattr(original, "session")


def test_a_connection_that_fails_at_first(slot):
    class Late(Service):
        tried = 0

        async def open(self):
            Late.tried += 1
            if Late.tried < 3:
                raise ConnectionRefusedError("not yet")

        async def call(self):
            return Late.tried

    assert decode(slot.one(policy(Late(), attempts=5)).answer) == 3


@pytest.mark.parametrize("how", ["alone", "with a second attempt", "effect"])
def test_a_connection_that_hangs_is_named_with_its_lines(slot, how):
    class Deaf(Service):
        async def open(self):
            await asyncio.sleep(LIMIT_S)

        async def call(self, n):
            raise AssertionError

    service = Deaf()
    kind = policy(service, timeout_s=0.1)
    if how == "effect":
        kind = policy(service, timeout_s=0.1, effect=effect(service, refused=OSError))
    elif how != "alone":
        kind = policy(service, timeout_s=0.1, hedge_s=0.05)
    key = "KEY" if how == "effect" else ""
    slot.runner.make(LIFE, [(CallId(2, n), Request(kind, (n,), n, key)) for n in (1, 2)])
    for outcome in slot.outcomes(2):
        error = decode_error(outcome.answer)
        assert "Deaf.open has not returned within 0.1 s" in str(error)
        assert "await asyncio.sleep(LIMIT_S)" in outcome.trace
        assert how == "effect" or isinstance(error, TimeoutError)
        assert ("NotMade: no connection" in str(error)) == (how == "effect")


def test_who_is_withdrawn_is_not_heard(slot):
    began = threading.Event()
    ended: queue.Queue[type[BaseException] | None] = queue.Queue()

    async def ask():
        began.set()
        try:
            await asyncio.sleep(LIMIT_S)
        finally:
            ended.put(sys.exc_info()[0])

    slot.make(policy(ask), ())
    assert began.wait(LIMIT_S)
    slot.runner.withdraw(LIFE)
    assert ended.get(timeout=LIMIT_S) is asyncio.CancelledError

    async def quick():
        return 1

    slot.make(policy(quick), (), life=8)
    slot.outcomes(1, life=8)  # and nothing of the other one


class Panic(BaseException):
    """As libraries in Rust raise."""


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text")


STRANGE = [SystemExit, KeyboardInterrupt, GeneratorExit, Panic, Unspeakable, StopIteration]


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("is_async", [True, False])
def test_whatever_is_raised_is_an_outcome(slot, strange, is_async):
    def fail():
        raise strange("now")

    async def fail_later():
        raise strange("now")

    outcome = slot.one(policy(fail_later if is_async else fail))
    assert not outcome.ok
    assert isinstance(decode_error(outcome.answer), Exception)

    async def quick():
        return 1

    assert decode(slot.one(policy(quick)).answer) == 1


def test_a_task_of_the_users_that_wants_to_leave(slot):
    async def leave():
        sys.exit(3)

    async def ask():
        await asyncio.gather(asyncio.create_task(leave()))

    assert not slot.one(policy(ask)).ok


@pytest.mark.parametrize("how", [{}, {"hedge_s": 30.0}])
def test_a_call_that_cancels_itself(slot, how):
    async def ask():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    outcome = slot.one(policy(ask, **how))
    assert "your code has cancelled the call" in str(decode_error(outcome.answer))
    assert "await asyncio.sleep(0)" in outcome.trace


def test_answers_that_cannot_be_logged(slot):
    async def ask(what):
        return object() if what == "object" else "x" * (ANSWER_BYTES_MAX + 1)

    slot.make(policy(ask, attempts=3), ("object",), ("large",))
    kinds = (UnencodableValue, "cannot be kept"), (AnswerTooLarge, "at most 262144")
    for outcome, (kind, text) in zip(slot.outcomes(2), kinds, strict=True):
        error = decode_error(outcome.answer)
        assert type(error) is kind
        assert text in error.what
        assert error.remedy not in {"", error.what}
        assert outcome.attempts == 1  # another attempt would not help


def test_a_coroutine_that_nobody_awaits_is_no_answer(slot, recwarn):
    async def later():
        return 1

    async def ask():
        return later()

    def plain():
        return later()

    for fn in (plain, ask):
        error = decode_error(slot.one(policy(fn)).answer)
        assert isinstance(error, UnencodableValue)
        assert "a coroutine that nobody awaits" in error.what
        assert "async def" in error.remedy
    gc.collect()
    assert not recwarn.list, "Python need not say it, too"


def test_a_service_whose_call_is_not_async_is_told_so(slot):
    class Plain(Service):
        def call(self, n):
            return n

    class Broken(Service):
        async def call(self, n):
            return n + "1"

    outcome = slot.one(policy(Plain(), attempts=3), 1)
    assert outcome.attempts == 1
    error = decode_error(outcome.answer)
    assert "has returned a int, and nothing to await" in str(error)
    assert "async def" in str(error)
    assert isinstance(decode_error(slot.one(policy(Broken()), 1).answer), TypeError)


def test_as_many_answers_as_rows(slot):
    asked = []

    async def ask(numbers):
        asked.append(len(numbers))
        return [-numbers.pop(0) for _ in range(min(2, len(numbers)))]

    slot.make(policy(ask, attempts=1, batch=3), ([1, 2],), ([3, 4, 5],))
    good, bad = slot.outcomes(2)
    assert decode(good.answer) == [-1, -2]
    error = decode_error(bad.answer)
    assert isinstance(error, WrongLength)
    assert "2 answers to 3 rows: 3, 4, 5" in str(error)
    assert slot.one(policy(ask, attempts=3, batch=3), [3, 4, 5]).attempts == 1
    assert asked == [2, 3, 3], "the same function would answer so again"


def test_a_service_that_cannot_be_opened_or_copied(slot):
    class Leaving(Service):
        async def open(self):
            sys.exit("no")

    class Alone(Service):
        def __copy__(self):
            raise TypeError("there is only one")

    class Hanging(Service):
        opened = 0

        async def open(self):
            Hanging.opened += 1
            if Hanging.opened < 3:
                await asyncio.sleep(LIMIT_S)

        async def call(self):
            return Hanging.opened

    assert "SystemExit: no" in str(decode_error(slot.one(policy(Leaving())).answer))
    assert "there is only one" in str(decode_error(slot.one(policy(Alone())).answer))
    assert decode(slot.one(policy(Hanging(), timeout_s=0.05, attempts=5)).answer) == 3


def test_a_service_that_cannot_be_closed_is_told_of(caplog):
    class Flushes(Service):
        async def call(self, n):
            return n

        async def close(self):
            raise OSError("what was buffered is lost")

    slot = Slot()
    slot.make(policy(Flushes()), (1,))
    slot.outcomes(1)
    slot.runner.close()
    (said,) = caplog.messages
    assert "Flushes.close" in said
    assert "what was buffered is lost" in said
    assert "test_calls.py" in said, "the user's lines"


def test_services_are_closed_when_the_slot_ends():
    closed = threading.Event()

    class Connected(Service):
        async def call(self):
            return 1

        async def close(self):
            await asyncio.sleep(0.01)
            closed.set()

    slot = Slot()
    slot.one(policy(Connected()))
    slot.runner.withdraw(LIFE)
    slot.runner.close()
    assert closed.is_set()


def test_an_error_is_cut(slot):
    async def ask():
        raise ValueError("x" * 10_000_000)

    assert len(slot.one(policy(ask, tells_trace=False)).answer) < 20_000


def test_the_wait_for_a_thread_is_no_time_of_the_service(slot):
    def ask(n):
        time.sleep(0.1)
        return n

    slot.make(policy(ask, timeout_s=5.0, in_flight=400), *((n,) for n in range(300)))
    assert all(outcome.ok for outcome in slot.outcomes(300))


def test_threads_that_hang_are_replaced_until_there_are_too_many(slot, monkeypatch):
    monkeypatch.setattr(call_threads, "THREADS_MAX", 3)
    gate = threading.Event()

    def ask(n):
        if n < 2:
            gate.wait(LIMIT_S)
        return n

    how = policy(ask, timeout_s=0.1, in_flight=1)
    slot.make(how, (0,), (1,), (2,), (3,))
    assert [outcome.ok for outcome in slot.outcomes(4)] == [False, False, True, True]
    slot.make(how, (0,), (4,))
    for outcome in slot.outcomes(2):
        assert not outcome.ok
    assert "all 3 threads hang" in str(decode_error(slot.one(how, 5).answer))
    gate.set()
    while not slot.one(how, 6).ok:
        pass


def test_a_hedge_waits_for_its_turn_and_has_no_more_time(slot):
    asked = []

    async def ask():
        asked.append(time.monotonic())
        await asyncio.sleep(LIMIT_S)

    before = time.monotonic()
    outcome = slot.one(policy(ask, per_second=5, hedge_s=0.02, timeout_s=0.5))
    assert not outcome.ok
    assert asked[1] - asked[0] >= 0.15
    assert time.monotonic() - before < 5


def test_nothing_runs_before_the_first_call():
    runner = CallRunner(print)
    before = threading.active_count()
    runner.withdraw(1)
    runner.close()
    assert threading.active_count() == before
