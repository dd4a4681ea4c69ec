"""A disk that takes its time: what is decided meanwhile is not durable yet."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options

CHAIN = (
    Stage("source", 1, (), Behaviour()),
    Stage("sink", 1, (0,), Behaviour(), is_sink=True),
)


@pytest.mark.parametrize("seed", range(2))
def test_layers_stay_until_the_journal_says_that_they_were_merged(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grace period of a layer began when the merge was decided, though the disk could take
    longer than that to take note of it. If the driver had died, its successor would have missed
    the layer."""
    job = build_job(CHAIN, sharing_depth=1, rows=60)
    options = Options(slots=3, epoch_ms=5.0, merges=1.0, commit_ms=60.0, floors_at_end=6)
    cluster = Cluster(job, options, Random(seed))
    deleted: list[str] = []
    deletes = cluster.recorder.deletes

    def watch(paths: Sequence[str]) -> None:
        deleted.extend(paths)
        deletes(paths)

    monkeypatch.setattr(cluster.recorder, "deletes", watch)
    cluster.start()
    assert cluster.run(30_000).state == "done"
    cluster.recorder.check_end(cluster.service)
    assert deleted
