"""Streaming queries that feed a job: every row once, whatever is killed on either side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import clonos
from clonos.errors import FeedFailed, SourceError, WrongType
from clonos.sources.spool import Spool
from clonos.spark.session import get_or_create

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 100
"""Per file."""

DRIVER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from conftest import Kit
from test_feeds import build
from pyspark import SparkContext
from clonos.spark.session import get_or_create
from clonos.sources.spool import Spool
folder, batch, moment = Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
take = Spool.take

def die():
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

def deadly(spool, query, number, parts, extent):
    if number == batch and moment == "before":
        die()
    taken = take(spool, query, number, parts, extent)
    if number == batch and moment == "after":
        die()
    return taken

Spool.take = deadly
build(Kit(), get_or_create("local[12]"), folder, parallelism=1).run()
"""


@pytest.fixture(scope="module")
def cluster(new_jvm: None) -> Iterator[SparkSession]:
    session = get_or_create("local-cluster[2,7,1024]", "feeds")
    yield session
    session.stop()


def add_files(kit, folder, numbers):
    (folder / "in").mkdir(exist_ok=True)
    for number in numbers:
        hidden = folder / f"{number}.json"
        rows = (kit.row(i) for i in range(number * ROWS, (number + 1) * ROWS))
        lines = (json.dumps({"at": f"{at:%FT%T.%fZ}", "key": k, "n": n}) for at, k, n in rows)
        hidden.write_text("\n".join(lines))
        os.utime(hidden, (1e9 + number, 1e9 + number))  # Spark goes by the time
        hidden.rename(folder / "in" / hidden.name)


def stream(kit, spark, folder):
    reader = spark.readStream.schema(kit.SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.json(str(folder / "in"))


def build(kit, spark, folder, **settings):
    return kit.build(
        stream(kit, spark, folder), rate=None, checkpoint_dir=str(folder / "a b"), **settings
    )


def check(kit, spark, folder, table, files):
    """The windows are those that the rows make, and those that Spark SQL finds in the files."""
    kit.check(table, files * ROWS)
    frame = spark.read.schema(kit.SCHEMA).json(str(folder / "in"))
    windows = frame.groupBy("key", sf.window("at", "2 seconds").start.alias("start"))
    found = windows.agg(sf.sum("n").alias("n"), sf.count("*").alias("rows")).toArrow()
    ours = table.select(["key", "window_start", "n", "rows"])
    assert sorted(map(str, ours.to_pylist())) == sorted(
        str({"key": r["key"], "window_start": r["start"], "n": r["n"], "rows": r["rows"]})
        for r in found.to_pylist()
    )


def end(kit, spark, job, files):
    kit.wait_for(lambda: not job.is_running or job.feeds()[0].rows == files * ROWS)
    (query,) = spark.streams.active
    assert query.name == "windows: events"
    query.stop()
    return job.wait(100)


@pytest.mark.soak
def test_the_source_and_an_executor_are_killed(kit, cluster, tmp_path):
    add_files(kit, tmp_path, range(3))
    job = build(kit, cluster, tmp_path).start(cluster, standby_slots=5)
    kit.wait_quiet(job)
    add_files(kit, tmp_path, range(3, 6))
    kit.kill(job, "events[0]")
    kit.wait_recovered(job, 1)
    add_files(kit, tmp_path, range(6, 9))
    kit.wait_for(lambda: job.feeds()[0].batch >= 6)
    (victim,) = (slot.executor_pid for slot in job.slots() if "events[0]" in slot.runs)
    os.kill(victim, signal.SIGKILL)
    add_files(kit, tmp_path, range(9, 14))
    result = end(kit, cluster, job, 14)
    check(kit, cluster, tmp_path, result.table(), 14)
    assert [r.name for r in result.recoveries].count("events[0]") >= 2
    left = [p for p in (tmp_path / "a b" / "spool").rglob("rows/*") if p.is_file()]
    assert len(left) < 14, "what was read is deleted"


@pytest.mark.soak
@pytest.mark.parametrize("deaths", [[(1, "after")], [(1, "before"), (2, "after")]])
def test_the_driver_is_killed(kit, cluster, tmp_path, deaths):
    add_files(kit, tmp_path, range(3))
    here = str(Path(__file__).parent)
    source = str(Path(clonos.__file__).parents[1])
    for batch, moment in deaths:
        command = [sys.executable, "-c", DRIVER, here, source, str(tmp_path), str(batch), moment]
        driver = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert driver.returncode == -signal.SIGKILL, driver.stderr[-3000:]
    manifests = list((tmp_path / "a b" / "spool").glob("*/events/batches/batch-*"))
    assert manifests, "below the checkpoint's name"
    add_files(kit, tmp_path, range(3, 6))
    job = build(kit, cluster, tmp_path, parallelism=1).start(cluster)
    assert job.term >= 2
    result = end(kit, cluster, job, 6)
    check(kit, cluster, tmp_path, result.table(), 6)
    again = build(kit, cluster, tmp_path, parallelism=1).run(cluster, timeout_s=600)
    assert again.table().equals(result.table())


def test_a_bounded_input_and_a_full_spool(kit, cluster, tmp_path, monkeypatch):
    truncate, has_waited = Spool.truncate, threading.Event()

    def late(spool, *floors):  # no batch makes room before the next one has asked for it
        has_waited.wait(600)
        truncate(spool, *floors)

    monkeypatch.setattr(Spool, "truncate", late)
    add_files(kit, tmp_path, range(4))
    frame = stream(kit, cluster, tmp_path)
    source = clonos.sources.stream(frame, available_now=True, backlog_bytes=1)
    job = kit.build(source, rate=1_000, parallelism=1).start(cluster)
    kit.wait_for(lambda: job.feeds()[0].is_waiting)
    has_waited.set()
    result = job.wait(600)
    kit.check(result.table(), 4 * ROWS)
    assert not cluster.streams.active


def test_a_query_that_fails(kit, cluster, tmp_path):
    add_files(kit, tmp_path, range(1))
    (tmp_path / "in" / "0.json").write_text('{"key": "x", "n": 7}\n')
    bad = stream(kit, cluster, tmp_path).withColumn(
        "n", sf.when(sf.col("n") == 7, sf.raise_error(sf.lit("no seven")).cast("long"))
    )
    job = kit.build(bad, rate=None, parallelism=1).start(cluster)
    with pytest.raises(FeedFailed, match="no seven") as caught:
        job.wait(600)
    assert caught.value.where == "windows: events"

    @sf.udf("long")
    def checked(n):
        raise ValueError("no number is good")

    udf = stream(kit, cluster, tmp_path).withColumn("n", checked("n"))
    with pytest.raises(FeedFailed, match="ValueError: no number is good"):
        kit.build(udf, rate=None, parallelism=1).start(cluster).wait(600)
    totals = stream(kit, cluster, tmp_path).groupBy("key").agg(sf.sum("n").alias("n"))
    grouped = clonos.Job("grouped", standbys=0)
    grouped.source(totals).sink(clonos.sinks.collect())
    with pytest.raises(SourceError, match=r"(?i)append"):
        grouped.start(cluster)
    assert not cluster.streams.active


def test_a_table_that_changes(kit, cluster, tmp_path):
    """Rows see a newer version soon, all of one version before those of the next, after a kill."""
    add_files(kit, tmp_path, range(1))
    path = str(tmp_path / "names")

    def write(version):
        keys = cluster.range(0, 7, 1, 1).selectExpr("concat('k', id) AS key", f"{version} AS v")
        keys.write.mode("overwrite").parquet(path)

    write(0)
    job = clonos.Job("side", checkpoint_interval="300 ms", checkpoint_dir=str(tmp_path / "c"))
    rows = job.source(stream(kit, cluster, tmp_path), name="in")
    names = rows.look_up(
        lambda: cluster.read.parquet(path), on="key", refresh="200 ms", name="names"
    )
    names.look_up(cluster.range(0, 13).withColumnRenamed("id", "n"), "n").sink(
        clonos.sinks.collect(), name="out"
    )
    running = job.start(cluster)
    kit.wait_for(lambda: running.delivered["out"] == ROWS)
    write(1)
    kit.wait_for(lambda: running.feeds()[1].rows == 2)
    kit.wait_quiet(running)
    kit.kill(running, "names[0]")
    kit.wait_recovered(running, 1)
    add_files(kit, tmp_path, range(1, 2))
    kit.wait_for(lambda: running.delivered["out"] == 2 * ROWS)
    running.stop()
    assert not cluster.streams.active
    assert not any(feed.is_ended for feed in running.feeds())
    running = job.start(cluster)
    add_files(kit, tmp_path, range(2, 3))
    kit.wait_for(lambda: running.feeds()[0].rows == 3 * ROWS)
    (query,) = cluster.streams.active
    query.stop()
    result = running.wait(100)
    assert result.table()["v"].to_pylist() == [0] * ROWS + [1] * 2 * ROWS
    assert result.is_complete


def test_a_query_is_stopped_in_the_middle_of_a_micro_batch(kit, cluster, tmp_path):
    """It stops. What Spark raises then fails nothing, and its thread does not die of the text."""
    add_files(kit, tmp_path, range(1))
    begun = tmp_path / "begun"

    def hold(batches):
        for batch in batches:
            begun.touch()
            while begun.exists():
                time.sleep(0.05)
            yield batch

    rows = stream(kit, cluster, tmp_path)
    job = kit.build(rows.mapInArrow(hold, rows.schema), rate=None, parallelism=1)
    running = job.start(cluster)
    kit.wait_for(begun.exists)
    (query,) = cluster.streams.active
    try:
        query.stop()
    finally:
        begun.unlink()
    assert query.status["message"] == "Stopped"
    result = running.wait(100)
    assert result.is_complete
    assert not result.table().num_rows


def test_a_job_is_stopped_before_a_micro_batch_is_taken(kit, cluster, tmp_path, monkeypatch):
    """For Spark, the query was stopped and has not failed."""
    add_files(kit, tmp_path, range(1))
    told, offered = Spool.take, threading.Event()

    def take_late(spool, *batch):
        offered.set()
        kit.wait_for(lambda: spool._is_closed)
        return told(spool, *batch)

    monkeypatch.setattr(Spool, "take", take_late)
    job = kit.build(stream(kit, cluster, tmp_path), rate=None, parallelism=1)
    running = job.start(cluster)
    assert offered.wait(60)
    (query,) = cluster.streams.active
    running.stop()
    assert query.awaitTermination(20)
    assert query.exception() is None
    assert query.status["message"] == "Stopped"


def test_what_is_refused(cluster):
    rates = cluster.readStream.format("rate").load()
    for wrong in (
        {"output_mode": "now"},
        {"available_now": True, "processing_time": "1 second"},
        {"backlog_bytes": 0},
    ):
        with pytest.raises(WrongType):
            clonos.sources.stream(rates, **wrong)
    with pytest.raises(WrongType, match="not a streaming"):
        clonos.sources.stream(cluster.range(1))
    with pytest.raises(WrongType, match="cannot be materialized"):
        clonos.Job().source(rates, materialize=True)
