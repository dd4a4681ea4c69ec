"""Spark as a launcher: it starts processes late, twice, again by itself, or not for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from clonos.errors import ClonosError
from clonos.nodes.errors import ExecutorLost
from clonos.nodes.events import Ended

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster
    from clonos.simulator.processes.driver import Driver
    from clonos.simulator.processes.slot import Slot

EXECUTOR_ENDS = frozenset({"executor killed", "machine lost"})
"""Causes of death that end a whole executor."""
NEVER_MS = 1_500.0
"""Long enough for a slot to be given up."""
TWICE_MS = 20.0
"""Delay of a second process of the same attempt."""


@dataclass
class Attempt:
    """One Spark job of a place. It ends with its newest ``process``."""

    place: int
    process: Slot | None = None
    is_cancelled: bool = False
    is_over: bool = False


class Spark:
    """The launcher of one driver."""

    def __init__(self, cluster: Cluster, driver: Driver, bound: Sequence[int | None]) -> None:
        self._cluster, self._driver, self._bound = cluster, driver, bound
        self._attempts: dict[int, Attempt] = {}

    @property
    def retries(self) -> bool:
        return self._cluster.options.retries > 0

    def launch(self, place: int, attempt: int) -> None:
        cluster, options = self._cluster, self._cluster.options
        self._attempts[attempt] = Attempt(place)
        is_first = len(self._attempts) <= len(self._bound)
        delay = 0.0 if is_first else cluster.about(options.relaunch_ms)
        strikes = options.launch_faults and cluster.random.random() < options.launch_faults
        if not strikes or cluster.scheduler.now > cluster.heals_at:
            cluster.scheduler.after(delay, self._start, attempt)
            return
        kind = cluster.random.choice(("late", "dead", "twice"))
        cluster.trace(f"launching place {place}: {kind}")
        if kind == "dead":
            cluster.scheduler.after(delay, self._end, attempt, "it died before it registered")
            return
        late = cluster.about(NEVER_MS) if kind == "late" else 0.0
        cluster.scheduler.after(delay + late, self._start, attempt)
        if kind == "twice":
            cluster.scheduler.after(delay + cluster.about(TWICE_MS), self._start, attempt)

    def _start(self, number: int) -> None:
        attempt = self._attempts[number]
        if self._cluster.held_starts is not None:
            self._cluster.held_starts.append(partial(self._start, number))
        elif self._driver.alive and not attempt.is_over:
            bound = self._bound[attempt.place]
            attempt.process = self._cluster.start_slot(self._driver, attempt.place, number, bound)

    def process_ended(self, slot: Slot, number: int, why: str) -> None:
        """Spark has heard of a process's end: it starts another one, or the attempt is over."""
        attempt, cluster = self._attempts[number], self._cluster
        if attempt.process is not slot or attempt.is_over:
            return
        if cluster.random.random() < cluster.options.retries:
            cluster.scheduler.after(cluster.about(cluster.options.relaunch_ms), self._start, number)
        else:
            self._end(number, why)

    def suspects(self, number: int) -> None:
        """Spark believes that an executor is lost, and starts its tasks elsewhere."""
        if self._cluster.random.random() < self._cluster.options.retries:
            delay = self._cluster.about(self._cluster.options.relaunch_ms)
            self._cluster.scheduler.after(delay, self._start, number)

    def _end(self, number: int, why: str) -> None:
        attempt = self._attempts[number]
        if not attempt.is_over:
            attempt.is_over = True
            why = "" if attempt.is_cancelled else why
            kind = ExecutorLost if why in EXECUTOR_ENDS else ClonosError
            if attempt.process is not None:  # the driver may hear of it only from Spark
                self._cluster.recorder.lost(attempt.process.number)
            self._driver.post(Ended(attempt.place, number, kind(why) if why else None))

    def cancel(self, number: int) -> None:
        attempt, cluster = self._attempts[number], self._cluster
        attempt.is_cancelled = True
        if attempt.process is not None:
            cluster.kill(attempt.process, "cancelled")
        cluster.scheduler.after(cluster.about(cluster.options.detect_ms), self._end, number, "")

    def describe(self, task: str, text: str) -> None:
        self._cluster.trace(f"   {task}, {text}")
