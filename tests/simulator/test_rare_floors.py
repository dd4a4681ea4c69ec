"""What the driver keeps while no floor comes: a receiver is away for hours, say."""

from __future__ import annotations

import errno
from random import Random

import pytest

from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.sinks.delivered import DeliveredStore

NEVER = 1e7
ROWS = 1500
OUTPUT_BYTES = 2_000
"""About a twelfth of what is delivered."""
CHAIN = (
    Stage("source", 1, (), Behaviour()),
    Stage("sink", 1, (0,), Behaviour(), is_sink=True),
)


def cluster_of() -> Cluster:
    job = build_job(CHAIN, sharing_depth=1, rows=ROWS)
    options = Options(slots=2, standbys=0, epoch_ms=NEVER, rotate_bytes=3_000)
    cluster = Cluster(job, options, Random(1))
    cluster.recorder.checks_state = False
    cluster.driver.node.commits._output_bytes = OUTPUT_BYTES
    cluster.start()
    return cluster


def test_outputs_go_into_files_without_a_floor() -> None:
    """They were in the driver's memory until the next one."""
    cluster = cluster_of()
    kept = 0
    while cluster.outcome.state == "running":
        assert cluster.scheduler.run_next()
        kept = max(kept, cluster.driver.outputs.nbytes)
    cluster.recorder.check_end(cluster.service)
    assert cluster.driver.keeper.epoch <= 1, "the first comes at once"
    assert kept < 2 * OUTPUT_BYTES


def test_while_they_cannot_be_written_the_job_waits_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The journal's disk takes all, and that of the files nothing: memory would fill up."""
    cluster = cluster_of()
    store = DeliveredStore

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(store, "write", refuse)
        since = cluster.scheduler.now
        while cluster.scheduler.now - since < 30_000:
            assert cluster.scheduler.run_next()
        assert cluster.outcome.state == "running"
        assert OUTPUT_BYTES <= cluster.driver.outputs.nbytes < 2 * OUTPUT_BYTES
        assert cluster.driver.node.commits.must_wait
    assert cluster.run(cluster.scheduler.now + 100_000).state == "done"
    cluster.recorder.check_end(cluster.service)
