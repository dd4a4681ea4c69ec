"""Who is slow: what is seen of a task beside its peers, and what is no reason to overtake it."""

from __future__ import annotations

import itertools
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clonos.core.plan import ChannelSpec, Plan, TaskSpec
from clonos.core.rivals import AGAIN_MS, HOLDS_MS, REST_MS, Paces, PaceSample, Rivals
from clonos.core.roster import Roster

LOOK_MS = 250


def plan(tasks=3, *, has_effects=False):
    """A source, and tasks of one operator that it feeds."""
    count = [
        TaskSpec(n, f"count[{n - 1}]", "count", n - 1, (n - 1,), (), has_effects=has_effects)
        for n in range(1, tasks + 1)
    ]
    source = TaskSpec(0, "source[0]", "source", 0, (), tuple(range(tasks)), is_source=True)
    return Plan((source, *count), tuple(ChannelSpec(n, 0, n + 1) for n in range(tasks)))


class Job:
    """Tasks that report four times a second.

    ``cost``: ms per row; ``demand``: rows per second that come to it, if it can take them.
    """

    def __init__(self, tasks=3, **options):
        self.plan = plan(tasks, **options)
        self.now_ms = 0
        self.cost = dict.fromkeys(range(1, tasks + 1), 0.1)
        self.demand = dict.fromkeys(self.cost, 2_000.0)
        self.rows = dict.fromkeys(self.cost, 0.0)
        self.busy = dict.fromkeys(self.cost, 0.0)
        self.roster: Any = SimpleNamespace(
            now_ms=0, plan=self.plan, bound=frozenset(), all_run=True
        )
        self.rivals = Rivals(cast("Roster", self.roster))
        self.is_full = False  # no slot is free for a rival

    def look(self):
        """A quarter of a second passes; which tasks are overtaken."""
        self.now_ms += LOOK_MS
        self.roster.now_ms = self.now_ms
        return [task for task in self.cost if self.tell(task)]

    def tell(self, task):
        able = LOOK_MS / self.cost[task]
        rows = min(able, self.demand[task] * LOOK_MS / 1000)
        self.rows[task] += rows
        self.busy[task] += rows * self.cost[task]
        counters = {"rows": int(self.rows[task]), "busy_ms": int(self.busy[task])}
        is_asked = self.rivals.told(task, counters)
        if is_asked and not self.is_full:
            self.rivals.overtaken((task,))
        return is_asked

    def run(self, seconds):
        """When which task was overtaken."""
        found = []
        for _ in range(int(seconds * 1000 / LOOK_MS)):
            found += [(self.now_ms, task) for task in self.look()]
        return found


def test_who_takes_four_times_as_long_is_overtaken_within_two_seconds():
    job = Job()
    assert not job.run(10)
    job.cost[2], job.demand[2] = 1.0, 5_000.0
    ((at_ms, task),) = job.run(4)
    assert task == 2
    assert at_ms - 10_000 <= 2_000


@pytest.mark.parametrize("rows", [(800,), (3_000,), (3_000, 200), (2_500, 1_500, 300)])
@pytest.mark.parametrize("jitter", range(3))
def test_steps_that_are_longer_than_what_is_looked_at_hide_nobody(rows, jitter):
    """Rows count when their step ends: four times as slow is that slow at every moment."""
    job = Job(2)
    job.run(10)
    random, (at_ms, done, since_ms) = Random(jitter), (10_000, job.rows[2], 10_000.0)
    steps = itertools.cycle(rows)
    step = next(steps)
    for _ in range(40):
        at_ms += LOOK_MS
        job.roster.now_ms = job.now_ms = at_ms
        job.tell(1)
        seen_ms = at_ms + random.randrange(60)  # a report is late now and then
        while seen_ms - since_ms >= step * 0.4:  # milliseconds: 0.1 is usual
            since_ms, done, step = since_ms + step * 0.4, done + step, next(steps)
        busy = int(job.busy[2]) + seen_ms - 10_000
        counters = {"rows": int(done), "busy_ms": busy, "step_ms": int(seen_ms - since_ms)}
        if job.rivals.told(2, counters):
            break
    assert at_ms - 10_000 <= 1_500 + 2 * max(rows) * 0.4


def test_a_step_that_does_not_end_is_slow_before_it_ends():
    job = Job(2)
    job.run(10)
    rows, busy = int(job.rows[2]), int(job.busy[2])
    for look in range(1, 40):
        job.roster.now_ms = job.now_ms = job.now_ms + LOOK_MS
        job.tell(1)
        under_way = look * LOOK_MS
        counters = {"rows": rows, "busy_ms": busy + under_way, "step_ms": under_way}
        if job.rivals.told(2, counters):
            break
    assert look * LOOK_MS <= 3_000


def test_who_is_held_up_by_a_slow_peer_has_as_few_rows_and_is_not_slow():
    """All have the rows that the slow one lets through."""
    job = Job()
    job.run(5)
    job.cost[3] = 1.0
    job.demand = dict.fromkeys(job.demand, 1_000.0)
    assert [task for _, task in job.run(4)] == [3]


def test_a_key_with_many_rows_is_no_reason():
    job = Job()
    job.demand[1] = 50_000.0  # it has more to do than it can
    assert not job.run(30)


def test_a_slow_task_that_keeps_up_is_left_alone():
    job = Job()
    job.cost[1], job.demand[1] = 1.0, 300.0
    assert not job.run(30)


def test_a_machine_that_is_busy_makes_nobody_slow():
    job = Job()
    job.demand = dict.fromkeys(job.demand, 50_000.0)
    job.run(5)
    job.cost = dict.fromkeys(job.cost, 3.0)
    assert not job.run(30)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_learnt(seed):
    """Now and then one is much slower than the others, for a second or so: once it is known that
    this happens, it is no reason."""
    random = Random(seed)
    job = Job()
    job.demand = dict.fromkeys(job.demand, 50_000.0)
    overtaken = []
    for _ in range(120):
        job.cost = {task: 0.1 * random.choice((1, 1, 1, 4)) for task in job.cost}
        overtaken += job.run(random.choice((0.5, 1.0, 1.5)))
    assert len(overtaken) <= 3, overtaken


def test_one_look_is_not_enough():
    job = Job()
    job.run(5)
    job.cost[1], job.demand[1] = 1.0, 5_000.0
    assert not job.run(HOLDS_MS / 1000)
    job.cost[1], job.demand[1] = 0.1, 2_000.0
    assert not job.run(10)


def test_rows_that_are_slow_anywhere_cost_fewer_and_fewer_failures():
    job = Job()
    job.run(5)
    job.cost[1], job.demand[1] = 1.0, 5_000.0
    times = [at_ms for at_ms, task in job.run(300) if task == 1]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(pause >= AGAIN_MS * 2**n for n, pause in enumerate(pauses))
    assert len(times) == 4


def test_an_attempt_without_a_free_slot_does_not_count():
    job = Job()
    job.run(5)
    job.cost[1], job.demand[1] = 1.0, 5_000.0
    job.is_full = True
    times = [at_ms for at_ms, _ in job.run(300)]
    pauses = {later - earlier for earlier, later in itertools.pairwise(times)}
    assert len(times) >= 9
    assert pauses == {AGAIN_MS}
    job.is_full = False
    overtaken = [at_ms for at_ms, _ in job.run(100)]
    assert AGAIN_MS * 2 > overtaken[1] - overtaken[0] >= AGAIN_MS


def test_one_after_the_other():
    job = Job(tasks=5)
    job.run(5)
    for task in (1, 2):
        job.cost[task], job.demand[task] = 1.0, 5_000.0
    (first, _), (second, _) = job.run(20)
    assert second - first >= REST_MS


def test_nothing_is_learnt_while_something_recovers():
    job = Job()
    job.run(5)
    job.cost[1], job.demand[1] = 1.0, 5_000.0
    job.roster.all_run = False
    assert not job.run(10)
    job.roster.all_run = True
    assert job.run(3)


def test_effects_and_lone_tasks_are_left_alone():
    for job in (Job(has_effects=True), Job(tasks=1)):
        job.run(5)
        job.cost[1], job.demand[1] = 1.0, 5_000.0
        assert not job.run(10)


def test_another_life_counts_from_nothing():
    paces = Paces(plan())
    for n in range(8):
        paces.told(1, PaceSample(n * LOOK_MS, n * 1000, n * 100))
        paces.told(2, PaceSample(n * LOOK_MS, n * 1000, n * 100))
    assert not paces.told(1, PaceSample(8 * LOOK_MS, 10, 200))
    assert not paces.told(1, PaceSample(9 * LOOK_MS, 20, 450))
