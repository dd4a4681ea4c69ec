"""The two worlds in which a port has to behave the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

from clonos.core.plan import Incarnation
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.transport.inbox import Inbox

WAIT_S = 100.0
"""Only a test that has failed waits for so long."""


class Real:
    """The real port, which tells its loop by an inbox what has come."""

    def __init__(self) -> None:
        self._inbox = Inbox()
        self.heard: list[Any] = []

    def until(self, condition: Callable[[], object]) -> None:
        wait(condition, lambda: self.heard.extend(self._inbox.take()))


def wait(condition: Callable[[], object], listen: Callable[[], object]) -> None:
    """In the real world: listen until something has come about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        listen()
        time.sleep(0)


class Ear:
    """As much of a simulated slot as one of its ports needs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.alive = cluster, True
        self.node = self
        self.heard: list[Any] = []
        self.post = self.heard.append

    def who(self, _: int) -> tuple[int, Incarnation]:
        return 0, Incarnation(1, 1)


class Simulated:
    """A simulated cluster; each seed has other delays and accidents.

    Attributes
    ----------
    ear, heard
        Who has the port, and what it was told.
    """

    def __init__(self, seed: int, rows: int = 1) -> None:
        stages = (Stage("source", 1, (), Behaviour()), Stage("sink", 1, (0,), Behaviour(), True))
        self.cluster = Cluster(
            build_job(stages, sharing_depth=1, rows=rows), Options(), Random(seed)
        )
        self.ear: Any = Ear(self.cluster)
        self.heard: list[Any] = self.ear.heard

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.cluster.scheduler.run_next()

    def close(self) -> None:
        """Nothing is held."""
