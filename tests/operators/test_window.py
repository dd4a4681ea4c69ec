from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.columns.schema import parse_schema
from clonos.errors import OperatorError
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


@settings(deadline=None, max_examples=60)
@given(events, st.sampled_from([None, "t"]), st.booleans())
def test_restored_equals_continued(script, on, is_merged):
    code = window_code(on=on, **ALL)
    merge = partial(merge_deltas, is_base=True) if is_merged else None
    outputs = check_restore(code.program, [*script, End(0)], merge=merge)
    arrived = sum(b.num_rows for e in script if isinstance(e, Batches) for b in e.batches)
    counted = sum(row[3] for o in outputs for b in o.batches.values() for row in rows(b))
    assert counted == arrived if on is None else counted <= arrived


@settings(deadline=None, max_examples=40)
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
