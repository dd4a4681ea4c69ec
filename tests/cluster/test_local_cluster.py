"""Two executors, each a JVM of its own: one of them is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

import clonos
from clonos.errors import NotEnoughSlots
from clonos.spark.session import get_or_create
from tests.cluster import test_effects as effects

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def cluster(new_jvm: None) -> Iterator[SparkSession]:
    speculation = {  # of which slots are no case: each is the only task of its job
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
    }
    session = get_or_create("local-cluster[2,8,1024]", "cluster tests", config=speculation)
    yield session
    session.stop()


@pytest.mark.parametrize("source", ["files", pytest.param("dataframe", marks=pytest.mark.soak)])
def test_an_executor_is_killed(kit, cluster, tmp_path, source):
    rows = 4_000 if source == "files" else 9_000
    rows_in = kit.gated(tmp_path, rows) if source == "files" else kit.dataframe(cluster, rows)
    # With "full" depth, whatever dies together, somebody else has its log.
    job = kit.build(rows_in, rate=450, sharing_depth="full").start(cluster)
    kit.wait_quiet(job, floors=int(source == "files"))
    kit.wait_for(lambda: len({slot.executor_pid for slot in job.slots()}) == 2)
    slots = job.slots()
    assert "driver" not in {slot.executor for slot in slots}
    homes = {name: slot.executor_pid for slot in slots for name in slot.runs}
    victim = homes["running[0]"]
    lost = [task for task, executor in homes.items() if executor == victim]
    os.kill(victim, signal.SIGKILL)
    if source == "files":
        kit.wait_recovered(job, len(lost))
        kit.wait_quiet(job)  # Spark has started another executor, slots are back on it
        assert victim not in {slot.executor_pid for slot in job.slots()}
    kit.open_tap(tmp_path)
    result = job.wait(600)
    kit.check(result.table(), rows)
    assert {r.name for r in result.recoveries} <= set(lost)
    assert result.recoveries


def test_an_executor_on_which_effects_are_open_is_killed(kit, cluster, tmp_path):
    """Its standby on the other one settles them, asks again for those that were not made, and makes
    none twice."""
    declared = clonos.effect(partial(effects.pay, tmp_path), check=partial(effects.find, tmp_path))
    settings = {"checkpoint_interval": "1 hour", "sharing_depth": "full"}
    # More slots than one executor has cores, so Spark cannot put all of them on one.
    job = effects.build(tmp_path, declared, **settings).start(cluster, standby_slots=8)
    effects.wait_until_only_the_hanging_are_open(kit, job, tmp_path)
    kit.wait_for(lambda: len({slot.executor_pid for slot in job.slots()}) == 2)
    homes = {name: slot.executor_pid for slot in job.slots() for name in slot.runs}
    lost = [task for task, executor in homes.items() if executor == homes["pay[0]"]]
    os.kill(homes["pay[0]"], signal.SIGKILL)
    kit.wait_recovered(job, len(lost))
    assert homes["pay[0]"] not in {slot.executor_pid for slot in job.slots() if slot.runs}
    (tmp_path / "gate").touch()
    effects.check(tmp_path, job.wait(kit.WAIT_S).table())
    checked = set(map(int, (tmp_path / "checks").read_text().split()))
    assert checked >= set(filter(effects.hangs, range(effects.ROWS))), "what was open"


def test_standbys_are_on_the_other_executor(kit, cluster, tmp_path):
    job = kit.build(kit.gated(tmp_path, 2_000)).start(cluster)
    kit.wait_quiet(job, floors=3)
    slots = job.slots()
    homes = {name: slot.executor_pid for slot in slots for name in slot.runs}
    spare = {slot.executor_pid for slot in slots if not slot.runs}
    together = [
        task
        for slot in slots
        for task in slot.keeps
        # Where Spark puts slots is Spark's business: one executor may have no spare one.
        if homes[task] == slot.executor_pid and spare - {homes[task]}
    ]
    job.stop()
    assert not together


@pytest.mark.soak
def test_slots_share_cores_by_a_resource_profile(kit, cluster, tmp_path):
    """24 slots on 16 cores, and another job beside them; an executor is killed."""
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(0.25)).build
    job = kit.build(kit.gated(tmp_path, 2_000), sharing_depth="full")
    with pytest.raises(NotEnoughSlots, match=r"24 slots are needed and 16 .*profile="):
        job.start(cluster, standby_slots=17)
    running = job.start(cluster, standby_slots=17, profile=profile)
    assert running.pool.size == 24
    kit.wait_for(lambda: len(running.slots()) == 24)  # no two of which are of one place
    other = clonos.Job("other")
    few = other.source(clonos.sources.from_batches([[(1,), (2,)]], "n long"))
    few.sink(clonos.sinks.collect(), name="out")
    assert other.run(cluster, profile=profile, timeout_s=600).table().num_rows == 2
    kit.wait_quiet(running)
    before = {slot.executor_pid for slot in running.slots()}
    os.kill(next(slot.executor_pid for slot in running.slots() if slot.runs), signal.SIGKILL)
    kit.wait_for(
        lambda: len(running.slots()) == 24 and {s.executor_pid for s in running.slots()} != before
    )
    kit.wait_quiet(running)
    kit.open_tap(tmp_path)
    result = running.wait(600)
    kit.check(result.table(), 2_000)
    assert result.recoveries
