"""Spark takes an executor away: its tasks leave, then it ends, and nothing is recovered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from clonos.spark.session import get_or_create
from tests.processes import is_there

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


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
    victim, executor_pid = next((s.executor, s.executor_pid) for s in job.slots() if s.runs)
    decommission(cluster, victim)
    kit.wait_for(lambda: victim not in {slot.executor for slot in job.slots()})
    kit.wait_for(lambda: not is_there(executor_pid))  # no slot keeps it from that
    kit.wait_quiet(job)  # standbys, too, are all elsewhere
    kit.open_tap(tmp_path)
    result = job.wait(kit.WAIT_S)
    kit.check(result.table(), rows)
    assert not result.recoveries
