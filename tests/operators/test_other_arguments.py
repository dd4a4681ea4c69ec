"""One identity with other arguments: while the first effect is known, the second is refused."""

from __future__ import annotations

import asyncio

import pytest

import clonos
from clonos.core.calls import CallId, Request
from clonos.core.canonical import decode_error
from clonos.errors import OtherArguments
from clonos.operators.calls.service import policy_of
from clonos.testing import Answers, StepHarness, rows
from clonos.testing.harness import answered
from tests.runtime.slot import LIFE, Slot

SCHEMA = "order long, cents long"


@clonos.effect(idempotent=True)
async def pay(order, cents, *, call):
    return f"{order} {cents}"


def program(*, columns=("order", "cents"), fn=pay, settings=None, layers=(), **how):
    how.setdefault("identity", "order")
    job = clonos.Job("shop", parallelism=1, **(settings or {}))
    orders = job.source(clonos.sources.from_batches([], SCHEMA))
    orders = orders.key_by("order") if "per_key" in how else orders
    paid = orders.with_column_async("receipt string", fn, *columns, name="pay", **how)
    paid.sink(clonos.sinks.collect())
    made = job.compile().codes[-1].program("shop", "run 1")
    for layer in layers:
        made.apply(layer)
    return made


def harness(**how):
    return StepHarness(program(**how))


def say(order, cents, error):
    return type(error).__name__


def refused(asked):
    return [request.service.instead_of is not None for _, request in asked]


def answer(run, *asked):
    return run.feed(Answers(tuple(answered(call, request) for call, request in asked)))


def receipts(output):
    return [row for batch in output.batches.values() for row in rows(batch)]


def test_the_second_one_has_an_error_and_the_first_its_answer():
    run = harness(on_error=say)
    asked = run.source([(7, 100), (8, 200), (7, 300), (7, 100)], SCHEMA).asked
    assert refused(asked) == [False, False, True, False], "the last is the first once more"
    assert len({request.key for _, request in asked}) == 2
    assert receipts(answer(run, *asked)) == [
        (7, 100, "7 100"),
        (8, 200, "8 200"),
        (7, 300, "OtherArguments"),
        (7, 100, "7 100"),
    ]
    assert run.program.traffic["pay: calls"] == 3, "what is refused is not made"


def test_what_comes_later_is_compared_with_all_that_is_open_or_kept():
    run = harness(on_error=say)
    asked = run.source([(6, 1), (7, 100), (7, 100)], SCHEMA).asked
    assert not receipts(answer(run, asked[1])), "its answer waits for that of the row before"
    ((again, request),) = run.source([(7, 300)], SCHEMA).asked
    assert refused([(again, request)]) == [True]
    answer(run, asked[0], (again, request))
    assert refused(run.source([(7, 300)], SCHEMA).asked) == [True], "the third row is open"
    (*_, last) = run.program.open_calls().items()
    answer(run, asked[2], last)
    assert refused(run.source([(7, 300)], SCHEMA).asked) == [False], "nobody knows the first now"


def assert_left_nothing(run):
    (operator,) = (o for o in run.program.operators.values() if o.makes_calls)
    assert not list(operator._answers)
    assert not operator._identities.known


def test_who_was_refused_stays_refused_when_the_first_is_gone():
    def restored(**how):
        again = program(**{"on_error": say, "ordered": False, "layers": [sealed], **how})
        asked = list(again.open_calls().items())
        run = StepHarness(again)
        answer(run, *asked)
        assert_left_nothing(run)
        return asked

    run = harness(on_error=say, ordered=False)
    first, _ = run.source([(7, 100), (7, 300)], SCHEMA).asked
    answer(run, first)
    sealed = bytes(run.program.delta())
    assert refused(restored()) == [True]
    assert refused(restored(identity=["order", "cents"])) == [False], "it is another effect now"

    @clonos.effect(idempotent=True)
    async def pay_all(order, *, call):
        return call.key

    how = {"fn": pay_all, "columns": ("order",), "on_error": lambda order, error: ""}
    assert refused(restored(**how)) == [False], "nothing else is an argument now"


def test_a_restored_task_knows_the_first():
    run = harness(on_error=say)
    run.source([(7, 100), (7, 300)], SCHEMA)
    again = harness(on_error=say, layers=[bytes(run.program.delta())])
    assert refused(again.program.open_calls().items()) == [False, True]
    assert refused(again.source([(7, 200), (7, 100)], SCHEMA).asked) == [True, False]


def test_what_has_left_leaves_nothing():
    run = harness(on_error=say)
    answer(run, *run.source([(7, 100), (7, 300)], SCHEMA).asked)
    assert_left_nothing(run)


def test_without_on_error_it_is_a_bad_record():
    run = harness()
    asked = run.source([(7, 100), (7, 300)], SCHEMA).asked
    with pytest.raises(OtherArguments, match=r"other arguments \(for Row\(order=7, cents=300"):
        answer(run, *asked)
    run = harness(settings={"on_bad_record": "drop"})
    asked = run.source([(7, 100), (7, 300)], SCHEMA).asked
    assert receipts(answer(run, *asked)) == [(7, 100, "7 100")]


def test_with_lanes_and_a_budget():
    budget = clonos.Budget(calls=3)
    run = harness(on_error=say, ordered="key", per_key=1, budget=budget)
    asked = run.input(0, [(7, 100), (7, 300), (8, 1)], SCHEMA).asked
    assert [request.arguments for _, request in asked] == [(7, 100), (8, 1)]
    ((call, request),) = answer(run, asked[0]).asked
    assert (request.arguments, refused([(call, request)])) == ((7, 300), [False])
    budget = clonos.Budget(calls=2)
    run = harness(on_error=say, ordered="key", per_key=2, budget=budget)
    asked = run.input(0, [(7, 100), (7, 300), (8, 1), (9, 1)], SCHEMA).asked
    assert refused(asked) == [False, True, False, True], "the last one is beyond the budget"


def test_who_is_refused_waits_for_no_other_call():
    async def never():
        await asyncio.Event().wait()

    effect = clonos.effect(idempotent=True)(lambda *, call: None)
    policy = policy_of(effect, "pay", in_flight=10)
    slow = policy_of(never, "slow", in_flight=10)
    slot = Slot()
    try:
        slot.runner.make(LIFE, [(CallId(1, 1), Request(slow, (), 1))])
        refusing = policy.refusing(OtherArguments("other"))
        slot.runner.make(LIFE, [(CallId(2, 1), Request(refusing, (), 1, "key", in_doubt=True))])
        (outcome,) = slot.outcomes(1)
        assert isinstance(decode_error(outcome.answer), OtherArguments)
    finally:
        slot.runner.close()
