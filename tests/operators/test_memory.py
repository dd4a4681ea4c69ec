"""cache_ttl=: equal questions are asked once while the answer is good, and cost nothing."""

from __future__ import annotations

import asyncio
import queue

import pytest

import clonos
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import decode, encode
from clonos.errors import WrongType
from clonos.nodes.events import CallsOver
from clonos.operators import memory as memories
from clonos.operators.chain import ChainProgram
from clonos.operators.memory import Memory, question_of
from clonos.operators.purse import Purse
from clonos.operators.service import policy_of
from clonos.runtime.calls import CallRunner
from clonos.state.stores import Facts
from clonos.testing import Answers, StepHarness

LIMIT_S = 60.0
"""Only a test that has failed waits for so long."""
SCHEMA = "id long"


class Slot:
    """What hears of the calls of one service."""

    def __init__(self, fn, **how):
        self.heard: queue.Queue[CallsOver] = queue.Queue()
        self.runner = CallRunner(self.heard.put)
        self.policy = policy_of(fn, "ask", in_flight=10, **{"cache_ttl": "1 hour", **how})
        self._number = 0

    def ask(self, *arguments, life=1, policy=None):
        """Make these calls at the same time; what has come of each."""
        calls = []
        for given in arguments:
            self._number += 1
            request = Request(policy or self.policy, (given,), self._number)
            calls.append((CallId(0, self._number), request))
        self.runner.make(life, calls)
        found: dict[int, Outcome] = {}
        while len(found) < len(calls):
            for outcome in self.heard.get(timeout=LIMIT_S).outcomes:
                found[outcome.number] = outcome
        return [found[call.number] for call, _ in calls]


@pytest.fixture
def slot():
    slots = []

    def make(fn, **how):
        slots.append(Slot(fn, **how))
        return slots[-1]

    yield make
    for each in slots:
        each.runner.close()


def counting(asked):
    def answer(n):
        asked.append(n)
        return [n, len(asked)]

    async def later(n):
        await asyncio.sleep(0)
        return answer(n)

    return later


def test_an_equal_question_is_answered_from_memory(slot):
    asked: list[int] = []
    asking = slot(counting(asked))
    (first,) = asking.ask(1)
    again, other = asking.ask(1, 2)
    assert asked == [1, 2]
    assert first.answer == again.answer != other.answer
    assert [first.attempts, again.attempts, other.attempts] == [1, 0, 1]
    assert again.digest != first.digest, "each row is told of its own question"


def test_questions_that_come_together_are_one_call(slot):
    asked: list[int] = []
    outcomes = slot(counting(asked)).ask(1, 2, 1, 1, 2)
    assert sorted(asked) == [1, 2]
    assert [outcome.attempts for outcome in outcomes] == [1, 1, 0, 0, 0]
    assert len({outcome.answer for outcome in outcomes}) == 2


def test_an_error_is_no_memory(slot):
    asked: list[int] = []

    async def flaky(n):
        asked.append(n)
        if len(asked) == 1:
            raise ConnectionError
        return "well"

    outcomes = slot(flaky).ask(1, 1, 1)
    assert [(o.ok, o.attempts) for o in outcomes] == [(False, 1), (True, 1), (True, 0)]


def test_a_new_life_remembers_nothing(slot):
    asked: list[int] = []
    asking = slot(counting(asked))
    asking.ask(1, life=1)
    asking.runner.withdraw(1)
    asking.ask(1, life=2)
    assert asked == [1, 1]


def test_an_answer_is_good_for_so_long():
    memory = Memory(5.0)
    memory.put(b"q", b"a", 10.0)
    assert memory.get(b"q", 14.9) == b"a"
    assert memory.get(b"q", 15.0) is None
    memory.put(b"q", b"b", 15.0)
    assert memory.get(b"q", 19.0) == b"b"


def test_the_oldest_answers_are_forgotten(monkeypatch):
    monkeypatch.setattr(memories, "ENTRIES_MAX", 2)
    memory = Memory(5.0)
    for question in (b"1", b"2", b"1", b"3"):
        memory.put(question, b"a", 0.0)
    assert [memory.get(question, 1.0) for question in (b"1", b"2", b"3")] == [b"a", None, b"a"]


def test_so_many_bytes_are_kept(monkeypatch):
    monkeypatch.setattr(memories, "BYTES_MAX", 10)
    memory = Memory(5.0)
    memory.put(b"1", b"x" * 6, 0.0)
    memory.put(b"1", b"x" * 5, 0.0)
    memory.put(b"2", b"x" * 5, 0.0)
    assert len(memory) == 2
    memory.put(b"3", b"x" * 6, 0.0)
    assert len(memory) == 1


def test_questions_differ_as_their_arguments_do():
    questions = [question_of(given) for given in ([1], ["1"], [1, 2], [[1, 2]], [1.0], [None])]
    assert len(set(questions)) == len(questions)
    assert question_of([object()]) is None


def test_a_budget_pays_for_no_answer_from_memory(slot):
    asked: list[int] = []
    budget = clonos.Budget(calls=1)
    asking = slot(counting(asked), budget=budget, cost=0.25)
    purse = Purse(asking.policy, Facts(), "ask")
    refusing = purse.policy(1)
    assert refusing.instead_of is asking.policy
    outcomes = asking.ask(1)
    outcomes += asking.ask(1, 2, policy=refusing)
    assert asked == [1]
    assert [outcome.ok for outcome in outcomes] == [True, True, False]
    purse.pay(outcomes)
    assert (purse.calls, purse.micros, purse.hits) == (1, 250_000, 1)


def test_hits_are_part_of_the_state_and_the_bill():
    job = clonos.Job("test", parallelism=1)
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in")
    stream.with_column_async("n long", abs, "id", name="ask", cache_ttl="1 hour", cost=2).sink(
        clonos.sinks.collect()
    )
    program = job.compile().codes[-1].program()
    assert isinstance(program, ChainProgram)
    harness = StepHarness(program)
    asked = harness.source([(1,), (1,)], SCHEMA).asked
    outcomes = [
        Outcome(*call, request.digest, True, encode(1), attempts)
        for (call, request), attempts in zip(asked, (1, 0), strict=True)
    ]
    assert all(decode(outcome.answer) == 1 for outcome in outcomes)
    harness.feed(Answers(tuple(outcomes)))
    traffic = program.traffic
    assert [traffic[f"ask: {what}"] for what in ("calls", "micros", "hits")] == [1, 2_000_000, 1]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.with_column_async("n long", abs, "id", cache_ttl="1 s", batch=2),
        lambda s: s.with_column_async("n long", clonos.effect(lambda n: n), "id", cache_ttl="1 s"),
    ],
)
def test_what_rows_do_not_share_is_refused(build):
    with pytest.raises(WrongType, match="cache_ttl="):
        build(clonos.Job().source(clonos.sources.from_batches([], schema=SCHEMA)))
