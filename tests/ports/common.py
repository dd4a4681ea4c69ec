"""The two worlds in which a port has to behave the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from clonos.simulator.cluster import Cluster, Options
from clonos.simulator.programs import Behaviour, Stage, build_job

WAIT_S = 100.0
"""Only a test that has failed waits for so long."""


def wait(condition: Callable[[], object], listen: Callable[[], object]) -> None:
    """In the real world: listen until something has come about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        listen()
        time.sleep(0)


class Simulated:
    """A simulated cluster; each seed has other delays and accidents."""

    def __init__(self, seed: int, rows: int = 1) -> None:
        stages = (Stage("source", 1, (), Behaviour()), Stage("sink", 1, (0,), Behaviour(), True))
        self.cluster = Cluster(
            build_job(stages, sharing_depth=1, rows=rows), Options(), Random(seed)
        )

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.cluster.scheduler.run_next()

    def close(self) -> None:
        """Nothing is held."""
