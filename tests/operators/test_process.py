from __future__ import annotations

from datetime import datetime, timezone
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

import clonos
from clonos.errors import CannotUpgrade, OperatorError
from clonos.state.deltas import merge_deltas
from clonos.testing import (
    Batches,
    End,
    StepHarness,
    Tick,
    Watermark,
    check_restore,
    rows,
    task_code,
)

SCHEMA = "k string, op string, n long"
OUT = "k string, what string, n long"


class Script(clonos.Process):
    """Does what the row says."""

    def open(self, ctx):
        self.total = ctx.state("total", "long")
        self.seen = ctx.state("seen")

    def on_row(self, row, ctx):
        seen = self.seen.get(set())
        self.seen.set(seen | {row.op})
        assert ctx.key == row.k
        match row.op:
            case "add":
                self.total.set((self.total.get() or 0) + row.n)
                return [(row.k, "total", self.total.get())]
            case "clear":
                self.total.clear()
            case "processing":
                ctx.timers.processing_time(ctx.clock.now_ms() + row.n)
            case "event":
                ctx.timers.event_time(row.n)
            case "delete":
                ctx.timers.delete(row.n)
            case "fail":
                self.total.set(-1)
                ctx.timers.event_time(7)
                ctx.timers.delete(8)
                raise ValueError(row.n)
            case "wrong":
                self.total.set("text")
        return None

    def on_timer(self, key, due, ctx):
        assert ctx.key == key
        if due == 13:
            ctx.timers.event_time(12)
        if due == 14:
            raise ValueError(due)
        return [(key, "timer", due)]


def process_code(process=None, *, drop=False, keys=("k",)):
    job = clonos.Job("p", on_bad_record="drop" if drop else "fail")
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in")
    stream.key_by(*keys).process(process or Script(), OUT, name="p").sink(clonos.sinks.collect())
    return task_code(job.compile(), "p[0]")


def send(harness, *given):
    output = harness.input(0, given, SCHEMA)
    return [row for batch in output.batches.values() for row in rows(batch)]


def test_state_is_per_key():
    harness = StepHarness(process_code().program())
    assert send(harness, ("a", "add", 1), ("b", "add", 5), ("a", "add", 2)) == [
        ("a", "total", 1), ("b", "total", 5), ("a", "total", 3)
    ]  # fmt: skip
    assert send(harness, ("a", "clear", 0), ("a", "add", 1)) == [("a", "total", 1)]


def test_event_timers_fire_in_order_once():
    harness = StepHarness(process_code().program())
    send(harness, ("b", "event", 5), ("a", "event", 5), ("a", "event", 3), ("a", "event", 5),
         ("c", "event", 4), ("c", "delete", 4))  # fmt: skip
    output = harness.watermark(0, 5)
    assert rows(output.batches[1]) == [("a", "timer", 3), ("b", "timer", 5), ("a", "timer", 5)]
    assert output.watermarks == {1: 5}
    assert not harness.watermark(0, 9).batches


def test_a_timer_set_by_a_timer_is_for_later():
    harness = StepHarness(process_code().program())
    send(harness, ("a", "event", 13))
    assert rows(harness.watermark(0, 20).batches[1]) == [("a", "timer", 13)]
    assert rows(harness.watermark(0, 21).batches[1]) == [("a", "timer", 12)]


def test_processing_timers():
    harness = StepHarness(process_code().program(), now_ms=100)
    send(harness, ("a", "processing", 20), ("b", "processing", 10))
    assert harness.wake_ms == 110
    assert rows(harness.tick(112).batches[1]) == [("b", "timer", 110)]
    assert harness.wake_ms == 120
    assert not harness.end(0).batches


def test_end_fires_event_timers():
    harness = StepHarness(process_code().program())
    send(harness, ("a", "event", 10**15), ("a", "event", 5))
    assert [r[2] for r in rows(harness.end(0).batches[1])] == [5, 10**15]


def test_a_dropped_row_leaves_no_trace():
    program = process_code(drop=True).program()
    harness = StepHarness(program)
    send(harness, ("a", "add", 3), ("a", "event", 8))
    assert send(harness, ("a", "fail", 1), ("a", "wrong", 1), ("a", "add", 1)) == [
        ("a", "total", 4)
    ]
    assert rows(harness.watermark(0, 9).batches[1]) == [("a", "timer", 8)]
    assert program.statistics == {"p: bad_records": 2}


def test_errors_tell_where():
    for op, text in (("fail", "ValueError"), ("wrong", "set to a str, not int")):
        with pytest.raises(OperatorError, match=text) as caught:
            send(StepHarness(process_code().program()), ("a", op, 1))
        assert caught.value.where == "p[0]"
    harness = StepHarness(process_code().program())
    send(harness, ("a", "event", 14))
    with pytest.raises(OperatorError, match="timer of key 'a' at 14"):
        harness.watermark(0, 20)


def test_a_timer_that_nobody_hears_is_an_error():
    class Deaf(clonos.Process):
        def on_row(self, row, ctx):
            ctx.timers.event_time(row.n)

    with pytest.raises(OperatorError, match="write on_timer") as caught:
        send(StepHarness(process_code(Deaf()).program()), ("a", "event", 1))
    assert str(caught.value).count("To do:") == 1
    assert str(caught.value).count("p[0]") == 1


def test_unencodable_state():
    class Bad(clonos.Process):
        def on_row(self, row, ctx):
            ctx.state("x").set(object())

    with pytest.raises(OperatorError, match="type object cannot be kept"):
        send(StepHarness(process_code(Bad()).program()), ("a", "", 1))


def test_state_outside_of_a_key():
    class Early(clonos.Process):
        def open(self, ctx):
            ctx.state("x").set(1)

        def on_row(self, row, ctx):
            raise AssertionError("no row comes")

    with pytest.raises(OperatorError, match="no current key"):
        process_code(Early()).program()


def test_keys_of_several_columns_and_times_as_datetimes():
    class Keys(clonos.Process):
        def on_row(self, row, ctx):
            assert ctx.key == (row.k, row.n)
            ctx.timers.event_time(datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc))

        def on_timer(self, key, due, ctx):
            return [{"k": key[0], "n": key[1], "what": str(due)}]

    harness = StepHarness(process_code(Keys(), keys=("k", "n")).program())
    send(harness, ("a", "", 1), ("a", "", 2))
    assert rows(harness.watermark(0, 1000).batches[1]) == [("a", "1000", 1), ("a", "1000", 2)]


ops = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["add", "clear", "processing", "event", "delete", "fail", "wrong"]),
    st.integers(0, 15),
)
batch_events = st.lists(ops, min_size=1, max_size=6).map(
    lambda given: Batches(
        0, (pa.RecordBatch.from_pylist(
            [dict(zip(("k", "op", "n"), row, strict=True)) for row in given]),),
    )
)  # fmt: skip
events = st.lists(
    batch_events
    | st.builds(Watermark, st.just(0), st.integers(0, 20))
    | st.builds(Tick, st.integers(1_000_000, 1_000_030)),
    max_size=8,
)


@settings(max_examples=80)
@given(events)
def test_restored_equals_continued(script):
    check_restore(process_code(drop=True).program, [*script, End(0)])


@settings(max_examples=40)
@given(events, st.sampled_from([0, 300, 3000]), st.booleans())
def test_it_makes_no_difference_where_values_are(script, state_memory, is_merged):
    merge = partial(merge_deltas, is_base=True) if is_merged else None
    program = process_code(drop=True).program
    check_restore(program, [*script, End(0)], merge=merge, state_memory=state_memory)


def keeping(*states, used=None):
    """A process that declares these states in `open`, and sets those that are `used`."""

    class Keeping(clonos.Process):
        def open(self, ctx):
            self.states = {name: ctx.state(name) for name in states}

        def on_row(self, row, ctx):
            for name in states if used is None else used:
                self.states[name].set(row.n)

    return process_code(Keeping())


def layer_of(code):
    """A layer of a task that has handled a row."""
    program = code.program()
    send(StepHarness(program), ("a", "any", 1))
    return program.delta().encoded()


@pytest.mark.parametrize(
    ("now", "remedy"),
    [
        (["sum", "last"], "renamed={('p', 'total'): 'sum'}"),
        (["last"], "declare it in open"),
        (["sum", "most", "last"], "renamed={('p', 'total'): ...}"),
    ],
)
def test_a_state_that_open_does_not_declare_any_more_is_not_lost_silently(now, remedy):
    layer = layer_of(keeping("total", "last"))
    with pytest.raises(CannotUpgrade, match="had values of the state 'total', and open") as told:
        keeping(*now).program().apply(layer)
    assert remedy in told.value.remedy
    assert told.value.where == "p"


def test_a_state_that_was_never_set_is_not_missed():
    layer = layer_of(keeping("total", "last", used=["last"]))
    keeping("last").program().apply(layer)


def test_states_that_are_declared_when_rows_come_are_not_missed():
    class Late(clonos.Process):
        def on_row(self, row, ctx):
            ctx.state(row.op).set(row.n)

    code = process_code(Late())
    code.program().apply(layer_of(code))


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (("a", "b", 1), "'a' is not a row of k, what, n; returned ('a', 'b', 1)"),
        (Row(k="a", what="b", n=1), "'a' is not a row of k, what, n; returned Row("),
        ((("a", "b"),), "2 values for the columns k, what, n; returned (('a', 'b'),)"),
        ({"k": "a"}, "returned {'k': 'a'}"),
        (5, "returned 5"),
    ],
)
def test_a_row_where_there_may_be_several(returned, what):
    class Returns(clonos.Process):
        def on_row(self, row, ctx):
            return returned

    harness = StepHarness(process_code(Returns()).program())
    with pytest.raises(OperatorError) as told:
        send(harness, ("a", "", 1))
    assert what in str(told.value)
    assert ": yield rows, or return a list of them" in str(told.value)


def test_several_rows_may_be_a_tuple():
    class Returns(clonos.Process):
        def on_row(self, row, ctx):
            return (row.k, "one", 1), (row.k, "two", 2)

    harness = StepHarness(process_code(Returns()).program())
    assert send(harness, ("a", "", 1)) == [("a", "one", 1), ("a", "two", 2)]
