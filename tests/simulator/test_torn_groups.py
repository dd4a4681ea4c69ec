"""A driver dies while it writes a group, and again after its successor has written on."""

from __future__ import annotations

from random import Random

import pytest

from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.processes.cluster import Cluster, Options

CHAIN = (
    Stage("source", 1, (), Behaviour()),
    Stage("sink", 1, (0,), Behaviour(), is_sink=True),
)
SEEDS = range(6)


def die_once(cluster: Cluster, term: int) -> None:
    cluster.run_until(lambda: cluster.driver.term == term and cluster.driver.alive)
    driver, epoch = cluster.driver, cluster.driver.keeper.epoch
    cluster.run_until(lambda: driver.keeper.epoch > epoch)
    driver.disk.dies_within(1)
    cluster.run_until(lambda: not driver.alive)


def die_twice(seed: int) -> None:
    job = build_job(CHAIN, sharing_depth=1, rows=60)
    cluster = Cluster(job, Options(slots=3, epoch_ms=10.0), Random(seed))
    cluster.heals_at = float("inf")  # sources do not end before the script does
    cluster.start()
    for term in (1, 2):
        die_once(cluster, term)
    cluster.run_until(lambda: cluster.driver.term == 3)
    cluster.heals_at = cluster.scheduler.now
    assert cluster.run(cluster.scheduler.now + 30_000).state == "done"
    cluster.recorder.check_end(cluster.service)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_torn_group_is_cut_off(seed: int) -> None:
    die_twice(seed)


def test_or_what_follows_it_would_be_lost() -> None:
    def all_seeds() -> None:
        for seed in SEEDS:
            die_twice(seed)

    with MUTATIONS["a torn group is not cut off"].active(), pytest.raises(Violation, match="damag"):
        all_seeds()
