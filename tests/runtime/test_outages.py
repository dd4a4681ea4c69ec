"""Services that answer nothing: what is known of it, and when it is over."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from clonos.errors import BudgetSpent
from clonos.operators.calls.effects import NotMade, effect
from clonos.runtime.outages import TOLD_S, ServiceOutage
from clonos.transport.events import Away
from tests.runtime.slot import LIFE, LIMIT_S, policy


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock) -> ServiceOutage:
    return ServiceOutage("model", "complete", clock)


def away_of(outage: ServiceOutage) -> Away:
    assert outage.away is not None
    return outage.away


def fail(outage: ServiceOutage, clock: Clock, at_s: float, took_s: float = 0.0) -> None:
    clock.now = at_s
    outage.failed(at_s - took_s, ConnectionError("refused"))


def test_it_is_away_from_the_first_attempt_that_failed_to_the_last(outage, clock):
    assert outage.away is None
    fail(outage, clock, 105.0, took_s=2.0)
    assert outage.away is None, "one attempt shows nothing"
    fail(outage, clock, 108.0)
    clock.now = 200.0  # nobody asks
    seconds, function, error = away_of(outage)
    assert (seconds, function, error) == (5, "complete", "ConnectionError: refused")
    fail(outage, clock, 210.0)
    assert away_of(outage).seconds == 107


def test_an_answer_ends_it(outage, clock):
    fail(outage, clock, 100.0)
    fail(outage, clock, 120.0)
    clock.now = 121.0
    outage.answered()
    assert outage.away is None
    fail(outage, clock, 130.0, took_s=30.0)  # it began before that answer
    fail(outage, clock, 131.0)
    assert away_of(outage).seconds == 10, "since the answer"


def test_time_in_which_nobody_could_be_heard_does_not_count(outage, clock):
    fail(outage, clock, 100.0)
    fail(outage, clock, 101.0)
    clock.now = 160.0
    outage.stood_still()
    assert outage.away is None
    fail(outage, clock, 160.0, took_s=60.0)
    fail(outage, clock, 162.0, took_s=62.0)
    assert away_of(outage).seconds == 2


def test_only_the_first_line_is_told_and_no_secret(outage, clock):
    for _ in range(2):
        outage.failed(90.0, ValueError("https://api/?api_key=abc has failed\nand so on"))
    assert away_of(outage).error == "ValueError: https://api/?api_key=*** has failed"


def test_the_log_of_the_process_says_when_it_began_and_ended(outage, clock, caplog):
    with caplog.at_level(logging.WARNING, "clonos"):
        fail(outage, clock, 100.0)
        fail(outage, clock, 100.0 + TOLD_S)
        fail(outage, clock, 101.0 + TOLD_S)
        outage.answered()
        outage.answered()
        fail(outage, clock, 102.0 + TOLD_S)
        fail(outage, clock, 103.0 + TOLD_S)
        outage.answered()
    first, last = caplog.messages
    assert first == "model: complete has answered nothing for 10 s: ConnectionError: refused"
    assert last == "model: complete answers again"


# --- in the runner ------------------------------------------------------------------------------


def away(slot, seconds, life=LIFE):
    """What is told of the services that have been away for so long."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        told = slot.runner.away(life)
        if told and all(each.seconds >= seconds for each in told.values()):
            return told
        time.sleep(0.05)
    raise AssertionError(f"nothing is told: {slot.runner.away(life)}")


@pytest.mark.parametrize("kind", ["coroutine", "function", "hedged"])
def test_a_service_that_refuses_everything_is_away_until_it_answers(slot, kind):
    is_up = threading.Event()

    def ask():
        if not is_up.is_set():
            raise ConnectionError("refused")
        return "here"

    async def ask_later():
        return ask()

    fn = ask if kind == "function" else ask_later
    how = policy(fn, attempts=1000, hedge_s=30.0 if kind == "hedged" else None)
    slot.make(how, ())
    told = away(slot, 1)
    assert set(told) == {"ask"}
    assert told["ask"].error == "ConnectionError: refused"
    assert slot.runner.away(8) == {}, "another life knows nothing of it"
    is_up.set()
    assert slot.outcomes(1)[0].ok
    until = time.monotonic() + LIMIT_S
    while slot.runner.away(LIFE) and time.monotonic() < until:
        time.sleep(0.05)
    assert slot.runner.away(LIFE) == {}


def test_a_service_that_says_nothing_is_away(slot):
    async def ask():
        await asyncio.Event().wait()

    slot.make(policy(ask, attempts=1000, timeout_s=0.4), ())
    assert away(slot, 1)["ask"].error == "TimeoutError: no answer within 0.4 s"


def test_coroutines_that_go_on_when_their_time_is_over_have_not_answered(slot):
    async def ask():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if is_over.is_set():
                    raise

    is_over = threading.Event()
    slot.make(policy(ask, timeout_s=0.2), (), ())
    try:
        assert away(slot, 1)["ask"].error == "TimeoutError: no answer within 0.2 s"
    finally:
        is_over.set()


def test_a_check_that_says_no_has_answered_and_a_used_up_budget_is_no_outage(slot):
    async def ask():
        raise ConnectionError("refused")

    async def check():
        raise NotMade

    made = effect(ask, check=check)
    how = policy(ask, effect=made, attempts=1000, timeout_s=0.01)
    slot.runner.may_begin(1e12)
    slot.make(how, ())
    told = away(slot, 1)
    assert set(told) == {"ask"}, "its check answers"

    async def refuse():
        raise BudgetSpent("it is used up")

    refusing = policy(refuse, name="refused", attempts=1000, instead_of=policy(ask))
    slot.make(refusing, (), life=8)
    slot.make(policy(ask, name="other", attempts=1000), (), life=8)
    assert set(away(slot, 1, life=8)) == {"other"}


def test_a_loop_that_stood_still_has_heard_nobody(slot):
    """The process may have been stopped, too: nobody else could have been answered meanwhile."""

    async def ask(blocks):
        if blocks:
            time.sleep(2.5)  # noqa: ASYNC251
        raise ConnectionError("refused")

    slot.make(policy(ask, attempts=3, backoff_s=(0.01, 0.02)), (True,), (False,))
    slot.outcomes(2)
    time.sleep(0.6)
    assert all(each.seconds < 2 for each in slot.runner.away(LIFE).values())
