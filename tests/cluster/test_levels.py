"""Where the state of a killed task comes from, and that this is what is told of it."""

from __future__ import annotations

import pytest

from tests.cluster.test_persistence import TASK, wait_current

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


def test_a_killed_task_is_restored_from_the_nearest_level_that_is_left(kit, spark, tmp_path):
    rows = 500
    settings = {"checkpoints": "uncoordinated", "checkpoint_interval": "100 ms"}
    job = kit.build(kit.gated(tmp_path, rows), rate=None, parallelism=1, standbys=1, **settings)
    job = job.start(spark, progress_s=0.1)
    kit.wait_for(lambda: job.last_progress and job.last_progress.tasks[0].rows_in == rows * 4 // 5)
    wait_current(kit, job)
    kit.kill(job, TASK)
    kit.wait_recovered(job, 1)
    wait_current(kit, job)
    (keeper,) = [slot.pid for slot in job.slots() if TASK in slot.keeps]
    # The task first: while it lives, the loss of its copy has another one made.
    kit.kill_processes(*kit.pids(job, TASK), keeper)

    def recoveries():
        return [r for r in job.observer.recoveries if r.name == TASK]

    # Of the two deaths the task's may be heard of first, and the dead keeper be tried.
    kit.wait_for(lambda: recoveries()[-1].level == "store")
    warm, *_, cold = recoveries()
    assert (warm.level, warm.store_bytes) == ("standby", 0)
    assert (cold.level, cold.store_bytes) == ("store", cold.state_bytes)
    assert warm.state_bytes > 0
    kit.open_tap(tmp_path)
    kit.check(job.wait(kit.WAIT_S).table(), rows)
