"""Sealing is invisible in what comes out, and costs what changed, not what there is."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.columns.schema import parse_schema
from clonos.runtime.shelf import LocalShelf
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state import pieces, row_store, runs, tiers
from clonos.state.deltas import merge_deltas
from clonos.testing import Batches, End, StepHarness, Tick, Watermark

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SCHEMAS = [
    parse_schema("k long, x double, t timestamp"),
    parse_schema("m long, y double, v timestamp"),
]
HUGE = 1e16
"""Added to 1 it swallows it: sums tell in which order they were made."""


class Count(clonos.Process):
    def on_row(self, row, ctx):
        state = ctx.state("sum", "double")
        state.set((state.get() or 0.0) + row.x)
        yield (row.k, state.get())


# The tasks behind the shuffle take rows: sums of floats are not folded before, and rows that
# were filtered are not ranked before.


def windowed(window, rows, _):
    return rows.window(window).agg(n=clonos.count(), s=clonos.sum("x"), hi=clonos.max("x"))


def counted(rows):
    window = rows.window(clonos.sliding("12 ms", "8 ms", on="t"))
    sums = {"n": clonos.count(), "s": clonos.sum("k"), "hi": clonos.max("x")}
    return window.agg(**sums, pre_aggregate=False)


def ranked(rows):
    return rows.window(clonos.tumbling("10 ms", on="t")).top(2, "x", ties=True)


KINDS: dict[str, Any] = {
    "tumbling": partial(windowed, clonos.tumbling("10 ms", on="t")),
    "sliding": partial(windowed, clonos.sliding("20 ms", "5 ms", on="t")),
    "counts": lambda rows, _: counted(rows),
    "session": partial(windowed, clonos.session("4 ms", on="t")),
    "session in processing time": partial(windowed, clonos.session("12 ms")),
    "top": lambda rows, _: ranked(rows.filter(lambda row: True)),
    "rows": lambda rows, _: rows.window(clonos.session("4 ms", on="t")).rows(),
    "in_order": lambda rows, _: rows.in_order("t", "x"),
    "deduplicate": lambda rows, _: rows.deduplicate("10 ms", on="t"),
    "last": lambda rows, _: rows.last(2, s=clonos.sum("x")),
    "join": lambda rows, others: rows.join(others, keep="10 ms", on=("t", "v")),
    "process": lambda rows, _: rows.process(Count(), "k long, sum double"),
}


def program_of(kind):
    job = clonos.Job(parallelism=1)
    sides = [
        job.source(clonos.sources.from_batches([], schema))
        .with_watermark(schema.names[2], "0 ms")
        .key_by(schema.names[0])
        for schema in SCHEMAS
    ]
    KINDS[kind](*sides).sink(clonos.sinks.collect())
    return job.compile().codes[-1].program


def batches(port, rows):
    schema = SCHEMAS[port]
    keys, values, times = zip(*rows, strict=True)
    instants = [EPOCH + timedelta(milliseconds=ms) for ms in times]
    columns = [pa.array(keys), pa.array(values), pa.array(instants, schema.field(2).type)]
    return Batches(port, (pa.RecordBatch.from_arrays(columns, schema=schema),))


class Seal(NamedTuple):
    """... and perhaps go on from layers, the first so many of them merged."""

    is_restored: bool
    merged: int


rows_in_time = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([HUGE, -HUGE, 1.0, 0.1]), st.integers(0, 60)),
    min_size=1,
    max_size=8,
)
scripts = st.lists(
    st.builds(batches, st.integers(0, 1), rows_in_time)
    | st.builds(batches, st.integers(0, 1), rows_in_time)
    | st.builds(Watermark, st.integers(0, 1), st.integers(0, 70))
    | st.builds(Tick, st.integers(1_000_000, 1_000_080))
    | st.builds(Seal, st.booleans(), st.integers(0, 5)),
    max_size=20,
)


@pytest.fixture(params=[1, 10, 10_000])
def _thresholds(request, monkeypatch):
    """What happens to thousands of rows happens to a few, or does not happen to any."""
    monkeypatch.setattr(pieces, "_APPENDED_MIN", request.param)
    monkeypatch.setattr(row_store, "_MERGED", 2 if request.param == 1 else 8)
    monkeypatch.setattr(row_store, "_INDEX_SLACK", 0)


@pytest.mark.usefixtures("_thresholds")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(scripts)
def test_nobody_can_tell_when_layers_were_sealed_merged_or_restored(kind, script):
    make, inputs = program_of(kind), range(2 if kind == "join" else 1)
    events = [e for e in script if getattr(e, "channel", 0) in inputs] + [End(i) for i in inputs]
    reference, harness = StepHarness(make()), StepHarness(make())
    deltas: list[Any] = []
    written: list[bytes] = []
    for event in events:
        if isinstance(event, Seal):
            deltas.append(harness.program.delta())
            written.append(bytes(deltas[-1]))
            if event.is_restored:
                base = merge_deltas(written[: event.merged], is_base=True)
                layers = [base, *written[event.merged :]]
                harness = restored(make(), layers, harness)
        else:
            assert harness.feed(event).seen == reference.feed(event).seen
    assert [bytes(delta) for delta in deltas] == written, "a layer changes after its seal"


def given_in_time(random):
    """Rows for windows near and far, and watermarks."""
    for ms in range(0, 48, 4):
        rows = [
            (random.randrange(7), random.choice([HUGE, -HUGE, 1.0, 0.1]), ms + random.randrange(40))
            for _ in range(random.randrange(1, 9))
        ]
        yield batches(0, rows)
        if random.random() < 0.5:
            yield Watermark(0, ms)


@pytest.mark.parametrize("nbytes", [0, 1000, 4000])
@pytest.mark.parametrize(
    "kind", ["tumbling", "sliding", "counts", "top", "in_order", "session", "rows"]
)
def test_windows_with_little_memory_go_on_after_any_step(kind, nbytes, monkeypatch):
    monkeypatch.setattr(pieces, "_APPENDED_MIN", 8)
    monkeypatch.setattr(runs, "BLOCK_BYTES", 200)
    monkeypatch.setattr(tiers, "TIERS_MAX", 2)
    make = program_of(kind)
    events = [*given_in_time(Random(nbytes)), End(0)]
    reference = StepHarness(make())
    outputs = [reference.feed(event).seen for event in events]

    def run(harness, start, layers):
        for number in range(start, len(events)):
            assert harness.feed(events[number]).seen == outputs[number], number
            layers.append(bytes(harness.program.delta()))
            yield harness

    layers: list[bytes] = []
    small = make()
    small.use(SlowShelf(Random(1)), nbytes)
    for number, before in enumerate(run(StepHarness(small), 0, layers), 1):
        program = make()
        program.use(SlowShelf(Random(number)), nbytes)
        merged = number // 2
        again = [merge_deltas(layers[:merged], is_base=True), *layers[merged:]]
        for _ in run(restored(program, again, before), number, list(layers)):
            pass


KEPT_IN_FILES = ["process", "join", "rows", "last", "tumbling", "top", "session", "in_order"]


@pytest.mark.parametrize("kind", KEPT_IN_FILES)
def test_a_program_says_that_it_has_left_memory(kind, monkeypatch):
    monkeypatch.setattr(pieces, "_APPENDED_MIN", 8)
    for nbytes, has_left_memory in ((0, True), (1 << 30, False)):
        program = program_of(kind)()
        program.use(SlowShelf(Random(1)), nbytes)
        harness = StepHarness(program)
        for ms in range(40):
            harness.feed(batches(0, [(ms % 7, 0.5, ms)]))
            bytes(program.delta())
        assert program.has_left_memory is has_left_memory


def open_files():
    """Those that programs of this process have written."""
    links = Path("/proc/self/fd").iterdir()
    return sum("/clonos-" in str(link.readlink()) for link in links if link.is_symlink())


@pytest.mark.parametrize("kind", KEPT_IN_FILES)
def test_a_program_that_lets_go_has_no_files_open(kind, monkeypatch):
    """Parts of it refer to each other, and a full garbage collection may be hours away."""
    monkeypatch.setattr(pieces, "_APPENDED_MIN", 8)
    shelf, program, others = LocalShelf(), program_of(kind)(), open_files()
    program.use(shelf, 0)
    harness = StepHarness(program)
    until, ms = time.monotonic() + 10, 0
    while open_files() == others and time.monotonic() < until:
        harness.feed(batches(0, [(ms % 7, 0.5, ms)]))
        bytes(program.delta())
        ms += 1
    shelf.close()
    assert open_files() > others
    gc.disable()
    try:
        program.let_go()
        del harness, program, shelf
        while open_files() > others and time.monotonic() < until:
            time.sleep(0.01)  # one may just have been written
        assert open_files() == others
    finally:
        gc.enable()


def restored(program, layers, before):
    for layer in layers:
        program.apply(layer)
    assert not bytes(program.delta()), "a restored program has changed nothing yet"
    after = StepHarness(program, position=before.position, now_ms=before.now_ms)
    after.wake_ms = before.wake_ms
    return after


POOLS: list[pa.MemoryPool] = []
"""They must outlive what was allocated from them."""


class Cost(NamedTuple):
    """Bytes that were allocated at the same time, and calls."""

    heap: int
    arrow: int
    calls: int


def cost_of(do):
    """What `do` returns, and what it costs."""
    usual, counted = pa.default_memory_pool(), 0
    pool = pa.proxy_memory_pool(usual)
    POOLS.append(pool)

    def profile(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    pa.set_memory_pool(pool)
    tracemalloc.start()
    sys.setprofile(profile)
    try:
        result = do()
    finally:
        sys.setprofile(None)
        heap = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    return result, Cost(heap, pool.max_memory(), counted)


def costs_of_a_change(kind, size):
    """Of 100 changed rows beside `size`: of seal, encoding and a standby that applies them."""
    make = program_of(kind)
    program, standby = make(), make()
    harness = StepHarness(program)
    change = batches(0, [(key, 1.0, 5) for key in range(100)])

    def settled():
        standby.apply(bytes(program.delta()))

    harness.feed(batches(0, [(key, 1.0, 5) for key in range(size)]))
    settled()
    for _ in range(size // 2000):
        harness.feed(change)
    settled()
    harness.feed(change)
    delta, seal = cost_of(program.delta)
    layer, encoding = cost_of(lambda: bytes(delta))
    _, application = cost_of(lambda: standby.apply(layer))
    return {"seal": seal, "encoding": encoding, "application": application}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_costs_the_same_beside_much_state(kind):
    costs_of_a_change(kind, 2000)  # what is done once only
    little, much = (costs_of_a_change(kind, size) for size in (2000, 64_000))
    for what, cost in much.items():
        for name, here, there in zip(cost._fields, cost, little[what], strict=True):
            assert here <= 1.2 * there + 1000, (what, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seal_allocates_next_to_nothing(kind):
    costs_of_a_change(kind, 2000)
    cost = costs_of_a_change(kind, 64_000)["seal"]
    assert cost.heap < 300_000  # of which 262,144 are a buffer that encodes facts
    assert cost.arrow < 1000
    assert cost.calls < 100


def test_sessions_that_a_row_joins_add_up_the_same_whenever_layers_were_sealed():
    make = program_of("session")
    given = [(HUGE, 0), (-HUGE, 8), (1.0, 2), (1.0, 10), (1.0, 5)]
    seen = []
    for seals in (False, True):
        harness = StepHarness(make())
        for value, ms in given:
            harness.feed(batches(0, [(1, value, ms)]))
            if seals:
                harness.program.delta()
        seen.append(harness.feed(End(0)).seen)
    assert seen[0] == seen[1]


def test_sessions_that_a_row_joins_add_up_the_same_wherever_they_were_restored(monkeypatch):
    """A watermark closes none of them, so it combines none, whatever they seemed to end at."""
    monkeypatch.setattr(pieces, "_APPENDED_MIN", 3)
    make = program_of("session")
    given = [(HUGE, 3), (-HUGE, 2), (-HUGE, 5), (HUGE, 15), (1.0, 7), (1.0, 12)]
    events = [batches(0, [(1, value, ms)]) for value, ms in given]
    rest = [Watermark(0, 6), batches(0, [(1, 1.0, 10)]), End(0)]
    reference, harness = StepHarness(make()), StepHarness(make())
    for event in events:
        reference.feed(event)
        harness.feed(event)
    harness = restored(make(), [bytes(harness.program.delta())], harness)
    for event in rest:
        assert harness.feed(event).seen == reference.feed(event).seen
