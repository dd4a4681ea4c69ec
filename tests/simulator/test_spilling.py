"""Output that is kept on local disks: receivers that are away for long, disks that rot."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from clonos.core import notes
from clonos.simulator.command import main
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.seeds import simulate

FORK = (
    Stage("source", 1, (), Behaviour()),
    Stage("away", 1, (0,), Behaviour()),
    Stage("beside", 1, (0,), Behaviour()),
    Stage("sink", 1, (1,), Behaviour(), is_sink=True),
    Stage("other", 1, (2,), Behaviour(), is_sink=True),
)
AWAY = 1
MINUTES = 60_000.0
FOR_EVER = 1e9


def cluster_of(seed: int, **how: float) -> Cluster:
    job = build_job(FORK, sharing_depth=1, rows=600)
    options = Options(
        slots=5, standbys=0, epoch_ms=1000.0, rows_ms=100.0, memory_bytes=0, floors_at_end=2,
        **how,  # type: ignore[arg-type]
    )  # fmt: skip
    cluster = Cluster(job, options, Random(seed))
    cluster.recorder.checks_state = False  # of a thousand items kept, after each event
    cluster.heals_at = float("inf")  # sources do not end before the script does
    cluster.start()
    cluster.run_until(lambda: (m := machine(cluster, 4)) is not None and m.position > 5, FOR_EVER)
    return cluster


def machine(cluster: Cluster, task: int) -> Any:
    slot = cluster.slot_of(task)
    return slot.machine_of(task) if slot is not None else None


def kept(cluster: Cluster) -> tuple[int, int]:
    """What the source keeps for `AWAY`: all of it, and what of it is in memory."""
    source = machine(cluster, 0)
    log = next(end.log for end in source.outputs.values() if end.spec.receiver == AWAY)
    return log.nbytes, log.nbytes - log.spilled.nbytes


def incarnation(cluster: Cluster, task: int) -> int:
    """How often it has failed."""
    return cluster.driver.coordinator.tasks[task].incarnation.n


def finish(cluster: Cluster) -> None:
    cluster.options.rows_ms = 1.0
    cluster.heals_at = cluster.scheduler.now
    outcome = cluster.run(cluster.scheduler.now + 100 * MINUTES)
    assert outcome.state == "done", outcome
    cluster.recorder.check_end(cluster.service)


def leave(cluster: Cluster, minutes: float) -> None:
    """The receiver is away for so long, while the source goes on; nor does it come back yet."""
    cluster.held_starts = []
    cluster.options.rows_ms = minutes * MINUTES / 300
    slot = cluster.slot_of(AWAY)
    assert slot is not None
    cluster.kill(slot, "killed")
    since = cluster.scheduler.now
    cluster.run_until(lambda: cluster.scheduler.now - since > minutes * MINUTES, FOR_EVER)
    assert machine(cluster, AWAY) is None


def come_back(cluster: Cluster) -> None:
    held, cluster.held_starts = cluster.held_starts, None
    assert held
    for start in held:
        start()


@pytest.mark.parametrize("minutes", [0.2, pytest.param(10, marks=pytest.mark.soak)])
def test_a_receiver_is_away_for_long_and_nobody_waits(minutes: float) -> None:
    cluster = cluster_of(1)
    beside = machine(cluster, 4).position
    leave(cluster, minutes)
    assert machine(cluster, 4).position > beside + 100
    everything, in_memory = kept(cluster)
    assert everything > 5000
    assert in_memory < everything / 20
    come_back(cluster)
    finish(cluster)
    assert cluster.read_back > 0
    assert incarnation(cluster, 0) == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_task_makes_again_what_its_disk_has_lost(seed: int) -> None:
    """Half of the time the file cannot be read, and half of the time it has something else."""
    cluster = cluster_of(1)
    cluster.scratch_random = Random(seed)
    leave(cluster, 0.05)
    heard: list[notes.Note] = []
    cluster.on_note.append(heard.append)
    cluster.options.scratch_faults = 1.0
    come_back(cluster)
    cluster.run_until(lambda: any(isinstance(n, notes.Unreadable) for n in heard), FOR_EVER)
    cluster.options.scratch_faults = 0.0
    finish(cluster)
    assert [n.task for n in heard if isinstance(n, notes.Unreadable)] == [0]
    assert cluster.rotten > 0
    assert incarnation(cluster, 0) == 1
    assert incarnation(cluster, 4) == 0


def test_all_is_kept_in_memory_while_the_disk_takes_nothing() -> None:
    cluster = cluster_of(1, scratch_faults=1.0)
    leave(cluster, 0.05)
    everything, in_memory = kept(cluster)
    assert in_memory == everything > 0
    assert not cluster.spilled
    come_back(cluster)
    finish(cluster)
    assert not cluster.read_back


@pytest.mark.parametrize("harsh", [False, True])
def test_no_seed_violates_an_invariant_with_all_output_on_the_disk(harsh: bool) -> None:
    assert main(8, jobs=1, kind=Kind(spill=True, harsh=harsh)) == 0


@pytest.mark.parametrize("seed", [1_002_410, 1_002_846])
def test_what_long_runs_have_found(seed: int) -> None:
    """Two slots are given up at once, and the tasks of the first go to the second."""
    result = simulate(seed, Kind(spill=True))
    assert result.verdict != "violation", result.failure


@pytest.mark.soak
@pytest.mark.parametrize("harsh", [False, True])
def test_nor_do_many_more(harsh: bool) -> None:
    assert main(3000, 1_000_000, jobs=2, kind=Kind(spill=True, harsh=harsh)) == 0
