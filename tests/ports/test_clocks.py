"""What nodes and tasks may rely on when they ask for the time, here and in the simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest

from clonos.cluster.clock import SystemClock
from clonos.core.events import World
from clonos.core.plan import Incarnation
from clonos.nodes.ports import WallClock
from clonos.runtime.world import RealWorld
from clonos.simulator.processes.driver import DriverClock
from clonos.simulator.world.virtual import MachineClock, TaskWorld, Trials, batch_of

from .common import Simulated

HOUR_MS = 3_600_000


class Here:
    """Somebody sets this machine's clock: nothing else changes it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.port: WallClock = SystemClock()
        self.world: World = RealWorld()
        self._patch = patch

    def passes(self, ms: float) -> None:
        time.sleep(ms / 1000)

    def set_by(self, ms: int) -> None:
        ns, seconds = time.time_ns, time.time
        self._patch.setattr(time, "time_ns", lambda: ns() + ms * 1_000_000)
        self._patch.setattr(time, "time", lambda: seconds() + ms / 1000)

    def close(self) -> None:
        """Nothing is held."""


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        cluster, random = self.cluster, Random(seed)
        self._clock = MachineClock(cluster.scheduler)
        self.port: WallClock = DriverClock(cluster)
        self.world: World = TaskWorld(
            cluster.scheduler, cluster.service, 0, Incarnation(1, 1), self._clock,
            random.randint(-20, 20), cluster.decode_rows, Trials(batch_of, random),
        )  # fmt: skip

    def passes(self, ms: float) -> None:
        over: list[bool] = []
        self.cluster.scheduler.after(ms, over.append, True)
        self.until(lambda: over)

    def set_by(self, ms: int) -> None:
        self._clock.set_by(ms)


@pytest.fixture(params=["here", *range(3)])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    kind = request.param
    with closing(Here(monkeypatch) if kind == "here" else InSimulation(kind)) as made:
        yield made


READINGS: dict[str, Callable[[Any], float]] = {
    "a node's ticks": lambda world: world.port.ticks_s() * 1000,
    "a task's ticks": lambda world: world.world.ticks_ms(),
}


@pytest.mark.parametrize("reading", READINGS)
def test_ticks_go_on_whatever_somebody_does_to_the_clock(world, reading):
    read, before = READINGS[reading], READINGS[reading](world)
    for jump in (HOUR_MS, -2 * HOUR_MS):
        world.set_by(jump)
        world.passes(5.0)
        assert before + 4 <= read(world) < before + HOUR_MS / 2
        before = read(world)


def test_the_wall_clock_is_about_right_and_may_be_set(world):
    before = world.world.clock_ms()
    assert abs(before - world.port.wall_s() * 1000) < HOUR_MS / 2
    world.set_by(-HOUR_MS)
    assert world.world.clock_ms() < before - HOUR_MS / 2
