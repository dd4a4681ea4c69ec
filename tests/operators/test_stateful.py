"""Spark's ``StatefulProcessor`` objects: in tasks as in PySpark's own tester."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import LongType, StringType, StructField, StructType

import clonos
from clonos.errors import BadGraph, NotInTasks, OperatorError, WrongType
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

SCHEMA = "k string, op string, n long, at timestamp"
OUT = "k string, what string, n long"
START = 1_000_000
"""The clock of the harness when it begins."""
TTL = {"ttlDurationMs": 20}


class Script(StatefulProcessor):
    """Does what the row says."""

    ttl: ClassVar[dict[str, int]] = {}

    def init(self, handle):
        self.handle = handle
        self.value = handle.getValueState("value", "n long, s string", **self.ttl)
        one = StructType([StructField("n", LongType())])
        self.list = handle.getListState("list", one, **self.ttl)
        self.map = handle.getMapState("map", one, "n long", **self.ttl)

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - PySpark's names
        self.now = timerValues
        for row in rows:
            assert row["k"] == row.k == key[0]
            assert isinstance(row, Row)
            yield from self.told(key[0], row.op, row.n)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):  # noqa: N802, N803 - PySpark's
        due = expiredTimerInfo.getExpiryTimeInMs()
        self.now = timerValues
        yield Row(k=key[0], what="timer", n=due)
        yield from self.told(key[0], "show", 0)
        self.list.appendValue((due % 5,))
        if due % 3 == 0:
            yield from self.told(key[0], "later", 2)
        if due % 4 == 0:
            self.handle.registerTimer(self.time + 1)
            self.handle.deleteTimer(self.time + 2)

    @property
    def time(self):
        """The time of the timers."""
        if (watermark := self.now.getCurrentWatermarkInMs()) >= 0:
            return watermark
        return self.now.getCurrentProcessingTimeInMs()

    def told(self, k, op, n):
        match op:
            case "value":
                before = self.value.get()
                self.value.update((n + (before[0] if before else 0), k))
            case "append":
                self.list.appendValue((n,))
            case "put":
                self.list.put([(n,), (n + 1,)])
            case "extend":
                self.list.appendList([(n,), (n,)])
            case "set":
                self.map.updateValue((n % 3,), (n,))
            case "remove":
                self.map.removeKey((n % 3,))
            case "clear":
                [self.value, self.list, self.map][n % 3].clear()
            case "later":
                self.handle.registerTimer(self.time + 1 + abs(n))
            case "never":
                for due in list(self.handle.listTimers())[:1]:
                    self.handle.deleteTimer(due)
            case "timers":
                yield from (Row(k=k, what="due", n=due) for due in self.handle.listTimers())
            case "show":
                if self.value.exists():
                    yield Row(k=k, what=f"value {self.value.get()[1]}", n=self.value.get()[0])
                assert self.map.exists() >= bool(
                    list(self.map.keys())
                )  # PySpark's differs if empty
                assert self.list.exists() == bool(list(self.list.get()))
                yield from (Row(k=k, what="list", n=each) for (each,) in self.list.get())
                assert dict(self.map.iterator()) == dict(
                    zip(self.map.keys(), self.map.values(), strict=True)
                )
                for (at,), (each,) in self.map.iterator():
                    assert self.map.containsKey((at,))
                    assert self.map.getValue((at,)) == (each,)
                    yield Row(k=k, what=f"map {at}", n=each)
                yield Row(n=len(list(self.map.keys())), what="has", k=k)  # by name
            case "time":
                yield Row(k=k, what="time", n=self.time)


class Forgetting(Script):
    """Everything is forgotten after 20 ms."""

    ttl = TTL


class Uneven(Script):
    """One state lives for an hour, the others 20 ms."""

    def init(self, handle):
        self.handle = handle
        self.value = handle.getValueState("value", "n long, s string", ttlDurationMs=3_600_000)
        self.list = handle.getListState("list", "n long", **TTL)
        self.map = handle.getMapState("map", "n long", "n long", **TTL)


UNTIMED = ["value", "append", "put", "extend", "set", "remove", "clear", "show"]
OPS = [*UNTIMED, "later", "later", "never", "timers", "time"]


def batch(given_rows):
    parsed = clonos.Job().source(clonos.sources.from_batches([], SCHEMA)).schema
    columns = list(zip(*given_rows, strict=True))
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, parsed, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=parsed)


def code_of(mode, processor=Script, **options):
    job = clonos.Job(parallelism=1, **options)
    stream = job.source(clonos.sources.from_batches([], SCHEMA), name="in")
    keyed = stream.withWatermark("at", "0 ms").groupBy("k")
    made = keyed.transformWithState(processor(), OUT, "Append", mode, name="op")
    made.sink(clonos.sinks.collect())
    return task_code(job.compile(), "op[0]")


def results(*outputs):
    return [row for o in outputs for b in o.batches.values() for row in rows(b)]


def rows_of_ops(ops):
    def at(ms):
        return ms * 1000

    return st.lists(
        st.tuples(
            st.sampled_from("ab"), st.sampled_from(ops), st.integers(-9, 9),
            st.integers(1, 60).map(at),
        ),
        min_size=1, max_size=8,
    ).map(batch)  # fmt: skip


def scripts(ops):
    return st.lists(
        st.builds(lambda b: Batches(0, (b,)), rows_of_ops(ops))
        | st.builds(Watermark, st.just(0), st.integers(1, 60))
        | st.builds(Tick, st.integers(START + 1, START + 60)),
        max_size=9,
    )


def in_tester(tester, event):
    """What PySpark's tester makes of a batch: a call per key."""
    made = []
    by_key = defaultdict(list)
    for values in rows(event.batches[0]):
        by_key[values[0]].append(Row("k", "op", "n", "at")(*values))
    for key, mine in by_key.items():
        made += tester.test(key, mine)
    return made


def as_tuples(made):
    return sorted((row.k, row.what, row.n) for row in made)


@settings(max_examples=80)
@given(scripts(OPS))
def test_event_time_as_in_pysparks_tester(script):
    program = code_of("EventTime").program()
    harness = StepHarness(program)
    tester = TwsTester(Script(), timeMode="EventTime", eventTimeExtractor=ms_of)
    mark = 0
    for event in [*script, Watermark(0, 10_000)]:
        if isinstance(event, Tick):
            continue
        if isinstance(event, Watermark):
            if event.ms <= mark:
                continue
            mark = event.ms
            expected = tester.setWatermark(mark)
        else:
            expected = in_tester(tester, event)
        assert sorted(results(harness.feed(event))) == as_tuples(expected)


def ms_of(row):
    return round(row["at"].timestamp() * 1000)


@settings(max_examples=80)
@given(scripts(OPS))
def test_processing_time_as_in_pysparks_tester(script):
    harness = StepHarness(code_of("ProcessingTime").program())
    tester = TwsTester(Script(), timeMode="ProcessingTime")
    tester.setProcessingTime(START)
    now = START
    for event in [*script, Tick(START + 1000)]:
        if isinstance(event, Watermark):
            continue
        if isinstance(event, Tick):
            if event.ms <= now:
                continue
            now = event.ms
            expected = tester.setProcessingTime(now)
        else:
            expected = in_tester(tester, event)
        assert sorted(results(harness.feed(event))) == as_tuples(expected)


@settings(max_examples=40)
@given(scripts(UNTIMED))
def test_no_time_as_in_pysparks_tester(script):
    harness, tester = StepHarness(code_of("None").program()), TwsTester(Script())
    for event in script:
        if isinstance(event, Batches):
            made = sorted(results(harness.feed(event)))
            assert made == as_tuples(in_tester(tester, event))


@settings(max_examples=80)
@given(
    scripts(OPS),
    st.sampled_from([("EventTime", Script), ("ProcessingTime", Script)])
    | st.sampled_from([("ProcessingTime", Forgetting), ("ProcessingTime", Uneven)]),
    st.sampled_from([None, partial(merge_deltas, is_base=True)]),
)
def test_restored_equal_continued(script, kind, merge):
    check_restore(code_of(*kind).program, [*script, End(0)], merge=merge)


# --- time to live ---------------------------------------------------------------------------------


class Living:
    """A harness for what lives 20 ms, and what is there by a model."""

    def __init__(self, processor=Forgetting):
        self.program = code_of("ProcessingTime", processor).program()
        self.harness = StepHarness(self.program)
        self.now = START

    def do(self, *ops):
        given_rows = [("a", op, n, None) for op, n in ops]
        return results(self.harness.feed(Batches(0, (batch(given_rows),))))

    def wait(self, ms):
        self.now += ms
        return self.harness.tick(self.now)

    @property
    def kept(self):
        return self.program.operators["op"].state()


def shown(made):
    return [(what, n) for _, what, n in made if what != "has"]


def test_what_is_too_old_is_not_there():
    living = Living()
    living.do(("value", 1), ("append", 2), ("set", 1))
    living.wait(10)
    living.do(("append", 3), ("set", 2))
    assert shown(living.do(("show", 0))) == [
        ("value a", 1), ("list", 2), ("list", 3), ("map 1", 1), ("map 2", 2),
    ]  # fmt: skip
    living.wait(9)
    assert len(shown(living.do(("show", 0)))) == 5
    living.wait(1)
    assert shown(living.do(("show", 0))) == [("list", 3), ("map 2", 2)]


def test_an_update_lives_again():
    living = Living()
    for _ in range(4):
        living.do(("value", 1))
        living.wait(15)
    assert shown(living.do(("show", 0))) == [("value a", 4)]
    living.do(("append", 1))
    living.wait(19)
    living.do(("put", 5))
    living.wait(19)
    assert [n for what, n in shown(living.do(("show", 0))) if what == "list"] == [5, 6]


def test_what_is_too_old_is_removed_though_nobody_comes():
    living = Living()
    living.do(("value", 1), ("append", 2), ("set", 1))
    living.wait(10)
    living.do(("append", 3))
    assert living.kept.keys() == {"a"}
    living.wait(10)
    assert living.kept == {"a": {"list": [((3,), START + 30)]}}
    living.wait(10)
    assert living.kept == {}
    operator = living.program.operators["op"]
    assert not list(operator.store), "no timer is left"
    assert not list(operator.values), "nor anything hidden"


def test_what_is_too_old_does_not_wait_for_what_lives_longer():
    living = Living(Uneven)
    living.do(("value", 1), ("append", 2), ("set", 1))
    living.wait(20)
    assert living.kept["a"].keys() == {"value"}
    living.do(("append", 3))
    living.wait(20)
    assert living.kept["a"].keys() == {"value"}
    living.wait(3_600_000)
    assert living.kept == {}
    assert not list(living.program.operators["op"].store), "no timer is left"


# --- errors ---------------------------------------------------------------------------------------


class Failing(Script):
    """Changes everything, and fails."""

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - PySpark's names
        for row in rows:
            self.value.update((row.n, "x"))
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1)
            if row.op == "fail":
                raise ValueError(row.n)
            yield Row(k=row.k, what="value", n=self.value.get()[0])


def test_a_call_that_fails_has_changed_nothing():
    program = code_of("EventTime", Failing, on_bad_record="drop").program()
    harness = StepHarness(program)
    good, bad = ("a", "", 1, 0), ("b", "fail", 2, 0)
    made = harness.feed(Batches(0, (batch([bad, good, bad, good]),)))
    assert results(made) == [("a", "value", 1)] * 2
    assert program.statistics == {"op: bad_records": 2}
    assert program.operators["op"].state() == {"a": {"value": (1, "x")}}
    assert {row[0] for row in results(harness.watermark(0, 10))} == {"a"}
    harness = StepHarness(code_of("EventTime", Failing).program())
    with pytest.raises(OperatorError, match="ValueError: 2") as caught:
        harness.feed(Batches(0, (batch([bad]),)))
    assert "in handleInputRows" in clonos.blame.users_traceback(caught.value)


WRONG = {
    "a tuple": lambda p: p.value.update(3),
    "2 columns": lambda p: p.value.update((3,)),
    "a str in column 'n', not int": lambda p: p.value.update(("3", "")),
    "a bool in column 'n', not int": lambda p: p.list.appendValue((True,)),
    "a float in column 'n', not int": lambda p: p.map.updateValue((1.5,), (1,)),
    "not later|the watermark is at": lambda p: p.handle.registerTimer(0),
    "no column 'x'": lambda p: Row(x=1, k="", what=""),
    "is not a row|2 values": lambda p: Row("a", "b"),
}


@pytest.mark.parametrize("told", WRONG)
def test_values_that_spark_would_not_take_are_errors(told):
    class Wrong(Script):
        def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - PySpark's names
            made = WRONG[told](self)
            return [] if made is None else [made]

    with pytest.raises(OperatorError, match=told):
        StepHarness(code_of("EventTime", Wrong).program()).feed(
            Batches(0, (batch([("a", "", 1, 0)]),))
        )


class Numpy(Script):
    """Gives values as NumPy and named tuples have them, and rows by position."""

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - PySpark's names
        self.value.update(Row(n=np.int64(7), s=np.str_("x")))
        self.map.updateValue([np.int64(1)], (np.int64(2),))
        assert type(self.value.get()[0]) is int
        return iter([Row(key[0], "value", self.value.get()[0]), (key[0], "map", 2)])


def test_values_of_numpy_and_rows_without_names():
    harness = StepHarness(code_of("None", Numpy).program())
    made = results(harness.feed(Batches(0, (batch([("a", "", 1, 0)]),))))
    assert made == [("a", "value", 7), ("a", "map", 2)]


def test_late_rows_are_left_out_and_counted():
    program = code_of("EventTime").program()
    harness = StepHarness(program)
    harness.watermark(0, 10)
    given_rows = [("a", "append", n, n * 1000) for n in (9, 10, 11)]
    harness.feed(Batches(0, (batch([*given_rows, ("a", "append", 0, None)]),)))
    assert program.statistics == {"op: late_rows": 2}
    assert program.operators["op"].state() == {"a": {"list": [(11,), (0,)]}}


def test_close_is_called_when_the_input_ends():
    told = []

    class Closing(Script):
        def close(self):
            told.append("closed")

    harness = StepHarness(code_of("None", Closing).program())
    told.clear()  # it was closed after its definition, as in Spark
    harness.end(0)
    assert told == ["closed"]


# --- what is refused ------------------------------------------------------------------------------


class Deleting(Script):
    def init(self, handle):
        handle.deleteIfExists("value")


class Twice(Script):
    def init(self, handle):
        handle.getValueState("x", "n long")
        handle.getListState("x", "n long")


class TimerInInit(Script):
    def init(self, handle):
        handle.registerTimer(7)


class StateInInit(Script):
    def init(self, handle):
        handle.getValueState("x", "n long").get()


class Short(Script):
    ttl: ClassVar = {"ttlDurationMs": 0}


def call(keyed, *arguments, **options):
    return keyed.transformWithState(*arguments, **options)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no processor": (lambda s: call(s, clonos.Process(), OUT, "Append", "None"), WrongType,
        "not a StatefulProcessor"),
    "output": (lambda s: call(s, Script(), OUT, "Complete", "None"), NotInTasks, "Complete"),
    "no output": (lambda s: call(s, Script(), OUT, "Apend", "None"), WrongType, "Apend"),
    "no mode": (lambda s: call(s, Script(), OUT, "Append", "Event"), WrongType, "timeMode"),
    "initial": (lambda s: call(s, Script(), OUT, "Append", "None", initialState=s), NotInTasks,
        "initialState"),
    "event time": (lambda s: call(s, Script(), OUT, "Append", "EventTime",
        eventTimeColumnName="at"), NotInTasks, "eventTimeColumnName"),
    "no watermark": (lambda s: call(s, Script(), OUT, "Append", "EventTime"), BadGraph,
        "without a watermark"),
    "ttl": (lambda s: call(s, Forgetting(), OUT, "Append", "None"), WrongType, "time to live"),
    "no ttl": (lambda s: call(s, Short(), OUT, "Append", "ProcessingTime"), WrongType,
        "ttlDurationMs=0"),
    "deleting": (lambda s: call(s, Deleting(), OUT, "Append", "None"), NotInTasks,
        "deleteIfExists"),
    "twice": (lambda s: call(s, Twice(), OUT, "Append", "None"), WrongType, "declared twice"),
    "timer": (lambda s: call(s, TimerInInit(), OUT, "Append", "ProcessingTime"), WrongType,
        "in init"),
    "no timers": (lambda s: call(s, TimerInInit(), OUT, "Append", "None"), WrongType,
        "no timers"),
    "state": (lambda s: call(s, StateInInit(), OUT, "Append", "None"), WrongType, "in init"),
    "window": (lambda s: call(s._job.source(clonos.sources.from_batches([], SCHEMA)).groupBy()),
        BadGraph, "rows of a key"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_when_the_job_is_defined(case):
    define, error, told = REFUSED[case]
    stream = clonos.Job().source(clonos.sources.from_batches([], SCHEMA))
    with pytest.raises(error, match=told) as caught:
        define(stream.key_by("k"))
    assert getattr(caught.value, "remedy", "")


def test_another_state_is_another_graph():
    class Other(Script):
        def init(self, handle):
            super().init(handle)
            handle.getValueState("more", StructType([StructField("s", StringType())]))

    one, same, other = (
        code_of("ProcessingTime", kind).operators[0][1].settings for kind in (Script, Script, Other)
    )
    assert one == same != other
