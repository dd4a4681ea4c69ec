"""Tasks that move while their job runs: nothing fails, nothing is asked or delivered twice."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos
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


class Numbered(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        seen = ctx.state("seen", "long")
        seen.set(seen.get(0) + 1)
        yield row.key, seen.get()


def test_all_slots_start_anew_one_after_the_other(kit, spark, tmp_path):
    rows = 2_000
    job = clonos.Job("anew", standbys=1, checkpoint_dir=str(tmp_path / "checkpoint"))
    events = job.source(kit.gated(tmp_path, rows), name="events", rows_per_second=500.0)
    numbered = events.key_by("key").process(Numbered(), "key string, n long", name="numbered")
    numbered.sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    kit.wait_quiet(running)
    before = {slot.pid for slot in running.slots()}
    running.restart_slots()
    after = {slot.pid for slot in running.slots()}
    assert len(after) == len(before) > 1
    assert not after & before
    kit.open_tap(tmp_path)
    result = running.wait(kit.WAIT_S)
    keys = Counter(key for _, key, _ in map(kit.row, range(rows)))
    due = sorted((key, n) for key, count in keys.items() for n in range(1, count + 1))
    assert sorted((row["key"], row["n"]) for row in result.table().to_pylist()) == due
    assert not result.recoveries
    with pytest.raises(CannotMove, match="has ended"):
        running.restart_slots()
