"""Retained output on real disks: a receiver that dies is sent again what was spilled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from clonos.nodes.views import JobProgress

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

KEPT = 10_000
"""So many bytes have to be there before somebody dies."""


def test_a_receiver_dies_whose_input_is_on_the_disk(kit, spark, tmp_path):
    """There is no checkpoint but the first: all that it has taken since is sent again."""
    rows = 80_000  # receivers say every 256 KiB, or 16 items, what they have processed
    settings = {"checkpoint_interval": "1 hour", "inflight_bytes": "1 MiB", "standbys": 0}
    settings["checkpoints"] = "marked"  # the first one at the very beginning
    source = kit.gated(tmp_path, rows, begins=False)
    job = kit.build(source, rate=None, **settings).start(spark, progress_s=0.05)

    def told(what: Callable[[JobProgress], int]) -> int:
        return what(job.last_progress) if job.last_progress else 0

    assert job.plan.tasks[0].name == "events[0]"
    kit.wait_for(lambda: not job.is_running or told(lambda progress: progress.checkpoint.id) > 0)
    kit.begin(tmp_path)
    spilled = partial(told, lambda progress: progress.tasks[0].spilled_bytes)
    kit.wait_for(lambda: not job.is_running or spilled() > KEPT)
    kit.kill(job, "running[0]")
    kit.wait_recovered(job, 1)
    kit.open_tap(tmp_path)
    result = job.wait(kit.WAIT_S)
    kit.check(result.table(), rows)
    assert [recovery.name for recovery in result.recoveries] == ["running[0]"]
    assert not result.warnings
