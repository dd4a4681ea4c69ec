"""Answers that are remembered for a while: what is asked again, and what is not."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

import clonos
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import decode, decode_error, encode
from clonos.errors import BadDuration, BudgetSpent, WrongType
from clonos.operators.calls.purse import Purse
from clonos.runtime.known_answers import KnownAnswers, question_of
from clonos.state.stores import Facts
from tests.runtime.slot import LIFE, Slot, policy


@pytest.fixture
def slot():
    slot = Slot()
    yield slot
    slot.runner.close()


class Asked:
    """A service that counts what it is asked."""

    def __init__(self):
        self.times: Counter[object] = Counter()
        self.gate = threading.Event()

    async def __call__(self, question):
        self.times[question] += 1
        number = self.times[question]
        await asyncio.to_thread(self.gate.wait)
        if question == "bad" and number == 1:
            raise ValueError("no")
        return [question, number]


def test_a_question_is_asked_once(slot):
    """Also if the same question comes while it is asked."""
    service = Asked()
    how = policy(service, cache_ttl_s=1000.0)
    slot.make(how, ("a",), ("a",), ("b",), ("a",))
    service.gate.set()
    found = slot.outcomes(4)
    assert [decode(o.answer) for o in found] == [["a", 1], ["a", 1], ["b", 1], ["a", 1]]
    assert sorted(o.attempts for o in found) == [0, 0, 1, 1]
    slot.make(how, ("b",))
    (later,) = slot.outcomes(1)
    assert (decode(later.answer), later.attempts) == (["b", 1], 0)
    assert service.times == {"a": 1, "b": 1}


def test_an_error_is_shared_by_those_who_wait_for_it_and_not_remembered(slot):
    """Else equal rows would wait one after the other for a service that is down."""
    service = Asked()
    how = policy(service, cache_ttl_s=1000.0)
    slot.make(how, ("bad",), ("bad",), ("bad",))
    service.gate.set()
    found = slot.outcomes(3)
    assert [str(decode_error(o.answer)) for o in found] == ["no"] * 3
    assert all("raise ValueError" in o.trace for o in found)
    assert sorted(o.attempts for o in found) == [0, 0, 1]
    assert service.times == {"bad": 1}
    assert slot.one(how, "bad").ok
    assert service.times == {"bad": 2}


def test_a_refusal_is_not_shared_with_calls_that_can_be_paid(slot):
    """Money may be left again when an open call has failed."""
    gate = threading.Event()

    async def refuse(_):
        await asyncio.to_thread(gate.wait)
        raise BudgetSpent("no money")

    async def ask(question):
        return question

    how = policy(ask, cache_ttl_s=1000.0)
    refusing = policy(refuse, cache_ttl_s=1000.0, instead_of=how)
    calls = [(CallId(2, n), Request(p, ("a",), n)) for n, p in enumerate((refusing, how), 1)]
    slot.runner.make(LIFE, calls)
    gate.set()
    assert [o.ok for o in slot.outcomes(2)] == [False, True]


def test_another_life_and_another_service_remember_nothing(slot):
    service = Asked()
    service.gate.set()
    how = policy(service, cache_ttl_s=1000.0)
    for life, one in ((1, how), (1, how), (2, how), (1, policy(service, cache_ttl_s=9.0))):
        slot.make(one, ("a",), life=life)
        slot.outcomes(1, life=life)
    assert service.times == {"a": 3}


def test_what_cannot_be_told_apart_is_asked_each_time(slot):
    assert question_of([object()]) is None
    assert question_of([1, "a"]) != question_of(["a", 1])
    times = []

    async def one(_):
        times.append(1)
        return 1

    slot.make(policy(one, cache_ttl_s=1000.0), (object(),), (object(),))
    assert [o.attempts for o in slot.outcomes(2)] == [1, 1]
    assert len(times) == 2


def test_time_and_room_are_limited():
    now = 0.0
    memory = KnownAnswers(10.0, lambda: now, entries=3, nbytes=20)
    for n in range(4):
        memory.put(b"%d" % n, b"a")
        memory.get(b"1")
    assert [memory.get(b"%d" % n) for n in range(4)] == [None, b"a", b"a", b"a"]
    memory.put(b"long", b"x" * 14)
    assert (memory.get(b"2"), memory.get(b"long")) == (None, b"x" * 14)
    memory.put(b"too long", b"x" * 20)
    assert memory.get(b"too long") is None
    memory.put(b"1", b"old")
    now = 9.0
    memory.put(b"1", b"new")
    now = 18.0
    assert memory.get(b"1") == b"new"
    now = 20.0
    assert memory.get(b"1") is None


def test_what_is_remembered_costs_nothing():
    budget = clonos.Budget(calls=3, cost=1.0)
    purse = Purse(policy(print, budget=budget, cost=0.25), Facts(), "ask")
    said = Outcome(0, 1, 0, True, encode("a"))
    purse.pay([said, said._replace(attempts=0), said._replace(attempts=2)])
    assert (purse.calls, purse.micros) == (2, 500_000)


async def about(text):
    return text.upper()


@clonos.effect(idempotent=True)
async def pay(text, *, call):
    return call.key


def test_where_it_means_nothing_it_is_refused():
    rows = clonos.Job().source(clonos.sources.from_batches([], "text string"), name="rows")
    with pytest.raises(WrongType, match="leave out effects"):
        rows.with_column_async("key string", pay, "text", cache_ttl="1 hour")
    with pytest.raises(WrongType, match="several ask together"):
        rows.with_column_async("big string", about, "text", cache_ttl="1 hour", batch=3)
    with pytest.raises(BadDuration):
        rows.with_column_async("big string", about, "text", cache_ttl="soon")
