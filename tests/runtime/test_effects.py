"""Effects: what is in doubt, what a check says, and what follows if nobody knows."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core.calls import CallId, Request
from clonos.core.canonical import decode, decode_error
from clonos.errors import EffectUnknown
from clonos.nodes.events import CallsOver
from clonos.operators.calls.effects import EffectCall, Made, NotMade, effect
from clonos.operators.calls.service import Service, policy_of
from clonos.runtime import effects as effects_module
from clonos.runtime.call_outcomes import ANSWER_BYTES_MAX
from clonos.runtime.calls import CallRunner
from clonos.runtime.effects import EffectRun, Pulse, by_engine
from clonos.runtime.ticks import ticks_s
from clonos.runtime.turns import Turns
from tests.runtime.slot import LIFE, LIMIT_S

CHARGE = effect(lambda cents, *, call: cents)
BY_NAME = effect(lambda cents, *, call: cents, idempotent=True)
QUIET_S = 0.05
"""Time after which nothing of an attempt is on its way; a stand-in for seconds."""


class Bank:
    """Answers as scripted, one word for each attempt and each check."""

    def __init__(self, attempts=(), checks=()):
        self.attempts, self.checks = list(attempts), list(checks)
        self.asked: list[EffectCall] = []
        self.checked_s: list[float] = []
        self.attempted_s: list[float] = []
        self.late: Future[Any] | None = None
        self.is_over = False

    async def attempt(self, request, named):
        self.attempted_s.append(time.monotonic())
        self.asked.append(named["call"])
        return self._next(self.attempts)

    async def check(self, request, named):
        self.checked_s.append(time.monotonic())
        return self._next(self.checks)

    @staticmethod
    def _next(script):
        word = script.pop(0)
        if isinstance(word, Exception):
            raise word
        return word


class Life:
    """The life of a task, which is over when its bank says so."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self.late = {} if bank.late is None else {"key7": bank.late}
        self.began_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self._bank.is_over

    async def undisturbed(self, wait: Any) -> Any:
        return await wait()


def run(bank, *, in_doubt=False, attempts=1, check=True, asked_ms=0, **how):
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
    request = Request(policy, (7,), 0, "key7", in_doubt, asked_ms)
    return asyncio.run(EffectRun(policy, request, bank.attempt, bank.check, Life(bank)).run())


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
    assert run(Bank([], [Made]), in_doubt=True) is None  # the class says as much as Made()


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


@pytest.mark.parametrize("on_unknown", ["fail", "on_error"])
def test_nothing_is_waited_for_where_nobody_can_be_asked(on_unknown, monkeypatch):
    monkeypatch.setattr(effects_module, "CUT_OFF_S", 60.0)
    began_s = time.monotonic()
    with pytest.raises(EffectUnknown):
        run(Bank(), in_doubt=True, check=False, on_unknown=on_unknown)
    assert time.monotonic() - began_s < 60


@pytest.mark.parametrize("in_doubt", [False, True])
def test_what_nobody_knows_is_said(in_doubt):
    bank = Bank([TimeoutError("late")], [None] * 999)
    with pytest.raises(EffectUnknown, match="the effect key7: nobody knows") as caught:
        run(bank, in_doubt=in_doubt, attempts=9)
    assert len(bank.asked) == (not in_doubt), "never a second time"
    assert "give check=" not in caught.value.remedy
    assert "it is called again" in caught.value.remedy
    with pytest.raises(EffectUnknown) as caught:
        run(Bank([TimeoutError("late")]), check=False)
    assert "give check=" in caught.value.remedy
    with pytest.raises(EffectUnknown) as caught:
        run(Bank([TimeoutError("late")]), check=False, idempotent=True)
    assert "with the same key" in caught.value.remedy


def test_why_a_check_knows_nothing_is_said():
    with pytest.raises(EffectUnknown, match=r"late; its check: KeyError: 'charges'") as caught:
        run(Bank([TimeoutError("late")], [None, *[KeyError("charges")] * 999]))
    assert isinstance(caught.value.__cause__, KeyError), "its traceback is told"
    with pytest.raises(EffectUnknown, match="late; its check returned None"):
        run(Bank([TimeoutError("late")], [None] * 999))


def test_what_led_to_a_doubt_is_its_cause():
    """The user's lines are in its traceback."""
    for how in ({"check": False}, {"check": False, "idempotent": True}):
        with pytest.raises(EffectUnknown) as caught:
            run(Bank([ConnectionError("reset")]), **how)
        assert isinstance(caught.value.__cause__, ConnectionError)


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


def test_a_refusal_says_nothing_of_an_earlier_attempt_that_is_in_doubt():
    """The second attempt was refused because it was one too many a second, say."""
    bank = Bank([ConnectionError("reset"), PermissionError("busy")])
    with pytest.raises(EffectUnknown):
        run(bank, attempts=2, check=False, idempotent=True, refused=PermissionError)
    with pytest.raises(EffectUnknown):
        run(Bank([NotMade()]), in_doubt=True, check=False, idempotent=True)


def test_an_error_of_the_engines_is_no_refusal():
    bank = Bank([by_engine(TimeoutError("no answer within 3 s"))], [Made("receipt")])
    assert run(bank, refused=(OSError,)) == "receipt"  # a TimeoutError is an OSError


def test_what_goes_on_in_a_thread_is_waited_for():
    bank = Bank([TimeoutError("late")])
    bank.late = Future()
    bank.late.set_result("paid in the end")
    assert run(bank) == "paid in the end"
    bank = Bank(["paid"])
    bank.late = Future()
    bank.late.set_exception(NotMade())
    assert run(bank, in_doubt=True) == "paid"
    bank = Bank(["paid"], [NotMade()])
    bank.late = Future()  # of which a check knows nothing yet
    with pytest.raises(EffectUnknown):
        run(bank, in_doubt=True)
    assert not bank.asked


def test_a_life_that_is_over_begins_nothing():
    """Whatever user code has made of the cancellation."""
    bank = Bank(["paid"], [NotMade()])
    bank.is_over = True
    for in_doubt in (False, True):
        with pytest.raises(asyncio.CancelledError):
            run(bank, in_doubt=in_doubt)
    assert not bank.asked
    assert not bank.checked_s


@pytest.mark.parametrize("beats_first", [False, True])
def test_a_process_that_was_stopped_takes_time_to_hear_the_news(monkeypatch, beats_first):
    """Whoever is called first when it goes on: the pulse itself, or what was to begin an effect."""
    monkeypatch.setattr(effects_module, "BEAT_S", 0.01)
    monkeypatch.setattr(effects_module, "STALLED_S", 0.2)

    async def stopped():
        pulse, clock = Pulse(), asyncio.get_running_loop().time
        await asyncio.sleep(0.05)
        before = clock()
        await pulse.permission(CHARGE)
        steady_s = clock() - before
        time.sleep(0.3)  # noqa: ASYNC251 - as if the process was frozen
        if beats_first:
            await asyncio.sleep(0.0)
            await asyncio.sleep(0.02)
        before = clock()
        was_allowed = pulse.allows(CHARGE)
        await pulse.permission(CHARGE)
        assert (was_allowed, pulse.allows(CHARGE)) == (False, True)
        return steady_s, clock() - before

    steady_s, stopped_s = asyncio.run(stopped())
    assert steady_s < 0.1 < stopped_s


def test_without_a_mandate_only_effects_that_are_recognised_begin(monkeypatch):
    """Those that the service recognises when they are repeated. Whoever waits is woken."""
    until, polls, real = [0.0], [], asyncio.sleep

    async def sleep(seconds):
        polls.append(seconds)
        await real(seconds)

    async def waits():
        pulse = Pulse(lambda: until[0])
        began = [pulse.allows(CHARGE), pulse.allows(BY_NAME)]
        waiting = asyncio.ensure_future(pulse.permission(CHARGE))
        await asyncio.wait_for(pulse.permission(BY_NAME), 5.0)
        for _ in range(3):
            await real(0.0)
            pulse.renewed()  # an answer that was held up
        began.append(waiting.done())
        until[0] = ticks_s() + 60.0
        pulse.renewed()
        await asyncio.wait_for(waiting, 5.0)
        return [*began, pulse.allows(CHARGE)]

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(waits()) == [False, True, False, True]
    assert not polls


def test_what_has_waited_for_a_mandate_does_not_begin_all_at_once():
    """The service allows so many a second, whenever they begin."""
    until, each_s, effects = [0.0], 0.05, 8

    async def wait():
        pulse, begun = Pulse(lambda: until[0]), []
        life: Any = SimpleNamespace(
            pulse=lambda: pulse, undisturbed=lambda wait: wait(), require_obedience=lambda: None
        )
        turns = Turns(life, 1 / each_s, None, CHARGE, "charge")

        async def begin():
            await turns.come()
            begun.append(time.monotonic())

        waiting = asyncio.gather(*(begin() for _ in range(effects)))
        await asyncio.sleep(2 * effects * each_s)  # all have had their places in line
        until[0] = ticks_s() + 60.0
        pulse.renewed()
        await asyncio.wait_for(waiting, 30.0)
        return begun

    begun = asyncio.run(wait())
    assert begun[-1] - begun[0] > (effects - 2) * each_s


# --- by the runner --------------------------------------------------------------------------------


def outcome_of(declared, *arguments, **how):
    """What comes of one effect, made for real."""
    outcome = made_of(declared, *arguments, **how)
    return decode(outcome.answer) if outcome.ok else decode_error(outcome.answer)


def made_of(declared, *arguments, life=7, runner=None, in_doubt=False, **how):
    """... as it is logged."""
    heard: queue.Queue[CallsOver] = queue.Queue()
    runner = runner or CallRunner(heard.put)
    given: Any = {"in_flight": 9, "timeout": "200 ms", "backoff": ("1 ms", "2 ms"), **how}
    policy = policy_of(declared, "pay", **given)
    request = Request(policy, arguments, 0, "key7", in_doubt)
    runner.make(life, [(CallId(0, 1), request)])
    try:
        (outcome,) = heard.get(timeout=LIMIT_S).outcomes
    finally:
        runner.close()
    return outcome


async def nothing_found(*_):
    return NotMade


@pytest.mark.parametrize("found", [Made("receipt"), None])
def test_what_an_earlier_life_has_begun_was_attempted(found):
    """0 attempts would mean that an answer was remembered: it would cost nothing."""

    async def pay(n):
        raise AssertionError("it is in doubt")

    async def find(n):
        return found

    declared = effect(pay, check=find, check_for="1 ms")
    outcome = made_of(declared, 7, in_doubt=True, timeout="1 ms")
    assert outcome.ok == (found is not None)
    assert outcome.attempts == 1


def test_a_function_that_goes_on_after_its_timeout_is_made_once():
    made = []

    def pay(n):
        time.sleep(0.6)
        made.append(n)
        return "paid"

    assert outcome_of(effect(pay, check=nothing_found), 7, attempts=3) == "paid"
    assert made == [7]


def test_user_code_that_cancels_itself_is_in_doubt():
    async def pay(n):
        raise asyncio.CancelledError

    assert isinstance(outcome_of(effect(pay), 7), EffectUnknown)

    class Strange(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    async def strange(n):
        raise Strange

    assert isinstance(outcome_of(effect(strange), 7), EffectUnknown)


@pytest.mark.parametrize("answer", [object(), "x" * (ANSWER_BYTES_MAX + 1)])
def test_an_answer_that_cannot_be_kept_does_not_say_that_nothing_was_done(answer):
    async def pay(n):
        return answer

    error = outcome_of(effect(pay), 7)
    assert isinstance(error, EffectUnknown)
    assert "it was made, but its answer cannot be kept" in error.what
    assert "keep" in error.remedy
    assert "; find out by its key" in error.remedy


def test_a_check_cannot_change_what_is_paid():
    paid = []

    async def pay(items):
        paid.append(list(items))
        if len(paid) == 1:
            raise ConnectionError
        return "paid"

    async def spoil(items):
        items.append("more")
        return NotMade

    assert outcome_of(effect(pay, check=spoil), ["book"], attempts=2) == "paid"
    assert paid == [["book"], ["book"]]


def test_without_a_connection_nothing_was_done():
    class Bank(Service):
        async def open(self):
            raise ConnectionRefusedError("closed")

        async def call(self, n):
            raise AssertionError

    error = outcome_of(effect(Bank()), 7, attempts=3)
    assert "NotMade" in str(error)
    assert "no connection" in str(error)


def test_what_has_waited_for_a_connection_and_a_mandate_does_not_begin_all_at_once():
    each_s, effects, begun = 0.05, 8, []
    heard: queue.Queue[CallsOver] = queue.Queue()
    runner = CallRunner(heard.put)

    class Bank(Service):
        async def open(self):
            await asyncio.sleep(2 * effects * each_s)  # all have had their places in line
            runner.may_begin(0.0)
            later = ticks_s() + 60.0
            asyncio.get_running_loop().call_later(each_s, runner.may_begin, later)

        async def call(self, n):
            begun.append(time.monotonic())
            return n

    policy = policy_of(
        effect(Bank()), "pay", in_flight=effects, timeout="10 s", per_second=1 / each_s
    )
    calls = [(CallId(0, n), Request(policy, (n,), n, f"key{n}")) for n in range(effects)]
    runner.make(7, calls)
    try:
        over = 0
        while over < effects:
            over += len(heard.get(timeout=LIMIT_S).outcomes)
    finally:
        runner.close()
    assert begun[-1] - begun[0] > (effects - 2) * each_s


HOUR_MS = 3_600_000


def aged(bank, hours, **how):
    asked_ms = round(time.time() * 1000 - hours * HOUR_MS)
    return run(bank, in_doubt=True, check=False, idempotent=True, asked_ms=asked_ms, **how)


def test_a_key_that_the_service_may_have_forgotten_is_not_sent_again():
    assert aged(Bank(["paid"]), 23.9, keys_kept="24 hours") == "paid"
    bank = Bank(["paid"])
    with pytest.raises(EffectUnknown, match=r"asked for 24\.1 hours ago, and the service may") as e:
        aged(bank, 24.1, keys_kept="24 hours")
    assert not bank.asked
    assert "give a longer keys_kept=" in e.value.remedy
    assert aged(Bank(["paid"]), 1000) == "paid", "it recognises keys for ever"
    how = {"keys_kept": "24 hours", "on_unknown": "retry", "attempts": 2}
    assert aged(Bank(["paid"]), 24.1, **how) == "paid", "the user wants it made again"


def test_what_was_surely_not_made_has_no_key_to_be_forgotten():
    bank = Bank([NotMade(), "paid"])
    how = {"idempotent": True, "check": False, "attempts": 2, "keys_kept": "1 ms"}
    assert run(bank, asked_ms=1, **how) == "paid"


def test_attempts_of_one_life_end_when_keys_may_be_forgotten():
    bank = Bank([ConnectionError("reset")] * 1000)
    with pytest.raises(EffectUnknown, match="may no longer recognise its key"):
        run(bank, idempotent=True, check=False, attempts=1000, keys_kept="20 ms")
    assert 1 <= len(bank.asked) < 100


def test_nothing_keeps_the_late_answers_of_a_service_that_is_asked_again(slot):
    """Of a hedge, too: nobody will settle what is not in doubt."""
    may_answer, asked = threading.Event(), []

    def pay(n, *, call):
        asked.append(n)
        if len(asked) == 1:
            may_answer.wait(LIMIT_S)
        return "paid"

    policy = policy_of(
        effect(pay, idempotent=True), "pay", in_flight=9, timeout="1 minute", hedge="10 ms"
    )
    slot.runner.make(LIFE, [(CallId(2, 1), Request(policy, (7,), 1, "key7"))])
    assert slot.outcomes(1)[0].ok
    may_answer.set()
    assert not slot.runner._late
