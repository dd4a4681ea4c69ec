from __future__ import annotations

from copy import deepcopy
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clonos
from clonos.blame import users_traceback
from clonos.columns.rows import row_type, values_of
from clonos.columns.schema import parse_type
from clonos.errors import (
    BadSchema,
    CallError,
    Divergence,
    OperatorError,
    UnknownColumn,
    WrongType,
)
from clonos.testing import Batches, End, Source, StepHarness, check_restore, rows


class Grumpy(float):
    def __ne__(self, other):
        raise KeyError("grumpy")

    __hash__ = float.__hash__


NEW_YEAR = datetime(2020, 1, 1, tzinfo=timezone.utc)


def program_of(build, schema, **options):
    """The program of the one chain between a source and its sink."""
    job = clonos.Job("test", **options)
    stream = job.source(clonos.sources.from_batches([], schema=schema), name="in")
    build(stream).sink(clonos.sinks.collect())
    return job.compile().codes[0].program()


def run(build, given, schema, **options):
    harness = StepHarness(program_of(build, schema, **options))
    output = harness.source(given, schema)
    batch = next(iter(output.batches.values()), None)
    return [] if batch is None else rows(batch)


def test_map_results_by_position_name_and_value():
    schema = "a int, b string"
    given = [(1, "x"), (2, None)]
    for fn in (
        lambda row: (row.a + 1, row.b),
        lambda row: [row["a"] + 1, row[1]],
        lambda row: {"b": row.b, "a": row.a + 1},
        lambda row, ctx: (row.a + 1, row.b),
        lambda row, ctx=None: (row.a + 1, row.b),
    ):
        assert run(lambda s, fn=fn: s.map(fn, schema), given, schema) == [(2, "x"), (3, None)]
    assert run(lambda s: s.map(lambda r: r.a * 2, "n long"), given, schema) == [(2,), (4,)]
    assert run(lambda s: s.map(lambda r: r, "b string, a int"), given, schema)[0] == ("x", 1)


def test_map_sees_what_was_changed_in_place_and_what_only_passes():
    schema = "a int, b string, l array<int>"
    given = [(1, "x", [1]), (2, None, [2])]

    def change(row):
        row.l.append(row.a)
        return row

    assert run(lambda s: s.map(change, schema), given, schema) == [
        (1, "x", [1, 1]),
        (2, None, [2, 2]),
    ]
    swapped = run(
        lambda s: s.map(lambda r: (r.a, r.b, r.b), "a long, b string, c string"), given, schema
    )
    assert swapped == [(1, "x", "x"), (2, None, None)]
    with pytest.raises(OperatorError, match="null in column 'b'"):
        run(lambda s: s.map(lambda r: r, "a int, b string not null, l array<int>"), given, schema)


def test_flat_map_and_filter():
    def split(row):
        yield from row.value.split()

    given = [("to be",), ("",), ("or",)]
    result = run(lambda s: s.flat_map(split, "word string"), given, "value string")
    assert result == [("to",), ("be",), ("or",)]
    result = run(lambda s: s.filter(lambda r: r.value), given, "value string")
    assert result == [("to be",), ("or",)]
    assert run(lambda s: s.flat_map(lambda r: None, "word string"), given, "value string") == []


def test_with_column_replaces_or_adds_one():
    schema, given = "a int, b string", [(1, "x"), (2, None)]

    def of(*args):
        return run(lambda s: s.with_column(*args), given, schema)

    assert of("a", lambda a: a + 1, "a") == [(2, "x"), (3, None)]
    assert of("b long", lambda a: a * 2, "a") == [(1, 2), (2, 4)]
    assert of("c string", lambda b, a: f"{b}{a}", "b", "a") == [(1, "x", "x1"), (2, None, "None2")]
    assert of("c int", lambda: 7) == [(1, "x", 7), (2, None, 7)]
    assert of("c boolean", lambda a, ctx: ctx.watermark is None, "a")[0] == (1, "x", True)


def test_with_column_calls_its_function_once_per_row_even_behind_bad_ones():
    seen = []

    def inverse(n):
        seen.append(n)
        return 60 // n

    given = [(n,) for n in (1, 0, 2, 3, 0, 4)]
    result = run(
        lambda s: s.with_column("m long", inverse, "n"), given, "n long", on_bad_record="drop"
    )
    assert result == [(1, 60), (2, 30), (3, 20), (4, 15)]
    assert seen == [1, 0, 2, 3, 0, 4]


def test_with_column_keeps_a_stream_keyed_unless_it_makes_the_key():
    job = clonos.Job("test")
    keyed = job.source(clonos.sources.from_batches([], "k int, v int")).key_by("k")
    assert isinstance(keyed.with_column("v", abs, "v"), clonos.KeyedStream)
    assert not isinstance(keyed.with_column("k", abs, "k"), clonos.KeyedStream)


@pytest.mark.parametrize(
    ("args", "error", "said"),
    [
        (("c long", abs, "d"), UnknownColumn, "no column 'd'"),
        (("c long, d long", abs, "a"), WrongType, "several columns"),
        (("c", abs, "a"), BadSchema, "type"),
        (("c long", lambda: 1, "a"), WrongType, r"write it as fn\(a\) or fn\(a, ctx\)"),
        (
            (
                "c long",
                lambda a, b: 1,
            ),
            WrongType,
            r"write it as fn\(\) or fn\(ctx\)",
        ),
    ],
)
def test_with_column_says_what_is_wrong_with_its_arguments(args, error, said):
    stream = clonos.Job("test").source(clonos.sources.from_batches([], "a int"))
    with pytest.raises(error, match=said):
        stream.with_column(*args)


def test_map_batches():
    def double(batch):
        return pa.table({"n": pc.multiply(batch.column("n"), 2)})

    assert run(lambda s: s.map_batches(double), [(1,), (2,)], "n long") == [(2,), (4,)]
    assert run(lambda s: s.map_batches(lambda b: None), [(1,)], "n long") == []
    large = pa.record_batch({"n": pa.array([1e300, float("inf")])})
    with pytest.raises(OperatorError, match="column 'n': a number is too large for float"):
        run(lambda s: s.map_batches(lambda _: large, "n float"), [(1,)], "n long")
    assert run(lambda s: s.map_batches(lambda _: large[1:], "n float"), [(1,)], "n long")
    with pytest.raises(OperatorError, match="columns m instead of n"):
        run(lambda s: s.map_batches(lambda b: b.rename_columns(["m"])), [(1,)], "n long")
    with pytest.raises(OperatorError, match="returned int"):
        run(lambda s: s.map_batches(lambda b: 1), [(1,)], "n long")


def with_value(ddl, good, bad, stream):
    """A column of this type whose value is bad where n is 0."""
    return stream.with_column(f"m {ddl}", lambda n: good if n else bad, "n", name="bad")


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(lambda r: 10 // r.n, "n long", name="bad"),
        lambda s: s.map(lambda r: r.n or "zero", "n long", name="bad"),
        lambda s: s.map(lambda r: r.n or None, "n long", name="bad"),
        lambda s: s.map(lambda r: {"n": r.n} if r.n else {"m": 1}, "n long", name="bad"),
        lambda s: s.map(lambda r: (r.n,) if r.n else (1, 2), "n long", name="bad"),
        lambda s: s.map(lambda r: (r.n or None,), "n long not null", name="bad"),
        lambda s: s.with_column("n", lambda n: 10 // n, "n", name="bad"),
        lambda s: s.with_column("n", lambda n: n or "zero", "n", name="bad"),
        lambda s: s.with_column("n", lambda n: n or next(iter(())), "n", name="bad"),
        lambda s: s.with_column("n long not null", lambda n: n or None, "n", name="bad"),
        lambda s: s.flat_map(lambda r: [r.n] if r.n else "zero", "n long", name="bad"),
        lambda s: s.flat_map(lambda r: [10 // r.n], "n long", name="bad"),
        lambda s: s.filter(lambda r: 10 // r.n, name="bad"),
        lambda s: s.map(lambda r: r.n or r.nothing, "n long", name="bad"),
        lambda s: s.map(lambda r: r.n or 2**70, "n long", name="bad"),
        lambda s: s.map(lambda r: r.n or 12.99, "n long", name="bad"),
        lambda s: s.with_column("m int", lambda n: n or Decimal("12.99"), "n", name="bad"),
        *(
            partial(with_value, ddl, good, bad)
            for ddl, good, bad in [
                ("array<long>", [1], [12.99]),
                ("array<int>", [1], [1, Decimal("12.99")]),
                ("array<string>", ["a"], "a text"),
                ("map<string, long>", {"a": 1}, {"a": 12.99}),
                ("map<string, long>", {"a": 1}, [{"key": "a", "value": 12.99}]),
                ("map<long, string>", {1: "a"}, [(12.99, "a")]),
                ("struct<x: long>", {"x": 1}, {"x": 12.99}),
                ("struct<x: long>", (1,), (12.99,)),
                ("struct<x: long>", (1,), [("x", 12.99)]),
                ("array<struct<x: array<long>>>", [{"x": [1]}, None], [{"x": [12.99]}]),
                ("struct<x: long not null>", {"x": 1}, {"x": None}),
                ("struct<x: long not null>", None, {}),
                ("array<struct<x: long not null>>", [(1,)], [None, (None,)]),
                ("map<string, struct<x: int not null>>", {"a": (1,)}, {"a": (None,)}),
                ("struct<x: string, y: string>", {"x": "a"}, {"x": "a", "z": "b"}),
                (
                    "struct<x: string, y: string>",
                    row_type(("x", "y"))(("1", "2")),
                    row_type(("y", "x"))(("1", "2")),
                ),
                ("array<struct<x: int>>", [{"x": 1}, {}], [{"x": 1}, {"X": 1}]),
                ("map<string, struct<x: string>>", {"a": {"x": "b"}}, {"a": {1: "b"}}),
                ("date", NEW_YEAR, pd.NaT),
                ("timestamp", NEW_YEAR, pd.NaT),
                ("array<date>", [date(2020, 1, 1), None], [pd.NaT]),
                ("date", NEW_YEAR, datetime(2020, 1, 1, 5)),  # noqa: DTZ001 - of no zone
                ("timestamp", NEW_YEAR, pd.Timestamp("2020-01-01T00:00:00.000000001")),
                ("timestamp", NEW_YEAR, 1577836800.0),
                ("map<string, long>", [("a", 1)], [("a", 1), None]),
                ("map<string, long>", {"a": 1}, np.array([None])),
                ("map<string, long>", {"a": 1}, [{"key": "a", "value": 1, "more": 2}]),
                ("array<map<string, long>>", [{"a": 1}, None], [[None]]),
                ("map<string, map<string, long>>", {"a": None}, {"a": {None}}),
                ("struct<x: map<string, long>>", {"x": {"a": 1}}, {"x": [None]}),
                ("struct<x: map<string, long>>", ({"a": 1},), ([None],)),
                ("long", 1, Grumpy()),
                ("float", 3.4e38, 3.5e38),
                ("array<float>", [float("inf")], [1, -1e300]),
                ("string", "a", "\ud800"),
                ("long", 1, float("nan")),
                ("decimal(5,2)", Decimal("1.1"), Decimal("1234.5")),
            ]
        ),
    ],
)
def test_bad_records(build):
    with pytest.raises(OperatorError, match=r"bad\[0\]") as caught:
        run(build, [(1,), (0,), (2,)], "n long")
    assert caught.value.__cause__ is not None
    program = program_of(build, "n long", on_bad_record="drop")
    output = StepHarness(program).source([(1,), (0,), (2,)], "n long")
    assert output.batches[0].rows == 2
    assert program.statistics == {"bad: bad_records": 1}
    restored = program_of(build, "n long", on_bad_record="drop")
    restored.apply(bytes(program.delta()))
    assert restored.statistics == program.statistics


def test_a_number_without_a_fraction_is_a_whole_one():
    made = run(lambda s: s.map(lambda r: r.n * 2.0, "n long"), [(1,), (2,)], "n long")
    assert made == [(2,), (4,)]


def test_the_field_that_a_struct_lacks_is_named():
    with pytest.raises(OperatorError, match="no field 'z' among x, y"):
        run(lambda s: s.map(lambda _: ({"z": 1},), "s struct<x: int, y: int>"), [(1,)], "n long")


@pytest.mark.parametrize(
    ("ddl", "given", "told"),
    [
        ("string", 5, r"column 'm' \(string\): 5 is of type int \(for Row\(n=1\)"),
        ("long", "five", r"column 'm' \(long\): 'five' is of type str"),
        ("array<string>", [1], r"\(array<string>\): \[1\] is of type list, with int inside"),
        ("decimal(5,2)", 1.5, r"column 'm' \(decimal\(5,2\)\): 1.5: .*Decimal"),
        ("long", "x" * 9999, r"column 'm' \(long\): 'x{199}\.\.\. is of type str"),
        ("struct<x: long>", {"x": "y" * 9999}, r"'y*\.\.\. is of type dict, with str inside"),
        ("string", [10**5000], r"<list that cannot be shown> is of type list"),
        ("long", Grumpy(), r"KeyError: 'grumpy'"),
    ],
)
def test_a_value_of_a_wrong_type_is_told_with_its_type(ddl, given, told):
    with pytest.raises(OperatorError, match=told) as caught:
        run(lambda s: s.with_column(f"m {ddl}", lambda _: given, "n"), [(1,)], "n long")
    assert len(str(caught.value)) < 1000
    is_users = "in __ne__" in users_traceback(caught.value)
    assert is_users == isinstance(given, Grumpy), "what the user's own code has raised is shown"


def test_error_tells_operator_task_and_row():
    with pytest.raises(OperatorError) as caught:
        run(lambda s: s.map(lambda r: 1 / r.n, "x double", name="inverse"), [(0,)], "n long")
    text = str(caught.value)
    assert "inverse[0] in task in[0]" in text
    assert "ZeroDivisionError" in text
    assert "Row(n=0)" in text


def test_divergence_is_never_a_bad_record():
    def diverge(row):
        raise Divergence("x")

    with pytest.raises(Divergence):
        run(lambda s: s.map(diverge, "n int"), [(0,)], "n long", on_bad_record="drop")


def test_context():
    def fn(row, ctx):
        answer = ctx.call(lambda x: {"got": (x, {2, 1})}, row.n)
        assert ctx.watermark is None
        assert ctx.clock.now().timestamp() * 1000 == ctx.clock.now_ms() == 1_000_000
        return answer["got"][0]

    assert run(lambda s: s.map(fn, "n long"), [(5,)], "n long") == [(5,)]


def test_call_errors_reach_the_user():
    class OwnError(Exception):
        pass

    def fail():
        raise OwnError("why")

    def fn(row, ctx):
        try:
            ctx.call(fail)
        except CallError as error:
            return error.message

    assert run(lambda s: s.map(fn, "m string"), [(5,)], "n long") == [("why",)]


def test_random_is_a_function_of_seed_task_operator_and_step():
    def build(stream):
        draw = lambda r, ctx: (*r, int(ctx.random.integers(1 << 40)))  # noqa: E731
        return stream.map(draw, "n long, a long").map(draw, "n long, a long, b long")

    given, schema = [(1,), (2,)], "n long"
    harness = StepHarness(program_of(build, schema, seed=7))
    first, second = (rows(harness.source(given, schema).batches[0]) for _ in range(2))
    numbers = [row[i] for row in first + second for i in (1, 2)]
    assert len(set(numbers)) == len(numbers)
    later = StepHarness(program_of(build, schema, seed=7), position=1)
    assert rows(later.source(given, schema).batches[0]) == second
    other = StepHarness(program_of(build, schema, seed=8))
    assert rows(other.source(given, schema).batches[0]) != first


def test_no_services_outside_of_a_step():
    class Early(clonos.Process):
        def open(self, ctx):
            ctx.clock.now()

        def on_row(self, row, ctx):
            raise AssertionError("no row comes")

    job = clonos.Job()
    stream = job.source(clonos.sources.from_batches([], schema="n long"))
    stream.key_by("n").process(Early(), "n long").sink(clonos.sinks.collect())
    with pytest.raises(OperatorError, match="only while"):
        job.compile().codes[1].program()


def test_union_takes_the_lowest_watermark_of_open_inputs():
    job = clonos.Job()
    schema = "t timestamp"
    streams = [
        job.source(clonos.sources.from_batches([], schema=schema), name=name) for name in ("a", "b")
    ]
    streams[0].union(streams[1], name="both").sink(clonos.sinks.collect())
    code = job.compile().codes[2]
    assert code.task.name == "both[0]"
    harness = StepHarness(code.program())
    assert harness.watermark(0, 50).watermarks == {}
    assert harness.watermark(1, 30).watermarks == {2: 30}
    assert harness.watermark(1, 20).watermarks == {}
    assert harness.end(1).watermarks == {2: 50}
    assert harness.end(0).watermarks == {}


def test_batches_of_a_channel_are_handled_as_one_and_restored_anywhere():
    job = clonos.Job(parallelism=2)
    source = job.source(clonos.sources.from_batches([], schema="n long"), name="in")
    source.rebalance().map(lambda r: r.n, "n long", name="m", parallelism=3).rebalance().sink(
        clonos.sinks.collect(), parallelism=2
    )
    compiled = job.compile()
    code = next(code for code in compiled.codes if code.task.name == "m[1]")
    batch = pa.record_batch({"n": [1, 2]})
    channel = code.task.inputs[0]
    events = [Batches(channel, (batch, batch)), *[Batches(channel, (batch,))] * 3]
    outputs = check_restore(code.program, [*events, *(End(c) for c in code.task.inputs)])
    assert [sum(b.rows for b in o.batches.values()) for o in outputs] == [4, 2, 2, 2, 0, 0]
    assert [list(o.batches) for o in outputs[:4]] == [
        [code.task.outputs[i]] for i in (0, 1, 0, 1)
    ]  # fmt: skip
    assert Source(batch).batch is batch


@given(
    st.sampled_from(
        [
            ("string", st.text(max_size=3)), ("long", st.integers(-(2**63), 2**63 - 1)),
            ("double", st.floats(allow_nan=False)), ("float", st.floats(width=32, allow_nan=False)),
            ("timestamp", st.integers(-(10**15), 10**15)), ("boolean", st.booleans()),
            ("timestamp_ntz", st.integers(-(10**15), 10**15)), ("date", st.integers(0, 99)),
            ("binary", st.binary(max_size=2)), ("decimal(5,2)", st.integers(-9, 9)),
        ]
    ),
    st.booleans(), st.data(),
)  # fmt: skip
def test_values_are_those_of_arrow(kind, has_nulls, data):
    data_type = parse_type(kind[0])
    values = data.draw(st.lists(st.none() | kind[1] if has_nulls else kind[1], max_size=6))
    column = pa.array(values, data_type).slice(data.draw(st.integers(0, 2)))
    found, expected = values_of(column), column.to_pylist()
    assert found == expected
    assert [type(v) for v in found] == [type(v) for v in expected]
    assert [getattr(v, "tzinfo", None) for v in found] == [
        getattr(v, "tzinfo", None) for v in expected
    ]


def test_times_that_python_cannot_hold_are_no_silent_numbers():
    column = pa.array([2**62], pa.timestamp("us", "UTC"))
    with pytest.raises((OverflowError, ValueError)):
        values_of(column)


def test_odd_column_names():
    row = row_type(("class", "_x", "count", "a b", "1"))((1, 2, 3, 4, 5))
    assert (getattr(row, "class"), row._x, row["count"], row["a b"], row["1"]) == (1, 2, 3, 4, 5)
    assert row.count(3) == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(lambda r, ctx: ctx.clock.now_ms() - r.n, "n long"),
        lambda s: s.with_column("n", lambda n, ctx: ctx.clock.now_ms() - n, "n"),
    ],
)
def test_a_copy_asks_its_own_step(build):
    """A step is tried in a copy: in the simulator a deep one, elsewhere a forked process."""
    program = program_of(build, "n long")
    output = StepHarness(deepcopy(program)).source([(1,)], "n long")
    assert output.batches[0].rows == 1


def endless(row):
    yield from iter(lambda: row.n, object())


@pytest.mark.parametrize("lists", [False, True])
def test_a_generator_that_does_not_end_is_stopped(monkeypatch, lists):
    monkeypatch.setattr("clonos.columns.rows.RESULTS_MAX", 5)

    def some(row):
        made = (row.n for _ in range(row.n))
        return list(made) if lists else made

    given = [(5,)]
    assert len(run(lambda s: s.flat_map(some, "n long"), given, "n long")) == 5
    with pytest.raises(OperatorError, match="more than 5 rows come of one call"):
        run(lambda s: s.flat_map(endless, "n long"), given, "n long")
    dropped = run(lambda s: s.flat_map(endless, "n long"), given, "n long", on_bad_record="drop")
    assert dropped == []
