"""Without markers: how often a task seals."""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.nodes.resident import Resident
from clonos.nodes.seal_times import MANY, SealSettings, SealTimes, as_soon_as_cheap


class Task:
    """Has done something, and its layers make no floors unless told."""

    def __init__(self, settings: SealSettings) -> None:
        self.times = SealTimes(settings)
        self.has_news, self.beyond_floor, self.now = True, 0, 0.0
        self.work = self.busy_s = 0.0  # seconds of work per second; in all
        self.sealed_at: list[float] = []
        self.floors_move = False

    def passes(
        self, seconds: float, cpu_s: float = 0.0, wall_s: float = 0.0, *, growing: float = 0.0
    ) -> None:
        """A layer costs `cpu_s` and, for each second of work that it saves, `growing` more."""
        until = self.now + seconds
        while self.now < until - 1e-6:
            self.times.look(self.now, has_news=self.has_news)
            due_s = self.times.due_s(self.now, busy_s=self.busy_s, beyond_floor=self.beyond_floor)
            if self.now >= due_s:
                self.times.sealed(self.now, busy_s=self.busy_s)
                saves_s = self.times.saves_s
                self.times.stored(saves_s, cpu_s + growing * saves_s, wall_s + growing * saves_s)
                self.sealed_at.append(self.now)
                self.beyond_floor += not self.floors_move
            self.now = round(self.now + 0.01, 2)
            self.busy_s += self.work * 0.01

    def pauses(self) -> list[float]:
        return [b - a for a, b in zip(self.sealed_at, self.sealed_at[1:], strict=False)]


@pytest.fixture
def task() -> Task:
    return Task(SealSettings(1.0))


@pytest.fixture
def chosen() -> Task:
    """A task of a job whose user has not said how often."""
    task = Task(as_soon_as_cheap(8))
    task.floors_move = True
    return task


def test_an_interval_after_the_first_step_that_no_layer_has(task):
    task.has_news = False
    task.passes(5)
    assert not task.sealed_at
    task.has_news = True
    task.passes(1.2)
    assert task.sealed_at == [6.0]


def test_layers_that_make_no_floor_become_rare(task):
    task.passes(600)
    pauses = task.pauses()
    assert pauses[: MANY - 1] == pytest.approx([1.01] * (MANY - 1))
    assert pauses[-1] == pytest.approx(16.01)
    assert len(task.sealed_at) < 50
    task.beyond_floor = 0  # it moves again, and nobody waits for the end of a long pause
    before = len(task.sealed_at)
    task.passes(0.5)
    assert len(task.sealed_at) == before + 1


def test_the_interval_is_the_users(task):
    task.floors_move, task.work = True, 1.0
    task.passes(10)
    assert task.pauses() == pytest.approx([1.01] * 8)


def test_a_task_at_work_seals_soon(chosen):
    chosen.work = 0.5
    chosen.passes(5)
    assert max(chosen.pauses()) == pytest.approx(0.05)  # it looks every 10 ms


def test_a_task_with_little_to_do_seals_when_it_is_worth_it(chosen):
    chosen.work = 0.04
    chosen.passes(5)
    assert min(chosen.pauses()) == pytest.approx(0.5)  # 20 ms of work
    chosen.work = 0.001
    chosen.passes(30)
    assert chosen.pauses()[-1] == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("work", "cpu_s", "wall_s", "pause"),
    [
        (1.0, 0.005, 0.005, 0.5),
        (0.25, 0.01, 0.01, 0.13),
        (0.5, 0.001, 0.1, 0.4),
        (1.0, 0.2, 0.2, 1.0),
    ],
    ids=["much to do", "little to do", "slow store", "at the latest after the interval"],
)
def test_layers_may_take_only_a_part_of_the_time(chosen, work, cpu_s, wall_s, pause):
    chosen.work = work
    chosen.passes(60, cpu_s, wall_s)
    assert max(chosen.pauses()[-20:]) == pytest.approx(pause, rel=0.05)  # some come early


@pytest.mark.parametrize("growing", [0.0, 0.03, 0.2])
def test_what_grows_with_the_work_does_not_count(chosen, growing):
    """It is paid once, however often the task seals."""
    chosen.work = 1.0
    chosen.passes(60, 0.003, growing=growing)
    assert 0.2 < median(chosen.pauses()[-20:]) <= 0.35
    chosen.work = 0.3  # it keeps up for a while, and is behind again
    chosen.passes(10, 0.003, growing=growing)
    chosen.work = 1.0
    chosen.passes(60, 0.003, growing=growing)
    assert 0.2 < median(chosen.pauses()[-20:]) <= 0.35


def test_large_layers_do_not_make_the_next_ones_late(chosen):
    """Nothing was known of layers yet, and the first ones were large."""
    chosen.work = 1.0
    for _ in range(8):
        chosen.times.stored(1.0, 0.05, 0.2)
    chosen.passes(60, 0.003, 0.01, growing=0.04)
    assert max(chosen.pauses()[-20:]) < 0.5


def test_a_layer_for_which_others_wait_comes_soon(task, chosen):
    for waiting, soonest in ((chosen, 0.05), (task, 0.5)):  # not even so much where the user says
        waiting.floors_move, waiting.work = True, 0.001
        waiting.passes(2)
        before = waiting.sealed_at[-1]
        waiting.times.wanted()
        waiting.passes(1)
        after = next(at for at in waiting.sealed_at if at > before)
        assert after <= max(2.01, before + soonest + 0.01)
        assert waiting.pauses()[-1] == pytest.approx(1.01, abs=0.02)  # the next ones are as before


def test_the_driver_hears_of_no_more_than_200_layers_a_second():
    tasks = 300
    task = Task(as_soon_as_cheap(tasks))
    task.floors_move, task.work = True, 1.0
    task.passes(30)
    assert tasks / min(task.pauses()) <= 300  # at the latest each second
    assert as_soon_as_cheap(100).soonest_s == pytest.approx(100 / 200)


def test_a_layer_that_is_not_taken_is_noticed():
    """By whoever reads the counters: the store itself only tries again."""
    now, put = [7.0], []
    store = SimpleNamespace(put=lambda life, action, level: put.append((life, level)))
    task: Any = Resident.__new__(Resident)
    task._ports = SimpleNamespace(clock=SimpleNamespace(ticks_s=lambda: now[0]), store=store)
    task._home = SimpleNamespace(plan=SimpleNamespace(tasks=[SimpleNamespace(level="store")]))
    task.task, task.number, task._levels, task._storing = 0, 5, None, {}
    task._seal_times = None
    assert task._layer_waits_s() == 0
    for epoch in (3, 4):
        task._store_layer(SimpleNamespace(layer=SimpleNamespace(epoch=epoch)))
        now[0] += 10
    assert put == [(5, "store")] * 2
    assert task._layer_waits_s() == 20
    assert task.stored(SimpleNamespace(epoch=3), 0.0)
    assert task._layer_waits_s() == 10
    assert task.stored(SimpleNamespace(epoch=4), 0.0)
    assert task._layer_waits_s() == 0
