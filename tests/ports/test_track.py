"""What a node may rely on when user code runs, in the loop's thread and in the simulation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from clonos.nodes.events import Ran
from clonos.nodes.ports import Track
from clonos.runtime.relief import MainTrack
from clonos.simulator.processes.slot import SlotTrack

from .common import Simulated

LIFE = 7


class InTheLoop:
    def __init__(self) -> None:
        track = MainTrack(lambda: None)
        track.baton.acquire()  # as the loop's thread does, before its first turn
        self.port: Track = track
        self.heard: list[Any] = []

    def until(self, condition: Callable[[], object]) -> None:
        assert condition(), "a job is done when its call has returned"

    def close(self) -> None:
        """Nothing is held."""


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cluster.options.long_work = 0.7
        self.cluster.work_random.seed(seed)
        self.port: Track = SlotTrack(self.ear)


@pytest.fixture(params=["loop", *range(8)])
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind = request.param
    with closing(InTheLoop() if kind == "loop" else InSimulation(kind)) as made:
        yield made


def do(world: Any, job: Callable[[], None]) -> Exception | None:
    """Run a job to its end, however long it takes; what has it raised?"""
    world.heard.clear()
    try:
        is_done = world.port.run(LIFE, job)
    except ValueError as error:
        return error
    if not is_done:
        assert not world.port.is_free
        world.until(lambda: world.heard)
        (ran,) = world.heard
        assert type(ran) is Ran
        assert ran.life == LIFE
        return ran.error
    assert world.heard == []
    return None


def test_jobs_are_done_once_one_after_the_other_in_one_thread(world):
    done: list[int] = []
    threads = set[int]()
    for number in range(20):

        def job(number: int = number) -> None:
            done.append(number)
            threads.add(threading.get_ident())

        assert world.port.is_free
        assert do(world, job) is None
    assert done == list(range(20))
    assert world.port.is_free
    assert len(threads) == 1


def test_what_a_job_raises_is_told_once_and_the_next_is_done(world):
    def fail() -> None:
        raise ValueError("no")

    for _ in range(5):
        assert isinstance(do(world, fail), ValueError)
        assert do(world, lambda: None) is None
