"""Calls about several rows: who goes together, who waits for whom, and what a restart knows."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

import clonos
from clonos.errors import OperatorError, WrongType
from clonos.state.deltas import merge_deltas
from clonos.testing import (
    Answers,
    End,
    InMemoryRun,
    Source,
    StepHarness,
    Tick,
    check_restore,
)
from clonos.testing.harness import answered
from tests.operators.test_calls import SCHEMA, call, given, made, program_of


async def tens(rows):
    return [(row.id, 10 * row.id) for row in rows]


def lengths(texts):
    return [len(text) for text in texts]


def batched(fn: Any = tens, **how):
    return lambda stream: stream.map_async(fn, "id long, score long", name="ask", batch=3, **how)


def sizes(output):
    """How many rows each call is about that was asked."""
    return {name.number: len(request.arguments[0]) for name, request in output.asked}


def scores(*ids):
    return [(i, 10 * i) for i in ids]


def test_rows_that_wait_are_asked_together():
    harness = StepHarness(program_of(batched()))
    assert sizes(harness.source(given(1, 2, 3, 4, 5), SCHEMA)) == {1: 3, 4: 2}
    assert made(harness.answer(call(4), scores(4, 5))) == []
    assert made(harness.answer(call(1), scores(1, 2, 3))) == [1, 2, 3, 4, 5]
    assert not harness.program.open_calls()


def test_rows_wait_for_a_call_to_be_over():
    program = program_of(batched(in_flight=1, ordered=False))
    harness = StepHarness(program)
    assert sizes(harness.source(given(1), SCHEMA)) == {1: 1}
    assert program.is_full
    assert sizes(harness.source(given(2, 3), SCHEMA)) == {}
    assert sizes(harness.source(given(4, 5), SCHEMA)) == {}
    assert sizes(harness.answer(call(1), scores(1))) == {2: 3}
    assert sizes(harness.answer(call(2), scores(2, 3, 4))) == {5: 1}


def test_rows_wait_for_others_but_not_for_long():
    program = program_of(batched(batch_within="20 ms"))
    harness = StepHarness(program)
    assert sizes(harness.source(given(1, 2), SCHEMA)) == {}
    assert not program.is_full
    assert sizes(harness.source(given(3, 4), SCHEMA)) == {1: 3}
    due_ms = harness.wake_ms
    assert due_ms == harness.now_ms + 20
    assert sizes(harness.tick(due_ms - 1)) == {}
    assert sizes(harness.tick(due_ms)) == {4: 1}
    assert harness.wake_ms is None


def test_nobody_waits_for_others_at_the_end():
    harness = StepHarness(program_of(batched(batch_within="1 hour", in_flight=1)))
    assert sizes(harness.source(given(1, 2, 3, 4), SCHEMA)) == {1: 3}
    assert sizes(harness.end()) == {}
    assert sizes(harness.answer(call(1), scores(1, 2, 3))) == {4: 1}
    assert made(harness.answer(call(4), scores(4))) == [4]


def test_an_error_is_that_of_each_row():
    def build(stream):
        return batched(on_error=lambda row, error: (row.id, len(str(error))))(stream)

    harness = StepHarness(program_of(build))
    harness.source(given(1, 2, 3), SCHEMA)
    assert made(harness.answer(call(1), ValueError("no"))) == [1, 2, 3]


@pytest.mark.parametrize("said", [[1, 2], {1: 2, 3: 4, 5: 6}, None])
def test_an_answer_of_another_length_names_the_rows(said):
    def short(rows):
        return said

    harness = StepHarness(program_of(batched(short)))
    ((name, request),) = harness.source(given(1, 2, 3), SCHEMA).asked
    with pytest.raises(OperatorError, match=r"to 3 rows: .*id=1.*id=2.*id=3"):
        harness.feed(Answers((answered(name, request),)))


def test_an_answer_of_another_length_is_that_of_each_row():
    def none(texts):
        return []

    def build(stream):
        return stream.with_column_async("n int", none, "text", batch=2, name="ask")

    harness = StepHarness(program_of(build, on_bad_record="drop"))
    ((name, request),) = harness.source(given(1, 2), SCHEMA).asked
    assert made(harness.feed(Answers((answered(name, request),)))) == []
    assert not harness.program.open_calls()


@pytest.mark.parametrize("merge", [None, merge_deltas])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("column", [True, False])
def test_restored_at_any_step(column, ordered, merge):
    how: dict[str, Any] = {"ordered": ordered, "batch": 2, "batch_within": "20 ms", "in_flight": 2}

    def build(stream):
        if column:
            return stream.with_column_async("n int", lengths, "text", **how)
        return stream.map_async(tens, "id long, score long", **how)

    def some(*ids):
        return Source(pa.record_batch({"id": ids, "text": ["x" * i for i in ids]}))

    harness = StepHarness(program_of(build))
    asked: dict[Any, Any] = {}
    events: list[Any] = []

    def feed(event):
        events.append(event)
        asked.update(harness.feed(event).asked)

    def answer(number):
        feed(Answers((answered(call(number), asked[call(number)]),)))

    feed(some(1))
    feed(some(2, 3))
    feed(Tick(cast("int", harness.wake_ms)))
    feed(some(4, 5, 6))
    answer(3)
    answer(1)
    feed(End())
    while opened := harness.program.open_calls():
        answer(min(opened).number)
    outputs = check_restore(lambda: program_of(build), events, merge=merge)
    assert [i for output in outputs for i in made(output)] == (
        [1, 2, 3, 4, 5, 6] if ordered else [3, 1, 2, 4, 5, 6]
    )


@pytest.mark.parametrize("seed", range(12))
def test_any_order_and_restored_in_between(seed):
    ordered = seed % 2 == 0
    within = {} if seed % 3 else {"batch_within": "5 ms"}
    job = clonos.Job(parallelism=2)
    batches = [[(i, "x" * (i % 9)) for i in range(part, 120, 2)] for part in range(2)]
    scored = job.source(clonos.sources.from_batches(batches, SCHEMA)).map_async(
        tens, "id long, score long", in_flight=3, ordered=ordered, batch=4, **cast("Any", within)
    )
    keyed = scored.key_by("id").with_column_async(
        "again long", lambda ns: [n + 1 for n in ns], "score", batch=5, ordered=ordered
    )
    keyed.sink(clonos.sinks.collect(), name="out")
    out = InMemoryRun(job.compile(), seed=seed, batch_rows=20, restore=0.3).run()["out"]
    expected = {(i, 10 * i, 10 * i + 1) for i in range(120)}
    assert out.num_rows == 120
    assert {tuple(row.values()) for row in out.to_pylist()} == expected


def test_bad_input_gives_clear_errors():
    rows = clonos.Job().source(clonos.sources.from_batches([], schema=SCHEMA))

    @clonos.effect(idempotent=True)
    async def pay(rows, *, call):
        return [call.key for _ in rows]

    with pytest.raises(WrongType, match="batch=0"):
        rows.map_async(tens, SCHEMA, batch=0)
    with pytest.raises(WrongType, match="batch_within='20 ms'"):
        rows.map_async(tens, SCHEMA, batch_within="20 ms")
    with pytest.raises(WrongType, match="there are no arguments"):
        rows.with_column_async("n int", list, batch=2)
    with pytest.raises(WrongType, match="an effect is about several"):
        rows.map_async(pay, SCHEMA, batch=2, identity="id")
