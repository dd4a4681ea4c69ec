"""One declaration of a service, for plain PySpark and for jobs."""

from __future__ import annotations

import pytest

import clonos
from clonos import causal
from clonos.operators.service import undeclared
from clonos.testing import simulate


@causal.service(timeout_s=2.5, attempts=4)
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
