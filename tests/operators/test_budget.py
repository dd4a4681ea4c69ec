"""Budgets of services: what is refused, what is counted, and that no failure changes either."""

from __future__ import annotations

import threading

import pytest

import clonos
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import decode_error, encode
from clonos.errors import BudgetSpent, OperatorError, WrongType
from clonos.operators.calls.purse import Purse
from clonos.operators.calls.service import ask_once, policy_of
from clonos.operators.chain import ChainProgram
from clonos.runtime.calls import CallRunner
from clonos.state.stores import Facts
from clonos.testing import Answers, StepHarness
from clonos.testing.harness import answered

SCHEMA = "id long"


async def double(n):
    return 2 * n


def program(**how):
    options = {"on_bad_record": how.pop("on_bad_record", "fail")}
    job = clonos.Job("test", parallelism=1, **options)
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in")
    stream.with_column_async("twice long", double, "id", name="ask", **how).sink(
        clonos.sinks.collect()
    )
    return job.compile().codes[-1].program()


def known(harness):
    assert isinstance(harness.program, ChainProgram)
    return harness.program


def refusals(asked):
    return [request.service.instead_of is not None for _, request in asked]


def made(output):
    batches = [batch.payload for batch in output.batches.values()]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def answer(harness, asked):
    return harness.feed(Answers(tuple(answered(call, request) for call, request in asked)))


def test_calls_beyond_the_budget_are_refused_and_go_to_on_error():
    how = {"budget": clonos.Budget(calls=2), "cost": 0.25, "on_error": lambda n, error: -n}
    harness = StepHarness(program(**how))
    asked = harness.source([(1,), (2,), (3,)], SCHEMA).asked
    assert refusals(asked) == [False, False, True]
    assert made(answer(harness, asked)) == [(1, 2), (2, 4), (3, -3)]
    assert known(harness).traffic["ask: calls"] == 2
    assert known(harness).traffic["ask: micros"] == 500_000


def test_a_cost_that_is_spent_refuses_the_next_call():
    how = {"budget": clonos.Budget(cost=5), "cost": float, "in_flight": 1}
    harness = StepHarness(program(**how, on_bad_record="drop"))
    asked = harness.source([(1,), (2,), (3,)], SCHEMA).asked
    for refused in ([False], [False], [True]):
        assert refusals(asked) == refused
        asked = answer(harness, asked).asked
    assert known(harness).statistics == {"ask: bad_records": 1}
    assert known(harness).traffic["ask: micros"] == 6_000_000


def test_with_a_fixed_price_no_open_call_exceeds_the_cost():
    harness = StepHarness(program(cost=0.1, budget=clonos.Budget(cost=0.3), on_bad_record="drop"))
    asked = harness.source([(n,) for n in range(5)], SCHEMA).asked
    assert refusals(asked) == [False, False, False, True, True]
    answer(harness, asked)
    assert known(harness).traffic["ask: micros"] == 300_000


def test_a_job_that_fails_says_what_was_spent_on_which_row():
    harness = StepHarness(program(budget=clonos.Budget(calls=1)))
    asked = harness.source([(1,), (7,)], SCHEMA).asked
    assert made(answer(harness, asked[:1])) == [(1, 2)]
    with pytest.raises(BudgetSpent, match=r"1 calls, is used up \(for Row\(id=7\)\)"):
        answer(harness, asked[1:])


def test_what_was_spent_is_state_and_a_restart_may_have_another_budget():
    harness = StepHarness(program(budget=clonos.Budget(calls=2), on_bad_record="drop"))
    asked = harness.source([(1,), (2,), (3,)], SCHEMA).asked
    answer(harness, asked[:1])
    delta = bytes(harness.program.delta())
    for calls, expected in ((2, [False, True]), (3, [False, False]), (1, [True, True])):
        restored = program(budget=clonos.Budget(calls=calls), on_bad_record="drop")
        restored.apply(delta)
        assert restored.traffic["ask: calls"] == 1
        assert refusals(restored.open_calls().items()) == expected


class Asker(clonos.Process):
    def open(self, ctx):
        how = {"budget": clonos.Budget(calls=1), "cost": float}
        self.double = ctx.service("double", double, **how)

    def on_row(self, row, ctx):
        self.double.ask(row.id, then="on_reply")

    def on_reply(self, reply, ctx):
        try:
            return [(ctx.key, reply.get())]
        except BudgetSpent:
            return [(ctx.key, -1)]


def test_a_process_hears_of_it_in_the_reply():
    job = clonos.Job("test", parallelism=1)
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in").key_by("id")
    stream.process(Asker(), "id long, twice long", name="agent").sink(clonos.sinks.collect())
    harness = StepHarness(job.compile().codes[-1].program())
    asked = harness.source([(1,), (2,)], SCHEMA).asked
    assert refusals(asked) == [False, True]
    assert made(answer(harness, asked)) == [(1, 2), (2, -1)]
    assert known(harness).traffic["agent: calls"] == 1
    assert known(harness).traffic["agent: micros"] == 2_000_000


def test_a_refusal_comes_after_the_answers_that_are_paid_for():
    gate, came = threading.Event(), []
    all_came = threading.Event()

    def slow(n):
        gate.wait(60)
        return n

    def heard(over):
        came.extend(over.outcomes)
        if len(came) == 3:
            all_came.set()
        elif any(outcome.number == 3 for outcome in over.outcomes):
            gate.set()

    def pass_by(n):
        return n

    purse = Purse(policy_of(slow, "slow", in_flight=9, budget=clonos.Budget(calls=1)), Facts(), "")
    calls = [
        (CallId(0, number), Request(policy, (number,), number))
        for number, policy in enumerate(
            (purse.policy(0), purse.policy(1), policy_of(pass_by, "other", in_flight=9)), 1
        )
    ]
    runner = CallRunner(heard)
    runner.make(1, calls)  # the third one opens the gate: were it not for it, none would come
    assert all_came.wait(60)
    runner.close()
    assert [outcome.number for outcome in came] == [3, 1, 2]
    assert isinstance(decode_error(came[2].answer), BudgetSpent)
    with pytest.raises(BudgetSpent):
        ask_once(purse.policy(1), (1,), {})


def test_only_answers_cost():
    facts = Facts()
    purse = Purse(policy_of(double, "double", in_flight=1, cost=lambda a: a["cents"]), facts, "")
    purse.pay([Outcome(0, 1, 0, True, encode({"cents": 0.1}))] * 3)
    assert (purse.calls, purse.micros) == (3, 300_000)


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf"), "much", None])
def test_a_price_that_is_none_ends_the_job_and_gives_nothing_back(price):
    facts = Facts()
    purse = Purse(policy_of(double, "double", in_flight=1, cost=lambda _: price), facts, "ask")
    with pytest.raises(OperatorError, match="no number for an answer"):
        purse.pay([Outcome(0, 1, 0, True, encode(1))])
    assert purse.micros == 0


@pytest.mark.parametrize("parallelism", [1, 3, 7, 64])
@pytest.mark.parametrize("cost", [2.0, 0.3, 1e-6, 14.999999])
def test_all_shares_together_are_the_budget(cost, parallelism):
    budget = clonos.Budget(calls=100, cost=cost)
    shares = [budget.of_task(index, parallelism) for index in range(parallelism)]
    assert sum(share.calls or 0 for share in shares) == 100
    micros = [round((share.cost or 0) * 1_000_000) for share in shares]
    assert sum(micros) == round(cost * 1_000_000)


@pytest.mark.parametrize(
    "how",
    [
        {"budget": 5},
        {"budget": clonos.Budget(calls=-1)},
        {"budget": clonos.Budget(cost=1.0)},
        {"budget": clonos.Budget(calls=float("inf"))},  # type: ignore[arg-type]
        {"budget": clonos.Budget(cost=float("inf")), "cost": 1},
        {"cost": "much"},
        {"tokens": 1.5},
        {"budget": clonos.Budget(tokens=5)},
        {"cost": float("inf")},
        {"cost": 4e-7, "budget": clonos.Budget(cost=1e-6)},  # would be counted as nothing
    ],
)
def test_what_cannot_be_meant_is_refused(how):
    with pytest.raises(WrongType):
        program(**how)


def test_answers_from_memory_cost_nothing_and_are_told_apart():
    harness = StepHarness(program(cost=2, cache_ttl="1 hour"))
    asked = harness.source([(1,), (1,)], SCHEMA).asked
    first, again = (answered(call, request) for call, request in asked)
    harness.feed(Answers((first, again._replace(attempts=0))))
    traffic = known(harness).traffic
    assert [traffic[f"ask: {what}"] for what in ("calls", "micros", "hits")] == [1, 2_000_000, 1]


def test_each_service_of_a_process_has_its_hits():
    class Asking(clonos.Process):
        def open(self, ctx):
            self.services = [ctx.service(name, double) for name in ("one", "two")]

        def on_row(self, row, ctx):
            for service in self.services:
                service.ask(row.id, then="on_reply")

        def on_reply(self, reply, ctx):
            return [(reply.get(),)]

    job = clonos.Job("test", parallelism=1)
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in").key_by("id")
    stream.process(Asking(), "n long", name="ask").sink(clonos.sinks.collect())
    harness = StepHarness(job.compile().codes[-1].program())
    asked = harness.source([(1,), (2,)], SCHEMA).asked
    outcomes = [answered(call, request)._replace(attempts=0) for call, request in asked]
    harness.feed(Answers(tuple(outcomes)))
    traffic = known(harness).traffic
    assert [traffic[f"ask: {what}"] for what in ("calls", "hits")] == [0, 4]


def test_tokens_are_a_budget_of_their_own_and_degrade_what_is_answered():
    """`double` takes as many tokens as it answers."""
    budget = clonos.Budget(tokens=9, cost=100)
    how = {"tokens": int, "cost": 0.5, "budget": budget, "in_flight": 1, "ordered": False}
    harness = StepHarness(program(**how, on_error=lambda _, error: -1))
    asked = harness.source([(3,), (2,), (1,), (4,)], SCHEMA).asked
    rows = []
    for refused in (False, False, True, True):
        assert refusals(asked) == [refused], "6, then 10 of 9"
        output = answer(harness, asked)
        rows += made(output)
        asked = output.asked
    assert rows == [(3, 6), (2, 4), (1, -1), (4, -1)]
    traffic = known(harness).traffic
    assert [traffic[f"ask: {what}"] for what in ("calls", "micros", "tokens")] == [2, 10**6, 10]


def test_a_fixed_number_of_tokens_is_never_exceeded():
    budget = clonos.Budget(tokens=25)
    harness = StepHarness(program(tokens=10, budget=budget, on_bad_record="drop"))
    asked = harness.source([(n,) for n in range(4)], SCHEMA).asked
    assert refusals(asked) == [False, False, True, True]
    answer(harness, asked)
    assert known(harness).traffic["ask: tokens"] == 20


def test_tokens_that_are_no_number_end_the_job():
    harness = StepHarness(program(tokens=lambda answer: answer["usage"]))
    asked = harness.source([(1,)], SCHEMA).asked
    with pytest.raises(OperatorError, match="tokens= has no number for an answer: TypeError"):
        answer(harness, asked)
