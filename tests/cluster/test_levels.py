"""Where the state of a killed task comes from, and that this is what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
TASK = "running[0]"


def has_newest(job: Any) -> bool:
    """Whether the copy of the task has all of its floor. Nothing moves any more, so it stays so."""
    coordinator = job._setup.node.coordinator
    (task,) = [task.id for task in job.plan.tasks if task.name == TASK]
    layers = coordinator.keeper.layers[task]
    copies = [slot.standbys.get(task, -1) for slot in list(coordinator.slots.values())]
    return bool(layers) and layers[-1].epoch in copies


@pytest.mark.parametrize(("standbys", "level"), [(1, "standby"), (0, "store")])
def test_a_killed_task_is_restored_from_the_nearest_level(kit, spark, tmp_path, standbys, level):
    rows = 2_000
    settings = {"parallelism": 1, "standbys": standbys, "checkpoints": "uncoordinated"}
    job = kit.build(kit.gated(tmp_path, rows), **settings).start(spark)
    kit.wait_for(lambda: job.last_progress and job.last_progress.tasks[0].rows_in == rows * 4 // 5)
    kit.wait_quiet(job)
    kit.wait_for(lambda: not any(task.steps_to_replay for task in job.last_progress.tasks))
    if standbys:
        kit.wait_for(lambda: has_newest(job))
    kit.kill(job, TASK)
    kit.wait_recovered(job, 1)
    (recovery,) = job.observer.recoveries
    assert (recovery.name, recovery.level) == (TASK, level)
    assert recovery.state_bytes > 0
    assert recovery.store_bytes == (recovery.state_bytes if level == "store" else 0)
    kit.open_tap(tmp_path)
    kit.check(job.wait(kit.WAIT_S).table(), rows)
