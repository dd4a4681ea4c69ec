"""Bad records that are kept are rows of a stream, the same whatever fails."""

import json
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.columns.batches import seal
from clonos.errors import BadGraph, OperatorError
from clonos.operators.bad_records import as_text
from clonos.testing import InMemoryRun
from clonos.testing.harness import StepOutput


class Odd:
    """An object whose text tells its address."""


def keeping(build, rows, schema, **options):
    job = clonos.Job("job", on_bad_record="keep", **options)
    source = clonos.sources.from_batches([rows[::2], rows[1::2]], schema=schema)
    build(job.source(source, name="in")).sink(clonos.sinks.collect(), name="out")
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    return job


def both(job, **options):
    made = InMemoryRun(job.compile(), **options).run()
    return made["out"].to_pylist(), made["bad"].to_pylist()


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda s: s.map(lambda r: (10 // r.n, r.text), "n long, text string", name="op"), "Zero"),
        (lambda s: s.filter(lambda r: 10 // r.n, name="op"), "Zero"),
        (lambda s: s.flat_map(lambda r: [(10 // r.n, "")], "n long, t string", name="op"), "Zero"),
        (lambda s: s.with_column("n", lambda n: 10 // n, "n", name="op"), "Zero"),
        (lambda s: s.with_column("n", lambda n: n or "zero", "n", name="op"), "ValueError"),
    ],
)
def test_a_row_that_fails_is_kept_with_all_its_columns(build, error):
    rows = [(1, "a"), (0, "b"), (2, "c"), (0, "d")]
    out, bad = both(keeping(build, rows, "n long, text string"))
    assert len(out) == 2
    assert [json.loads(b["record"]) for b in bad] == [
        {"n": 0, "text": "b"},
        {"n": 0, "text": "d"},
    ]
    assert {b["operator"] for b in bad} == {"op"}
    assert all(b["error"].startswith(error) for b in bad)


def test_where_and_when():
    def halve(row):
        return 10 // row.n

    job = keeping(lambda s: s.map(halve, "half long"), [(0,)], "n long")
    _, (bad,) = both(job)
    line = halve.__code__.co_firstlineno + 1
    assert bad["raised_at"] == f"test_bad_records.py:{line}, in halve"
    assert datetime.fromtimestamp(1000, timezone.utc) < bad["time"]
    assert bad["time"] < datetime.fromtimestamp(2000, timezone.utc)


async def _awaited(given):
    raise ValueError("no")


def _threaded(given):
    raise LookupError("no")


@pytest.mark.parametrize("fn", [_awaited, _threaded])
@pytest.mark.parametrize(
    "build",
    [
        lambda s, fn: s.map_async(fn, "half long"),
        lambda s, fn: s.with_column_async("half long", fn, "n"),
    ],
)
def test_where_a_call_raised(build, fn):
    """The error comes out of the log, without a traceback."""
    _, (bad,) = both(keeping(lambda s: build(s, fn), [(0,)], "n long"))
    line = fn.__code__.co_firstlineno + 1
    assert bad["raised_at"] == f"test_bad_records.py:{line}, in {fn.__name__}"
    assert bad["error"].endswith("Error: no")


def test_of_a_batch_each_row_is_kept_and_counted():
    def fail(batch):
        if 0 in batch.column("n").to_pylist():
            raise ValueError("a zero")
        return batch

    rows = [(0,), (1,), (2,), (3,)]
    job = keeping(lambda s: s.map_batches(fail, "n long", name="op"), rows, "n long")
    run = InMemoryRun(job.compile())
    made = run.run()
    assert made["out"].to_pylist() == [{"n": 1}, {"n": 3}]
    assert [b["record"] for b in made["bad"].to_pylist()] == ['{"n": 0}', '{"n": 2}']
    programs: list[Any] = [harness.program for harness in run._tasks.values()]
    (counted,) = [program.statistics for program in programs if program.statistics]
    assert counted == {"op: bad_records": 2}


@pytest.mark.parametrize("how", ["drop", "keep"])
def test_a_record_that_is_left_out_is_a_bad_record(how):
    """It kills the process, so no operator ever sees it."""
    schema = pa.schema([("n", pa.int64())])
    job = clonos.Job("job", on_bad_record=how)
    rows = job.source(clonos.sources.from_batches([], schema=schema), name="in")
    rows.map(lambda row: row.n, "n long", name="op").sink(clonos.sinks.collect(), name="out")
    if how == "keep":
        job.bad_records.sink(clonos.sinks.collect(), name="bad")
    compiled = job.compile()
    (source,) = [task for task in compiled.plan.tasks if task.is_source]
    assert source.leaves_out
    assert all(task.leaves_out == (how == "drop" or task is source) for task in compiled.plan.tasks)
    program = next(code for code in compiled.codes if code.task == source).program()
    left_out, none = (seal(pa.record_batch([pa.array(n, pa.int64())], ["n"])) for n in ([7], []))
    for rest in (none, seal(pa.record_batch([pa.array([8, 9])], ["n"]))):
        step = StepOutput(1, 1000, left_out=(left_out,))
        program.on_source(step, rest)
        made = [row for batch in step.batches.values() for row in batch.payload.to_pylist()]
        bad = [row for row in made if "error" in row]
        assert [row["n"] for row in made if "n" in row] == rest.payload.column("n").to_pylist()
        if how == "keep":
            (kept,) = bad
            assert (kept["operator"], kept["record"]) == ("in", '{"n": 7}')
            assert kept["error"] == "PoisonRecord: it kills the process that handles it"
    assert program.statistics == {"in: bad_records": 2}


def test_timers_and_replies_are_known_by_their_key():
    class Late(clonos.Process):
        def on_row(self, row, ctx):
            ctx.timers.processing_time(ctx.clock.now_ms() + 1)

        def on_timer(self, key, due, ctx):
            raise ValueError("too late")

    job = keeping(lambda s: s.key_by("n").process(Late(), "n long", name="op"), [(7,)], "n long")
    _, (bad,) = both(job)
    assert bad["record"].startswith("timer of key 7 at ")


def test_no_address_and_no_folder_gets_into_them():
    def fail(row):
        raise ValueError(f"{Odd()} of {row.n}")

    job = keeping(lambda s: s.map(fail, "n long"), [(1,)], "n long")
    _, (bad,) = both(job)
    assert " at 0x..." in bad["error"]
    assert bad["error"].endswith("of 1")
    assert "/" not in bad["raised_at"]
    assert as_text((Odd(), {Odd()})).count("0x...") == 2
    assert "0x..." in as_text({Odd(): 1})


def test_an_object_that_cannot_be_shown():
    class Shy:
        def __repr__(self):
            raise RuntimeError("no")

    assert json.loads(as_text([Shy()])) == ["<a Shy that cannot be shown>"]
    endless: list[object] = []
    endless.append(endless)
    assert "..." in as_text(endless)


@pytest.mark.parametrize("seed", range(5))
def test_they_are_the_same_when_tasks_are_restored(seed):
    def build(stream):
        shuffled = stream.map(lambda r: 100 // (r.n % 7), "n long").key_by("n")
        window = shuffled.with_column("n", lambda n: n // (n % 5), "n").key_by("n")
        return window.window(clonos.tumbling("1 second")).agg(rows=clonos.count())

    rows = [(n,) for n in range(200)]
    plain = both(keeping(build, rows, "n long", parallelism=2), seed=seed, batch_rows=7)[1]
    restored = both(
        keeping(build, rows, "n long", parallelism=2), seed=seed, batch_rows=7, restore=0.3
    )[1]

    def told(rows):
        return sorted((r["operator"], r["record"], r["error"]) for r in rows)

    assert told(plain) == told(restored)
    assert len(plain) > len(rows) // 7


def test_they_are_a_stream_like_any_other():
    job = clonos.Job("job", on_bad_record="keep", parallelism=2)
    rows = [[(n % 3,) for n in range(9)], [(0,)]]
    source = job.source(clonos.sources.from_batches(rows, schema="n long"), name="in")
    source.map(lambda row: 1 // row.n, "n long").sink(clonos.sinks.collect(), name="out")
    counts = job.bad_records.key_by("operator").window(clonos.tumbling("1 second"))
    counts.agg(n=clonos.count()).sink(clonos.sinks.collect(), name="counts")
    made = InMemoryRun(job.compile()).run()["counts"]
    assert sum(made.column("n").to_pylist()) == 4
    assert set(made.column("operator").to_pylist()) == {"map"}


def test_what_fails_behind_them_fails_the_job():
    job = clonos.Job("job", on_bad_record="keep")
    source = job.source(clonos.sources.from_batches([[(0,)]], schema="n long"))
    source.map(lambda row: 1 // row.n, "n long").sink(clonos.sinks.collect())
    job.bad_records.map(lambda row: 1 // 0, "n long", name="second").sink(clonos.sinks.collect())
    with pytest.raises(OperatorError, match=r"second\[0\]"):
        InMemoryRun(job.compile()).run()


def test_columns_that_nobody_reads_are_read_for_them(tmp_path):
    pa.parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"n": [0, 1], "text": ["a", "b"]})
    pa.parquet.write_table(table, tmp_path / "rows.parquet")
    job = clonos.Job("job", on_bad_record="keep")
    source = job.source(clonos.sources.files(str(tmp_path), "parquet"), name="in")
    halves = source.with_column("half long", lambda n: 1 // n, "n").select("half")
    halves.sink(clonos.sinks.collect(), name="out")
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    (bad,) = InMemoryRun(job.compile()).run()["bad"].to_pylist()
    assert json.loads(bad["record"]) == {"n": 0, "text": "a"}


def test_they_need_a_sink_and_a_job_that_keeps_them():
    job = clonos.Job("job", on_bad_record="keep")
    source = job.source(clonos.sources.from_batches([[(0,)]], schema="n long"))
    source.sink(clonos.sinks.collect())
    with pytest.raises(BadGraph, match=r"no sink takes them.*job\.bad_records\.sink"):
        job.compile()
    assert job.bad_records is job.bad_records
    with pytest.raises(BadGraph, match=r"not kept.*on_bad_record=\"keep\""):
        _ = clonos.Job("other").bad_records


def test_sinks_are_apart_from_what_fails_and_get_no_bad_records():
    job = keeping(lambda s: s.map(lambda r: r.n, "n long", name="op"), [(1,)], "n long")
    compiled = job.compile()
    names = [[name for name, _ in code.operators] for code in compiled.codes]
    assert names == [["in", "op"], ["out"], ["bad_records", "bad"]]
    assert [code.on_bad_record for code in compiled.codes] == ["keep", "fail", "fail"]
    first = compiled.plan.tasks[0]
    receivers = [compiled.plan.channels[c].receiver for c in first.outputs]
    assert receivers[:2] == [1, 2]


def test_what_python_or_json_has_not_is_shown_as_text():
    job = clonos.Job("job", on_bad_record="keep")
    odd = pa.RecordBatch.from_pydict(
        {
            "n": [0],
            "far": pa.array([2**62], pa.timestamp("us", "UTC")),
            "x": pa.array([float("nan")]),
            "raw": pa.array([b"\xff"]),
        }
    )
    rows = job.source(clonos.sources.from_batches([odd]), name="in")
    rows.with_column("n", lambda n: 1 // n, "n").sink(clonos.sinks.collect(), name="out")
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    (bad,) = InMemoryRun(job.compile()).run()["bad"].to_pylist()
    record = json.loads(bad["record"], parse_constant=pytest.fail)
    assert (record["n"], record["x"], record["raw"]) == (0, "nan", "ff")
    assert record["far"]


@pytest.mark.parametrize("how", ["drop", "keep"])
def test_a_value_in_another_column_ends_no_job(how):
    job = clonos.Job("job", on_bad_record=how)
    odd = pa.RecordBatch.from_pydict(
        {"n": [0, 1], "far": pa.array([2**62] * 2, pa.timestamp("us", "UTC"))}
    )
    rows = job.source(clonos.sources.from_batches([odd]), name="in")
    rows.with_column("n", lambda n: 1 // n, "n").sink(clonos.sinks.collect(), name="out")
    if how == "keep":
        job.bad_records.sink(clonos.sinks.collect(), name="bad")
    assert InMemoryRun(job.compile()).run()["out"].num_rows == 1


def test_a_message_that_is_no_text():
    def fail(row):
        raise ValueError("half of a pair: \ud800")

    _, (bad,) = both(keeping(lambda s: s.map(fail, "n long"), [(1,)], "n long"))
    assert bad["error"] == "ValueError: half of a pair: \\ud800"


def test_somebody_has_to_make_them():
    job = clonos.Job("job", on_bad_record="keep")
    rows = job.source(clonos.sources.from_batches([[(0,)]], schema="n long"))
    rows.map(lambda row: 1 // row.n, "n long", name="half")  # leads to no sink
    job.bad_records.sink(clonos.sinks.collect())
    with pytest.raises(BadGraph, match="only bad records lead to a sink"):
        job.compile()
