"""Sources read only what somebody looks at."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import clonos
from clonos.testing.in_memory import InMemoryRun
from clonos_bench.gates import gated
from clonos_bench.nexmark import events
from clonos_bench.nexmark.generator import KINDS, Generator

SCHEMA = "a long, b string, c long, at timestamp, d double"
ROWS = [(i % 3, f"b{i}", 10 * i, 1_000_000 * i, i / 7) for i in range(50)]


@pytest.fixture
def source(tmp_path):
    columns = list(zip(*ROWS, strict=True))
    schema = pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.string()),
            ("c", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("d", pa.float64()),
        ]
    )
    arrays = [pa.array(values, f.type) for values, f in zip(columns, schema, strict=True)]
    pq.write_table(pa.table(arrays, schema=schema), tmp_path / "rows.parquet")
    return clonos.sources.files(str(tmp_path), "parquet", SCHEMA)


def columns_read(job):
    """Of each source, what its reader makes; it has to be what the tasks behind it expect."""
    codes = [code for code in job.compile().codes if code.source is not None]
    for code in codes:
        assert code.source.reader(0, 1).schema == code.source.schema
    return [code.source.schema.names for code in codes]


def sink(stream):
    stream.sink(clonos.sinks.collect())


def one_job(source, *ends):
    job = clonos.Job(parallelism=1)
    rows = job.source(source)
    for end in ends:
        sink(end(rows))
    return job


def watermarked(rows):
    return rows.with_watermark("at", "0 ms")


def counted(rows):
    return watermarked(rows).key_by("a").window(clonos.tumbling("10 s", on="at"))


@pytest.mark.parametrize(
    ("end", "read"),
    [
        (lambda rows: rows, "a b c at d"),
        (lambda rows: rows.select("c", "a").withColumnRenamed("a", "x"), "a c"),
        (lambda rows: rows.toDF("b", "a", "c", "at", "d").select("b"), "a"),
        (lambda rows: rows.drop("b", "d").key_by("c").select("a"), "a c"),
        (lambda rows: watermarked(rows).select("c"), "c at"),
        (watermarked, "a b c at d"),
        (lambda rows: rows.map(lambda row: (row.a,), "a long"), "a b c at d"),
        (lambda rows: rows.filter(lambda row: row.a).select("a"), "a b c at d"),
        (lambda rows: rows.key_by("b").select("a"), "a b"),
        (lambda rows: counted(rows).agg(n=clonos.count()), "a at"),
        (lambda rows: counted(rows).agg(n=clonos.count(), pre_aggregate=False), "a at"),
        (lambda rows: counted(rows).agg(n=clonos.max("c"), m=clonos.sum("d")), "a c at d"),
        (lambda rows: counted(rows).top(1, "c"), "a b c at d"),
        (lambda rows: rows.window(clonos.tumbling("10 s")).agg(n=clonos.count()), "a"),
    ],
)
def test_only_what_is_looked_at_is_read(source, end, read):
    assert columns_read(one_job(source, end)) == [read.split()]


def test_everybody_who_reads_a_stream_counts(source):
    job = one_job(source, lambda rows: rows.select("c"), lambda rows: rows.select("b", "c"))
    assert columns_read(job) == [["b", "c"]]
    job = one_job(source, lambda rows: rows.select("c"), lambda rows: rows)
    assert columns_read(job) == [["a", "b", "c", "at", "d"]]


def test_what_leads_to_no_sink_counts_for_nothing(source):
    job = clonos.Job(parallelism=1)
    rows = job.source(source)
    rows.map(lambda row: row, SCHEMA)
    sink(rows.select("d"))
    assert columns_read(job) == [["d"]]


def test_sources_that_make_rows_as_a_whole_are_left_alone():
    rows = clonos.sources.from_batches([[(1, 2)]], "a long, b long")
    assert columns_read(one_job(rows, lambda rows: rows.select("b"))) == [["a", "b"]]


def test_channels_carry_what_is_read(source):
    job = clonos.Job(parallelism=1)
    times = watermarked(job.source(source))
    sink(times.select("c", name="left", parallelism=2))
    compiled = job.compile()
    assert compiled.codes[1].operators[0][0] == "left"
    (channel,) = compiled.plan.tasks[1].inputs
    assert compiled.schemas[channel].names == ["c", "at"]


def test_results_are_right(source):
    def sums(rows):
        return counted(rows).agg(total=clonos.sum("c"))

    (found,) = InMemoryRun(one_job(source, sums).compile(), restore=0.2).run().values()
    expected: dict[tuple[int, int], int] = {}
    for i, (a, _, c, *_) in enumerate(ROWS):
        expected[a, i // 10] = expected.get((a, i // 10), 0) + c
    starts = found.column("window_start").cast(pa.int64()).to_pylist()
    windows = [start // 10_000_000 for start in starts]
    keys = zip(found.column("a").to_pylist(), windows, strict=True)
    assert dict(zip(keys, found.column("total").to_pylist(), strict=True)) == expected


def test_a_gate_stays_before_a_narrowed_source(source, tmp_path):
    job = one_job(gated(source, tmp_path / "gate"), lambda rows: rows.select("c"))
    assert columns_read(job) == [["c"]]
    reader = job.compile().codes[0].source.reader(0, 1)
    reader.open(0)
    assert reader.read(10, 0.0) is None
    (tmp_path / "gate").touch()
    assert reader.read(100, 0.0).column("c").to_pylist() == [10 * i for i in range(50)]


@pytest.mark.parametrize("kind", ["person", "auction", "bid"])
def test_each_column_of_an_event_can_be_made_alone(kind):
    generator = Generator(2_000)
    ranges = [(0, 7), (12, 5)]
    whole = generator.batch_of(kind, ranges)
    assert whole.schema == KINDS[kind]
    for name in whole.schema.names:
        assert generator.batch_of(kind, ranges, [name]) == whole.select([name])
    assert generator.batch_of(kind, ranges, whole.schema.names[1:3]) == whole.select([1, 2])


def test_a_source_of_events_is_narrowed():
    job = one_job(events("bid", 500), lambda rows: rows.select("price"))
    assert columns_read(job) == [["price"]]
    job = one_job(events("event", 500), lambda rows: rows.select("kind"))
    assert columns_read(job) == [["kind", "person", "auction", "bid"]]
