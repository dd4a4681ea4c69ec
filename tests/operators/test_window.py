from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.columns.schema import parse_schema
from clonos.errors import ExpressionFailed, OperatorError
from clonos.operators.windows.kinds import sessions
from clonos.state.deltas import merge_deltas
from clonos.testing import (
    Batches,
    End,
    InMemoryRun,
    StepHarness,
    Tick,
    Watermark,
    check_restore,
    rows,
    task_code,
)

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SCHEMA = "k string, x long, f double, s string, t timestamp"


def at(ms):
    return EPOCH + timedelta(milliseconds=ms)


def window_code(*, on=None, schema=SCHEMA, key=("k",), **aggregates):
    job = clonos.Job(on_bad_record="drop")
    stream = job.source(clonos.sources.from_batches([], schema=schema), name="in")
    if on is not None:
        stream = stream.with_watermark(on, "0 ms")
    keyed = stream.key_by(*key)
    keyed.window(clonos.tumbling("10 ms", on=on)).agg(
        **aggregates, name="w", pre_aggregate=False
    ).sink(clonos.sinks.collect())
    return task_code(job.compile(), "w[0]")


ALL = {
    "n": clonos.count(),
    "nx": clonos.count("x"),
    "total": clonos.sum("x"),
    "lo": clonos.min("x"),
    "hi": clonos.max("x"),
    "mean": clonos.avg("x"),
    "f_sum": clonos.sum("f"),
    "f_lo": clonos.min("f"),
    "f_hi": clonos.max("f"),
    "s_lo": clonos.min("s"),
    "s_hi": clonos.max("s"),
    "t_hi": clonos.max("t"),
}


def test_processing_time():
    harness = StepHarness(window_code(**ALL).program(), now_ms=1003)
    given = [("a", 1, 0.5, "x", at(3)), ("b", None, None, None, None), ("a", 3, 1.5, "y", at(2))]
    assert harness.input(0, given, SCHEMA).wake_ms == 1010
    assert not harness.tick(1009).batches
    (batch,) = harness.tick(1010).batches.values()
    assert rows(batch) == [
        ("a", at(1000), at(1010), 2, 2, 4, 1, 3, 2.0, 2.0, 0.5, 1.5, "x", "y", at(3)),
        ("b", at(1000), at(1010), 1, 0, *[None] * 10),
    ]
    assert harness.wake_ms is None


def test_event_time_and_late_rows():
    program = window_code(on="t", n=clonos.count()).program()
    harness = StepHarness(program)
    send = partial(harness.input, 0, schema=SCHEMA)
    early = [("a", 1, 0, "", at(15)), ("a", 1, 0, "", at(5)), ("b", 1, 0, "", at(9))]
    assert not send(early).batches
    assert not harness.watermark(0, 8).batches
    output = harness.watermark(0, 9)
    assert rows(output.batches[1]) == [("a", at(0), at(10), 1), ("b", at(0), at(10), 1)]
    assert output.watermarks == {1: 9}
    send([("a", 1, 0, "", at(9)), ("a", 1, 0, "", at(10)), ("a", 1, 0, "", None)])
    assert program.statistics == {"w: late_rows": 1, "w: bad_records": 1}
    assert rows(harness.end(0).batches[1]) == [("a", at(10), at(20), 2)]


def test_missing_event_time_fails_the_job_unless_dropped():
    job = clonos.Job()
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA)).with_watermark("t", "1 s")
    stream.key_by("k").window(clonos.tumbling("1 s", on="t")).agg(n=clonos.count()).sink(
        clonos.sinks.collect()
    )
    with pytest.raises(OperatorError, match="no event time"):
        StepHarness(job.compile().codes[0].program()).source([("a", 1, 0, "", None)], SCHEMA)


def test_nan_is_the_largest_as_in_spark():
    schema = "k string, f double"
    harness = StepHarness(
        window_code(schema=schema, lo=clonos.min("f"), hi=clonos.max("f")).program()
    )
    nan = float("nan")
    harness.input(0, [("a", nan), ("a", 1.0), ("b", nan)], schema)
    a, b = rows(harness.end(0).batches[1])
    assert a[3] == 1.0
    assert math.isnan(a[4])
    assert math.isnan(b[3])


def test_more_types():
    schema = "k string, d decimal(10,2), b boolean, i date, f float, y binary"
    code = window_code(
        schema=schema,
        d=clonos.sum("d"), d_mean=clonos.avg("d"), d_lo=clonos.min("d"), b=clonos.max("b"),
        i=clonos.min("i"), f=clonos.max("f"), y=clonos.max("y"),
    )  # fmt: skip
    day = datetime(2020, 1, 2, tzinfo=timezone.utc).date()
    given = [("a", Decimal("1.25"), True, day, 1.5, b"x"), ("a", None, False, None, 0.5, b"y"),
             ("a", Decimal("1.00"), None, day, None, None)]  # fmt: skip
    batch = _batch(given, schema)
    outputs = check_restore(code.program, [Batches(0, (batch,)), Batches(0, (batch,)), End(0)])
    (row,) = rows(outputs[-1].batches[1])
    assert row[3:] == (Decimal("4.50"), 1.125, Decimal("1.00"), True, day, 1.5, b"y")


def _batch(given, schema):
    parsed = parse_schema(schema)
    columns = [pa.array(c, f.type) for c, f in zip(zip(*given, strict=True), parsed, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=parsed)


row_values = st.tuples(
    st.sampled_from("abcd"),
    st.none() | st.integers(-5, 5),
    st.none() | st.floats(width=32, allow_infinity=False),
    st.none() | st.text(max_size=2),
    st.integers(0, 40).map(at),
)
batches = st.lists(row_values, min_size=1, max_size=6).map(partial(_batch, schema=SCHEMA))
events = st.lists(
    st.builds(lambda b: Batches(0, (b,)), batches)
    | st.builds(Watermark, st.just(0), st.integers(0, 45))
    | st.builds(Tick, st.integers(1_000_000, 1_000_060)),
    max_size=8,
)


@settings(max_examples=60)
@given(events, st.sampled_from([None, "t"]), st.booleans())
def test_restored_equals_continued(script, on, is_merged):
    code = window_code(on=on, **ALL)
    merge = partial(merge_deltas, is_base=True) if is_merged else None
    outputs = check_restore(code.program, [*script, End(0)], merge=merge)
    arrived = sum(b.num_rows for e in script if isinstance(e, Batches) for b in e.batches)
    counted = sum(row[3] for o in outputs for b in o.batches.values() for row in rows(b))
    assert counted == arrived if on is None else counted <= arrived


@settings(max_examples=40)
@given(st.lists(row_values, min_size=1, max_size=30))
def test_agrees_with_a_model(given_rows):
    harness = StepHarness(window_code(on="t", n=clonos.count(), s=clonos.sum("x")).program())
    harness.input(0, given_rows, SCHEMA)
    model: dict[tuple[int, str], list[Any]] = {}
    for k, x, _, _, t in given_rows:
        start = int((t - EPOCH).total_seconds() * 1000) // 10 * 10
        entry = model.setdefault((start, k), [0, None])
        entry[0] += 1
        entry[1] = entry[1] if x is None else (entry[1] or 0) + x
    result = rows(harness.end(0).batches[1])
    assert {(r[1], r[0]): list(r[3:]) for r in result} == {
        (at(start), k): v for (start, k), v in model.items()
    }
    assert [r[1] for r in result] == sorted(r[1] for r in result)


def test_many_keys_grow_the_arrays():
    schema = "k long, x long"
    code = window_code(schema=schema, s=clonos.sum("x"))
    batch = pa.record_batch({"k": list(range(1000)), "x": list(range(1000))})
    outputs = check_restore(
        code.program,
        [Batches(0, (batch,)), Tick(1_000_010), Batches(0, (batch,)), Batches(0, (batch,)), End(0)],
    )
    assert [row[3] for row in rows(outputs[-1].batches[1])] == [2 * i for i in range(1000)]


def test_a_sum_that_does_not_fit_is_an_error_and_a_mean_is_none():
    schema = "k string, x long"
    large = 2**62
    aggregates = {"total": clonos.sum("x"), "mean": clonos.avg("x")}
    harness = StepHarness(window_code(schema=schema, **aggregates).program())
    harness.input(0, [("a", large)] * 3, schema)
    harness.input(0, [("a", -large)] * 2 + [("b", -large)], schema)  # on the way it is too large
    a, b = rows(harness.end(0).batches[1])
    assert (a[3:], b[3:]) == ((large, large / 5), (-large, -large))
    only_mean = window_code(schema=schema, mean=clonos.avg("x"))
    assert windows_over([("a", large)] * 4, only_mean, schema)[0][3] == large
    for one, fits in ((large, False), (-large, True)):  # -2**63 is a bigint
        code = window_code(schema=schema, total=clonos.sum("x"))
        given = [("a", one), ("a", one)]
        if fits:
            assert windows_over(given, code, schema)[0][3] == 2 * one
            given.append(("a", -1))
        with pytest.raises(ExpressionFailed, match=r"ARITHMETIC_OVERFLOW in sum\(x\)"):
            windows_over(given, code, schema)


def windows_over(given, code, schema):
    harness = StepHarness(code.program())
    for row in given:
        harness.input(0, [row], schema)
    return rows(harness.end(0).batches[1])


def test_sums_and_means_of_decimals_have_the_types_of_spark():
    schema = "k string, d decimal(10,2), e decimal(38,10)"
    aggregates = {"d": clonos.sum("d"), "d_mean": clonos.avg("d"), "e_mean": clonos.avg("e")}
    code = window_code(schema=schema, **aggregates)
    given: list[Any] = [
        ("a", Decimal("1.00"), Decimal("1e20")),
        ("a", Decimal("1.01"), Decimal("2e20")),
    ]
    given.append(("a", Decimal("0.00"), None))
    (row,) = windows_over(given, code, schema)
    assert row[3:] == (Decimal("2.01"), Decimal("0.670000"), Decimal("1.5e20"))
    types = [str(code.schemas[code.task.outputs[-1]].field(name).type) for name in aggregates]
    assert types == ["decimal128(20, 2)", "decimal128(14, 6)", "decimal128(38, 14)"]
    most = Decimal("9" * 28 + "." + "9" * 10)
    code = window_code(schema=schema, e=clonos.sum("e"))
    with pytest.raises(ExpressionFailed, match=r"ARITHMETIC_OVERFLOW in sum\(e\)"):
        windows_over([("a", None, most), ("a", None, most)], code, schema)


def test_nan_is_ranked_first_as_the_largest_and_null_last():
    schema = "k string, f double, n long"
    job = clonos.Job()
    source = clonos.sources.from_batches(
        [[("a", 1.0, 1), ("a", math.nan, 2), ("a", None, 3), ("a", -0.0, 4), ("a", 0.0, 5)]], schema
    )
    window = job.source(source).key_by("k").window(clonos.tumbling("1 day"))
    window.top(9, "f", clonos.desc("n")).sink(clonos.sinks.collect(), name="down")
    window.top(4, clonos.asc("f"), ties=True).sink(clonos.sinks.collect(), name="up")
    window.top(3, "f", ties=True).sink(clonos.sinks.collect(), name="ties")
    found = InMemoryRun(job.compile()).run()
    assert found["down"]["n"].to_pylist() == [2, 1, 5, 4, 3]
    assert found["up"]["n"].to_pylist() == [4, 5, 1, 2]
    assert found["ties"]["n"].to_pylist() == [2, 1, 4, 5]


def test_integers_without_a_sign():
    large = [2**64 - 1, 2**63, 3, None]
    schema = pa.schema([("k", pa.string()), ("u", pa.uint64())])

    def run(what, values):
        job = clonos.Job()
        batch = pa.RecordBatch.from_arrays(
            [pa.array(["a"] * len(values)), pa.array(values, pa.uint64())], schema=schema
        )
        window = job.source(clonos.sources.from_batches([batch])).key_by("k")
        what(window.window(clonos.tumbling("1 day"))).sink(clonos.sinks.collect(), name="out")
        return InMemoryRun(job.compile()).run()["out"].to_pylist()

    (row,) = run(lambda w: w.agg(low=clonos.min("u"), high=clonos.max("u")), large)
    assert (row["low"], row["high"]) == (3, 2**64 - 1)
    assert [row["u"] for row in run(lambda w: w.top(1, "u"), large[:3])] == [2**64 - 1]
    (row,) = run(lambda w: w.agg(total=clonos.sum("u")), [5, 7])
    assert row["total"] == 12
    with pytest.raises(ExpressionFailed, match=r"ARITHMETIC_OVERFLOW in sum\(u\)"):
        run(lambda w: w.agg(total=clonos.sum("u")), large)


few = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=12)


@given(few, st.integers(1, 5))
def test_sessions_may_be_as_far_apart_as_times_can_be(pairs, gap):
    codes, starts = (np.array(column) for column in zip(*pairs, strict=True))
    near = sessions(codes, starts, starts + gap)
    far = 2**55  # times a thousand, that would be more than a timestamp has
    assert sessions(codes, starts * far, (starts + gap) * far).tolist() == near.tolist()
