"""What a `Process` asks services, and how it hears of the answers, without the protocol."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.core.calls import Request
from clonos.core.step import arguments_digest
from clonos.errors import OperatorError
from clonos.operators.calls.marks import LOWEST
from clonos.operators.watermark import IDLE
from clonos.state.deltas import merge_deltas
from clonos.testing import (
    Answers,
    Batches,
    End,
    Event,
    InMemoryRun,
    StepHarness,
    Watermark,
    check_restore,
    rows,
)
from clonos.testing.harness import outcome_of
from tests.operators.test_calls import (
    SCHEMA,
    call,
    given,
    made,
    mapped,
    program_of,
    statistics_of,
)


class Agent(clonos.Process):
    """Asks twice for each row; the second question depends on the first answer."""

    def open(self, ctx: Any) -> None:
        self.model = ctx.service("model", score_of)
        self.talk = ctx.state("talk")

    def on_row(self, row: Any, ctx: Any) -> None:
        self.talk.set([*self.talk.get([]), row.text])
        self.model.ask(ctx.key, row.text, then="on_first")

    def on_first(self, reply: Any, ctx: Any) -> None:
        if reply.get() < 0:
            raise ValueError("a negative score")
        self.model.ask(ctx.key, str(reply.get()), then="on_second")

    def on_second(self, reply: Any, ctx: Any) -> list[tuple[Any, ...]]:
        assert reply.service == "model"
        assert reply.arguments[0] == ctx.key
        return [(ctx.key, reply.get(), len(self.talk.get()))]


async def score_of(key: int, text: str) -> int:
    return -1 if text == "bad" else 100 * key + len(text)


def agent_of(process=None, **options):
    job = clonos.Job("test", **options)
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in")
    made = stream.key_by("id").process(
        process or Agent(), "id long, score long, said int", name="agent", in_flight=2
    )
    made.sink(clonos.sinks.collect())
    return job.compile().codes[-1].program()


def test_a_process_asks_and_hears():
    harness = StepHarness(agent_of())
    output = harness.input(0, given(1, 2), SCHEMA)
    assert not output.batches
    assert [request.arguments for _, request in output.asked] == [(1, "x"), (2, "xx")]
    assert harness.program.is_full
    output = harness.answer(call(2, 0), 202)
    assert [(name.number, request.arguments) for name, request in output.asked] == [(3, (2, "202"))]
    assert not harness.watermark(0, 50).watermarks
    output = harness.answer(call(3, 0), 7)
    (batch,) = output.batches.values()
    assert rows(batch) == [(2, 7, 1)]
    assert not output.watermarks  # the first call is open
    assert not harness.answer(call(1, 0), 101).watermarks  # it goes on with the fourth
    output = harness.answer(call(4, 0), 8)
    assert output.watermarks == {1: 50}
    assert not harness.program.open_calls()
    assert not harness.program.is_full


@pytest.mark.parametrize("process", [True, False])
def test_who_has_rows_that_wait_is_not_idle(process):
    """Else those behind would go on without these rows, which would then be late."""
    schema = "id long, text string"
    program = agent_of() if process else program_of(mapped(), keyed=True)
    harness = StepHarness(program)
    assert harness.watermark(0, IDLE).watermarks == {1: IDLE}
    output = harness.input(0, given(1), schema)
    assert output.watermarks == {1: LOWEST}
    assert not harness.watermark(0, IDLE).watermarks
    harness.input(0, given(2), schema)  # ... and is not idle any more
    assert not harness.watermark(0, 7).watermarks
    for number in (1, 2):
        harness.answer(call(number, 0), (number, 10) if not process else 5)
    if process:
        assert harness.answer(call(3, 0), 6).watermarks == {}
        assert harness.answer(call(4, 0), 6).watermarks == {1: 7}
    assert harness.wake_ms is None
    assert harness.watermark(0, IDLE).watermarks == {1: IDLE}
    assert harness.input(0, given(3), schema).watermarks == {1: 7}


def test_what_waits_is_counted():
    """So that the coordinator throttles sources while calls hang."""
    for program in (agent_of(), program_of(mapped(in_flight=2), keyed=True)):
        harness, counted = StepHarness(program), [program.waiting_bytes]
        for number in range(3):
            harness.input(0, given(number), SCHEMA)
            counted.append(program.waiting_bytes)
        assert counted[0] == 0
        assert counted == sorted(set(counted))


def test_a_process_without_services_makes_no_calls():
    class Plain(clonos.Process):
        def on_row(self, row: Any, ctx: Any) -> list[tuple[Any, ...]]:
            return [(row.id, 1, 1)]

    program = agent_of(Plain())
    assert not program.makes_calls
    assert agent_of().makes_calls
    harness = StepHarness(program)
    assert harness.watermark(0, 5).watermarks == {1: 5}
    assert harness.watermark(0, IDLE).watermarks == {1: IDLE}
    assert b"is idle" not in bytes(program.delta())


def test_what_a_failed_callback_has_asked_is_not_asked():
    class Hasty(Agent):
        def on_row(self, row: Any, ctx: Any) -> None:
            super().on_row(row, ctx)
            if row.id == 1:
                raise ValueError("changed my mind")

    harness = StepHarness(agent_of(Hasty(), on_bad_record="drop"))
    output = harness.input(0, given(1, 2), SCHEMA)
    assert [request.arguments for _, request in output.asked] == [(2, "xx")]
    assert statistics_of(harness) == {"agent: bad_records": 1}


def test_an_error_of_a_service_reaches_the_method_that_hears():
    harness = StepHarness(agent_of(on_bad_record="drop"))
    harness.input(0, [(1, "bad")], SCHEMA)
    harness.answer(call(1, 0), -1)
    harness.input(0, [(1, "x")], SCHEMA)
    harness.answer(call(2, 0), ConnectionError("away"))
    assert statistics_of(harness) == {"agent: bad_records": 2}
    fails = StepHarness(agent_of())
    fails.input(0, [(1, "x")], SCHEMA)
    with pytest.raises(OperatorError, match=r"ConnectionError: away.*reply of model for key 1"):
        fails.answer(call(1, 0), ConnectionError("away"))


def test_what_is_asked_is_what_it_was_when_it_was_asked():
    class Changing(Agent):
        def on_row(self, row: Any, ctx: Any) -> None:
            said = [row.text]
            self.model.ask(ctx.key, said, then="on_first")
            said.append("after")

    program = agent_of(Changing())
    ((_, asked),) = StepHarness(program).input(0, given(1), SCHEMA).asked
    assert asked.arguments == (1, ["x"])
    restored = agent_of(Changing())
    restored.apply(bytes(program.delta()))
    ((_, again),) = restored.open_calls().items()
    assert (again.arguments, again.digest) == (asked.arguments, asked.digest)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("on_nothing", "Lost has no method 'on_nothing'"),
        (print, r"then=<built-in function print> .* To do: give the name of a method, such as"),
        ("on_late", "Lost.on_late is a coroutine function, but a step awaits nothing"),
    ],
)
def test_a_method_that_cannot_hear_a_reply(then, told):
    class Lost(Agent):
        def on_row(self, row: Any, ctx: Any) -> None:
            self.model.ask(ctx.key, row.text, then=then)

        async def on_late(self, reply: Any, ctx: Any) -> None: ...

    with pytest.raises(OperatorError, match=told):
        StepHarness(agent_of(Lost())).input(0, given(1), SCHEMA)


@pytest.mark.parametrize("merge", [None, merge_deltas])
def test_an_agent_restored_at_any_step(merge):
    batch = pa.record_batch({"id": [1, 2], "text": ["a", "bb"]})

    def answer(number, text, key):
        digest = arguments_digest(["model", key, text], {})
        request = Request(None, (key, text), digest)
        return Answers((outcome_of(call(number, 0), request, 100 * key + len(text)),))

    events: list[Event] = [
        Batches(0, (batch,)),
        Watermark(0, 20),
        answer(2, "bb", 2),
        answer(1, "a", 1),
        answer(4, "101", 1),
        End(0),
        answer(3, "202", 2),
    ]
    outputs = check_restore(agent_of, events, merge=merge)
    assert [row for output in outputs for row in made(output)] == [1, 2]
    assert [output.watermarks for output in outputs if output.watermarks] == [{1: 20}]


@pytest.mark.parametrize("seed", range(6))
def test_agents_in_any_order(seed):
    job = clonos.Job(parallelism=2)
    batches = [[(i % 11, "x" * (i % 5)) for i in range(part, 80, 2)] for part in range(2)]
    source = clonos.sources.from_batches(batches, SCHEMA)
    keyed = job.source(source).key_by("id")
    agents = keyed.process(Agent(), "id long, score long, said int", in_flight=5)
    agents.key_by("id").window(clonos.tumbling("1 hour")).agg(n=clonos.count()).sink(
        clonos.sinks.collect(), name="out"
    )
    out = InMemoryRun(job.compile(), seed=seed, batch_rows=9, restore=0.3).run()["out"]
    assert sum(out["n"].to_pylist()) == 80
