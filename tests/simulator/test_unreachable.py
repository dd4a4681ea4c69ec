"""Two slots that cannot reach each other, though the driver hears of both."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.coordinator import Coordinator
from clonos.core.decisions import Action, Command, Event, Expel, Fail, Reported, SlotReady
from clonos.core.housekeeper import HouseKeeper
from clonos.core.reach import GATHER_MS, GONE, MOVES_MIN, NEVER, Reach
from clonos.core.roster import TaskPhase
from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.seeds import simulate

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
    heard: list[notes.Note] = []
    cluster.on_note.append(heard.append)
    one, other = part(cluster)
    cluster.run_until(lambda: any(isinstance(n, notes.Unreachable) for n in heard))
    cluster.run_until(lambda: {cluster.slot_of(0), cluster.slot_of(1)} != {one, other})
    finish(cluster)
    near, far = cluster.slot_of(0), cluster.slot_of(1)
    assert near is None or far is None or not cluster.network.is_parted(near, far)
    told = [n for n in heard if isinstance(n, notes.Unreachable) and n.why]
    assert len(told) == 1, "users are told once of two executors"


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
    found = re.search(r"moved (\d+) times", outcome.message)
    assert found is not None
    assert int(found[1]) >= MOVES_MIN


def test_outages_that_follow_each_other_end_no_job() -> None:
    """Three within half of the time for which a channel that never comes about is tried."""
    assert simulate(3006273, Kind(large=True)).verdict == "ok"


class Parted:
    """The source and the middle of a job do not reach each other; who is given up is replaced."""

    def __init__(self) -> None:
        job = build_job(CHAIN, sharing_depth=1, rows=5)
        keeper = HouseKeeper(job.plan, job.encode, job.decode)
        self.coordinator = Coordinator(job.plan, keeper, address="k", standbys=0)
        self.coordinator.start()
        self.now_ms = self.slots = 0
        while self.slots < 3:
            self.join()

    def join(self) -> None:
        self.slots += 1
        slot = SlotReady(self.slots, f"slot{self.slots}", f"executor{self.slots}")
        self._handle(slot)

    def _handle(self, event: Event) -> None:
        self._hear(self.coordinator.handle(event, self.now_ms))

    def _hear(self, actions: list[Action]) -> None:
        """Everybody answers at once, and holds nothing."""
        for action in actions:
            if isinstance(action, Command) and isinstance(action.command, msg.ToTask):
                holder, fence = action.command.task, action.command.command
                if isinstance(fence, msg.Fence):
                    answer = msg.FenceAnswer(holder, fence.task, fence.incarnation, 0, None)
                    self._handle(Reported(action.slot, answer))

    def say(self, kind: Any, *last: Any) -> None:
        sender, receiver = self.coordinator.tasks[0], self.coordinator.tasks[1]
        assert sender.slot is not None
        peer = (0, receiver.incarnation, *last) if last else ({0: receiver.incarnation},)
        report = kind(0, sender.incarnation, *peer)
        self._handle(Reported(sender.slot, report))

    def restored(self) -> None:
        for task in list(self.coordinator.tasks.values()):
            if task.phase is TaskPhase.RESTORING and task.slot is not None:
                self._handle(Reported(task.slot, msg.Restored(task.id, task.incarnation)))

    def complain(
        self, for_ms: int, every_ms: int = 1_500, *, is_silent: bool = False
    ) -> tuple[int, str]:
        """Nothing but complaints for so long: how many moves come of it, and which error."""
        moves, until_ms = 0, self.now_ms + for_ms
        while self.now_ms < until_ms:
            self.say(msg.Unreachable, "no answer", is_silent)
            self.now_ms += every_ms
            actions = self.coordinator.tick(self.now_ms)
            errors = [action.error for action in actions if isinstance(action, Fail)]
            if errors:
                return moves, errors[0]
            self._hear(actions)
            for _ in [action for action in actions if isinstance(action, Expel)]:
                moves += 1
                self.join()
        return moves, ""


def test_a_channel_that_never_comes_about_ends_the_job() -> None:
    parted = Parted()
    moves, error = parted.complain(10 * NEVER * GATHER_MS)
    assert error == "CannotConnect"
    assert moves >= MOVES_MIN
    assert NEVER * GATHER_MS <= parted.now_ms < 3 * NEVER * GATHER_MS


def test_one_that_was_there_is_waited_for() -> None:
    parted = Parted()
    parted.say(msg.Reached)
    assert parted.complain(GONE * GATHER_MS - 60_000)[1] == ""
    assert parted.complain(120_000)[1] == "CannotConnect"


def test_who_accepts_connections_and_is_silent_is_given_up_unless_it_restores() -> None:
    parted = Parted()
    assert parted.complain(600_000, 120_000, is_silent=True) == (0, "")
    parted.restored()
    assert parted.complain(240_000, 120_000, is_silent=True) == (1, "")


def test_moves_in_vain_become_rarer() -> None:
    parted = Parted()
    parted.say(msg.Reached)
    counts = [parted.complain(60_000)[0] for _ in range(3)]
    assert counts[0] > counts[1] >= counts[2] >= 1


def test_outages_that_heal_do_not_add_up() -> None:
    parted = Parted()
    for _ in range(100):
        assert parted.complain(20_000)[1] == ""
        parted.say(msg.Reached)


def test_who_is_reached_again_is_shunned_no_more() -> None:
    parted = Parted()
    cell = parted.coordinator.plan.cell_of[0]
    parted.say(msg.Unreachable, "no answer", False)
    assert parted.coordinator.reach.shunned(cell)
    parted.say(msg.Reached)
    assert not parted.coordinator.reach.shunned(cell)


def test_what_an_earlier_life_reached_is_no_news_of_this_one() -> None:
    parted = Parted()
    before = parted.coordinator.tasks[1].incarnation
    assert parted.complain(3_000)[0] >= 1
    sender = parted.coordinator.tasks[0]
    assert sender.slot is not None
    parted.say(msg.Unreachable, "no answer", False)
    stale = msg.Reached(0, sender.incarnation, {0: before})
    parted.coordinator.handle(Reported(sender.slot, stale), parted.now_ms)
    assert parted.coordinator.reach.shunned(parted.coordinator.plan.cell_of[0])
