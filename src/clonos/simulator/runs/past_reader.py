"""A reader of a job's history while the job runs."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

from clonos.core import notes
from clonos.core.history import Keep, pin_path
from clonos.errors import StoreAway
from clonos.simulator.checks.past import pinned_stays
from clonos.storage.layers import LayerStore

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster

NEVER_S: Final = 1 << 40
"""Pins of a simulation never expire."""


def keep_of(seed: int) -> Keep:
    """How much history a job keeps; drawn separately."""
    random = Random(f"history {seed}")
    return Keep(
        ms=random.choice((0, 50, 300, 10_000)),
        nbytes=random.choice((None, None, 2_000, 20_000)),
        every_ms=random.choice((1, 10, 60)),
    )


class Reader:
    """Now and then reads a point of a running job's history."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster, self._random = cluster, random
        self._files = cluster.disks.shared.mount()
        self._store: LayerStore | None = None
        cluster.on_note.append(self._noted)

    def _noted(self, note: notes.Note) -> None:
        is_free = self._store is None and self._cluster.driver.alive
        if isinstance(note, notes.Floor) and is_free and self._random.random() < 0.5:
            self._begin()

    def _begin(self) -> None:
        """Write the pin first, then read the journal."""
        driver = self._cluster.driver
        known = driver.closed.past.points
        if not known:
            return
        number = self._random.choice(known[: 1 + len(known) // 2]).number
        store, pin = LayerStore(driver.layers, files=self._files), pin_path(number, NEVER_S, "r")
        with suppress(StoreAway):
            store.put(pin, b"")
            past = driver.closed.past
            if number > past.going and any(p.number == number for p in past.points):
                self._store = store
                needed = past.needed_from(number)
                after = 200 * self._random.random()
                self._cluster.scheduler.after(after, self._end, number, pin, needed)
            else:
                store.delete([pin])

    def _end(self, number: int, pin: str, needed: set[str]) -> None:
        store, self._store = self._store, None
        assert store is not None
        try:
            pinned_stays(store.list(), needed, number)
            store.delete([pin])
        except StoreAway:
            self._store = store
            self._cluster.scheduler.after(1.0, self._end, number, pin, needed)
