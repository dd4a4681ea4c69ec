"""Rows leave jobs into Spark: as DataFrames, and as streams that survive kills on both sides."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import clonos
from clonos.errors import SourceError, Unbounded
from clonos.sinks.data_source import finish

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

STARTING = {"Initializing StreamExecution", "Initializing sources"}

QUERY = """
import sys
sys.path.insert(0, sys.argv[1])
from test_spark_out import follow
from clonos.spark.session import get_or_create
spark = get_or_create("local[2]", config={"spark.ui.enabled": "false"})
follow(spark, *sys.argv[2:]).awaitTermination()
"""


def follow(spark: Any, table: str, out: str, checkpoint: str) -> Any:
    """A query that writes a table to Parquet, three files at a time."""
    rows = spark.readStream.format("clonos").option("maxFilesPerTrigger", 3).load(table)
    writer = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    return begun(lambda: writer.start(out))


def begun(start: Callable[[], Any]) -> Any:
    """A query whose source is there. Spark gives the source's process ten seconds to start, which
    no setting changes and a busy machine may exceed; the query has done nothing then."""
    while True:
        query = start()
        while query.isActive and query.status["message"] in STARTING:
            time.sleep(0.01)
        error = query.exception()
        if error is None or "failed to connect back" not in str(error):
            return query


def counted(path: Path, folder: str | None = None, batches: Any = (), **settings: Any) -> Any:
    """A stream whose function leaves a mark at each call."""

    def mark(row: Any) -> tuple[int, str]:
        with path.open("a") as file:
            file.write("x")
        return row.n, str(row.n)

    job = clonos.Job("marks", checkpoint_dir=folder, standbys=0, **settings)
    source = job.source(clonos.sources.from_batches(batches, "n long"))
    return source.map(mark, "n long, s string")


def test_a_stream_as_a_dataframe(spark, tmp_path):
    batches = [[(i,) for i in range(k, k + 10)] for k in range(0, 100, 10)]
    marks, folder = tmp_path / "marks", str(tmp_path / "checkpoint")
    frame = counted(marks, folder, batches, parallelism=2).to_dataframe(spark)
    assert frame.agg({"n": "sum"}).first()[0] == sum(range(100))
    assert [f.dataType.simpleString() for f in frame.schema] == ["bigint", "string"]
    frame.write.parquet(str(tmp_path / "out"))
    assert pq.read_table(tmp_path / "out").num_rows == 100
    again = counted(marks, folder, batches, parallelism=2).to_dataframe(spark)
    assert again.where("s = '17'").collect() == [(17, "17")]
    assert len(marks.read_text()) == 100  # nothing was computed again


def test_rows_outlive_the_job_that_made_them(spark, tmp_path):
    stream = counted(tmp_path / "marks", None, [[(1,), (2,)]])
    frame = stream.to_dataframe(spark)
    del stream
    gc.collect()
    assert sorted(r.n for r in frame.collect()) == [1, 2]


def test_no_rows_but_a_schema(spark, tmp_path):
    frame = counted(tmp_path / "marks").to_dataframe(spark)
    assert frame.collect() == []
    assert frame.columns == ["n", "s"]


def test_what_need_not_end_is_no_dataframe(tmp_path):
    endless = clonos.Job().source(clonos.sources.rate(10))
    with pytest.raises(Unbounded, match="readStream"):
        endless.to_dataframe()


def test_delivered_output_that_executors_do_not_find(spark, tmp_path):
    folder = tmp_path / "checkpoint"
    frame = counted(tmp_path / "marks", str(folder), [[(1,)]]).to_dataframe(spark)
    (folder / "delivered").rename(tmp_path / "elsewhere")
    with pytest.raises(Exception, match=SourceError.__name__):
        frame.collect()


@pytest.mark.soak
def test_kills_on_both_sides(kit, spark, tmp_path):
    """The sink's worker and the query's driver die; each row is written once, and is the same."""
    rows, table, out = 4_000, str(tmp_path / "table"), str(tmp_path / "out")
    sink = clonos.sinks.table(table, rows_per_file=7, linger="50 ms")
    job = kit.build(
        kit.gated(tmp_path, rows), sink=sink, checkpoint_dir=str(tmp_path / "job"), rate=1000
    )
    running = job.start(spark)
    places = (table, out, str(tmp_path / "query"))
    command = [sys.executable, "-c", QUERY, str(Path(__file__).parent), *places]
    here: list[Any] = []
    mine = (
        spark.readStream.format("clonos")
        .load(table)
        .writeStream.foreachBatch(lambda batch, _: here.extend(map(tuple, batch.collect())))
    )
    query = begun(mine.start)
    driver = subprocess.Popen(command)
    try:
        kit.wait_quiet(running)
        kit.kill(running, "out[0]")
        kit.wait_recovered(running, 1)
        kit.wait_for(lambda: list(Path(out).glob("*.parquet")))
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    kit.kill(running, "out[1]")
    kit.wait_recovered(running, 2)
    again = follow(spark, *places)
    kit.open_tap(tmp_path)
    result = running.wait(600)
    finish(query, table, 10)
    finish(again, table, 10)
    kit.check(result.table(), rows)
    expected = Counter(map(tuple, kit.rows_of(result.table())))
    written = spark.read.parquet(out)  # by Spark's own log of what was committed
    assert Counter(map(tuple, kit.rows_of(written.toArrow()))) == expected
    now = spark.read.format("clonos").load(table)
    assert Counter(map(tuple, kit.rows_of(now.toArrow()))) == expected
    assert len(here) == len(expected)


def test_names_that_differ_in_case_only(spark):
    job = clonos.Job("two names")
    job.source(spark.range(3).selectExpr("id AS a", "id * 2 AS A")).sink(clonos.sinks.collect())
    with pytest.raises(SourceError, match=r"AMBIGUOUS_REFERENCE.*rename one"):
        job.run(spark)
