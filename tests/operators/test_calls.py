"""map_async and with_column_async, without the protocol: what goes on, in which order, and when."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pyarrow as pa
import pytest

import clonos
from clonos.core.calls import CallId
from clonos.errors import AnswerTooLarge, BadDuration, CallError, OperatorError, WrongType
from clonos.operators.chain import ChainProgram
from clonos.operators.watermark import IDLE
from clonos.state.deltas import merge_deltas
from clonos.testing import (
    Answers,
    Batches,
    End,
    Event,
    InMemoryRun,
    Source,
    StepHarness,
    Watermark,
    check_restore,
    rows,
)
from clonos.testing.harness import answered, outcome_of

SCHEMA = "id long, text string"


async def score(row):
    await asyncio.sleep(0)
    if row.id % 5 == 4:
        raise ValueError(f"no score for {row.id}")
    return row.id, 10 * row.id


def length(text):
    return len(text)


def program_of(build, *, keyed=False, **options):
    job = clonos.Job("test", **options)
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in")
    if keyed:
        stream = stream.key_by("id")
    build(stream).sink(clonos.sinks.collect())
    return job.compile().codes[-1].program()


def mapped(**how):
    return lambda stream: stream.map_async(score, "id long, score long", name="ask", **how)


def given(*ids):
    return [(i, "x" * i) for i in ids]


def made(output):
    batch = next(iter(output.batches.values()), None)
    return [] if batch is None else [row[0] for row in rows(batch)]


def statistics_of(harness):
    assert isinstance(harness.program, ChainProgram)
    return harness.program.statistics


def call(number, operator=1):
    return CallId(operator, number)


def test_rows_go_on_when_their_answers_are_there():
    harness = StepHarness(program_of(mapped(ordered=False)))
    first = harness.source(given(1, 2, 3), SCHEMA)
    assert not first.batches
    assert [name.number for name, _ in first.asked] == [1, 2, 3]
    assert made(harness.answer(call(2), (2, 20))) == [2]
    assert made(harness.answer(call(1), (1, 10))) == [1]


def test_ordered_rows_wait_for_those_before_them():
    harness = StepHarness(program_of(mapped()))
    harness.source(given(1, 2, 3), SCHEMA)
    assert made(harness.answer(call(3), (3, 30))) == []
    assert made(harness.answer(call(1), (1, 10))) == [1]
    assert made(harness.answer(call(2), (2, 20))) == [2, 3]


@pytest.mark.parametrize("ordered", [True, False])
def test_so_many_calls_are_open_at_most(ordered):
    program = program_of(mapped(in_flight=2, ordered=ordered))
    harness = StepHarness(program)
    assert not program.is_full
    assert len(harness.source(given(1, 2, 3, 5), SCHEMA).asked) == 2
    assert program.is_full
    output = harness.answer(call(2), (2, 20))
    assert len(output.asked) == (0 if ordered else 1)  # an answer that waits takes a place, too
    output = harness.answer(call(1), (1, 10))
    assert len(output.asked) == (2 if ordered else 1)
    harness.answer(call(3), (3, 30))
    assert not program.is_full
    harness.answer(call(4), (5, 50))
    assert not program.open_calls()
    assert program.waiting_bytes == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_a_watermark_overtakes_no_row(ordered):
    def build(stream):
        return mapped(ordered=ordered)(stream.key_by("id"))

    harness = StepHarness(program_of(build))
    schema = "id long, text string"
    assert harness.watermark(0, 1).watermarks == {1: 1}
    harness.input(0, given(1), schema)
    assert not harness.watermark(0, 5).watermarks
    harness.input(0, given(2), schema)
    assert not harness.watermark(0, 6).watermarks
    assert not harness.watermark(0, 7).watermarks
    output = harness.answer(call(1, 0), (1, 10))
    assert made(output) == [1]
    assert output.watermarks == {1: 5}
    assert harness.answer(call(2, 0), (2, 20)).watermarks == {1: 7}
    harness.input(0, given(3), schema)
    assert not harness.watermark(0, 9).watermarks
    assert not harness.watermark(0, IDLE).watermarks
    output = harness.answer(call(3, 0), (3, 30))
    assert output.watermarks == {1: 9}  # IDLE, which ends nothing, has a step of its own
    assert harness.tick(harness.now_ms).watermarks == {1: IDLE}


def test_marks_between_which_no_row_waits_are_one():
    program = program_of(mapped(ordered=False, in_flight=3), keyed=True)
    harness = StepHarness(program)
    harness.input(0, given(1), SCHEMA)
    for number in range(2, 200):
        harness.watermark(0, number)
        harness.input(0, given(number), SCHEMA)
        harness.answer(call(number, 0), (number, 0))
    assert len(bytes(program.delta())) < 3000
    assert harness.answer(call(1, 0), (1, 0)).watermarks == {1: 199}


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_that_ends_the_job_is_in_no_log(ordered):
    """Also if it has to wait for earlier rows: the next start would end with it, too."""
    harness = StepHarness(program_of(mapped(ordered=ordered)))
    harness.source(given(1, 4), SCHEMA)
    with pytest.raises(OperatorError, match="no score"):
        harness.answer(call(2), ValueError("no score"))


def test_what_a_call_does_to_its_arguments_is_nothing_to_others():
    async def spoil(tags):
        tags.append("spoilt")
        raise ValueError("no")

    def build(stream):
        return stream.map(
            lambda row: (row.id, [row.text]), "id long, tags array<string>"
        ).with_column_async(
            "n int", spoil, "tags", name="ask", on_error=lambda tags, error: len(tags)
        )

    harness = StepHarness(program_of(build))
    ((name, request),) = harness.source(given(1), SCHEMA).asked
    outcome = answered(name, request)
    assert request.arguments == (["x", "spoilt"],)
    (batch,) = harness.feed(Answers((outcome,))).batches.values()
    assert rows(batch) == [(1, ["x"], 1)]


def test_an_answer_that_does_not_fit_where_nothing_was_given():
    def build(stream):
        return stream.with_column_async("n int", lambda: "three", name="ask")

    harness = StepHarness(program_of(build, on_bad_record="drop"))
    harness.source(given(1), SCHEMA)
    assert not harness.answer(call(1), "three").batches
    assert statistics_of(harness) == {"ask: bad_records": 1}


def test_an_error_ends_the_job_or_costs_the_row_or_is_an_answer():
    fails = StepHarness(program_of(mapped()))
    fails.source(given(4), SCHEMA)
    with pytest.raises(OperatorError, match=r"ask\[0\].*ValueError: no score.*Row\(id=4"):
        fails.answer(call(1), ValueError("no score"))
    drops = StepHarness(program_of(mapped(), on_bad_record="drop"))
    drops.source(given(4, 5), SCHEMA)
    drops.answer(call(1), ValueError("no score"))
    assert made(drops.answer(call(2), (5, 50))) == [5]
    assert statistics_of(drops) == {"ask: bad_records": 1}
    told = StepHarness(program_of(mapped(on_error=lambda row, error: (row.id, len(str(error))))))
    told.source(given(4), SCHEMA)
    (batch,) = told.answer(call(1), ValueError("no score")).batches.values()
    assert rows(batch) == [(4, 8)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AnswerTooLarge("too much"), r"ask\[0\].*: AnswerTooLarge: too much \(for .*To do: keep"),
        (CallError("their.Error", "no"), r"ask\[0\].*: their.Error: no \(for Row.*To do: give on"),
    ],
)
def test_an_error_is_told_by_its_name_once_and_with_one_remedy(error, told):
    harness = StepHarness(program_of(mapped()))
    harness.source(given(4), SCHEMA)
    with pytest.raises(OperatorError, match=told) as raised:
        harness.answer(call(1), error)
    assert str(raised.value).count("To do:") == 1
    assert "CallError" not in str(raised.value)


def test_an_answer_that_is_no_row_is_a_bad_record():
    harness = StepHarness(program_of(mapped(), on_bad_record="drop"))
    harness.source(given(1, 2, 3), SCHEMA)
    harness.answer(call(1), (1, 2, 3))
    harness.answer(call(2), (2, "a text"))
    assert made(harness.answer(call(3), (3, 30))) == [3]
    assert statistics_of(harness) == {"ask: bad_records": 2}


def test_an_answer_that_cannot_be_logged_is_an_error_of_the_call_in_tests_too():
    async def judge(text):
        return object()

    job = clonos.Job("test")
    rows = job.source(clonos.sources.from_batches([[(1, "x")]], SCHEMA))
    judged = rows.with_column_async("n int", judge, "text", on_error=lambda *_: 0)
    judged.sink(clonos.sinks.collect(), name="out")
    assert InMemoryRun(job.compile()).run()["out"].column("n").to_pylist() == [0]


class Judge(clonos.Service):
    async def call(self, *of):
        return len(of)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (
            lambda s: s.with_column_async("n int", length, "text", name="ask"),
            (
                r"ask\[0\].* what length has returned does not fit: column 'n' \(int\): 'three' is "
                r"of type str \(for Row\(id=1, text='x'\)\)"
            ),
        ),
        (
            lambda s: s.with_column_async("n int", Judge(), on_error=lambda e: 0, name="ask"),
            r"what Judge.call or on_error has returned does not fit: column 'n' \(int\): 'three'",
        ),
        (
            lambda s: s.map_async(score, "a int, b int", name="ask"),
            r"what score has returned does not fit: 'three' is not a row of a, b \(for Row\(id=1",
        ),
        (
            lambda s: s.with_column_async("n int", clonos.effect(length), "text", name="ask"),
            r"the effect was made, but what length has returned does not fit: column 'n' \(int\)",
        ),
    ],
)
def test_an_answer_of_a_wrong_type_names_the_service_and_both_types(build, told):
    harness = StepHarness(program_of(build))
    harness.source(given(1), SCHEMA)
    with pytest.raises(OperatorError, match=told):
        harness.answer(call(1), "three")


def test_a_column_of_answers():
    def build(stream):
        return stream.with_column_async("n int", length, "text", ordered=False)

    harness = StepHarness(program_of(build, on_bad_record="drop"))
    harness.source(given(1, 2, 3), SCHEMA)
    outcomes = [
        outcome_of(name, request, 1 if name.number == 3 else "three")
        for name, request in harness.program.open_calls().items()
    ]
    (batch,) = harness.feed(Answers(tuple(outcomes[::-1]))).batches.values()
    assert rows(batch) == [(3, "xxx", 1)]
    assert batch.payload.schema.field("n").type == pa.int32()


def test_end_waits_for_all_calls_of_a_chain():
    def build(stream):
        asked = stream.with_column_async("n int", length, "text")
        return (
            asked.with_column_async("m int", length, "text")
            .window(clonos.tumbling("1 second"))
            .agg(n=clonos.count())
        )

    job = clonos.Job("test")
    source = clonos.sources.from_batches([[(1, "a"), (2, "b")]], schema=SCHEMA)
    build(job.source(source)).sink(clonos.sinks.collect(), name="out")
    out = InMemoryRun(job.compile(), seed=3).run()["out"]
    assert sum(out["n"].to_pylist()) == 2


EVENTS = [
    Source(pa.record_batch({"id": [1, 2, 3], "text": ["a", "bb", "c"]})),
    Source(pa.record_batch({"id": [5, 6], "text": ["d", "e"]})),
]


@pytest.mark.parametrize("merge", [None, merge_deltas])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("column", [True, False])
def test_restored_at_any_step(column, ordered, merge):
    how = {"ordered": ordered, "in_flight": 3}

    def build(stream):
        if column:
            return stream.with_column_async("n int", length, "text", **how)
        return stream.map_async(score, "id long, score long", **how)

    def outcome(number):
        asked = StepHarness(program_of(build))
        requests = dict(pair for event in EVENTS for pair in asked.feed(event).asked)
        while call(number) not in requests:
            some = min(requests)
            output = asked.feed(Answers((answered(some, requests.pop(some)),)))
            requests.update(output.asked)
        return answered(call(number), requests[call(number)])

    events: list[Event] = [
        *EVENTS,
        Answers((outcome(2), outcome(3))),
        Answers((outcome(1),)),
        Answers((outcome(4),)),
        Answers((outcome(5),)),
        End(),
    ]
    outputs = check_restore(lambda: program_of(build), events, merge=merge)
    assert sorted(i for output in outputs for i in made(output)) == [1, 2, 3, 5, 6]


def test_restored_with_marks_and_keys():
    def build(stream):
        return stream.with_column_async("n int", length, "text", in_flight=2)

    def outcome(number, text):
        program = program_of(build, keyed=True)
        harness = StepHarness(program)
        harness.input(0, [(number, text)], SCHEMA)
        one = harness.program.open_calls()[call(1, 0)]
        return outcome_of(call(number, 0), one, len(text))

    batch = pa.record_batch({"id": [1, 2], "text": ["a", "bb"]})
    events: list[Event] = [
        Batches(0, (batch,), 10),
        Watermark(0, 20),
        Answers((outcome(2, "bb"),)),
        Answers((outcome(1, "a"),)),
        End(0),
    ]
    outputs = check_restore(lambda: program_of(build, keyed=True), events)
    assert [output.watermarks for output in outputs] == [{}, {}, {}, {1: 20}, {}]


@pytest.mark.parametrize("seed", range(12))
def test_any_order_and_restored_in_between(seed):
    ordered = seed % 2 == 0
    job = clonos.Job(parallelism=2)
    batches = [[(i, "x" * (i % 9)) for i in range(part, 120, 2)] for part in range(2)]
    scored = job.source(clonos.sources.from_batches(batches, SCHEMA)).map_async(
        score, "id long, score long", in_flight=7, ordered=ordered,
        on_error=lambda row, error: (row.id, -len(str(error))),
    )  # fmt: skip
    twice = scored.with_column_async("twice long", lambda n: 2 * n, "score", in_flight=3)
    keyed = twice.key_by("id").with_column_async(
        "again long", lambda n: n, "twice", ordered=ordered
    )
    keyed.sink(clonos.sinks.collect(), name="out")
    out = InMemoryRun(job.compile(), seed=seed, batch_rows=20, restore=0.3).run()["out"]
    expected = {i: -len(f"no score for {i}") if i % 5 == 4 else 10 * i for i in range(120)}
    assert out.num_rows == 120
    for row in out.to_pylist():
        assert row["score"] == expected[row["id"]]
        assert row["twice"] == row["again"] == 2 * row["score"]


def answers_one_by_one(row):
    yield row


async def answers_later(row):
    yield row


class Generates(clonos.Service):
    async def call(self, row):
        yield row


def test_bad_input_gives_clear_errors():
    rows_of_job = clonos.Job().source(clonos.sources.from_batches([], schema=SCHEMA))

    async def two(a, b):
        return a, b

    with pytest.raises(WrongType, match=r"cannot be called with \(row\)"):
        rows_of_job.map_async(two, SCHEMA)
    with pytest.raises(WrongType, match="3 is not a function"):
        rows_of_job.map_async(cast("Any", 3), SCHEMA)
    for generator in (answers_one_by_one, answers_later, Generates()):
        with pytest.raises(WrongType, match="generator"):
            rows_of_job.map_async(generator, SCHEMA)
    with pytest.raises(WrongType, match=r"Generates is a class.*Generates\(\)"):
        rows_of_job.map_async(Generates, SCHEMA)
    with pytest.raises(WrongType, match=r"called with \(\).*name the columns"):
        rows_of_job.with_column_async("n int", score)
    with pytest.raises(WrongType, match=r"on_error: .*To do: write it as def fn\(row, error\)"):
        rows_of_job.map_async(score, SCHEMA, on_error=score)
    with pytest.raises(WrongType, match=r"on_error: .*a coroutine"):
        rows_of_job.map_async(score, SCHEMA, on_error=two)
    with pytest.raises(WrongType, match="in_flight=0"):
        rows_of_job.map_async(score, SCHEMA, in_flight=0)
    with pytest.raises(WrongType, match="attempts='2'"):
        rows_of_job.map_async(score, SCHEMA, attempts=cast("Any", "2"))
    with pytest.raises(WrongType, match="per_second=0"):
        rows_of_job.map_async(score, SCHEMA, per_second=0)
    with pytest.raises(BadDuration):
        rows_of_job.map_async(score, SCHEMA, timeout="soon")
    for wrong in ("1 s", ("1 s",), 5, ("10 s", "1 s")):
        with pytest.raises(WrongType, match=r"backoff=.*To do: give the first pause"):
            rows_of_job.map_async(score, SCHEMA, backoff=cast("Any", wrong))
    with pytest.raises(WrongType, match="per_second='500/s'"):
        rows_of_job.map_async(score, SCHEMA, per_second=cast("Any", "500/s"))
    with pytest.raises(WrongType, match="hedge='2 s': by then the first attempt is over"):
        rows_of_job.map_async(score, SCHEMA, hedge="2 s", timeout="2 s")
    with pytest.raises(WrongType, match="Service has no call"):
        rows_of_job.map_async(clonos.Service(), SCHEMA)
    with pytest.raises(WrongType, match="a service has become an effect"):
        rows_of_job.map_async(clonos.effect(clonos.service(score, timeout="1 s")), SCHEMA)
    with pytest.raises(WrongType, match="on_error='drop' is not a function"):
        rows_of_job.map_async(score, SCHEMA, on_error=cast("Any", "drop"))
    with pytest.raises(WrongType, match=r"on_error.*\(row, error\)"):
        rows_of_job.map_async(score, SCHEMA, on_error=lambda row: row)
    with pytest.raises(WrongType, match="did you mean in_flight"):
        rows_of_job.map_async(score, SCHEMA, **cast("Any", {"in_fligth": 3}))
    with pytest.raises(clonos.ClonosError, match="nothing"):
        rows_of_job.with_column_async("n int", length, "nothing")
