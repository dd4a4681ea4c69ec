"""One declaration of a service, for plain PySpark and for jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import clonos
from clonos import causal
from clonos.columns.durations import parse_duration
from clonos.errors import BadDuration, DefinitionError, OperatorError, WrongType
from clonos.operators.calls.effects import Effect
from clonos.operators.calls.service import undeclared
from clonos.operators.operations import WithColumnAsync
from clonos.testing import StepHarness, simulate

SCHEMA = "id long"


@causal.service(timeout="2.5 seconds", attempts=4)
def judge(text):
    raise AssertionError("a simulation calls no service")


@causal.service
async def score(text):
    raise AssertionError("a simulation calls no service")


TRIES: list[str] = []


@causal.service(attempts=3)
def fickle(text):
    TRIES.append(text)
    if len(TRIES) < 3:
        raise ConnectionError("not yet")
    return text.upper()


async def double_later(n):
    return 2 * n


class Doubling(clonos.Service):
    async def call(self, n):
        return 2 * n


class Asking(clonos.Process):
    def open(self, ctx):
        self.judge = ctx.service("judge", judge)

    def on_row(self, row, ctx):
        self.judge.ask(row.text, then="on_answer")

    def on_answer(self, reply, ctx):
        yield reply.arguments[0], reply.get()


def stream():
    job = clonos.Job("declared")
    kafka = clonos.sources.kafka("broker:9092", "texts", schema="text string")
    return job, job.source(kafka, name="texts")


def said_by(job, **services):
    job.compile()
    done = simulate(job, [("a",), ("b",)], seeds=2, services=services, same_rows=True)
    return sorted(tuple(row.values()) for row in done.outputs["out"].to_pylist())


def test_what_is_said_with_the_function_holds_unless_something_else_is_said():
    policy = job_policy(judge)
    assert (policy.fn, policy.timeout_s, policy.attempts) == (judge.asked, 2.5, 4)
    other = job_policy(judge, attempts=2, per_second=9.0)
    assert (other.timeout_s, other.attempts, other.per_second) == (2.5, 2, 9.0)
    plain = job_policy(score)
    assert (plain.fn, plain.timeout_s, plain.attempts, plain.is_async) == (score.asked, 60, 1, True)
    assert undeclared(len, {"attempts": 2}) == (len, {"attempts": 2})


def job_policy(fn, **how):
    job, rows = stream()
    answered = rows.with_column_async("said string", fn, "text", **how)
    answered.sink(clonos.sinks.collect(), name="out")
    (task,) = job.compile().codes
    return task.operators[1][1].policy


@pytest.mark.parametrize("fn", [judge, score])
def test_rows_are_asked_about(fn):
    job, rows = stream()
    answered = rows.with_column_async("said string", fn, "text")
    answered.sink(clonos.sinks.collect(), name="out")
    assert said_by(job, **{fn.__name__: str.upper}) == [("a", "A"), ("b", "B")]


def test_a_process_asks():
    job, rows = stream()
    asked = rows.key_by("text").process(Asking(), "text string, said string")
    asked.sink(clonos.sinks.collect(), name="out")
    assert said_by(job, judge=str.upper) == [("a", "A"), ("b", "B")]


def test_a_function_asks_as_often_as_it_may():
    job, rows = stream()
    said = rows.map(
        lambda row, ctx: (row.text, ctx.call(fickle, row.text)), "text string, s string"
    )
    said.sink(clonos.sinks.collect(), name="out")
    assert said_by(job, fickle=str.upper) == [("a", "A"), ("b", "B")]
    assert fickle.at_once("a") == "A"
    assert TRIES == ["a"] * 3


def program(build):
    job = clonos.Job("test", parallelism=1)
    build(job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in")).sink(
        clonos.sinks.collect()
    )
    return job.compile().codes[-1].program()


def asked(fn, **how):
    """How `fn` is asked by a task for one row."""
    harness = StepHarness(program(lambda rows: rows.with_column_async("n long", fn, "id", **how)))
    ((_, request),) = harness.source([(1,)], SCHEMA).asked
    return request.service


def made(fn):
    """The row that a function makes."""
    harness = StepHarness(program(lambda rows: rows.map(fn, "n long")))
    (batch,) = harness.source([(1,)], SCHEMA).batches.values()
    return batch.payload.to_pylist()[0]["n"]


def test_there_is_one_decorator():
    assert clonos.service is causal.service


def test_what_it_says_holds_in_map_async_unless_that_says_otherwise():
    @clonos.service(timeout="5 seconds", attempts=3, per_second=50, cost=0.25)
    def double(n):
        return 2 * n

    policy = asked(double)
    said = (policy.timeout_s, policy.attempts, policy.per_second, policy.cost)
    assert said == (5.0, 3, 50, 0.25)
    assert policy.fn is double.asked, "no log of plain PySpark"
    policy = asked(double, attempts=7)
    assert (policy.timeout_s, policy.attempts) == (5.0, 7)


def test_it_holds_for_the_services_of_a_process():
    @clonos.service(attempts=3)
    def double(n):
        return 2 * n

    class Asking(clonos.Process):
        def open(self, ctx):
            self.double = ctx.service("double", double, timeout="7 seconds")

        def on_row(self, row, ctx):
            self.double.ask(row.id, then="on_reply")

        def on_reply(self, reply, ctx):
            return [(reply.get(),)]

    harness = StepHarness(
        program(lambda rows: rows.key_by("id").process(Asking(), "n long", name="p"))
    )
    ((_, request),) = harness.source([(1,)], SCHEMA).asked
    assert (request.service.attempts, request.service.timeout_s) == (3, 7.0)
    assert request.service.fn is double.asked


@pytest.mark.parametrize("is_async", [False, True])
def test_ctx_call_makes_its_attempts_and_they_are_one_call(is_async):
    pytest.importorskip("tenacity")
    tried = []

    def flaky(n):
        tried.append(n)
        if len(tried) < 3:
            raise ConnectionError
        return 10 * n

    async def flaky_later(n):
        await asyncio.sleep(0)
        return flaky(n)

    declare = clonos.service(attempts=3, backoff=("1 ms", "2 ms"))
    service = declare(flaky_later if is_async else flaky)
    assert made(lambda row, ctx: ctx.call(service, row.id)) == 10
    assert tried == [1, 1, 1]


@pytest.mark.parametrize(("fn", "kind"), [(double_later, "coroutine"), (Doubling(), "Service")])
def test_ctx_call_says_that_it_awaits_nothing(fn, kind):
    with pytest.raises(OperatorError, match=rf"{kind}.* is given, but a step awaits nothing"):
        made(lambda row, ctx: ctx.call(fn, row.id))


@pytest.mark.parametrize("is_async", [False, True])
def test_ctx_call_gives_an_attempt_so_much_time(is_async):
    given_up = threading.Event()

    def hangs(n):
        given_up.wait()

    async def hangs_too(n):
        await asyncio.Event().wait()

    service = clonos.service(timeout="10 ms")(hangs_too if is_async else hangs)

    def told(row, ctx):
        try:
            return ctx.call(service, row.id)
        except TimeoutError:
            return -1

    try:
        assert made(told) == -1
    finally:
        given_up.set()


def test_an_effect_stays_one():
    @clonos.service(idempotent=True, timeout="5 seconds")
    def charge(n, *, call):
        return call.key

    effect = charge.asked
    assert isinstance(effect, Effect)
    assert effect.idempotent
    policy = asked(charge)
    assert policy.effect is effect
    assert policy.timeout_s == parse_duration("5 seconds") / 1000

    stacked = clonos.service(attempts=2)(effect)
    assert stacked.asked is effect

    with pytest.raises(OperatorError, match="charge is an effect"):
        made(lambda row, ctx: ctx.call(charge, row.id))
    with pytest.raises(WrongType, match="charge is an effect"):
        program(lambda rows: rows.map(charge, "n long"))


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"attempts": 0}, WrongType),
        ({"timeout": "soon"}, BadDuration),
        ({"per_second": 0}, WrongType),
        ({"rate": 3}, WrongType),
        ({"idempotent": True}, WrongType),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_said(how, error):
    with pytest.raises(error):
        clonos.service(lambda n: n, **how)


def test_a_service_is_declared_once():
    @clonos.service(attempts=2)
    def double(n):
        return 2 * n

    assert clonos.service(double) is double
    with pytest.raises(DefinitionError, match="a service already"):
        clonos.service(attempts=3)(double)
    assert undeclared(double, {"attempts": 4}) == (double.asked, {"attempts": 4})


def test_operations_hold_the_function_alone():
    """So a slot learns nothing of a log of plain PySpark."""

    @clonos.service
    def double(n):
        return 2 * n

    job = clonos.Job("test")
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA))
    made = stream.with_column_async("n long", double, "id")
    operation = made._vertex.operation
    assert isinstance(operation, WithColumnAsync)
    assert operation.policy.fn is double.asked


def given(**options) -> Any:
    """Options that a type checker would refuse."""
    return options


class Misspelling(clonos.Process):
    def open(self, ctx):
        ctx.service("score", score.asked, atempts=3)

    def on_row(self, row, ctx):
        yield row


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (
            lambda: causal.service(**given(timeut="5 seconds"))(len),
            r"^clonos\.service: there is no option 'timeut'\. To do: did you mean timeout\?",
        ),
        (
            lambda: clonos.service(len, **given(in_flight=5)),
            r"no option 'in_flight'.* it is used",
        ),
        (
            lambda: clonos.effect(len, **given(idempotnt=True)),
            r"^clonos\.effect: there is no option 'idempotnt'\. To do: did you mean idempotent\?",
        ),
        (
            lambda: stream()[1].map_async(len, SCHEMA, per_secnd=5),
            r"^map_async: there is no option 'per_secnd'\. To do: did you mean per_second\?",
        ),
        (
            lambda: stream()[1].with_column_async("n long", len, "text", name="sizes", keys=1),
            r"^sizes: there is no option 'keys'",
        ),
        (
            lambda: stream()[1].for_each_async(len, "text", atempts=5),
            r"^for_each_async: there is no option 'atempts'\. To do: did you mean attempts\?",
        ),
    ],
)
def test_an_option_that_is_not_there_is_named_with_what_is_like_it(define, said):
    with pytest.raises(WrongType, match=said):
        define()


def test_an_option_that_is_not_there_is_named_in_a_process_too():
    job, texts = stream()
    asking = texts.key_by("text").process(Misspelling(), SCHEMA, name="asking")
    asking.sink(clonos.sinks.collect(), name="out")
    code = job.compile().codes[-1]
    with pytest.raises(WrongType, match=r"ctx\.service\('score'\): .* did you mean attempts"):
        code.program()
