from __future__ import annotations

from functools import partial

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import clonos
from clonos.state.deltas import merge_deltas
from clonos.testing import Batches, End, StepHarness, Tick, check_restore, rows

SCHEMA = "n long"


def sink_program(rows_per_file=4, linger="10 ms"):
    job = clonos.Job()
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA))
    files = clonos.sinks.parquet("out", rows_per_file=rows_per_file, linger=linger)
    stream.start_new_chain().sink(files)
    compiled = job.compile()
    assert compiled.codes[1].task.writes_itself
    return compiled.codes[1].program()


def test_files_leave_when_full_or_after_a_while():
    harness = StepHarness(sink_program(), now_ms=100)
    send = partial(harness.input, 0, schema=SCHEMA)
    assert not send([(1,), (2,)]).batches
    assert harness.wake_ms == 110
    assert rows(send([(i,) for i in range(3, 12)]).batches[1]) == [(1,), (2,), (3,), (4,)]
    assert harness.wake_ms == 100
    assert rows(harness.tick(100).batches[1]) == [(5,), (6,), (7,), (8,)]
    assert harness.wake_ms == 110
    assert rows(harness.tick(111).batches[1]) == [(9,), (10,), (11,)]
    assert not harness.tick(200).batches
    send([(1,)])
    assert rows(harness.end(0).batches[1]) == [(1,)]


class Many(clonos.Process):
    def on_row(self, row, ctx):
        ctx.timers.processing_time(ctx.clock.now_ms() + 5)
        return [(row.n,)] * 3

    def on_timer(self, key, due, ctx):
        return [(key,)] * 9


def test_a_step_that_gives_rows_twice_sends_one_file():
    """Timers of a process and of the buffer behind it are due in one step."""
    job = clonos.Job()
    keyed = job.source(clonos.sources.from_batches([], schema=SCHEMA)).key_by("n")
    files = clonos.sinks.parquet("out", rows_per_file=4, linger="5 ms")
    keyed.process(Many(), SCHEMA, name="many").sink(files)
    harness = StepHarness(job.compile().codes[1].program(), now_ms=100)
    sizes = [b.rows for b in harness.input(0, [(1,)], schema=SCHEMA).batches.values()]
    while harness.wake_ms is not None:
        now = max(harness.now_ms, harness.wake_ms)
        sizes += [b.rows for b in harness.tick(now).batches.values()]
    assert sizes == [4, 4, 4]


batches = st.lists(st.integers(0, 9), min_size=1, max_size=9).map(
    lambda numbers: Batches(0, (pa.record_batch({"n": numbers}),))
)


@given(st.lists(batches | st.builds(Tick, st.integers(1_000_000, 1_000_030)), max_size=8))
def test_restored_equals_continued(script):
    outputs = check_restore(sink_program, [*script, End(0)])
    out = [row[0] for o in outputs for b in o.batches.values() for row in rows(b)]
    batches = [b for e in script if isinstance(e, Batches) for b in e.batches]
    assert out == [n for batch in batches for n in batch.column(0).to_pylist()]
    check_restore(sink_program, [*script, End(0)], merge=partial(merge_deltas, is_base=True))
