"""Effects: what is in doubt, what a check says, and what follows if nobody knows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from clonos.core.calls import Request
from clonos.errors import EffectUnknown
from clonos.operators.effects import EffectCall, Made, NotMade, effect
from clonos.operators.service import policy_of
from clonos.runtime import effects as effects_module
from clonos.runtime.effects import EffectRun, Pulse

QUIET_S = 0.05
"""Time after which nothing of an attempt is on its way; a stand-in for seconds."""


class Bank:
    """Answers as scripted, one word for each attempt and each check."""

    def __init__(self, attempts=(), checks=()):
        self.attempts, self.checks = list(attempts), list(checks)
        self.asked: list[EffectCall] = []
        self.checked_s: list[float] = []
        self.attempted_s: list[float] = []

    async def attempt(self, arguments, named):
        self.attempted_s.append(time.monotonic())
        self.asked.append(named["call"])
        return self._next(self.attempts)

    async def check(self, arguments, named):
        self.checked_s.append(time.monotonic())
        return self._next(self.checks)

    @staticmethod
    def _next(script):
        word = script.pop(0)
        if isinstance(word, Exception):
            raise word
        return word


def run(bank, *, in_doubt=False, attempts=1, check=True, **how):
    async def pay(n, *, call):
        raise AssertionError("the bank is asked")

    async def find(n):
        raise AssertionError("the bank is asked")

    checked: Any = {"check": find, "check_for": "50 ms"} if check else {}
    declared = effect(pay, **checked, **how)
    pauses = ("1 ms", "2 ms")
    policy = policy_of(
        declared, "pay", in_flight=9, timeout="50 ms", backoff=pauses, attempts=attempts
    )
    request = Request(policy, (7,), 0, "key7", in_doubt)
    found = EffectRun(policy, request, bank.attempt, bank.check)
    return asyncio.run(found.run())


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(effects_module, "CUT_OFF_S", 0.0)


def test_what_is_not_in_doubt_is_made_at_once():
    bank = Bank(["paid"])
    assert run(bank) == "paid"
    assert bank.asked == [EffectCall("key7", 1)]
    assert not bank.checked_s


def test_what_an_earlier_life_may_have_made_is_checked_first():
    bank = Bank([], [Made("receipt 3")])
    began_s = time.monotonic()
    assert run(bank, in_doubt=True) == "receipt 3"
    assert bank.checked_s[0] - began_s >= QUIET_S, "its attempt may still be under way"
    assert not bank.asked
    for not_made in (NotMade(), NotMade):
        bank = Bank(["paid"], [None, RuntimeError("away"), not_made])
        assert run(bank, in_doubt=True) == "paid"
        assert len(bank.checked_s) == 3


def test_an_error_is_a_doubt_unless_it_says_that_nothing_was_done():
    bank = Bank([ConnectionError("reset")], [Made("receipt")])
    assert run(bank) == "receipt"
    assert bank.checked_s[0] - bank.attempted_s[0] >= QUIET_S, "the request may be on its way"
    bank = Bank([ConnectionError("reset"), "paid"], [NotMade()])
    assert run(bank, attempts=2) == "paid"
    with pytest.raises(ConnectionError):
        run(Bank([ConnectionError("reset")], [NotMade()]))
    bank = Bank([NotMade("no money"), PermissionError("no card"), "paid"])
    assert run(bank, attempts=3, refused=(PermissionError,)) == "paid"
    assert not bank.checked_s
    assert [call.attempt for call in bank.asked] == [1, 2, 3]
    assert {call.key for call in bank.asked} == {"key7"}


@pytest.mark.parametrize("in_doubt", [False, True])
def test_what_nobody_knows_is_said(in_doubt):
    bank = Bank([TimeoutError("late")], [None] * 999)
    with pytest.raises(EffectUnknown, match="whether the effect key7 was made") as caught:
        run(bank, in_doubt=in_doubt, attempts=9)
    assert len(bank.asked) == (not in_doubt), "never a second time"
    assert "check=" in caught.value.remedy
    with pytest.raises(EffectUnknown):
        run(Bank([TimeoutError("late")]), check=False)


def test_the_policy_may_be_to_make_it_again():
    bank = Bank([TimeoutError("late"), "paid"], [None] * 999)
    assert run(bank, attempts=2, on_unknown="retry") == "paid"
    with pytest.raises(EffectUnknown):
        run(Bank([TimeoutError("late")], [None] * 999), on_unknown="retry")


def test_a_service_that_deduplicates_is_asked_again_under_the_same_name():
    bank = Bank([ConnectionError("reset"), "paid"])
    began_s = time.monotonic()
    assert run(bank, in_doubt=True, attempts=2, check=False, idempotent=True) == "paid"
    assert bank.attempted_s[0] - began_s < QUIET_S, "an earlier attempt does no harm"
    assert {call.key for call in bank.asked} == {"key7"}
    with pytest.raises(EffectUnknown):
        run(Bank([ConnectionError("reset")]), check=False, idempotent=True)
    with pytest.raises(NotMade):
        run(Bank([NotMade("no money")]), check=False, idempotent=True)


def test_a_process_that_was_stopped_takes_time_to_hear_the_news(monkeypatch):
    monkeypatch.setattr(effects_module, "BEAT_S", 0.01)
    monkeypatch.setattr(effects_module, "STALLED_S", 0.2)

    async def stopped():
        pulse, clock = Pulse(), asyncio.get_running_loop().time
        await asyncio.sleep(0.05)
        before = clock()
        await pulse.steady()
        steady_s = clock() - before
        time.sleep(0.3)  # noqa: ASYNC251 - as if the process was frozen
        before = clock()
        await pulse.steady()
        return steady_s, clock() - before

    steady_s, stopped_s = asyncio.run(stopped())
    assert steady_s < 0.2 <= stopped_s
