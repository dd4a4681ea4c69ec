"""for_each_async: calls and effects that a stream ends in."""

from __future__ import annotations

import pytest

import clonos
from clonos.errors import OperatorError, UnknownColumn, WrongLength, WrongType
from clonos.operators.chain import ChainProgram
from clonos.testing import Answers, StepHarness, simulate
from clonos.testing.harness import answered

SCHEMA = "id long, text string"


async def tell(text):
    raise AssertionError("a simulation calls no service")


@clonos.effect(idempotent=True)
def charge(row, *, call):
    raise AssertionError("a simulation makes no effect")


def ended(build, *, keyed=False, **options):
    job = clonos.Job("test", parallelism=1, **options)
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in")
    build(stream.key_by("id") if keyed else stream)
    return job


def program(build, **options):
    made = ended(build, **options).compile().codes[-1].program()
    assert isinstance(made, ChainProgram)
    return made


def test_it_asks_for_each_row_and_nothing_goes_on():
    asked = []

    def note(text):
        asked.append(text)
        return "nobody reads this"

    harness = StepHarness(program(lambda s: s.for_each_async(note, "text", name="note", cost=2)))
    step = harness.source([(1, "a"), (2, "b")], SCHEMA)
    outcomes = tuple(answered(call, request) for call, request in step.asked)
    assert asked == ["a", "b"]
    assert not harness.feed(Answers(outcomes)).batches
    assert not harness.program.open_calls()
    assert isinstance(harness.program, ChainProgram)
    assert harness.program.traffic["note: micros"] == 4_000_000


def test_answers_may_be_anything_but_where_they_are_counted():
    def notify(texts):
        return object()

    def asked(**how):
        made = program(lambda s: s.for_each_async(notify, "text", batch=3, **how))
        ((_, request),) = StepHarness(made).source([(1, "a"), (2, "b")], SCHEMA).asked
        return request

    request = asked(cost=2)
    assert request.service.require_answers(request.arguments, object()) == [None, None]
    request = asked(cost=len)
    with pytest.raises(WrongLength):
        request.service.require_answers(request.arguments, None)
    request = asked(tokens=len)
    assert request.service.require_answers(request.arguments, [1, 2]) == [1, 2]


def test_without_columns_it_gets_the_row():
    def note(row):
        return row.id

    harness = StepHarness(program(lambda s: s.for_each_async(note)))
    ((call, request),) = harness.source([(7, "a")], SCHEMA).asked
    assert answered(call, request).ok
    assert request.arguments[0].text == "a"


def test_a_call_that_fails_is_a_bad_record():
    def fails(text):
        raise ConnectionError(text)

    def build(stream):
        stream.for_each_async(fails, "text", name="tell")

    harness = StepHarness(program(build))
    ((call, request),) = harness.source([(1, "a")], SCHEMA).asked
    with pytest.raises(OperatorError, match="ConnectionError: a"):
        harness.feed(Answers((answered(call, request),)))

    harness = StepHarness(program(build, on_bad_record="drop"))
    ((call, request),) = harness.source([(1, "a")], SCHEMA).asked
    harness.feed(Answers((answered(call, request),)))
    assert isinstance(harness.program, ChainProgram)
    assert harness.program.statistics == {"tell: bad_records": 1}


def test_rows_of_a_key_are_told_one_after_the_other():
    def build(stream):
        stream.for_each_async(tell, "text", ordered="key", per_key=1)

    harness = StepHarness(program(build, keyed=True))
    asked = harness.input(0, [(1, "a"), (1, "b"), (2, "c")], SCHEMA).asked
    assert [request.arguments for _, request in asked] == [("a",), ("c",)]


def test_effects_are_made_once_whatever_fails():
    job = clonos.Job("reminders", parallelism=2)
    kafka = clonos.sources.kafka("broker:9092", "orders", schema=SCHEMA)
    stream = job.source(kafka, name="orders")
    stream.for_each_async(charge, name="charge")
    rows = [(n, str(n)) for n in range(20)]
    charged = set()
    done = simulate(
        job, rows, seeds=5, services={"charge": lambda row, *, call: charged.add(row.id)}
    )
    assert charged == set(range(20))
    assert not done.outputs["charge.end"].num_rows


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(WrongType, match="cannot be called"):
        ended(lambda s: s.for_each_async(tell, "text", "id"))
    with pytest.raises(UnknownColumn, match="words"):
        ended(lambda s: s.for_each_async(tell, "words"))
