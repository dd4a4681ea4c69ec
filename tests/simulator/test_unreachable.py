"""Two slots that cannot reach each other, though the driver hears of both."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core.reach import MOVES_MAX, Reach
from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options

CHAIN = (
    Stage("source", 1, (), Behaviour()),
    Stage("middle", 1, (0,), Behaviour()),
    Stage("sink", 1, (1,), Behaviour(), is_sink=True),
)
FOR_EVER = 1e9
SEEDS = range(6)


def cluster_of(seed: int, *, groups: int, slots: int) -> Cluster:
    job = build_job(CHAIN, sharing_depth=1, rows=60)
    options = Options(slots=slots, groups=groups, standbys=1, epoch_ms=15.0, floors_at_end=2)
    cluster = Cluster(job, options, Random(seed))
    cluster.heals_at = float("inf")  # sources do not end before the script does
    cluster.start()
    return cluster


def part(cluster: Cluster) -> tuple[Any, Any]:
    """The source and the middle do not reach each other any more, if they are on two executors."""
    cluster.run_until(lambda: (s := cluster.slot_of(2)) and s.machine and s.machine.position > 5)
    one, other = cluster.slot_of(0), cluster.slot_of(1)
    assert one is not None
    assert other is not None
    if one.group == other.group:
        other.group = "executor9"  # as if it had been there
        cluster.driver.coordinator.slots[other.number].group = "executor9"
    cluster.network.part(one, other, FOR_EVER)
    return one, other


def finish(cluster: Cluster) -> None:
    cluster.heals_at = cluster.scheduler.now
    outcome = cluster.run(cluster.scheduler.now + 30_000)  # slots that do not leave are waited for
    assert outcome.state == "done", outcome
    cluster.recorder.check_end(cluster.service)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_of_them_moves(seed: int) -> None:
    cluster = cluster_of(seed, groups=3, slots=8)
    notes: list[str] = []
    cluster.on_note.append(lambda note: notes.append(note.what))
    one, other = part(cluster)
    cluster.run_until(lambda: "unreachable" in notes)
    cluster.run_until(lambda: {cluster.slot_of(0), cluster.slot_of(1)} != {one, other})
    finish(cluster)
    near, far = cluster.slot_of(0), cluster.slot_of(1)
    assert near is None or far is None or not cluster.network.is_parted(near, far)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_complaints_the_job_stands_still(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reach, "due", lambda _: [])
    cluster = cluster_of(seed, groups=3, slots=8)
    part(cluster)
    with pytest.raises(Violation, match="liveness"):
        finish(cluster)


def test_who_has_nowhere_else_to_go_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(0, groups=2, slots=4)
    one, other = part(cluster)
    assert one.group != other.group
    # Every pair is parted, whoever comes: each process is an executor of its own.
    monkeypatch.setattr(
        cluster.network,
        "is_parted",
        lambda a, b: a is not b and "house-keeper" not in (a.group, b.group),
    )
    cluster.heals_at = cluster.scheduler.now
    outcome = cluster.run(cluster.scheduler.now + 20_000)
    assert (outcome.state, outcome.error) == ("failed", "CannotConnect")
    assert f"moved {MOVES_MAX} times" in outcome.message


def test_outages_that_heal_do_not_add_up() -> None:
    roster: Any = SimpleNamespace(now_ms=0)
    reach = Reach(roster)
    for begins_ms in (0, 60_000, 120_000):
        for after_ms in (0, 5_000):
            roster.now_ms = begins_ms + after_ms
            assert reach._may_move(7)
    may = []
    for _ in range(3):
        roster.now_ms += 5_000
        may.append(reach._may_move(7))
    assert may == [True, False, False]
