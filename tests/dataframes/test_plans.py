"""Plans: what becomes of each operation, what is refused, and how plans are run."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import clonos
from clonos.cluster.directory import JobDirectory
from clonos.dataframes import explained
from clonos.dataframes.functions import Step, apply
from clonos.dataframes.stateless import plan_of
from clonos.errors import (
    BadGraph,
    BadSchema,
    DefinitionError,
    NotInSpark,
    OperatorError,
    OtherExecution,
    OtherJob,
    SinkFailed,
    Unbounded,
    WrongType,
)
from clonos.operators import operations as op
from clonos.operators.make import make_operator
from clonos.sinks.data_source import end
from clonos.sinks.file_buffer import BufferFiles
from clonos.sources.lines import ParseLines
from clonos.sources.messages import ParseFields, ParseMessages
from clonos.sources.offered import ParseOffered
from clonos.testing import InMemoryRun

SCHEMA = "k string, n long, f double, t timestamp, u timestamp"
START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
OF_SOURCES_AND_SINKS = {
    op.PassVersions,
    ParseLines,
    ParseMessages,
    ParseFields,
    ParseOffered,
    BufferFiles,
}
"""What sources and sinks do to rows is not translated: they are, as a whole."""


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


ROWS = [("ab"[i % 2], i, i / 2, at(i), at(i + 5)) for i in range(8)]


def test_both_executions_know_every_operation():
    known = set(op.Operation.__subclasses__()) | {op.Widen}
    assert known > OF_SOURCES_AND_SINKS
    assert known <= set(make_operator.registry)
    assert known - OF_SOURCES_AND_SINKS - {op.Widen} <= set(plan_of.registry)
    assert plan_of.dispatch(op.Widen) is plan_of.registry[op.PassOn]  # Spark's union does the rest
    assert plan_of.registry[op.Last] is plan_of.registry[op.InOrder]  # both are refused
    translated = {kind for kind in known if plan_of.registry.get(kind) not in (None, REFUSING)}
    assert translated - {op.EarlyPart, op.LatePart} == set(explained.PLANS) - {op.Widen}


REFUSING = plan_of.registry[op.Last]


def test_a_function_behind_which_a_watermark_is_declared_makes_no_later_times():
    def later(row):
        return {"n": row.n, "t": row.t + dt.timedelta(seconds=row.n)}

    schema = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    step = Step("later", op.Map(later, schema), schema, "t")
    earlier = pa.record_batch([[0, -1], [at(0), at(1)]], schema=schema)
    (made,) = apply((step,), iter([earlier]), 0)
    assert made.column("t").to_pylist() == [at(0), at(0)]
    with pytest.raises(OperatorError, match="later than those it was given"):
        list(apply((step,), iter([pa.record_batch([[1], [at(0)]], schema=schema)]), 0))


def test_plans_use_only_what_pyspark_makes_public():
    folder = Path(explained.__file__).parent
    private = re.compile(r"\b(_jdf|_jvm|_sc|sparkContext|rdd)\b")
    assert not [path.name for path in folder.glob("*.py") if private.search(path.read_text())]


def test_an_execution_that_there_is_not():
    stream = clonos.Job().source(clonos.sources.from_batches([], SCHEMA))
    with pytest.raises(WrongType, match="'tasks' or 'spark'"):
        stream.to_dataframe(execution="sparks")  # type: ignore[arg-type]


REFUSED: Any = {
    "processing time": (
        lambda s: s.key_by("k").window(clonos.tumbling("1 s")).agg(n=clonos.count()),
        "processing time",
    ),
    "in_order": (lambda s: s.key_by("k").in_order("t"), "order within a key"),
    "last": (lambda s: s.key_by("k").last(2, m=clonos.avg("n")), "order within a key"),
    "broadcast": (lambda s: s.broadcast().map(lambda row: row, SCHEMA), "as there are tasks"),
    "within": (lambda s: s.key_by("k").deduplicate("1 s", on="t"), "is forgotten"),
    "refresh": (
        lambda s: s.look_up(lambda: pa.table({"k": ["a"]}), "k", refresh="1 s"),
        "again while the job runs",
    ),
    "map": (
        lambda s: s.map(lambda row: (row.t, {1: 2}), "t timestamp, m map<int, int>")
        .window(clonos.tumbling("1 s", on="t")).top(1, "t"),
        "is a map",
    ),
}  # fmt: skip


@pytest.mark.spark
class TestWithSpark:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def session(cls, request) -> Any:
        session = request.getfixturevalue("shared_spark")
        session.conf.set("spark.sql.shuffle.partitions", "1")
        return session

    @pytest.fixture
    def spark(self, session):
        return session

    def stream(self, rows: Any = ROWS, **options: Any) -> Any:
        source = clonos.sources.from_batches([rows] if rows else [], SCHEMA)
        stream = clonos.Job(**options).source(source, name="in")
        return stream.with_watermark("t", "1 minute")

    def streaming(self, spark: Any, folder: Path, rows: Any = ROWS, **options: Any) -> Any:
        given = clonos.sources.from_batches([rows], SCHEMA).reader(0, 1)
        given.open(0)
        table = pa.Table.from_batches([given.read(1000, 0.0)])
        folder.mkdir(exist_ok=True)
        pq.write_table(table, folder / "rows.parquet")
        schema = spark.read.parquet(str(folder)).schema
        frame = spark.readStream.schema(schema).parquet(str(folder))
        stream = clonos.Job(**options).source(frame, name="in")
        return stream.with_watermark("t", "1 minute")

    @pytest.mark.parametrize("kind", REFUSED)
    def test_what_has_no_equal_plan_is_refused_by_name(self, spark, kind):
        build, told = REFUSED[kind]
        with pytest.raises(NotInSpark, match=told) as caught:
            build(self.stream()).to_dataframe(spark, execution="spark")
        assert caught.value.where
        assert 'execution="tasks"' in caught.value.remedy

    def test_sources_and_options_without_a_plan(self, spark):
        rate = clonos.Job().source(clonos.sources.rate(5))
        with pytest.raises(NotInSpark, match="cannot read a rate source"):
            rate.to_dataframe(spark, execution="spark")
        with pytest.raises(NotInSpark, match="on_bad_record"):
            self.stream(on_bad_record="drop").to_dataframe(spark, execution="spark")

    def test_what_is_refused_in_a_stream_only(self, spark, tmp_path):
        build: Any = {
            "watermark is on 't'": lambda s: s.window(clonos.tumbling("1 s", on="u")).agg(
                n=clonos.count()
            ),
            "was left out": lambda s: (
                s.withColumn("t", F.col("u"))
                .window(clonos.tumbling("1 s", on="t"))
                .agg(n=clonos.count())
            ),
            "cannot tell in a stream": lambda s: s.window(clonos.between("t", "u")).agg(
                n=clonos.count()
            ),
            "order of arrival": lambda s: s.key_by("k").deduplicate(),
            "bounds of the windows were": lambda s: (
                s.window(clonos.tumbling("1 s", on="t"))
                .agg(n=clonos.count())
                .withColumn("window_start", F.col("window_start") - F.expr("interval 1 second"))
                .window(clonos.between("window_start", "window_end"))
                .top(1, "n", ties=True)
            ),
            "was left out or computed anew": lambda s: (
                s.union(s)
                .withColumn("t", F.col("u"))
                .window(clonos.tumbling("1 s", on="t"))
                .agg(n=clonos.count())
            ),
            "bounds of other windows": lambda s: (
                s.withColumn("window_start", F.col("u"))
                .withColumn("window_end", F.col("u"))
                .window(clonos.tumbling("1 s", on="t"))
                .top(1, "n", ties=True)
                .window(clonos.between("window_start", "window_end"))
                .top(1, "n", ties=True)
            ),
        }
        for number, (told, made) in enumerate(build.items()):
            stream = self.streaming(spark, tmp_path / str(number))
            made(self.stream([])).to_dataframe(spark, execution="spark")  # as a batch it has one
            with pytest.raises(NotInSpark, match=told):
                made(stream).to_dataframe(spark, execution="spark")

    def test_a_mix_of_sources_is_refused(self, spark, tmp_path):
        stream = self.streaming(spark, tmp_path / "in")
        still = stream._job.source(clonos.sources.from_batches([], SCHEMA), name="still")
        with pytest.raises(NotInSpark, match="'in' streams, and 'still' does not"):
            stream.union(still).to_dataframe(spark, execution="spark")

    def test_an_expression_means_what_it_meant_when_it_was_written(self, spark):
        stream = self.stream().where("n / 2 > 1")
        spark.conf.set("spark.sql.ansi.enabled", "false")
        try:
            with pytest.raises(NotInSpark, match="ansi=True"):
                stream.to_dataframe(spark, execution="spark")
        finally:
            spark.conf.set("spark.sql.ansi.enabled", "true")
        assert stream.to_dataframe(spark, execution="spark").count() == 5

    def test_rows_that_rank_the_same_are_not_chosen_by_chance(self, spark):
        window = self.stream([("a", 1, 0.0, at(0), at(1)), ("a", 1, 1.0, at(0), at(1))]).window(
            clonos.tumbling("1 minute", on="t")
        )
        assert window.top(1, "n", ties=True).to_dataframe(spark, execution="spark").count() == 2
        with pytest.raises(PySparkException, match="order of arrival"):
            window.top(1, "n").to_dataframe(spark, execution="spark").collect()
        twice = self.stream([("a", 1, 0.0, at(0), at(1))] * 3).window(
            clonos.tumbling("1 minute", on="t")
        )
        assert twice.top(2, "n").to_dataframe(spark, execution="spark").count() == 2
        same = ("b", 1, 0.0, at(0), at(1))
        among_equals = self.stream([same, same, ("a", *same[1:])]).window(
            clonos.tumbling("1 minute", on="t")
        )
        with pytest.raises(PySparkException, match="order of arrival"):
            among_equals.top(2, "n").to_dataframe(spark, execution="spark").collect()

    @contextmanager
    def set(self, spark: Any, name: str, value: str) -> Iterator[None]:
        was = spark.conf.get(name)
        spark.conf.set(name, value)
        try:
            yield
        finally:
            spark.conf.set(name, was)

    def test_sums_that_would_overflow_in_silence_are_refused(self, spark):
        window = self.stream([("a", 2**62, 0.5, at(0), at(1))] * 2).window(
            clonos.tumbling("1 minute", on="t")
        )
        with self.set(spark, "spark.sql.ansi.enabled", "false"):
            with pytest.raises(NotInSpark, match=r"sum\(n\): without ANSI"):
                window.agg(s=clonos.sum("n")).to_dataframe(spark, execution="spark")
            floats = window.agg(s=clonos.sum("f"), n=clonos.count("n"), m=clonos.max("n"))
            (row,) = floats.to_dataframe(spark, execution="spark").collect()
            assert (row.s, row.n, row.m) == (1.0, 2, 2**62)

    def test_an_instant_is_one_whatever_the_session_calls_a_timestamp(self, spark):
        twice = [dt.datetime(2024, 11, 3, hour, 30, tzinfo=dt.timezone.utc) for hour in (5, 6)]
        stream = self.stream([("a", 1, 0.0, time, time) for time in twice])
        renamed = stream.withColumnsRenamed({name: f"{name}2" for name in "knftu"})
        joined = stream.key_by("k").join(renamed.key_by("k2"), keep="1 second", on=("t", "t2"))
        with (
            self.set(spark, "spark.sql.session.timeZone", "America/New_York"),
            self.set(spark, "spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ):  # there both read 1:30
            assert joined.to_dataframe(spark, execution="spark").count() == 2

    def test_rows_come_with_the_types_of_tasks(self, spark):
        found: list[pa.RecordBatch] = []
        stream = self.stream()
        stream.sink(clonos.sinks.callback(found.append))
        stream.sink(clonos.sinks.collect(), name="kept")
        with self.set(spark, "spark.sql.execution.arrow.useLargeVarTypes", "true"):
            result = stream._job.run(spark, execution="spark")
        assert found[0].schema == result.table("kept").schema == stream.schema

    def test_names_that_sql_would_read_otherwise(self, spark):
        source = clonos.sources.from_batches(
            [[("x", 1, at(0))]], "`a.b` string, `c``d` long, t timestamp"
        )
        stream = clonos.Job().source(source).with_watermark("t", "1 minute").key_by("a.b")
        frame = stream.window(clonos.tumbling("1 s", on="t")).top(1, "c`d")
        (row,) = frame.to_dataframe(spark, execution="spark").collect()
        assert (row["a.b"], row["c`d"]) == ("x", 1)
        source = clonos.sources.from_batches([[(1, 2)]], "n long, N long")
        both = clonos.Job().source(source).select("N")
        with pytest.raises(NotInSpark, match="'n' and 'N' are the same"):
            both.to_dataframe(spark, execution="spark")
        with self.set(spark, "spark.sql.caseSensitive", "true"):
            assert both.to_dataframe(spark, execution="spark").collect() == [(2,)]

    def test_what_a_dataframe_has_beside_its_rows_is_refused(self, spark):
        words = spark.createDataFrame([("a",), ("A",)], "k string")
        with pytest.raises(BadSchema, match="'k' has a collation"):
            clonos.Job().source(words.selectExpr("array(k collate UTF8_LCASE) as k"))
        rate = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
        with pytest.raises(NotInSpark, match="a watermark on 'timestamp'"):
            clonos.Job().source(rate).to_dataframe(spark, execution="spark")

    def test_the_slowest_of_several_watermarks_counts(self, spark, tmp_path):
        stream = self.streaming(spark, tmp_path / "in")
        both = stream.union(stream).window(clonos.tumbling("1 s", on="t")).agg(n=clonos.count())
        policy = "spark.sql.streaming.multipleWatermarkPolicy"
        with self.set(spark, policy, "max"), pytest.raises(NotInSpark, match="would be lost"):
            both.to_dataframe(spark, execution="spark")

    def test_a_query_that_fails_stops_the_others(self, spark, tmp_path):
        def fails(batch: pa.RecordBatch) -> None:
            raise ValueError(batch.num_rows)

        stream = self.streaming(spark, tmp_path / "in")
        stream.sink(clonos.sinks.callback(fails), name="fails")
        stream.sink(clonos.sinks.callback(lambda batch: None), name="goes on")
        running = stream._job.start(spark, execution="spark")
        until = time.monotonic() + 60
        while running.is_running:  # nobody waits for the job
            assert time.monotonic() < until
            time.sleep(0.1)
        with pytest.raises(StreamingQueryException, match="ValueError"):
            running.wait(0)

    def test_a_query_without_a_place_for_its_checkpoint(self, spark, tmp_path):
        stream = self.streaming(spark, tmp_path / "in")
        stream.sink(clonos.sinks.table(str(tmp_path / "out")), name="out")
        with pytest.raises(DefinitionError, match=r"^out: .*checkpoint_dir="):
            stream._job.start(spark, execution="spark")

    def test_a_format_that_spark_has_not(self, spark, tmp_path):
        stream = self.streaming(spark, tmp_path / "in")
        stream.sink(clonos.sinks.spark("lake", str(tmp_path / "out")), name="out")
        with pytest.raises(SinkFailed, match=r"^out: .*DATA_SOURCE_NOT_FOUND.*jars"):
            stream._job.start(spark, execution="spark")
        batch = self.stream([])
        batch.sink(clonos.sinks.spark("lake", str(tmp_path / "out")), name="out")
        with pytest.raises(SinkFailed, match=r"^out: .*DATA_SOURCE_NOT_FOUND.*jars"):
            batch._job.run(spark, execution="spark")

    def test_a_query_is_stopped_in_the_middle_of_a_micro_batch(self, spark, tmp_path):
        begun = tmp_path / "begun"

        def hold(row: Any) -> Any:
            begun.touch()
            while begun.exists():
                time.sleep(0.05)
            return row

        stream = self.streaming(spark, tmp_path / "in").map(hold, SCHEMA)
        stream.sink(clonos.sinks.callback(lambda batch: None), name="out")
        running = stream._job.start(spark, execution="spark")
        while not begun.exists():
            assert running.is_running
        try:
            running.stop()
        finally:
            begun.unlink()
        running.wait(0)
        assert running.status["out"]["message"] == "Stopped"

    def test_duplicates_that_differ_are_not_chosen_by_chance(self, spark):
        same = [("a", 1, 0.0, at(0), at(1))]
        keyed = self.stream(same * 2).key_by("k").deduplicate()
        assert keyed.to_dataframe(spark, execution="spark").count() == 1
        keyed = self.stream([*same, ("a", 2, 0.0, at(0), at(1))]).key_by("k").deduplicate()
        with pytest.raises(PySparkException, match="rows of one key differ"):
            keyed.to_dataframe(spark, execution="spark").collect()

    def test_a_failing_function_says_which_row(self, spark):
        stream = self.stream().map(lambda row: (1 // row.n,), "n long", name="inverse")
        with pytest.raises(PySparkException, match=re.escape("inverse[")) as caught:
            stream.to_dataframe(spark, execution="spark").collect()
        assert "ZeroDivisionError" in str(caught.value)
        assert "n=0" in str(caught.value)

    def test_times_before_1970_fail_a_stream(self, spark, tmp_path):
        rows = [("a", 1, 0.0, dt.datetime(1969, 12, 31, tzinfo=dt.timezone.utc), at(0))]
        stream = self.streaming(spark, tmp_path / "in", rows)
        counts = stream.window(clonos.tumbling("1 s", on="t")).agg(n=clonos.count())
        counts.sink(clonos.sinks.callback(lambda batch: None))
        running = counts._job.start(spark, execution="spark", available_now=True)
        with pytest.raises(StreamingQueryException, match="before 1970"):
            running.wait(60)

    @pytest.mark.parametrize("kind", ["json", "csv", "text", "parquet"])
    def test_files_are_read_as_tasks_read_them(self, spark, tmp_path, kind):
        made = {
            "json": '{"n": 1, "s": "a"}\n\n{"s": "\\u00e4", "m": 2}\n',
            "csv": 'n,s\n1,a\n,"ä"\n\n',
            "text": "one\r\ntwo\n\nthree",
        }
        for number in range(3):
            path = tmp_path / f"{number}.{kind}"
            if kind == "parquet":
                pq.write_table(pa.table({"n": [number], "s": ["a"]}), path)
            else:
                path.write_text(made[kind], "utf-8")
        schema = "value string" if kind == "text" else "n long, s string"
        job = clonos.Job(parallelism=2)
        stream = job.source(clonos.sources.files(str(tmp_path), kind, schema))
        stream.sink(clonos.sinks.collect(), name="out")
        plan = stream.to_dataframe(spark, execution="spark").toArrow()
        tasks = InMemoryRun(job.compile()).run()["out"]
        assert rows_of(plan) == rows_of(tasks) != Counter()

    def test_a_job_runs_as_plans_into_sinks(self, spark, tmp_path, capsys):
        stream = self.stream()
        counts = stream.key_by("k").window(clonos.tumbling("4 s", on="t")).agg(n=clonos.count())
        batches: list[pa.RecordBatch] = []
        frames: list[Any] = []
        counts.sink(clonos.sinks.collect(), name="kept")
        counts.sink(clonos.sinks.callback(batches.append))
        counts.sink(clonos.sinks.spark_write(lambda df: frames.append(df.count())))
        counts.sink(clonos.sinks.parquet(str(tmp_path / "out")))
        counts.select("k").sink(clonos.sinks.console())
        result = counts._job.run(spark, execution="spark")
        tasks = InMemoryRun(counts._job.compile()).run()["kept"]
        assert rows_of(result.table("kept")) == rows_of(tasks)
        assert rows_of(pa.Table.from_batches(batches)) == rows_of(tasks)
        assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(tasks)
        assert (frames, result.dataframe("kept").count()) == ([4], 4)
        assert capsys.readouterr().out.count("{'k': 'a'}") == 2
        with pytest.raises(DefinitionError, match="several sinks"):
            result.table()

    def test_tables_and_what_spark_writes_have_plans(self, spark, tmp_path):
        table, files = str(tmp_path / "table"), str(tmp_path / "files")
        folder = str(tmp_path / "checkpoint")
        stream = self.streaming(spark, tmp_path / "in", ROWS, checkpoint_dir=folder)
        some = stream.select("k", "n")
        some.sink(clonos.sinks.table(table))
        windows = stream.window(clonos.tumbling("4 s", on="t"))
        windows.agg(n=clonos.count()).sink(clonos.sinks.table(f"{table}3"))  # n is never null
        some.sink(clonos.sinks.spark("parquet", files, partition_by="k"))
        some._job.start(spark, execution="spark", available_now=True).wait(100)
        assert clonos.sources.table(f"{table}3").rows_schema.names[-1] == "n"
        again = clonos.Job("again").source(clonos.sources.table(table))
        again.sink(clonos.sinks.collect())
        with pytest.raises(Unbounded):
            again._job.run(spark, execution="spark")
        end(table)
        ended = clonos.Job("ended").source(clonos.sources.table(table))
        ended.sink(clonos.sinks.collect(), name="kept")
        ended.sink(clonos.sinks.spark("parquet", f"{files}2"))
        kept = ended._job.run(spark, execution="spark").table("kept")
        expected = sorted((k, n) for k, n, *_ in ROWS)
        assert sorted((row["k"], row["n"]) for row in kept.to_pylist()) == expected
        for path in (files, f"{files}2"):
            assert sorted((r["k"], r["n"]) for r in spark.read.parquet(path).collect()) == expected
        now = clonos.Job("now").source(clonos.sources.table(table, available_now=True))
        now.sink(clonos.sinks.collect())
        with pytest.raises(NotInSpark, match="when the job was defined"):
            now._job.run(spark, execution="spark")

    def test_nothing_is_written_if_a_sink_is_refused(self, spark, tmp_path):
        stream = self.stream()
        stream.sink(clonos.sinks.parquet(str(tmp_path / "out")))
        stream.sink(clonos.sinks.table(str(tmp_path / "table")))
        with pytest.raises(NotInSpark, match="table sink"):
            stream._job.run(spark, execution="spark")
        assert not list(tmp_path.iterdir())
        with pytest.raises(BadGraph, match="no sink"):
            self.stream()._job.run(spark, execution="spark")

    def test_a_job_runs_as_streaming_queries(self, spark, tmp_path):
        rows = [*ROWS, ("far", 0, 0.0, at(1e6), at(1e6))]
        folder = str(tmp_path / "checkpoint")
        found: list[pa.RecordBatch] = []
        stream = self.streaming(spark, tmp_path / "in", rows, checkpoint_dir=folder)
        some = stream.filter(lambda row: row.n != 3)
        counts = some.key_by("k").window(clonos.session("3 s", on="t")).agg(s=clonos.sum("n"))
        counts.sink(clonos.sinks.callback(found.append), name="sums")
        with pytest.raises(Unbounded):
            counts._job.run(spark, execution="spark")
        running = counts._job.start(spark, execution="spark", available_now=True)
        running.wait(100)
        assert not running.is_running
        assert list(running.last_progress) == list(running.status) == ["sums"]
        sums = {(row["k"], row["s"]) for batch in found for row in batch.to_pylist()}
        assert sums == {("a", 0 + 2 + 4 + 6), ("b", 1), ("b", 5 + 7)}
        found.clear()
        again = counts._job.start(spark, execution="spark", available_now=True)
        again.wait(100)
        assert not found
        longer = self.streaming(spark, tmp_path / "in", rows, checkpoint_dir=folder)
        longer = longer.filter(lambda row: row.n != 4).key_by("k")
        longer = longer.window(clonos.session("4 s", on="t")).agg(s=clonos.sum("n"))
        longer.sink(clonos.sinks.callback(found.append), name="sums")
        with pytest.raises(OtherJob, match=r"another graph: operators.*3000, is 4000"):
            longer._job.start(spark, execution="spark")
        with pytest.raises(OtherExecution, match="streaming queries"):
            JobDirectory(folder, None, on_one_machine=True).check(self.stream_of_tasks())
        still = self.stream()
        still.sink(clonos.sinks.console())
        with pytest.raises(NotInSpark, match="does not stream"):
            still._job.start(spark, execution="spark")

    def test_queries_do_not_go_on_with_another_input(self, spark, tmp_path):
        def job(folder: Path) -> Any:
            stream = self.streaming(spark, folder, checkpoint_dir=str(tmp_path / "checkpoint"))
            stream.sink(clonos.sinks.callback(lambda batch: None), name="out")
            return stream._job

        first = job(tmp_path / "in")
        for _ in range(2):  # the same input goes on
            first.start(spark, execution="spark", available_now=True).wait(100)
        with pytest.raises(OtherJob, match=r"in\.source.*FileSource.*/in.*FileSource.*/moved"):
            job(tmp_path / "moved").start(spark, execution="spark", available_now=True)

    def test_a_number_that_no_window_reaches(self, spark, tmp_path):
        def top(stream: Any, **options: Any) -> Any:
            window = stream.window(clonos.tumbling("4 s", on="t"))
            return window.top(2**40, "n", **options).to_dataframe(spark, execution="spark")

        whole = Counter(range(8))
        for number, options in enumerate(({}, {"ties": True})):
            assert Counter(row.n for row in top(self.stream(), **options).collect()) == whole
            rows = [*ROWS, ("far", 0, 0.0, at(1e6), at(1e6))]
            streaming = top(self.streaming(spark, tmp_path / f"in{number}", rows), **options)
            writer = streaming.writeStream.format("memory").queryName(f"top{number}")
            assert writer.trigger(availableNow=True).start().awaitTermination(100)
            assert Counter(row.n for row in spark.table(f"top{number}").collect()) == whole

    def stream_of_tasks(self) -> Any:
        stream = self.stream()
        stream.sink(clonos.sinks.collect())
        return stream._job.compile()

    def test_queries_do_not_take_the_checkpoint_of_tasks(self, spark, tmp_path):
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        JobDirectory(str(folder), None, on_one_machine=True).claim(self.stream_of_tasks())
        stream = self.streaming(spark, tmp_path / "in", checkpoint_dir=str(folder))
        stream.sink(clonos.sinks.console())
        with pytest.raises(OtherExecution, match="ran in tasks"):
            stream._job.start(spark, execution="spark")

    def test_explain_says_where_each_operation_runs(self, spark):
        stream = self.stream(parallelism=2)
        counts = stream.map(lambda row: row, SCHEMA, name="same").key_by("k").window(
            clonos.tumbling("4 s", on="t")
        ).agg(n=clonos.count(), name="counts")  # fmt: skip
        last = counts.key_by("k").last(2, m=clonos.avg("n"), name="latest")
        last.sink(clonos.sinks.collect(), name="out")
        lines = {line.split()[0]: line for line in last._job.explain(spark).splitlines()}
        assert lines["in"].endswith("DataFrame")
        assert "cuts of input" in lines["in"]
        assert "mapInArrow" in lines["same"]
        assert "2 in in" in lines["counts_partial"]
        assert lines["counts_partial"].endswith("by Spark itself")
        assert "groupBy" in lines["counts"]
        assert "none: Spark's operators do not keep the order" in lines["latest"]
        assert lines["out"].endswith("none: behind latest")


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
