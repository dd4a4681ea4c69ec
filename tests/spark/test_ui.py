"""What Spark's UI says of a job, read as its REST API."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

import clonos
from clonos.spark.session import get_or_create

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 2_000
KEPT = 30
"""So few that micro-batches of other queries soon push out what is older."""
WAIT_S = 600.0


@pytest.fixture(scope="module")
def spark(new_jvm: None) -> Iterator[SparkSession]:
    config = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.retainedJobs": str(KEPT)}
    session = get_or_create("local[8]", "ui", config=config)
    yield session
    session.stop()


def rest(spark: SparkSession, what: str) -> Any:
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return json.load(answer)


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_slots_lives_and_rows(spark, tmp_path):
    spark.range(0, ROWS, 1, 1).withColumnRenamed("id", "n").write.parquet(str(tmp_path / "in"))
    frame = spark.read.parquet(str(tmp_path / "in"))
    job = clonos.Job("shown", standbys=0, checkpoint_interval="200 ms")
    rows = job.source(frame, name="rows", rows_per_second=ROWS / 5)
    tap = tmp_path / "tap"

    def held(row: Any) -> Any:
        while row.n >= ROWS * 4 // 5 and not tap.exists():
            time.sleep(0.01)
        return row.n

    work = rows.map(held, "n long", name="work", parallelism=2)
    out = str(tmp_path / "out")
    work.sink(clonos.sinks.spark_write(lambda df: df.write.parquet(out)), name="out", parallelism=1)
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "streams")
    context.addJobTag("nightly")
    running = job.start(spark)
    context.setLocalProperty("spark.scheduler.pool", None)
    context.clearJobTags()
    until(lambda: not running.is_running or {task.phase for task in running.tasks()} == {"live"})
    assert running.is_running, running.wait(0)
    (pid,) = [slot.pid for slot in running.slots() if "work[1]" in slot.runs]
    os.kill(pid, signal.SIGKILL)
    tap.touch()
    running.wait(WAIT_S)

    def shown() -> list[Any]:
        return [j for j in rest(spark, "jobs") if j.get("jobGroup") == running.run_id]

    lives = {
        "rows[0], incarnation 1.0",
        "work[0], incarnation 1.0",
        "work[1], incarnation 1.0",
        "work[1], incarnation 1.1",
        "out[0], incarnation 1.0",
    }
    until(
        lambda: (
            {
                job["description"].removeprefix("shown: ").partition(", runs in slot ")[0]
                for job in shown()
                if "incarnation" in job["description"]
            }
            == lives
        )
    )
    jobs = shown()
    described = {j["description"] for j in jobs}
    bound = "shown: slot 1 (rows[0] with its cell, or their standbys)"
    assert {"shown: slot 0 (tasks or standbys)", bound} <= described
    assert not any(j["numTasks"] for j in jobs if "incarnation" in j["description"])

    stages = {s["stageId"]: s for s in rest(spark, "stages")}

    def total(description: str, what: str) -> int:
        ids = [i for j in jobs if j["description"] == description for i in j["stageIds"]]
        return sum(stages[i][what] for i in ids if i in stages)

    read = total(bound, "inputRecords")
    assert read >= ROWS  # what Spark has read for it, of which it may have read some twice
    assert total("shown: write the rows of out", "outputRecords") == ROWS
    source = [i for j in jobs if j["description"] == bound for i in j["stageIds"]]
    assert {stages[i]["schedulingPool"] for i in source} == {"streams"}
    assert all("nightly" in j["jobTags"] for j in jobs if ": slot " in j["description"])


@pytest.mark.soak
def test_many_micro_batches_do_not_push_out_the_newest_lines(spark, tmp_path):
    """Spark keeps 30 jobs; a query in the same application runs many times as many."""
    tap = tmp_path / "tap"

    def held(row: Any) -> Any:
        while not tap.exists():
            time.sleep(0.01)
        return row.n

    job = clonos.Job("followed", standbys=0, checkpoint_interval="200 ms")
    rows = job.source(clonos.sources.from_batches([[(1,)]], "n long"), name="rows")
    work = rows.rebalance().map(held, "n long", name="work", parallelism=2)
    work.sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)

    def lines() -> dict[str, str]:
        """The newest line about each task."""
        found: dict[str, str] = {}
        for told in reversed(rest(spark, "jobs")):  # Spark tells the newest first
            text = told.get("description", "")
            if told.get("jobGroup") == running.run_id and "incarnation" in text:
                task, _, rest_of_it = text.removeprefix("followed: ").partition(", ")
                found[task] = rest_of_it
        return found

    tasks = {"rows[0]", "work[0]", "work[1]"}
    until(lambda: not running.is_running or tasks <= set(lines()))
    (pid,) = [slot.pid for slot in running.slots() if "work[1]" in slot.runs]
    os.kill(pid, signal.SIGKILL)
    until(lambda: lines().get("work[1]", "").startswith("incarnation 1.1"))
    before, began = lines(), rest(spark, "jobs")[0]["jobId"]

    def work_of_a_batch(batch: Any, number: int) -> None:
        for _ in range(5):
            batch.count()

    rate = spark.readStream.format("rate").option("numPartitions", 1).load()
    query = rate.writeStream.foreachBatch(work_of_a_batch).start()
    try:
        for kept in range(1, 5):
            end = began + kept * KEPT
            until(partial(lambda end: rest(spark, "jobs")[0]["jobId"] > end, end))
            until(lambda: lines() == before)
    finally:
        query.stop()
    is_over = [told for told in rest(spark, "jobs") if told["status"] == "SUCCEEDED"]
    assert min(told["jobId"] for told in is_over) > began  # all lines were put again
    tap.touch()
    running.wait(WAIT_S)
