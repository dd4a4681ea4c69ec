"""The same job is started twice: one driver lets out output, wherever the other is."""

from __future__ import annotations

from random import Random

import pytest

from clonos.errors import JournalInUse, OtherJournal
from clonos.nodes.tenure import LOOKS, Sight, Tenure
from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.seeds import simulate
from clonos.simulator.world.disk import Disk

CHAIN = (
    Stage("source", 1, (), Behaviour()),
    Stage("middle", 1, (0,), Behaviour()),
    Stage("sink", 1, (1,), Behaviour(), is_sink=True),
)
SEEDS = range(4)


def cluster_of(seed: int) -> Cluster:
    job = build_job(CHAIN, sharing_depth=1, rows=120)
    options = Options(slots=5, epoch_ms=15.0, floors_at_end=2)
    cluster = Cluster(job, options, Random(seed))
    cluster.heals_at = float("inf")  # sources do not end before the script does
    cluster.start()
    cluster.run_until(lambda: len(cluster.recorder.output(2)) > 3)
    return cluster


def finish(cluster: Cluster) -> None:
    cluster.heals_at = cluster.scheduler.now
    outcome = cluster.run(cluster.scheduler.now + 30_000)
    assert outcome.state == "done", outcome
    cluster.recorder.check_end(cluster.service)


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_where_the_first_one_is_the_second_cannot_begin(seed: int, is_frozen: bool) -> None:
    cluster = cluster_of(seed)
    if is_frozen:
        cluster.driver.paused_until = cluster.scheduler.now + 400
    cluster.refuse(cluster.disks.local, JournalInUse)
    cluster.refuse(Disk(Random(seed)), OtherJournal)
    finish(cluster)
    assert cluster.driver.term == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_whose_disk_is_moved_to_another_machine_ends(seed: int) -> None:
    cluster = cluster_of(seed)
    first = cluster.driver
    first.disk.detach()
    cluster.follow(cluster.disks.local)
    cluster.run_until(lambda: not first.alive)
    finish(cluster)
    assert cluster.driver.term == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_who_wakes_up_when_another_one_drives_says_nothing_more(seed: int) -> None:
    cluster = cluster_of(seed)
    first, wakes_at = cluster.driver, cluster.scheduler.now + 300
    first.paused_until = wakes_at
    cluster.follow(cluster.disks.local.copy())
    cluster.run_until(lambda: cluster.scheduler.now > wakes_at - 10)
    assert first.alive
    cluster.run_until(lambda: not first.alive)
    assert cluster.scheduler.now < wakes_at + 50, "it looks at once"
    finish(cluster)


def test_what_the_moved_journal_holds_either_may_let_out() -> None:
    """The disk moves when an output is durable and not yet out: each driver lets it out."""
    assert simulate(7019477).verdict == "ok"


def test_who_sleeps_between_claim_and_first_turn_looks_first() -> None:
    """Two drivers begin at once; the first to claim has its first turn when the other drives."""
    assert simulate(66000477).verdict == "ok"


def test_what_the_first_hears_when_the_second_has_begun_is_lost_with_it() -> None:
    """Holders answer the first driver; the second has slots of its own."""
    assert simulate(235001549, Kind(history=True)).verdict == "ok"


def test_who_takes_its_claim_for_a_look_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tenure.tick

    def tick(self: Tenure, ticks_s: float, wall_s: float) -> None:
        if self.is_unsure and not self._wall_s:
            self._ticks_s, self._wall_s, self._next_s = ticks_s, wall_s, self._echo_s / LOOKS
            self._machine.on(Sight.OURS)
        right(self, ticks_s, wall_s)

    monkeypatch.setattr(Tenure, "tick", tick)
    result = simulate(66000477)
    assert result.invariant == "one driver", result


def test_who_does_not_look_when_it_wakes_up_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tenure, "is_unsure", property(lambda _: False))
    monkeypatch.setattr(Tenure, "is_lost", property(lambda _: False))

    def wake_up() -> None:
        for seed in range(20):
            test_who_wakes_up_when_another_one_drives_says_nothing_more(seed)

    with pytest.raises(Violation, match="one driver"):
        wake_up()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_is_away_stops_no_output(seed: int) -> None:
    """The journal's lock says that nobody else has it."""
    cluster = cluster_of(seed)
    cluster.disks.shared.faults = lambda _call, _path: 5
    lasts_ms = 10 * cluster.options.echo_ms
    cluster.run_until(lambda: not cluster.driver.node.may_delete)
    before = len(cluster.recorder.output(2))
    cluster.run_until(lambda: len(cluster.recorder.output(2)) > before + 2)
    cluster.scheduler.after(lasts_ms, cluster.disks.shared.heal)
    cluster.run_until(lambda: cluster.driver.node.may_delete)
    finish(cluster)
    assert cluster.driver.term == 1
