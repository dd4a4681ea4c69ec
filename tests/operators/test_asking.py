"""Calls of a Process: how many are open, which come first, and what waits meanwhile."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.blame import complaint_of
from clonos.core.calls import CallId, Request
from clonos.core.step import arguments_digest
from clonos.errors import EffectUnknown, OperatorError, StateMismatch, WrongType
from clonos.operators.calls.budget import Usage
from clonos.state.deltas import merge_deltas
from clonos.testing import (
    Answers,
    Batches,
    End,
    Event,
    InMemoryRun,
    StepHarness,
    Tick,
    Watermark,
    check_restore,
    rows,
)
from clonos.testing.harness import answered as answered_now
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


def test_the_method_that_gets_the_reply_takes_it():
    class Short(Talk):
        def on_first(self, reply: Any) -> None:  # type: ignore[override]
            raise AssertionError("never asked")

    harness = StepHarness(program_of(Short()))
    with pytest.raises(
        OperatorError, match=r"on_first takes \(reply\).*on_first\(self, reply, ctx"
    ):
        harness.input(0, given(1), SCHEMA)


def test_how_long_the_longest_conversation_is_that_goes_on():
    class Endless(Talk):
        def on_first(self, reply: Any, ctx: Any) -> None:
            self.model.ask(ctx.key, "again", then="on_second" if ctx.key == 1 else "on_first")

    program = program_of(Endless())
    harness = StepHarness(program)
    harness.input(0, given(1, 2), SCHEMA)
    assert "talk: most_answers" not in program.traffic
    harness.answer(call(1), 0)
    harness.answer(call(2), 0)
    assert program.traffic["talk: most_answers"] == 1
    harness.answer(call(3), 0)  # the conversation of key 1 is over
    for number in range(4, 9):
        harness.answer(call(number), 0)
    assert program.traffic["talk: most_answers"] == 6


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


# --- several at once -----------------------------------------------------------------------------


async def answer_all(keys: list[int], texts: list[str]) -> list[int]:
    return [100 * key + len(text) for key, text in zip(keys, texts, strict=True)]


class TalkTogether(Talk):
    """The same, asked with others; a second service is asked alone."""

    def __init__(self, within: str | None = None, batch: int = 3) -> None:
        self._how: Any = {"batch": batch, "batch_within": within}

    def open(self, ctx: Any) -> None:
        self.model = ctx.service("model", answer_all, **self._how)
        self.tool = ctx.service("tool", answer)

    def on_row(self, row: Any, ctx: Any) -> None:
        if row.text == "alone":
            self.tool.ask(ctx.key, row.text, then="on_second")
        else:
            super().on_row(row, ctx)


def keys(output: Any) -> list[tuple[int, list[int]]]:
    """Number and keys of each call that was asked."""
    return [(name.number, request.arguments[0]) for name, request in output.asked]


def test_questions_of_several_keys_are_asked_together():
    program = program_of(TalkTogether())
    harness = StepHarness(program)
    assert keys(harness.input(0, given(1, 2, 3, 4), SCHEMA)) == [(1, [1, 2, 3]), (4, [4])]
    assert program.is_full, "these are two calls"
    output = harness.answer(call(1), [0, 0, 0])
    assert keys(output) == [(5, [1, 2, 3])], "what they ask next, too"
    (second,) = harness.answer(call(5), [7, 8, 9]).batches.values()
    assert rows(second) == [(1, "again"), (2, "again"), (3, "again")]
    assert keys(harness.answer(call(4), [0])) == [(8, [4])]


def test_each_question_has_its_own_reply():
    said: list[Any] = []

    class Hearing(TalkTogether):
        def on_first(self, reply: Any, ctx: Any) -> None:
            said.append((ctx.key, reply.service, reply.arguments, reply.get()))
            if ctx.key == 2:
                raise ValueError("no")

    harness = StepHarness(program_of(Hearing(), on_bad_record="drop"))
    harness.input(0, given(1, 2, 3), SCHEMA)
    harness.answer(call(1), [{"n": 1}, None, [3]])
    assert said == [
        (1, "model", (1, "of 1"), {"n": 1}),
        (2, "model", (2, "of 2"), None),
        (3, "model", (3, "of 3"), [3]),
    ]
    harness = StepHarness(program_of(Hearing(), on_bad_record="drop"))
    harness.input(0, given(1, 3), SCHEMA)
    harness.answer(call(1), ValueError("no"))
    assert len(said) == 3, "reply.get() has raised in both"
    assert not harness.program.open_calls()


def test_questions_wait_for_others_but_not_for_long():
    program = program_of(TalkTogether("20 ms"))
    harness = StepHarness(program)
    assert keys(harness.input(0, given(1, 2), SCHEMA)) == []
    assert not program.is_full
    assert not harness.watermark(0, 5).watermarks, "it overtakes no question"
    due_ms = harness.wake_ms
    assert due_ms == harness.now_ms + 20
    assert keys(harness.input(0, given(3, 4), SCHEMA)) == [(1, [1, 2, 3])]
    assert keys(harness.tick(due_ms - 1)) == []
    assert keys(harness.tick(due_ms)) == [(4, [4])]
    assert harness.wake_ms is None, "there is no room, and nobody waits"
    harness.answer(call(4), [0])
    assert harness.wake_ms is not None


def test_a_question_that_waits_for_others_is_in_nobodys_way():
    harness = StepHarness(program_of(TalkTogether("1 hour"), in_flight=1))
    assert asked(harness.input(0, [(1, "of 1"), (2, "alone")], SCHEMA)) == [(2, (2, "alone"))]
    assert keys(harness.input(0, given(3, 4), SCHEMA)) == []
    assert keys(harness.answer(call(2), 0)) == [(1, [1, 3, 4])]


def test_nobody_waits_for_other_questions_at_the_end():
    program = program_of(TalkTogether("1 hour"), in_flight=1)
    harness = StepHarness(program)
    harness.input(0, given(1, 2), SCHEMA)
    assert keys(harness.feed(End(0))) == [(1, [1, 2])]
    assert keys(harness.answer(call(1), [0, 0])) == [(3, [1, 2])]
    (last,) = harness.answer(call(3), [0, 0]).batches.values()
    assert rows(last) == [(1, "again"), (2, "again")]
    assert program.waiting_bytes == 0


def test_questions_with_another_number_of_arguments_go_by_themselves():
    class Uneven(TalkTogether):
        def on_row(self, row: Any, ctx: Any) -> None:
            self.model.ask(*([ctx.key] * row.id), then="on_second")

    harness = StepHarness(program_of(Uneven(), in_flight=10))
    output = harness.input(0, given(1, 1, 2, 1), SCHEMA)
    assert [request.arguments for _, request in output.asked] == [([1, 1],), ([2], [2]), ([1],)]


def test_a_call_costs_once_and_an_effect_has_one_key():
    @clonos.effect(idempotent=True)
    async def pay(keys: list[int], texts: list[str], *, call: Any) -> list[int]:
        return keys

    class Paying(TalkTogether):
        def open(self, ctx: Any) -> None:
            price: Any = {"cost": lambda answers: 0.5 * len(answers)}
            self.model = ctx.service("model", pay, batch=2, **price)

    program = program_of(Paying(), effects=True)
    harness = StepHarness(program)
    (first, second) = harness.input(0, given(1, 2, 3), SCHEMA).asked
    assert first[1].key != second[1].key
    harness.answer(call(1), [1, 2])
    spent = [operator.spent for operator in program.operators.values() if operator.makes_calls]
    assert spent == [Usage(calls=1, micros=1_000_000)]


@pytest.mark.parametrize("merge", [None, merge_deltas])
def test_restored_at_any_step_while_questions_are_together(merge):
    def some(*ids: int) -> Batches:
        batch = pa.record_batch({"id": ids, "text": ["x" * i for i in ids]})
        return Batches(0, (batch,))

    def make() -> Any:
        return program_of(TalkTogether("20 ms", batch=2))

    harness = StepHarness(make())
    open_calls: dict[Any, Any] = {}
    events: list[Any] = []

    def feed(event: Any) -> None:
        events.append(event)
        open_calls.update(harness.feed(event).asked)

    def answer_of(number: int) -> None:
        feed(Answers((answered_now(call(number), open_calls[call(number)]),)))

    feed(some(1))
    feed(some(2, 3))
    feed(Watermark(0, 20))
    feed(Tick(harness.wake_ms or 0))
    feed(some(4, 5))
    answer_of(3)
    answer_of(1)
    feed(End(0))
    while opened := harness.program.open_calls():
        answer_of(max(opened).number)
    outputs = check_restore(make, events, merge=merge)
    found = [row for output in outputs for b in output.batches.values() for row in rows(b)]
    assert sorted(found) == [(i, "again") for i in (1, 2, 3, 4, 5)]
    assert [output.watermarks for output in outputs if output.watermarks] == [{1: 20}]


@pytest.mark.parametrize("seed", range(6))
def test_all_conversations_end_together_in_any_order(seed):
    job = clonos.Job(parallelism=2)
    batches = [[(i % 11, f"row {i}") for i in range(part, 80, 2)] for part in range(2)]
    keyed = job.source(clonos.sources.from_batches(batches, SCHEMA)).key_by("id")
    process = TalkTogether("5 ms" if seed % 2 else None, batch=4)
    talks = keyed.process(process, "id long, text string", in_flight=1 + seed % 3)
    talks.sink(clonos.sinks.collect(), name="out")
    out = InMemoryRun(job.compile(), seed=seed, batch_rows=9, restore=0.3).run()["out"]
    assert sorted(out["id"].to_pylist()) == sorted(i % 11 for i in range(80))


def test_what_cannot_be_asked_together():
    class Wrong(Talk):
        def __init__(self, **how: Any) -> None:
            self._how = how

        def open(self, ctx: Any) -> None:
            self.model = ctx.service("model", answer_all, **self._how)

        def on_row(self, row: Any, ctx: Any) -> None:
            self.model.ask(then="on_first")

    for how, what in (
        ({"batch": 0}, "batch=0"),
        ({"batch_within": "20 ms"}, "batch_within='20 ms'"),
        ({"batch": 2, "cache_ttl": "1 hour"}, "several ask together"),
    ):
        with pytest.raises(WrongType, match=what):
            StepHarness(program_of(Wrong(**how)))
    harness = StepHarness(program_of(Wrong(batch=2)))
    with pytest.raises(OperatorError, match="this question has none"):
        harness.input(0, given(1), SCHEMA)


def test_open_calls_go_on_only_as_they_were_declared():
    class Renamed(Talk):
        def open(self, ctx: Any) -> None:
            self.model = ctx.service("another model", answer)

    for other in (Renamed(), TalkTogether()):
        harness = StepHarness(program_of())
        harness.input(0, given(1, 2, 3), SCHEMA)
        program = program_of(other)
        program.apply(bytes(harness.program.delta()))
        with pytest.raises(StateMismatch, match="is open, as a plain call"):
            program.open_calls()


@pytest.mark.parametrize("first", ["of 1", "alone"])
def test_a_restored_process_reads_the_clock_in_the_same_steps(first):
    """The log has one reading or none: whoever reads it otherwise cannot be replayed."""
    texts = [first, "of 1" if first == "alone" else "alone", "of 3", "alone"]

    def make() -> Any:
        return program_of(TalkTogether("1 hour", batch=3), in_flight=1)

    def row(number: int, text: str) -> Batches:
        return Batches(0, (pa.record_batch({"id": [number], "text": [text]}),))

    harness = StepHarness(make())
    events: list[Any] = [row(n, text) for n, text in enumerate(texts)]
    for event in events:
        harness.feed(event)
    opened = harness.program.open_calls()
    assert opened
    events += [Answers((answered_now(*each),)) for each in opened.items()]
    events += [row(10 + n, text) for n, text in enumerate(texts)]
    check_restore(make, events)


def failed(asked: Any, error: Exception, trace: str) -> Answers:
    ((name, request),) = asked
    return Answers((outcome_of(name, request, error)._replace(trace=trace),))


def test_an_error_of_a_service_shows_its_lines_and_those_that_have_got_it():
    class Trusting(Talk):
        def on_first(self, reply: Any, ctx: Any) -> Any:
            return [(ctx.key, reply.get())]

    harness = StepHarness(program_of(Trusting()))
    asked = harness.input(0, given(1), SCHEMA).asked
    assert asked[0][1].service.tells_trace
    with pytest.raises(OperatorError, match="boom") as caught:
        harness.feed(failed(asked, ValueError("boom"), "the lines of the model"))
    told = complaint_of(caught.value).trace
    assert told.startswith("the lines of the model\n\nThis was the cause of:")
    assert "in on_first" in told


def test_an_unknown_effect_of_a_process_is_told_with_what_it_is_about():
    @clonos.effect
    async def pay(key: int, text: str) -> int:
        return key

    class Paying(Talk):
        def open(self, ctx: Any) -> None:
            self.model = ctx.service("model", pay)

    harness = StepHarness(program_of(Paying(), effects=True))
    asked = harness.input(0, given(7), SCHEMA).asked
    said = r"nobody knows \(for key 7, asked with \[7, 'of 7'\]\)"
    with pytest.raises(EffectUnknown, match=said) as caught:
        harness.feed(failed(asked, EffectUnknown("nobody knows"), "the lines of pay"))
    assert caught.value.trace == "the lines of pay"


def test_each_service_is_declared_once_in_open():
    """Else one would be asked instead of the other, or its calls be in no bill."""

    class Double(Talk):
        def open(self, ctx: Any) -> None:
            super().open(ctx)
            ctx.service("model", answer)

    class Late(Talk):
        def on_row(self, row: Any, ctx: Any) -> None:
            ctx.service("other", answer).ask(ctx.key, row.text, then="on_first")

    with pytest.raises(WrongType, match="two services are called 'model'"):
        StepHarness(program_of(Double()))
    with pytest.raises(OperatorError, match="the service 'other' is declared outside of open"):
        StepHarness(program_of(Late())).input(0, given(1), SCHEMA)
