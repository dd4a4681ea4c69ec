"""Executors are lost one after the other: when Spark has cores again, the job goes on at once."""

from __future__ import annotations

from random import Random

import pytest

from clonos.core.roster import RUNNING
from clonos.simulator.jobs.programs import Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options

START_MS = 500.0
"""About the time until a new executor has started a slot."""
CHAOS_MS = 12_000.0
"""Long enough for pauses that double to have grown to seconds."""


@pytest.mark.parametrize("seed", range(4))
def test_no_task_waits_for_more_than_the_start_of_a_slot(seed):
    stages = (Stage("source", 2, ()), Stage("work", 2, (0,)), Stage("sink", 1, (1,), is_sink=True))
    job = build_job(stages, sharing_depth=1, rows=200)
    options = Options(slots=10, relaunch_ms=START_MS, bound=frozenset({0, 1}))
    cluster = Cluster(job, options, Random(seed))
    cluster.heals_at = float("inf")
    cluster.start()
    tasks, spark = cluster.driver.coordinator.tasks.values(), cluster.driver.spark
    cluster.run_until(lambda: all(task.phase in RUNNING for task in tasks))
    start, spark._start = spark._start, lambda number: spark._end(number, "executor killed")  # type: ignore[method-assign]
    for slot in cluster.alive():
        cluster.kill(slot, "executor killed")
    until = cluster.scheduler.now + CHAOS_MS
    cluster.run_until(lambda: cluster.scheduler.now > until, deadline_ms=2 * until)
    spark._start = start  # type: ignore[method-assign]
    until = cluster.scheduler.now + 3 * START_MS
    cluster.run_until(lambda: all(task.phase in RUNNING for task in tasks), deadline_ms=until)
