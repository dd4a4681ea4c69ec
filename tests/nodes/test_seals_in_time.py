"""Without markers: how often a task seals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core import messages as msg
from clonos.nodes.resident import SEALS_MANY, Resident


class Task(Resident):
    """A resident that has done something, and whose layers make no floors unless told."""

    def __init__(self) -> None:
        self._home: Any = SimpleNamespace(seal_s=1.0)
        self._news_since = None
        self.has_news, self.beyond_floor, self.now = True, 0, 0.0
        self.sealed_at: list[float] = []

    def hear(self, event: Any) -> None:
        assert event == msg.SealNow()
        self.sealed_at.append(self.now)
        self.beyond_floor += 1

    def passes(self, seconds: float) -> None:
        seals = SimpleNamespace(has_news=lambda _: self.has_news, beyond_floor=self.beyond_floor)
        machine: Any = SimpleNamespace(seals=seals)
        for _ in range(round(seconds * 10)):
            seals.beyond_floor = self.beyond_floor
            self._seal_in_time(machine, self.now)
            self.now = round(self.now + 0.1, 1)


@pytest.fixture
def task() -> Task:
    return Task()


def test_an_interval_after_the_first_step_that_no_layer_has(task):
    task.has_news = False
    task.passes(5)
    assert not task.sealed_at
    task.has_news = True
    task.passes(1.2)
    assert task.sealed_at == [6.0]


def test_layers_that_make_no_floor_become_rare(task):
    task.passes(600)
    pauses = [b - a for a, b in zip(task.sealed_at, task.sealed_at[1:], strict=False)]
    assert pauses[: SEALS_MANY - 1] == pytest.approx([1.1] * (SEALS_MANY - 1))
    assert pauses[-1] == pytest.approx(16.1)
    assert len(task.sealed_at) < 50
    task.beyond_floor = 0  # it moves again, and nobody waits for the end of a long pause
    before = len(task.sealed_at)
    task.passes(1.2)
    assert len(task.sealed_at) == before + 1


def test_a_layer_that_is_not_taken_is_noticed():
    """By whoever reads the counters: the store itself only tries again."""
    now, put = [7.0], []
    store = SimpleNamespace(put=lambda life, action, level: put.append((life, level)))
    task: Any = Resident.__new__(Resident)
    task._ports = SimpleNamespace(clock=SimpleNamespace(ticks_s=lambda: now[0]), store=store)
    task._home = SimpleNamespace(plan=SimpleNamespace(tasks=[SimpleNamespace(level="store")]))
    task.task, task.number, task._levels, task._storing = 0, 5, None, {}
    assert task._layer_waits_s() == 0
    for epoch in (3, 4):
        task._store_layer(SimpleNamespace(layer=SimpleNamespace(epoch=epoch)))
        now[0] += 10
    assert put == [(5, "store")] * 2
    assert task._layer_waits_s() == 20
    assert task.stored(SimpleNamespace(epoch=3))
    assert task._layer_waits_s() == 10
    assert task.stored(SimpleNamespace(epoch=4))
    assert task._layer_waits_s() == 0
