"""Rounds in which the state of a running job is shared out to the tasks of its next plan.

In production :mod:`clonos.cluster.succession` begins them, and a process beside the driver does
them. It belongs to one life of the driver: what it has done is void when the driver dies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from clonos.core.history import Chains
from clonos.errors import CannotUpgrade, StoreAway
from clonos.nodes.events import RoundBegins
from clonos.nodes.phases import Phase
from clonos.simulator.checks.upgrades import rounds_are_of_use, stays_while_shared_out
from clonos.simulator.processes.cluster import Cluster
from clonos.simulator.processes.driver import Driver
from clonos.simulator.world.disk import Died
from clonos.storage.layers import LayerStore
from clonos.upgrade.prepare import NOTHING, ROUNDS, Prepared

RUNS_MS: Final = 200.0
"""The longest time for which a job runs while its state is shared out."""
READS_MS: Final = 60.0
"""The longest time between what is listed and when it has been read."""

Round = Callable[[int, int, Chains, Prepared], Prepared | None]
"""One round: its term and a number that no other has, its layers, and what came before."""


class Sharing:
    """The rounds of one change.

    Parameters
    ----------
    random
        Of its own: the rest of a seed stays as it was.
    store
        Returns the store, seen by a process that suffers no faults.

    Attributes
    ----------
    rounds
        How many were done, of lives of the driver that have died, too.
    """

    def __init__(
        self, cluster: Cluster, share: Round, random: Random, store: Callable[[], LayerStore]
    ) -> None:
        self._cluster, self._share, self._random, self._store = cluster, share, random, store
        self._driver: Driver | None = None
        self._so_far, self._is_free = NOTHING, False
        self._is_over = self._is_given_up = False
        self.rounds = 0
        self.runs_ms = RUNS_MS * random.random()

    def begin(self) -> None:
        """Look, from now on, whether a round can begin."""
        if not (self._is_over or self._is_given_up):
            wait_ms = self._random.choice((2.0, 20.0, 100.0)) * self._random.random()
            self._cluster.scheduler.after(wait_ms, self._look)

    def _look(self) -> None:
        driver = self._cluster.driver
        if self._is_over or self._cluster.outcome.state != "running":
            return
        if driver.alive and driver.waiting is None and driver.node.phase is Phase.RUNNING:
            if driver is not self._driver:
                self._driver, self._so_far, self._is_free = driver, NOTHING, True
            if self._is_free and self._so_far.rounds < min(ROUNDS, driver.keeper.epoch):
                self._is_free = False
                driver.post(RoundBegins(partial(self._listed, driver)))
        self.begin()

    def _listed(self, driver: Driver, chains: Chains) -> None:
        reads_ms = READS_MS * self._random.random()
        self._cluster.scheduler.after(reads_ms, self._read, driver, chains)

    def _read(self, driver: Driver, chains: Chains) -> None:
        if self._is_over or self._is_given_up:
            return
        if driver is not self._cluster.driver or not driver.alive:
            return
        self.rounds += 1
        stays_while_shared_out(self._store(), self._so_far.since(chains))
        try:
            found = self._share(driver.term + 1, self.rounds, chains, self._so_far)
        except (Died, OSError, StoreAway, CannotUpgrade):
            return  # no more rounds
        if found is not None:
            self._so_far, self._is_free = found, True

    def give_up(self) -> None:
        """The job goes on as it was."""
        if self._driver is not None and not self._is_given_up:
            self._is_given_up = True
            self._driver.post(RoundBegins(None))

    def end(self) -> Prepared:
        """The job has settled; returns what was shared out."""
        self._is_over = True
        driver = self._cluster.driver
        if driver is not self._driver:
            return NOTHING
        if not self._is_given_up:
            rounds_are_of_use(self._store(), driver.keeper.layers, self._so_far)
        return self._so_far
