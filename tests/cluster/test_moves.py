"""Tasks that move while their job runs: nothing fails, nothing is asked or delivered twice."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyspark import cloudpickle

from clonos.errors import CannotMove, UnknownTask

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
