"""Tasks that move while their job runs: nothing fails, nothing is asked or delivered twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from clonos.errors import CannotMove, UnknownTask
from clonos.spark.session import get_or_create

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


def homes(job: Any) -> dict[str, int]:
    """The process of each task."""
    return {task.name: task.pid for task in job.tasks()}


def test_a_task_moves(kit, spark, tmp_path):
    rows = 6_000
    job = kit.build(kit.gated(tmp_path, rows), rate=1000).start(spark)
    kit.wait_quiet(job)
    with pytest.raises(UnknownTask, match=r"running\[0\]"):
        job.move("running[9]")
    for task in ("running[0]", "events[0]", "out[0]", "running[0]"):
        before = homes(job)
        job.move(task)
        after = homes(job)
        assert after[task] != before[task]
        assert {name for name in after if after[name] != before[name]} == {task}
        kit.wait_quiet(job)
    with pytest.raises(CannotMove, match="no slot of this job"):
        job.drain("no such executor")
    kit.open_tap(tmp_path)
    result = job.wait(kit.WAIT_S)
    kit.check(result.table(), rows)
    assert not result.recoveries
    assert not result.warnings
    with pytest.raises(CannotMove):
        job.move("running[0]")


@pytest.fixture(scope="module")
def cluster(new_jvm: None) -> Iterator[SparkSession]:
    settings = {"spark.decommission.enabled": "true"}
    session = get_or_create("local-cluster[2,6,1024]", "moves", config=settings)
    yield session
    session.stop()


def decommission(spark: SparkSession, executor: str) -> None:
    """What a cluster manager does when it wants a machine back."""
    context = spark.sparkContext
    java: Any = context._jvm
    info = java.org.apache.spark.scheduler.ExecutorDecommissionInfo(
        "the machine is wanted back", java.scala.Option.empty()
    )
    backend = context._jsc.sc().schedulerBackend()
    assert backend.decommissionExecutor(executor, info, False, False)


def test_an_executor_is_decommissioned(kit, cluster, tmp_path):
    rows = 4_000
    # As many slots as there are cores: each executor has room for all four tasks.
    job = kit.build(kit.gated(tmp_path, rows), parallelism=1).start(cluster, standby_slots=8)
    kit.wait_for(lambda: len(job.slots()) == 12)
    kit.wait_quiet(job)
    victim = next(slot.executor for slot in job.slots() if slot.runs)
    decommission(cluster, victim)
    kit.wait_for(lambda: not any(s.runs for s in job.slots() if s.executor == victim))
    kit.open_tap(tmp_path)
    result = job.wait(kit.WAIT_S)
    kit.check(result.table(), rows)
    assert not result.recoveries
