"""What an error says first is where in the user's own code it happened."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

import clonos
from clonos import blame
from clonos.blame import (
    CAUSES_MAX,
    FRAMES_MAX,
    TEXT_MAX,
    complaint_of,
    in_short,
    users_lines,
    users_traceback,
)
from clonos.core.decisions import Fail
from clonos.errors import OperatorError, ProtocolError, SourceError
from clonos.nodes.errors import failure_of
from clonos.sources.prefetch import PrefetchThread
from clonos.sources.readers import BaseReader
from clonos.testing import StepHarness

OURS = str(Path(blame.__file__).parent)
LINE = "return 1 / (n - 7)  # the user's line"


def divide(n: int) -> Any:
    return 1 / (n - 7)  # the user's line


def in_map(row: Any) -> Any:
    return divide(row.n)


def in_generator(row: Any) -> Any:
    yield row.n
    yield divide(row.n)


def in_batch(batch: pa.RecordBatch) -> Any:
    return divide(batch.column("n")[0].as_py())


def in_call(row: Any, ctx: clonos.Context) -> Any:
    return ctx.call(divide, row.n)


class OnRow(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        return [divide(row.n)]


class OnTimer(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        ctx.timers.event_time(5)

    def on_timer(self, key: Any, due: int, ctx: Any) -> Any:
        return [divide(key)]


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "map": lambda rows: rows.map(in_map, "n double", name="op"),
    "filter": lambda rows: rows.filter(in_map, name="op"),
    "flat_map": lambda rows: rows.flat_map(in_generator, "n double", name="op"),
    "map_batches": lambda rows: rows.map_batches(in_batch, "n double", name="op"),
    "with_column": lambda rows: rows.with_column("m double", divide, "n", name="op"),
    "call": lambda rows: rows.map(in_call, "n double", name="op"),
    "on_row": lambda rows: rows.key_by("n").process(OnRow(), "n double", name="op"),
    "on_timer": lambda rows: rows.key_by("n").process(OnTimer(), "n double", name="op"),
}


def raised(fn: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        fn()
    return caught.value


def feed(harness: StepHarness, inputs: tuple[int, ...]) -> None:
    if inputs:
        harness.input(inputs[0], [(7,)], "n long")
        harness.end(inputs[0])
    else:
        harness.source([(7,)], "n long")


@pytest.mark.parametrize("name", OPERATORS)
def test_the_users_lines_come_first(name):
    job = clonos.Job("failing")
    rows = job.source(clonos.sources.from_batches([], "n long"), name="in")
    OPERATORS[name](rows).sink(clonos.sinks.collect(), name="out")
    codes = job.compile().codes
    code = codes[-1]
    harness = StepHarness(code.program())
    told = complaint_of(raised(lambda: feed(harness, code.task.inputs)))
    assert told.error == "OperatorError"
    assert told.what.startswith("ZeroDivisionError: division by zero (for ")
    assert told.where.startswith("op[0]")
    assert "on_bad_record" in told.remedy
    lines = told.trace.splitlines()
    assert lines[0] == "Traceback of your code (most recent call last):"
    assert LINE in told.trace
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert OURS not in told.trace


def test_causes_are_told_and_errors_without_the_users_lines_are_not():
    def charge() -> None:
        try:
            divide(7)
        except ZeroDivisionError as error:
            raise RuntimeError("no price") from error

    blamed = OperatorError("RuntimeError: no price", where="op[0]")
    blamed.__cause__ = raised(charge)
    trace = users_traceback(blamed)
    first, second = trace.split("\n\nThis was the cause of:\n\n")
    assert first.endswith("ZeroDivisionError: division by zero")
    assert second.endswith("RuntimeError: no price")
    assert "OperatorError" not in trace


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups of exceptions")
def test_of_a_group_the_first_error_is_told():
    """As asyncio's TaskGroup raises them: the group itself says only how many there are."""

    async def ask_all() -> None:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]
            group.create_task(asyncio.to_thread(divide, 7))
            group.create_task(asyncio.to_thread(divide, 7))

    trace = users_traceback(raised(lambda: asyncio.run(ask_all())))
    first, second = trace.split("\n\nThis was the first error of the group:\n\n")
    assert LINE in first
    assert first.endswith("ZeroDivisionError: division by zero")
    assert "ExceptionGroup" in second


def test_lines_of_libraries_are_told_below_the_users():
    trace = users_traceback(raised(lambda: json.loads("{")))
    assert "json.loads" in trace
    assert "decoder.py" in trace


class BrokenReader(BaseReader):
    schema = pa.schema([("n", pa.int64())])

    def open(self, rows_consumed: int) -> None:
        divide(7)

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch:
        raise AssertionError(max_rows)


def test_a_reader_of_the_users():
    feeder = PrefetchThread(BrokenReader(), lambda: None, batch_rows_max=1, linger_s=0.0)
    feeder.advance(0)
    feeder._thread.join(10)
    with pytest.raises(SourceError) as caught:
        feeder.take()
    assert LINE in complaint_of(caught.value).trace


def test_what_is_none_of_ours_is_blamed_on_whose_it_is():
    told = complaint_of(raised(lambda: divide(7)))
    assert (told.error, told.remedy) == ("OperatorError", "correct the function")
    bug = complaint_of(KeyError("x"))
    assert (bug.error, bug.trace) == ("InternalError", "")
    assert "KeyError" in bug.what


def test_stories_travel():
    error = ProtocolError("broken", where="t[0]")
    error.stories = ("task: A -x-> B",)
    assert complaint_of(error).what == "broken\n  story: task: A -x-> B"


def deep(n: int) -> Any:
    return deep_too(n - 1) if n else divide(7)


def deep_too(n: int) -> Any:
    return deep(n - 1) if n else divide(7)


class Talkative(Exception):
    def __str__(self) -> str:
        return "x" * 10 * TEXT_MAX


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_it_is_bounded():
    trace = users_traceback(raised(lambda: deep(200)))
    assert trace.count("  File ") == FRAMES_MAX
    assert "... 1" in trace

    def chain(n: int) -> None:
        try:
            if n:
                chain(n - 1)
        finally:
            raise Talkative

    trace = users_traceback(raised(lambda: chain(50)))
    assert trace.count("Talkative: xxx") == CAUSES_MAX
    assert len(trace) < CAUSES_MAX * (FRAMES_MAX + 2) * TEXT_MAX
    assert len(in_short(Talkative())) <= TEXT_MAX + 3
    assert "cannot be shown" in in_short(Mute())


def test_what_a_slot_tells_is_what_the_driver_raises():
    error = OperatorError("it broke", where="op[1] in task rows[1]", remedy="mend it")
    error.__cause__ = raised(lambda: divide(7))
    told = complaint_of(error)
    fail = Fail(told.error, told.what, 3, told.where, told.remedy, told.trace)
    again = failure_of(fail, "rows[1]")
    assert isinstance(again, OperatorError)
    assert (again.what, again.where, again.remedy) == (error.what, error.where, error.remedy)
    assert str(again).strip().startswith("Traceback of your code")
    assert str(again).endswith("op[1] in task rows[1]: it broke. To do: mend it")
    unnamed = failure_of(Fail("InternalError", "KeyError: 'x'", 3), "rows[1]")
    assert str(unnamed) == "rows[1]: InternalError: KeyError: 'x'"


def _through(package: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """A function in a file of a package, which calls another one."""
    space: dict[str, Any] = {"call": call}
    path = Path(str(package), "between.py")
    exec(compile("def between():\n    return call()", str(path), "exec"), space)
    between: Callable[[], Any] = space["between"]
    return between


def test_sparks_daemon_between_our_own_lines_is_not_the_users():
    def fails() -> None:
        raise ValueError("no")  # the user's line

    spark = str(Path(pyspark.__file__).parent)
    slot = _through(OURS, fails)
    with pytest.raises(ValueError, match="no") as raised:
        _through(OURS, _through(spark, slot))()
    text = users_traceback(raised.value)
    assert "the user's line" in text
    assert "between.py" not in text


def test_a_thread_that_runs_the_users_function_is_not_the_users():
    def fails() -> None:
        raise ValueError("no")  # the user's line

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="no") as raised:
        pool.submit(fails).result()
    lines = users_traceback(raised.value.with_traceback(_in_the_thread(raised.value))).splitlines()
    assert "in fails" in lines[1]


def _in_the_thread(error: BaseException) -> Any:
    """Its traceback from where the thread began."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.endswith("thread.py"):
        trace = trace.tb_next
    assert trace is not None
    return trace


def test_lines_of_compiled_libraries_are_not_the_users():
    with pytest.raises(pa.ArrowInvalid) as raised:
        pa.array([{"a": 1}], pa.float64())
    only = raised.value.with_traceback(raised.value.__traceback__.tb_next)  # below this line
    assert users_traceback(only) == ""


def test_where_a_thread_hangs_is_said_in_the_users_lines():
    inside, gate, threads = threading.Event(), threading.Event(), []

    def hang(row: Any) -> Any:
        inside.set()
        gate.wait()  # the line that hangs
        return row

    job = clonos.Job("hang")
    rows = job.source(clonos.sources.from_batches([], "n long"), name="in")
    rows.map(hang, "n long", name="op").sink(clonos.sinks.collect(), name="out")
    code = job.compile().codes[-1]

    def run() -> None:
        threads.append(threading.get_ident())
        feed(StepHarness(code.program()), code.task.inputs)

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait(60)
    lines = users_lines(threads[0])
    gate.set()
    thread.join()
    assert "gate.wait()  # the line that hangs" in lines
    assert OURS not in lines
    assert users_lines(threads[0]) == "", "it is over"
