"""A standalone cluster: applications that are submitted, workers that come and go."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.resource import (
    ExecutorResourceRequests,
    ResourceProfileBuilder,
    TaskResourceRequests,
)
from pyspark.sql import SparkSession

import clonos
from clonos.spark.session import get_or_create
from tests.deploy.conftest import small, submit

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
]

PACKAGE = Path(clonos.__file__).parent


@pytest.fixture
def cluster(two_workers: Any) -> Any:
    return two_workers


@pytest.fixture
def session(cluster: Any, new_jvm: None) -> Iterator[Callable[..., SparkSession]]:
    made: list[SparkSession] = []

    def make(**config: str) -> SparkSession:
        settings = {**small(), **{key.replace("_", "."): value for key, value in config.items()}}
        made.append(get_or_create(cluster.address, "standalone tests", config=settings))
        return made[-1]

    yield make
    for spark in made:
        spark.stop()


@pytest.mark.parametrize(
    "master", ["local-cluster[2,8,1024]", pytest.param("standalone", marks=pytest.mark.soak)]
)
def test_a_submitted_application(master, request, tmp_path):
    """The package travels as a zip, user functions by value; an executor is killed."""
    if master == "standalone":
        master = request.getfixturevalue("cluster").address
    archive = shutil.make_archive(
        str(tmp_path / "clonos"), "zip", root_dir=PACKAGE.parent, base_dir=PACKAGE.name
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    program = Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit"
    sent, home = ("--py-files", archive), "clonos.zip"
    submit(program, master, tmp_path, environment, *sent, home=home)


@pytest.mark.soak
def test_workers_come_and_go(kit, cluster, session, tmp_path):
    job = kit.build(kit.gated(tmp_path, 4_000), checkpoint_dir=str(tmp_path / "job"))
    running = job.start(session(), tls=True)
    kit.wait_quiet(running)
    before = {slot.executor_pid for slot in running.slots()}
    cluster.add_workers("third")
    cluster.kill("first")
    # What was lost runs again at once; its slots are made again where there is room: the third.
    kit.wait_for(lambda: {slot.executor_pid for slot in running.slots()} - before)
    kit.wait_quiet(running)
    after = {slot.executor_pid for slot in running.slots()}
    assert len(before & after) == 1
    cluster.kill("second")
    kit.wait_for(lambda: {slot.executor_pid for slot in running.slots()} == after - before)
    kit.wait_for(lambda: all(task.phase == "live" for task in running.tasks()))
    kit.open_tap(tmp_path)
    result = running.wait(90)
    kit.check(result.table(), 4_000)
    assert result.recoveries


@pytest.mark.soak
def test_executors_on_demand(kit, session, tmp_path):
    """Spark asks for executors because slots wait, and keeps them for as long as slots run."""
    idle_s = 3
    spark = session(
        spark_dynamicAllocation_enabled="true",
        spark_dynamicAllocation_shuffleTracking_enabled="true",
        spark_dynamicAllocation_minExecutors="0",
        spark_dynamicAllocation_executorIdleTimeout=f"{idle_s}s",
        spark_executor_cores="4",
    )
    settings = {"checkpoint_dir": str(tmp_path / "job"), "checkpoints": "marked"}
    job = kit.build(kit.gated(tmp_path, 4_000), **settings)
    running = job.start(spark, tls=True)
    kit.wait_quiet(running)
    kit.wait_for(lambda: len(running.slots()) == running.pool.size)
    executors = Counter(slot.executor for slot in running.slots())
    assert len(executors) > 1
    floors = running.observer.floors
    kit.wait_for(lambda: running.observer.floors > floors + 10 * idle_s)  # nothing but markers
    assert Counter(slot.executor for slot in running.slots()) == executors
    assert not running.observer.recoveries
    kit.open_tap(tmp_path)
    kit.check(running.wait(90).table(), 4_000)
    store = spark.sparkContext._jsc.sc().statusStore()
    kit.wait_for(lambda: store.executorList(True).size() == 1, 30)  # only the driver is left


@pytest.mark.soak
def test_executors_of_the_slots_own(kit, session, tmp_path):
    """Slots have executors of their own size; the application's other tasks run elsewhere."""
    spark = session(
        spark_dynamicAllocation_enabled="true",
        spark_dynamicAllocation_shuffleTracking_enabled="true",
        spark_dynamicAllocation_minExecutors="0",
        spark_dynamicAllocation_executorIdleTimeout="3s",
        spark_executor_cores="1",
    )
    executors = ExecutorResourceRequests().cores(3).memory("512m").memoryOverhead("200m")
    tasks = TaskResourceRequests().cpus(0.5)
    profile = ResourceProfileBuilder().require(executors).require(tasks).build
    job = kit.build(kit.gated(tmp_path, 4_000), checkpoint_dir=str(tmp_path / "job"))
    running = job.start(spark, profile=profile)
    kit.wait_quiet(running)
    kit.wait_for(lambda: len(running.slots()) == running.pool.size == 14)
    assert spark.range(100).count() == 100  # on an executor that Spark starts for it
    own = {slot.executor for slot in running.slots()}
    store = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    known = {e.id(): e for e in map(store.apply, range(store.size()))}
    assert {(known[e].totalCores(), known[e].resourceProfileId()) for e in own} == {(3, profile.id)}
    assert Counter(slot.executor for slot in running.slots()).most_common(1)[0][1] == 6
    assert {e.totalCores() for e in known.values() if e.resourceProfileId() == 0} == {0, 1}
    kit.open_tap(tmp_path)
    kit.check(running.wait(90).table(), 4_000)
