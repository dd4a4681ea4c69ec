"""Calls of a Process: how many are open, which come first, and what waits meanwhile."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.core.calls import CallId, Request
from clonos.core.step import arguments_digest
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

SCHEMA = "id long, text string"
IN_FLIGHT = 2


async def answer(key: int, text: str) -> int:
    return 100 * key + len(text)


class Talk(clonos.Process):
    """Asks once for each row, and once more for each answer; a timer asks, too."""

    def open(self, ctx: Any) -> None:
        self.model = ctx.service("model", answer)

    def on_row(self, row: Any, ctx: Any) -> None:
        self.model.ask(ctx.key, row.text, then="on_first")
        if row.text == "later":
            ctx.timers.event_time(10)

    def on_first(self, reply: Any, ctx: Any) -> None:
        self.model.ask(ctx.key, "again", then="on_second")

    def on_second(self, reply: Any, ctx: Any) -> list[tuple[Any, ...]]:
        return [(ctx.key, reply.arguments[1])]

    def on_timer(self, key: Any, due: int, ctx: Any) -> None:
        self.model.ask(key, "timer", then="on_second")


def program_of(process: clonos.Process | None = None, **how: Any) -> Any:
    job = clonos.Job("test", on_bad_record=how.pop("on_bad_record", "fail"))
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in").key_by("id")
    how = {"in_flight": IN_FLIGHT, **how}
    made = stream.process(process or Talk(), "id long, text string", name="talk", **how)
    made.sink(clonos.sinks.collect())
    return job.compile().codes[-1].program()


def given(*ids: int) -> list[tuple[int, str]]:
    return [(i, f"of {i}") for i in ids]


def call(number: int) -> CallId:
    return CallId(0, number)


def asked(output: Any) -> list[tuple[int, tuple[Any, ...]]]:
    return [(name.number, request.arguments) for name, request in output.asked]


def test_rows_of_one_batch_ask_as_many_calls_as_may_be_open():
    program = program_of()
    harness = StepHarness(program)
    output = harness.input(0, given(1, 2, 3, 4), SCHEMA)
    assert asked(output) == [(1, (1, "of 1")), (2, (2, "of 2"))]
    assert len(program.open_calls()) == IN_FLIGHT
    assert program.is_full


def test_the_oldest_conversation_comes_first():
    """Else each would wait for the first calls of all others, and no watermark would go on."""
    harness = StepHarness(program_of())
    harness.input(0, given(1, 2, 3), SCHEMA)
    assert not harness.watermark(0, 5).watermarks
    output = harness.answer(call(2), 0)
    assert asked(output) == [(4, (2, "again"))], "its own, and not yet that of row 3"
    output = harness.answer(call(1), 0)
    assert asked(output) == [(5, (1, "again"))]
    assert asked(harness.answer(call(4), 0)) == [(3, (3, "of 3"))]
    assert asked(harness.answer(call(5), 0)) == []
    assert asked(harness.answer(call(3), 0)) == [(6, (3, "again"))]
    assert harness.answer(call(6), 0).watermarks == {1: 5}
    assert not harness.program.open_calls()
    assert not harness.program.is_full


def test_answers_and_timers_ask_when_there_is_room():
    """Nobody waits for ever, whoever asks: each answer makes room for what waits."""
    program = program_of(in_flight=1)
    harness = StepHarness(program)
    harness.input(0, [(1, "later"), (2, "x")], SCHEMA)
    assert not harness.watermark(0, 20).asked, "the timer has fired, and its call waits"
    texts = []
    while open_calls := program.open_calls():
        assert len(open_calls) == 1
        ((name, request),) = open_calls.items()
        texts.append(request.arguments)
        harness.answer(name, 0)
    assert texts == [(1, "later"), (1, "again"), (2, "x"), (2, "again"), (1, "timer")]
    assert not program.is_full
    assert program.waiting_bytes == 0


def test_a_callback_that_fails_makes_room_for_others():
    class Failing(Talk):
        def on_first(self, reply: Any, ctx: Any) -> None:
            super().on_first(reply, ctx)
            raise ValueError("no")

    program = program_of(Failing(), in_flight=1, on_bad_record="drop")
    harness = StepHarness(program)
    harness.input(0, given(1, 2), SCHEMA)
    assert asked(harness.answer(call(1), 0)) == [(2, (2, "of 2"))]
    harness.answer(call(2), 0)
    assert not program.is_full


def test_the_end_waits_for_calls_that_wait():
    harness = StepHarness(program_of(in_flight=1))
    harness.input(0, given(1, 2), SCHEMA)
    harness.feed(End(0))
    made = []
    while open_calls := harness.program.open_calls():
        (name,) = open_calls
        for batch in harness.answer(name, 0).batches.values():
            made += rows(batch)
    assert made == [(1, "again"), (2, "again")]


def test_what_waits_to_be_asked_counts_as_waiting():
    """So that the coordinator throttles sources while calls hang."""
    program = program_of()
    harness = StepHarness(program)
    harness.input(0, given(1, 2), SCHEMA)
    before = program.waiting_bytes
    harness.input(0, given(3, 4), SCHEMA)
    assert program.waiting_bytes > before


def answered(number: int, key: int, text: str) -> Answers:
    request = Request(None, (key, text), arguments_digest(["model", key, text], {}))
    return Answers((outcome_of(call(number), request, 0),))


@pytest.mark.parametrize("merge", [None, merge_deltas])
def test_restored_at_any_step_while_calls_wait(merge):
    batch = pa.record_batch({"id": [1, 2, 3], "text": ["a", "b", "c"]})
    events: list[Event] = [
        Batches(0, (batch,)),
        Watermark(0, 20),
        answered(2, 2, "b"),
        answered(1, 1, "a"),
        answered(5, 1, "again"),
        End(0),
        answered(4, 2, "again"),
        answered(3, 3, "c"),
        answered(6, 3, "again"),
    ]
    outputs = check_restore(program_of, events, merge=merge)
    assert [asked(output) for output in outputs if output.asked] == [
        [(1, (1, "a")), (2, (2, "b"))],
        [(4, (2, "again"))],
        [(5, (1, "again"))],
        [(3, (3, "c"))],
        [(6, (3, "again"))],
    ]
    assert [output.watermarks for output in outputs if output.watermarks] == [{1: 20}]


@pytest.mark.parametrize("seed", range(6))
def test_all_conversations_end_in_any_order(seed):
    job = clonos.Job(parallelism=2)
    batches = [[(i % 11, f"row {i}") for i in range(part, 80, 2)] for part in range(2)]
    keyed = job.source(clonos.sources.from_batches(batches, SCHEMA)).key_by("id")
    talks = keyed.process(Talk(), "id long, text string", in_flight=1 + seed % 3)
    talks.sink(clonos.sinks.collect(), name="out")
    out = InMemoryRun(job.compile(), seed=seed, batch_rows=9, restore=0.3).run()["out"]
    assert sorted(out["id"].to_pylist()) == sorted(i % 11 for i in range(80))
