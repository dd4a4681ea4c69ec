"""Retained output on real disks: a receiver that dies is sent again what was spilled."""

from __future__ import annotations

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

KEPT = 10_000
"""So many bytes have to be there before somebody dies."""


def test_a_receiver_dies_whose_input_is_on_the_disk(kit, spark, tmp_path):
    """There is no checkpoint but the first: all that it has taken since is sent again."""
    rows = 20_000
    settings = {"checkpoint_interval": "1 hour", "inflight_bytes": "200 kB", "standbys": 0}
    job = kit.build(kit.gated(tmp_path, rows), rate=8_000, **settings).start(spark, progress_s=0.05)

    def spilled() -> int:
        return job.last_progress.tasks[0].spilled_bytes if job.last_progress else 0

    assert job.plan.tasks[0].name == "events[0]"
    kit.wait_for(lambda: not job.is_running or spilled() > KEPT)
    kit.kill(job, "running[0]")
    kit.wait_recovered(job, 1)
    kit.open_tap(tmp_path)
    result = job.wait(kit.WAIT_S)
    kit.check(result.table(), rows)
    assert [recovery.name for recovery in result.recoveries] == ["running[0]"]
    assert not result.warnings
