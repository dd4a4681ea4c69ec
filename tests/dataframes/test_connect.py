"""Plans of jobs on Spark Connect and in a declarative pipeline; the server is another process."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import clonos
from clonos import causal
from clonos.dataframes.rows import spark_schema
from clonos.errors import NotInSpark, SparkSetup
from clonos.testing import InMemoryRun
from tests.oracle.programs import FAR_ROW, SCHEMA, batch_of, batches_of, build, rows_of

pytest.importorskip("grpc_status")
from tests.processes import free_port

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

PROGRAMS = {
    "functions": """
out = source(0).map(lambda row: {**row.asDict(), "x": (row.x or 0) + 1}, SCHEMA)
out = out.flat_map(lambda row: [row] * (row.g or 0), SCHEMA).filter(lambda row: row.x != 3)
out = out.with_column("g", lambda g: g + 1, "g")
""",
    "a window": """
out = source(0).with_watermark("t", "1 hour").key_by("k")
out = out.window(clonos.sliding("10 seconds", "5 seconds", on="t"))
out = out.agg(n=clonos.count(), s=clonos.sum("x"), d=clonos.avg("d"), f=clonos.max("f"))
""",
    "sessions": """
out = source(0).with_watermark("t", "1 hour").key_by("k", "g")
out = out.window(clonos.session("3 seconds", on="t")).agg(n=clonos.count(), f=clonos.min("f"))
""",
    "top": """
out = source(0).with_watermark("t", "1 hour").key_by("k")
out = out.window(clonos.tumbling("10 seconds", on="t")).top(2, "f", "id")
""",
    "look_up": 'out = source(0).look_up(CITIES, {"k": "city"}, how="left")',
    "a join": """
other = source(1).with_watermark("t", "1 hour").withColumnsRenamed(
    {name: f"{name}2" for name in SCHEMA.names})
out = source(0).with_watermark("t", "1 hour").key_by("k").join(
    other.key_by("k2"), keep="2 seconds", on=("t", "t2"), how="left")
""",
}


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server."""
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5",
    }
    words = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    submit = str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit")
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [submit, "--master", "local[2,4]", "--class", service, *words, "spark-internal"],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    yield f"sc://127.0.0.1:{port}"
    server.kill()
    server.wait()


@pytest.fixture(scope="module")
def spark(remote: str) -> Iterator[Any]:
    """A session of Connect; classic ones of this process are as before, behind it."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = SparkSession.builder.remote(remote).create()
        yield session
        session.stop()


def inputs() -> list[list[pa.RecordBatch]]:
    draw = Random("connect")
    return [batches_of(draw, rows_of(draw, nulls_in_time=False, since_ms=1)) for _ in range(2)]


def bag(table: pa.Table) -> Counter[str]:
    return Counter(map(str, zip(*(column.to_pylist() for column in table.columns), strict=True)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_gives_the_rows_of_tasks(spark, name):
    sources = [clonos.sources.from_batches(batches) for batches in inputs()]
    stream = build(PROGRAMS[name], sources)
    plan = stream.to_dataframe(spark, execution="spark")
    assert type(plan).__module__.startswith("pyspark.sql.connect")
    stream.sink(clonos.sinks.collect(), name="out")
    tasks = InMemoryRun(stream._job.compile()).run()["out"]
    assert bag(plan.toArrow()) == bag(tasks) != Counter()
    assert bag(stream._job.run(spark, execution="spark").table()) == bag(tasks)


def streaming(spark: Any, folder: Path, **options: Any) -> Any:
    """Windows of a stream of files, behind a function."""
    for number, batch in enumerate([*inputs()[0], batch_of([FAR_ROW])]):
        (folder / "in").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_batches([batch]), folder / "in" / f"{number}.parquet")
    frame = spark.readStream.schema(spark_schema(SCHEMA)).parquet(str(folder / "in"))
    rows = clonos.Job("connected", **options).source(frame, name="in")
    rows = rows.filter(lambda row: row.g != 2).with_watermark("t", "1 hour").key_by("k")
    return rows.window(clonos.tumbling("10 seconds", on="t")).agg(n=clonos.count())


def expected() -> Counter[str]:
    job = clonos.Job("expected")
    rows = job.source(clonos.sources.from_batches(inputs()[0]))
    rows = rows.filter(lambda row: row.g != 2).with_watermark("t", "1 hour").key_by("k")
    rows = rows.window(clonos.tumbling("10 seconds", on="t")).agg(n=clonos.count())
    rows.sink(clonos.sinks.collect(), name="out")
    return bag(InMemoryRun(job.compile()).run()["out"])


def test_streaming_queries_write_tables_and_files_and_go_on(spark, tmp_path):
    table, files = str(tmp_path / "table"), str(tmp_path / "files")

    def start() -> Any:
        counts = streaming(spark, tmp_path, checkpoint_dir=str(tmp_path / "checkpoint"))
        counts.sink(clonos.sinks.table(table), name="table")
        counts.sink(clonos.sinks.spark("parquet", files), name="files")
        return counts._job.start(spark, execution="spark", available_now=True)

    for _ in range(2):  # the second time there is nothing new
        start().wait(100)
        assert bag(spark.read.format("clonos").load(table).toArrow()) == expected() != Counter()
        assert bag(spark.read.parquet(files).toArrow()) == expected()


def asked(folder: Path, row: Any, ctx: clonos.Context) -> tuple[int, str]:
    return row.n, ctx.call(partial(world, folder), row.n)


def world(folder: Path, n: int) -> str:
    """Never gives the same answer again."""
    token = uuid.uuid4().hex
    with (folder / "calls").open("a") as calls:
        calls.write(f"{n} {token}\n")
    return token


def test_answers_are_logged_beside_the_client(spark, tmp_path):
    source = clonos.sources.from_batches([[(n,) for n in range(12)]], "n long")
    with causal.start(spark, tmp_path / "log", run="connected", host="127.0.0.1"):
        rows = clonos.Job("asking").source(source, name="in")
        rows = rows.map(partial(asked, tmp_path), "n long, token string", name="ask")
        frame = rows.to_dataframe(spark, execution="spark")
        first, second = (sorted(map(tuple, frame.collect())) for _ in range(2))
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert first == second == sorted((int(n), token) for n, token in calls)
    assert len(first) == 12


def test_what_needs_a_driver_here_is_refused_by_name(spark, tmp_path):
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    stream = clonos.Job().source(clonos.sources.from_batches([[(1,)]], "n long"))
    for write in (lambda: stream.where("n > 1"), lambda: stream.withColumn("m", F.col("n") + 1)):
        with pytest.raises(SparkSetup, match="does not show how it has understood") as caught:
            write()
        assert "before job.source(df)" in caught.value.remedy
    stream.sink(clonos.sinks.collect())
    with pytest.raises(SparkSetup, match="no driver in this process"):
        stream._job.start(spark)
    for sink in (clonos.sinks.callback(print), clonos.sinks.console()):
        counts = streaming(spark, tmp_path / sink.kind)
        counts.sink(sink)
        with pytest.raises(NotInSpark, match="Spark Connect would call a copy of it") as refused:
            counts._job.start(spark, execution="spark")
        assert "clonos.sinks.table" in refused.value.remedy
    assert not spark.streams.active


PIPELINE = """
import clonos
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


def tenfold(batch):
    import pyarrow as pa
    import pyarrow.compute as pc

    return pa.record_batch({"n": pc.multiply(batch["n"], 10)})


def made(frame):
    rows = clonos.Job("pipeline").source(frame, name="in")
    return rows.map_batches(tenfold, "n long").to_dataframe(spark, execution="spark")


batch = made(spark.read.schema("n long").parquet("FOLDER"))
stream = made(spark.readStream.schema("n long").parquet("FOLDER"))


@dp.materialized_view
def viewed():
    return batch


@dp.table
def streamed():
    return stream
"""


def test_a_declarative_pipeline(spark, remote, tmp_path):
    """A materialized view and a streaming table; what the job may not do is refused by Spark."""
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"n": range(5)}), folder / "rows.parquet")
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text(
        f"name: pipeline\nstorage: file://{tmp_path}/storage\n"
        "libraries:\n  - glob:\n      include: definitions.py\n"
    )

    def run(definitions: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "definitions.py").write_text(definitions.replace("FOLDER", str(folder)))
        command = [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)]
        known = {**os.environ, "SPARK_REMOTE": remote, "SPARK_CONNECT_MODE_ENABLED": "1"}
        return subprocess.run(
            command, env=known, capture_output=True, text=True, timeout=100, check=False
        )

    done = run(PIPELINE)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for name in ("viewed", "streamed"):
        assert sorted(row.n for row in spark.table(name).collect()) == [0, 10, 20, 30, 40]
    inside = PIPELINE.replace("return batch", 'return made(spark.read.parquet("FOLDER"))')
    failed = run(inside)
    assert failed.returncode != 0
    assert "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION" in failed.stderr
