"""Somebody sets a machine's clock by an hour: windows of processing time still come in time."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from clonos import sinks, sources
from clonos.api import aggregates, windows
from clonos.api.job import Job
from clonos.core.life import Phase
from clonos.core.roster import TaskPhase
from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.arrow import SCHEMA, ArrowJob
from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.simulator.runs.faults import HOUR_MS
from clonos.simulator.world.virtual import EPOCH_MS

IN_TIME_MS = 500.0
"""A window of 20 ms, a checkpoint, a recovery: nothing that takes an hour."""
WINDOW_MS = 20
SEEDS = range(4)


class Windows:
    """A cluster that counts rows in windows of 20 ms, and its script."""

    def __init__(self, seed: int) -> None:
        job = Job("windows", sharing_depth=1)
        rows = job.source(sources.from_batches([], schema=SCHEMA), name="rows")
        keyed = rows.start_new_chain().key_by("key")
        counted = keyed.window(windows.tumbling(f"{WINDOW_MS} ms")).agg(rows=aggregates.count())
        counted.sink(sinks.collect(), name="out")
        made = ArrowJob(job.compile(), rows=400)
        self.task = next(t.id for t in made.plan.tasks if t.is_sink)
        options = Options(slots=2 * len(made.plan.tasks), groups=2, floors_at_end=1)
        self.cluster = Cluster(made, options, Random(seed))
        self.cluster.heals_at = float("inf")
        self.cluster.start()
        tasks = self.cluster.driver.coordinator.tasks
        self.cluster.run_until(lambda: all(t.phase is TaskPhase.LIVE for t in tasks.values()))

    @property
    def machine(self) -> Any:
        slot = self.cluster.slot_of(self.task)
        return slot.machine_of(self.task) if slot else None

    def set_clocks(self, by_ms: int) -> None:
        for clock in self.cluster.clocks.values():
            clock.set_by(by_ms)

    def until_a_window_is_open(self, *, in_an_hour: bool) -> int:
        """Returns when it is over."""
        begins = EPOCH_MS + (HOUR_MS if in_an_hour else 0)
        self.in_time(lambda: (m := self.machine) and m.wake_ms and m.wake_ms > begins)
        return int(self.machine.wake_ms)

    def until_it_is_over(self, due_ms: int) -> None:
        self.in_time(lambda: (m := self.machine) and m.clock_ms >= due_ms)

    def kill_when_an_hour_is_in_its_log(self) -> int:
        """Returns when the window is over that the next life finds open."""
        position, keeper = self.machine.position, self.cluster.driver.keeper
        self.in_time(lambda: keeper.length(self.task) >= position)
        slot = self.cluster.slot_of(self.task)
        assert slot is not None
        self.cluster.kill(slot, "script")
        life = self.cluster.driver.coordinator.tasks[self.task].incarnation
        self.in_time(lambda: (m := self.machine) and m.incarnation > life and m.phase is Phase.LIVE)
        assert self.machine.clock_ms > EPOCH_MS + HOUR_MS
        return int(self.machine.clock_ms) + WINDOW_MS

    def in_time(self, condition: Any) -> None:
        self.cluster.run_until(condition, self.cluster.scheduler.now + IN_TIME_MS)


def forward_and_back(seed: int, *, with_kill: bool = False) -> None:
    play = Windows(seed)
    due = play.until_a_window_is_open(in_an_hour=False)
    play.set_clocks(HOUR_MS)
    play.until_it_is_over(due)
    due = play.until_a_window_is_open(in_an_hour=True)
    play.set_clocks(-HOUR_MS)
    if with_kill:
        due = play.kill_when_an_hour_is_in_its_log()
    play.until_it_is_over(due)
    play.until_it_is_over(play.until_a_window_is_open(in_an_hour=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_forward_and_back(seed):
    forward_and_back(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_next_life_knows_only_the_right_time(seed):
    forward_and_back(seed, with_kill=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_back_by_an_hour(seed):
    play = Windows(seed)
    due = play.until_a_window_is_open(in_an_hour=False)
    play.set_clocks(-HOUR_MS)
    play.until_it_is_over(due)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clock_that_stands_still_is_found(seed):
    with (
        MUTATIONS["the clock stands still when it was set back"].active(),
        pytest.raises(Violation, match="for its timer"),
    ):
        forward_and_back(seed)
