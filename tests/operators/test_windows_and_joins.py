"""Sliding and session windows, rankings, joins and what else finds earlier rows, against models."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import clonos
from clonos.columns.schema import parse_schema
from clonos.errors import BadDuration, BadGraph, WrongType
from clonos.operators.watermark import IDLE
from clonos.state.deltas import merge_deltas, open_delta
from clonos.testing import (
    Batches,
    End,
    Source,
    StepHarness,
    Tick,
    Watermark,
    check_restore,
    rows,
)

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SCHEMA = "k long, x long, t timestamp, u timestamp"
OTHER = "l string, y long, v timestamp"


def at(ms):
    return EPOCH + timedelta(milliseconds=ms)


def ms(instant):
    return round((instant - EPOCH).total_seconds() * 1000)


def batch(given_rows, schema=SCHEMA):
    parsed = parse_schema(schema)
    columns = zip(*given_rows, strict=True)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, parsed, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=parsed)


def code_of(build, name="op", *, on_bad_record="drop"):
    """The code of the task called `name` of a job whose stream `build` extends."""
    job = clonos.Job(on_bad_record=on_bad_record)
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in")
    build(stream.with_watermark("t", "0 ms")).sink(clonos.sinks.collect())
    compiled = job.compile()
    return next(code for code in compiled.codes if name in [n for n, _ in code.operators])


def whole(build, name="op"):
    """From rows to the end in one program: a source of rows, with all operators behind it."""
    return code_of(build, name).program


def results(outputs):
    return [row for o in outputs for b in o.batches.values() for row in rows(b)]


rows_of_keys = st.tuples(
    st.integers(0, 3), st.integers(-3, 3), st.integers(0, 60).map(at), st.integers(61, 99).map(at)
)
some_rows = st.lists(rows_of_keys, min_size=1, max_size=8).map(batch)
scripts = st.lists(
    st.builds(lambda b: Batches(0, (b,)), some_rows)
    | st.builds(Watermark, st.just(0), st.integers(0, 100))
    | st.builds(Tick, st.integers(1_000_000, 1_000_080)),
    max_size=8,
)
merges = st.sampled_from([None, partial(merge_deltas, is_base=True)])

WINDOWS: dict[str, Any] = {
    "tumbling": clonos.tumbling("10 ms", on="t"),
    "sliding": clonos.sliding("20 ms", "5 ms", on="t"),
    "sliding, panes smaller than slides": clonos.sliding("25 ms", "10 ms", on="t"),
    "session": clonos.session("4 ms", on="t"),
    "between": clonos.between("t", "u"),
    "sliding in processing time": clonos.sliding("20 ms", "5 ms"),
    "session in processing time": clonos.session("12 ms"),
}
AGGREGATES = {
    "n": clonos.count(),
    "s": clonos.sum("x"),
    "lo": clonos.min("x"),
    "hi": clonos.max("t"),
    "mean": clonos.avg("x"),
}


def windows_of(kind, t, u):
    if kind == "between":
        return [(ms(t), ms(u))]
    size, slide = {"tumbling": (10, 10), "sliding": (20, 5)}.get(kind, (25, 10))
    first = ms(t) // slide * slide
    starts = [s for s in range(first - 2 * size, first + 1, slide) if s <= ms(t) < s + size]
    return [(s, s + size) for s in starts]


def model_sessions(given_rows, gap=4):
    by_key = defaultdict(list)
    for k, x, t, _ in given_rows:
        by_key[k].append((ms(t), x))
    found: dict[Any, Any] = {}
    for k, values in by_key.items():
        for t, x in sorted(values):
            previous = found.get((k, "open"))
            if previous is None or t > previous[1]:
                previous = found[k, "open"] = [t, t + gap, []]
                found[k, t] = previous
            previous[1] = t + gap
            previous[2].append(x)
        del found[k, "open"]
    return {(k, s, e): xs for (k, _), (s, e, xs) in found.items()}


LATER_FIRST = [
    Batches(0, (batch([(0, 0, at(0), at(62))]),)),
    Batches(0, (batch([(0, 0, at(0), at(61))]),)),
    Watermark(0, 60),
]
"""What comes last is due first. A restore puts both into one batch."""


@settings(max_examples=60)
@given(scripts, st.sampled_from(sorted(WINDOWS)), merges, st.sampled_from(["agg", "top", "rows"]))
@example(LATER_FIRST, "between", None, "agg")
def test_windows_restored_equal_continued(script, kind, merge, content):
    def build(s):
        window = s.key_by("k").filter(lambda r: True, name="f").window(WINDOWS[kind])
        if content == "top" and "session" not in kind:
            return window.top(2, "x", clonos.asc("t"), ties=True, name="op")
        if content == "rows" and ("session" in kind or kind == "tumbling"):
            return window.rows(name="op")
        return window.agg(**AGGREGATES, name="op")

    check_restore(whole(build), [*script, End(0)], merge=merge)


@settings(max_examples=40)
@given(
    st.lists(some_rows, min_size=1, max_size=4),
    st.sampled_from([k for k in sorted(WINDOWS) if "processing" not in k]),
    st.lists(st.integers(0, 70), max_size=3).map(sorted),
)
def test_windows_agree_with_a_model(batches, kind, marks):
    build = lambda s: (  # noqa: E731
        s.key_by("k").filter(lambda r: True).window(WINDOWS[kind]).agg(**AGGREGATES, name="op")
    )
    harness = StepHarness(whole(build)())
    outputs = [harness.feed(Batches(0, (b,))) for b in batches]
    outputs += [harness.watermark(0, mark) for mark in marks]
    outputs.append(harness.end(0))
    given_rows = [row for b in batches for row in rows(b)]
    model: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    if kind == "session":
        model = model_sessions(given_rows)
    else:
        for k, x, t, u in given_rows:
            for start, end in windows_of(kind, t, u):
                model[k, start, end].append(x)
    found = {(r[0], ms(r[1]), ms(r[2])): r[3:] for r in results(outputs)}
    assert len(found) == len(results(outputs))
    assert found.keys() == model.keys()
    for key, xs in model.items():
        n, s, lo, _, mean = found[key]
        assert (n, s, lo, mean) == (len(xs), sum(xs), min(xs), sum(xs) / len(xs))
    for output in outputs:
        starts = [row[1] for row in results([output])]
        assert starts == sorted(starts)


@settings(max_examples=40)
@given(
    st.lists(some_rows, min_size=1, max_size=4), st.sampled_from(["sliding", "between"]),
    st.integers(1, 3), st.booleans(), st.booleans(),
)  # fmt: skip
def test_top_agrees_with_a_model(batches, kind, number, ties, is_keyed):
    def build(s):
        stream = s.key_by("k").filter(lambda r: True) if is_keyed else s
        return stream.window(WINDOWS[kind]).top(number, "x", ties=ties, name="op")

    job = clonos.Job(parallelism=1 if is_keyed else 2)
    source = clonos.sources.from_batches([], schema=SCHEMA)
    build(job.source(source, name="in").with_watermark("t", "1 s")).sink(clonos.sinks.collect())
    compiled = job.compile()
    first = StepHarness(compiled.codes[0].program())
    code = next(c for c in compiled.codes if "op" in [n for n, _ in c.operators])
    final = StepHarness(code.program())
    for b in batches:  # unkeyed, the rows are ranked before and behind the channel
        output = first.feed(Source(b)).batches
        for channel, sealed in output.items():
            final.feed(Batches(channel, (sealed.payload,)))
    found = defaultdict(list)
    for row in results([final.end(channel) for channel in code.task.inputs]):
        found[row[0] if is_keyed else None, ms(row[4]), ms(row[5])].append(row[1])
    model = defaultdict(list)
    for k, x, t, u in [row for b in batches for row in rows(b)]:
        for window in windows_of(kind, t, u):
            model[(k if is_keyed else None), window[0], window[1]].append(x)
    for key, xs in model.items():
        ranked = sorted(xs, reverse=True)
        kept = [x for x in xs if x >= ranked[:number][-1]] if ties else ranked[:number]
        assert found.pop(key) == sorted(kept, reverse=True)
    assert not found


@settings(max_examples=40)
@given(st.lists(some_rows, min_size=1, max_size=4), st.lists(st.integers(0, 70), max_size=3))
def test_rows_of_sessions_agree_with_a_model(batches, marks):
    build = lambda s: s.key_by("k").window(WINDOWS["session"]).rows(name="op")  # noqa: E731
    harness = StepHarness(whole(build)())
    outputs = [harness.feed(Batches(0, (b,))) for b in batches]
    outputs += [harness.watermark(0, mark) for mark in sorted(marks)]
    found = results([*outputs, harness.end(0)])
    given_rows = [row for b in batches for row in rows(b)]
    expected = []
    for k, start, end in model_sessions(given_rows):
        inside = [r for r in given_rows if r[0] == k and start <= ms(r[2]) < end]
        expected += [(*r, at(start), at(end)) for r in inside]
    assert sorted(found) == sorted(expected)


def join_code(*, goes_on=False, **options):
    """The code of a join; `goes_on`: what comes out goes to another task."""
    job = clonos.Job()
    left = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="left")
    right = job.source(clonos.sources.from_batches([], schema=f"{OTHER}, m long"), name="right")
    left = left.with_watermark("t", "0 ms").key_by("k")
    right = right.with_watermark("v", "0 ms").key_by("m")
    both = left.join(right, **options, name="op")
    (both.rebalance() if goes_on else both).sink(clonos.sinks.collect())
    return next(c for c in job.compile().codes if c.task.name == "op[0]")


right_rows = st.tuples(
    st.sampled_from(["", "a", "bc"]), st.integers(0, 9), st.integers(0, 60).map(at),
    st.none() | st.integers(0, 3),
)  # fmt: skip
some_right_rows = st.lists(right_rows, min_size=1, max_size=8).map(
    partial(batch, schema=f"{OTHER}, m long")
)
join_scripts = st.lists(
    st.builds(lambda b: Batches(0, (b,)), some_rows)
    | st.builds(lambda b: Batches(1, (b,)), some_right_rows)
    | st.builds(Watermark, st.integers(0, 1), st.integers(0, 70)),
    max_size=9,
)
JOINS: dict[str, Any] = {
    "for ever": {},
    "keep": {"keep": ("10 ms", "3 ms"), "on": ("t", "v")},
    "window": {"window": clonos.tumbling("10 ms"), "on": ("t", "v")},
    "between": {"between": ("t", "u"), "on": "v"},
}


def joined(kind, left, right):
    t, u, v = ms(left[2]), ms(left[3]), ms(right[2])
    return (
        left[0] == right[3]
        and {
            "for ever": True,
            "keep": v <= t + 10 and t <= v + 3,
            "window": t // 10 == v // 10,
            "between": t <= v < u,
        }[kind]
    )


HOWS = ["inner", "left", "right", "full", "semi", "anti"]
memories = st.sampled_from([None, 0, 4000])
"""Of what is restored: all is in memory, or hardly anything."""


FOR_EVER: Any = [Batches(1, (batch([("", 0, at(0), 0)], f"{OTHER}, m long"),))]


@settings(max_examples=50)
@given(join_scripts, st.sampled_from(sorted(JOINS)), st.sampled_from(HOWS), merges, memories)
@example(FOR_EVER, "for ever", "left", None, 0)
def test_joins_restored_equal_continued(script, kind, how, merge, memory):
    code = join_code(**JOINS[kind], how=how)
    check_restore(code.program, [*script, End(0), End(1)], merge=merge, state_memory=memory)


def partners(kind, how, sides):
    """What a join comes to of all rows of both sides."""
    left, right = sides
    pairs = [(a, b) for a in left for b in right if joined(kind, a, b)]
    met = [[a for a, _ in pairs], [b for _, b in pairs]]
    nothing = ((None,) * 4, (None,) * 4)
    alone = [[row for row in sides[i] if row not in met[i]] for i in (0, 1)]
    if how == "semi":
        return [row for row in left if row in met[0]]
    if how == "anti":
        return alone[0]
    found = [(*a, *b) for a, b in pairs]
    found += [(*a, *nothing[1]) for a in alone[0]] if how in ("left", "full") else []
    found += [(*nothing[0], *b) for b in alone[1]] if how in ("right", "full") else []
    return found


@settings(max_examples=200)
@given(join_scripts, st.sampled_from(sorted(JOINS)), st.sampled_from(HOWS))
def test_joins_agree_with_a_model(script, kind, how):
    """Watermarks come when they are due: then nothing is late and the model is all pairs."""
    program = join_code(**JOINS[kind], how=how).program()
    harness = StepHarness(program)
    sides: tuple[list[Any], list[Any]] = ([], [])
    marks, outputs = [0, 0], []
    for event in script:
        if isinstance(event, Watermark):
            marks[event.channel] = max(marks[event.channel], event.ms)
        else:
            kept = [r for r in rows(event.batches[0]) if ms(r[2]) > marks[event.channel]]
            sides[event.channel].extend(kept)
            if not kept:
                continue
            schema = (SCHEMA, f"{OTHER}, m long")[event.channel]
            event = Batches(event.channel, (batch(kept, schema),))  # noqa: PLW2901
        outputs.append(harness.feed(event))
    outputs += [harness.end(0), harness.end(1)]
    expected = partners(kind, how, sides)
    assert sorted(map(repr, results(outputs))) == sorted(map(repr, expected))
    assert program.statistics == {}


slow_scripts = st.lists(
    st.builds(lambda b: Batches(0, (b,)), some_rows)
    | st.builds(lambda b: Batches(1, (b,)), some_right_rows)
    | st.integers(1, 12),
    min_size=6, max_size=12,
)  # fmt: skip
"""Rows, and how much event time advances on both sides."""


@settings(max_examples=120)
@given(slow_scripts, st.sampled_from(sorted(set(JOINS) - {"for ever"})), st.sampled_from(HOWS[1:]))
def test_a_row_that_waited_for_a_partner_is_not_late(script, kind, how):
    """What goes on behind a join has not been passed by its watermark, unless it came late."""
    harness = StepHarness(join_code(goes_on=True, **JOINS[kind], how=how).program())
    mark, passed = 0, 0
    for event in script:
        outputs = []
        if isinstance(event, int):
            mark += event
            outputs = [harness.watermark(0, mark), harness.watermark(1, mark)]
        elif kept := [r for r in rows(event.batches[0]) if ms(r[2]) > mark]:
            schema = (SCHEMA, f"{OTHER}, m long")[event.channel]
            outputs = [harness.feed(Batches(event.channel, (batch(kept, schema),)))]
        for output in outputs:
            for row in results([output]):
                assert all(time is None or ms(time) > passed for time in (row[2], *row[6:7]))
            passed = max([passed, *output.watermarks.values()])


def test_a_row_without_a_partner_leaves_when_none_can_come():
    harness = StepHarness(join_code(**JOINS["keep"], how="left").program())
    lonely, met = (1, 0, at(5), at(70)), (2, 0, at(5), at(70))
    assert not results([harness.feed(Batches(0, (batch([lonely, met]),)))])
    partner = batch([("a", 1, at(6), 2)], f"{OTHER}, m long")
    assert results([harness.feed(Batches(1, (partner,)))]) == [(*met, "a", 1, at(6), 2)]
    harness.watermark(0, 20)
    assert not results([harness.watermark(1, 14)]), "a row of time 15 could still come"
    assert results([harness.watermark(1, 15)]) == [(*lonely, None, None, None, None)]
    assert not results([harness.end(0), harness.end(1)])


def test_a_row_that_can_have_no_partner_leaves_at_once():
    nulls = [(None, 1, at(5), at(70)), (1, 2, None, at(70))]
    for how in ("left", "full", "anti"):
        harness = StepHarness(join_code(**JOINS["keep"], how=how).program())
        found = results([harness.feed(Batches(0, (batch(nulls),)))])
        assert [row[:2] for row in found] == [(None, 1), (1, 2)]


def test_joined_rows_are_dropped_when_their_time_has_come():
    code = join_code(**JOINS["keep"])
    program = code.program()
    harness = StepHarness(program)
    harness.feed(Batches(0, (batch([(1, 0, at(5), at(70)), (1, 1, at(30), at(70))]),)))
    program.delta()
    harness.watermark(0, 20)
    assert not open_delta(bytes(program.delta())).runs
    harness.watermark(1, 20)  # 5 + 10 is past, 30 + 10 is not
    ((_, run),) = open_delta(bytes(program.delta())).runs
    assert [value for _, value in run.items()] == [None, None], "the row, and when it is due"


OTHERS = ["deduplicate", "within", "last", "in_order", "look_up", "rows"]


@settings(max_examples=60)
@given(scripts, merges, st.sampled_from(OTHERS), memories)
@example([Batches(0, (batch([(0, 0, at(n), at(61))]),)) for n in (3, 0)], None, "in_order", 0)
def test_others_restored_equal_continued(script, merge, kind, memory):
    program = whole(partial(build_other, kind))
    check_restore(program, [*script, End(0)], merge=merge, state_memory=memory)


def build_other(kind, stream):
    table = pa.table({"id": [1, 2, 2], "what": ["one", "two", "zwei"]})
    keyed = stream.key_by("k")
    if kind == "deduplicate":
        return keyed.deduplicate(name="op")
    if kind == "within":
        return keyed.deduplicate("10 ms", on="t", name="op")
    if kind == "last":
        return keyed.last(3, n=clonos.count(), s=clonos.sum("x"), hi=clonos.max("x"), name="op")
    if kind == "in_order":
        return keyed.in_order("t", "x", name="op")
    if kind == "rows":
        return keyed.window(WINDOWS["session"]).rows(name="op")
    return keyed.filter(lambda r: True).look_up(table, {"k": "id"}, how="left", name="op")


@settings(max_examples=40)
@given(st.lists(some_rows, min_size=1, max_size=5))
def test_others_agree_with_models(batches):
    given_rows = [row for b in batches for row in rows(b)]

    def run(kind):
        harness = StepHarness(whole(partial(build_other, kind))())
        outputs = [harness.feed(Batches(0, (b,))) for b in batches]
        return results([*outputs, harness.end(0)])

    first: dict[int, Any] = {}
    history: dict[int, list[int]] = defaultdict(list)
    lasts = []
    for row in given_rows:
        first.setdefault(row[0], row)
        history[row[0]].append(row[1])
        three = history[row[0]][-3:]
        lasts.append((*row, len(three), sum(three), max(three)))
    assert run("deduplicate") == list(first.values())
    assert run("last") == lasts
    assert run("in_order") == sorted(given_rows, key=lambda r: (r[2], r[1]))
    names = {1: ["one"], 2: ["two", "zwei"]}
    assert run("look_up") == [(*r, name) for r in given_rows for name in names.get(r[0], [None])]


def test_late_rows_are_counted():
    program = whole(partial(build_other, "in_order"))()
    harness = StepHarness(program)
    harness.watermark(0, 10)
    harness.feed(Batches(0, (batch([(1, 0, at(10), at(70)), (1, 0, None, at(70))]),)))
    assert program.statistics == {"op: late_rows": 1, "op: bad_records": 1}
    assert not results([harness.end(0)])


def test_a_key_is_forgotten_in_time():
    harness = StepHarness(whole(partial(build_other, "within"))())
    row = batch([(1, 0, at(5), at(70))])
    assert results([harness.feed(Batches(0, (row,)))])
    harness.watermark(0, 14)
    assert not results([harness.feed(Batches(0, (row,)))])
    harness.watermark(0, 15)
    assert results([harness.feed(Batches(0, (row,)))])


def test_null_is_a_key_where_that_makes_sense():
    nulls = batch([(None, 1, at(1), at(70)), (None, 2, at(2), at(70))])
    harness = StepHarness(whole(partial(build_other, "deduplicate"))())
    assert len(results([harness.feed(Batches(0, (nulls,))) for _ in range(2)])) == 1
    harness = StepHarness(whole(partial(build_other, "last"))())
    outputs = [harness.feed(Batches(0, (nulls,))) for _ in range(2)]
    assert [row[5] for row in results(outputs)] == [1, 3, 4, 5]


def test_an_idle_source_holds_nobody_back():
    job = clonos.Job(parallelism=1)
    source = clonos.sources.from_batches([], schema=SCHEMA)
    marked = [
        job.source(source, name=name).with_watermark("t", "0 ms", idle_after="50 ms")
        for name in ("a", "b")
    ]
    window = marked[0].union(*marked[1:]).key_by("k").window(clonos.tumbling("10 ms", on="t"))
    window.agg(n=clonos.count(), name="op", pre_aggregate=False).sink(clonos.sinks.collect())
    codes = {code.task.name: code for code in job.compile().codes}
    sources = {name: StepHarness(codes[f"{name}[0]"].program()) for name in "ab"}
    union, op = (StepHarness(codes[f"{name}[0]"].program()) for name in ("union", "op"))
    channels = dict(zip("ab", codes["union[0]"].task.inputs, strict=True))

    def pass_on(output, name):
        """A step of a source, and all that follows from it."""
        outputs = [
            union.feed(Batches(channels[name], (b.payload,))) for b in output.batches.values()
        ]
        outputs += [union.watermark(channels[name], w) for w in output.watermarks.values()]
        into = codes["op[0]"].task.inputs[0]
        found = []
        for o in outputs:
            found += [op.feed(Batches(into, (b.payload,))) for b in o.batches.values()]
            found += [op.watermark(into, w) for w in o.watermarks.values()]
        return [row[3] for row in results(found)]

    def send(name, t):
        return pass_on(sources[name].source([(1, 1, at(t), at(70))], SCHEMA), name)

    assert not send("a", 5)
    assert not send("b", 6)
    assert not send("a", 25)  # b might still have something
    assert pass_on(sources["b"].tick(1_000_050), "b") == [2]
    assert send("a", 35) == [1]
    assert pass_on(sources["a"].tick(1_000_050), "a") == []  # all idle: nothing moves
    assert not send("b", 36)
    assert not send("a", 60)  # b is back, and has to be waited for
    assert send("b", 70) == [2]


def test_a_task_that_never_gets_a_row_is_idle_too():
    """One without a partition, say. It held back all windows for ever."""
    job = clonos.Job(parallelism=1)
    rows = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="rows")
    marked = rows.with_watermark("t", "0 ms", idle_after="50 ms").key_by("k")
    window = marked.window(clonos.tumbling("10 ms", on="t"))
    counted = window.agg(n=clonos.count(), pre_aggregate=False)
    counted.sink(clonos.sinks.collect())
    (program, *_) = (code.program() for code in job.compile().codes if code.task.is_source)
    harness = StepHarness(program)
    assert not harness.tick(1_000_000).watermarks
    assert set(harness.tick(1_000_050).watermarks.values()) == {IDLE}


@pytest.mark.parametrize(
    ("define", "error", "text"),
    [
        (lambda s: s.window(clonos.sliding("5 ms", "10 ms")), BadDuration, "leave out"),
        (lambda s: s.key_by("k").window(clonos.session("5 ms")).top(1, "x"), BadGraph, "sessions"),
        (lambda s: s.key_by("k").window(clonos.tumbling("5 ms")).top(0, "x"), WrongType, "top"),
        (lambda s: s.key_by("k").window(clonos.tumbling("5 ms")).top(1), WrongType, "column"),
        (lambda s: s.window(clonos.tumbling("1 s")).top(1, "x", parallelism=2), BadGraph, "tasks"),
        (lambda s: s.map(lambda _: ({"x": 1},), "a struct<x: int>").window(clonos.tumbling("1 s"))
         .top(1, "a"), WrongType, "'a' is struct<x: int>, which is not sorted"),
        (lambda s: s.with_column("a array<int>", lambda k: [k], "k").key_by("k")
         .in_order("t", "a"), WrongType, "'a' is array<int>, which is not sorted"),
        (lambda s: s.window(clonos.between("t", "x")), WrongType, "not a time"),
        (lambda s: s.key_by("k").window(clonos.between("t", "u")).rows(), BadGraph, "overlap"),
        (lambda s: s.window(clonos.tumbling("1 s")).rows(), BadGraph, "needs a keyed stream"),
        (lambda s: s.key_by("k").last(0, n=clonos.count()), WrongType, "last"),
        (lambda s: s.key_by("k").last(1, x=clonos.count()), BadGraph, "two columns"),
        (lambda s: s.key_by("k").deduplicate("1 s"), WrongType, "no column with the event time"),
        (lambda s: s.key_by("k").deduplicate(on="t"), WrongType, "but no duration"),
        (lambda s: s.key_by("k").join(s.key_by("k")), BadGraph, "both sides"),
        (lambda s: s.key_by("k").join(s), WrongType, "keys on both"),
        (lambda s: s.key_by("k").join(s.key_by("k"), how="lft"), WrongType, "how='lft'"),
        (lambda s: s.key_by("k").join(s.withColumnsRenamed({n: f"{n}2" for n in s.columns})
                                      .key_by("k2"), how="left").in_order("t"),
         BadGraph, "without a watermark"),
        (lambda s: s.key_by("k").join(s.withColumnRenamed("t", "a").select("a").key_by("a")),
         WrongType, "different types"),
        (lambda s: s.key_by("k").join(s.select("k").withColumnRenamed("k", "a").key_by("a"),
                                      keep="1 s"), WrongType, "column"),
        (lambda s: s.look_up([1], "k"), WrongType, "not a table"),
        (lambda s: s.look_up(pa.table({"k": ["a"]}), "k"), WrongType, "is int64"),
        (lambda s: s.look_up(pa.table({"k": [1]}), "k", how="outer"), WrongType, "how"),
        (lambda s: s.look_up(pa.table({"i": [1], "x": [2]}), {"k": "i"}), BadGraph, "both sides"),
    ],
)  # fmt: skip
def test_mistakes_are_found_where_they_are_made(define, error, text):
    job = clonos.Job()
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA))
    with pytest.raises(error, match=text) as caught:
        define(stream.with_watermark("t", "0 ms"))
    assert caught.value.remedy
