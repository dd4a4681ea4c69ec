"""The simulated local disk of a process: slow, at times full, at times rotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clonos.core import events as ev
from clonos.core.program import Batch
from clonos.nodes.events import DiskAnswered
from clonos.simulator.checks.invariants import spilled_is_kept

if TYPE_CHECKING:
    from clonos.simulator.processes.slot import Slot


class SlotScratch:
    """The :class:`~clonos.nodes.ports.Scratch` of a slot."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._files: dict[tuple[int, int, int], tuple[Batch, ...]] = {}
        self._free_at = 0.0

    def _fails(self) -> bool:
        cluster = self._slot.cluster
        is_faulty = cluster.scheduler.now < cluster.heals_at
        return is_faulty and cluster.scratch_random.random() < cluster.options.scratch_faults

    def _later(self, life: int, outcome: ev.Spilled | ev.ReadBack) -> None:
        cluster = self._slot.cluster
        delay = cluster.scratch_random.choice((0.1, 2.0, 20.0)) * cluster.scratch_random.random()
        self._free_at = max(self._free_at, cluster.scheduler.now) + delay
        cluster.scheduler.at(self._free_at, self._slot.post, DiskAnswered(life, outcome))

    def write(self, life: int, spill: ev.Spill) -> None:
        is_written = not self._fails()
        if is_written:
            self._files[life, spill.channel, spill.number] = spill.batches
            self._slot.cluster.spilled += 1
        self._later(life, ev.Spilled(spill.channel, spill.number, is_written))

    def read(self, life: int, spilled: ev.ReadSpilled) -> None:
        key = life, spilled.channel, spilled.number
        spilled_is_kept(key, self._files)
        batches: tuple[Batch, ...] | None = self._files[key]
        cluster = self._slot.cluster
        if batches and self._fails():
            last = cluster.job.wrap(batches[-1].payload[:0])
            batches = None if cluster.scratch_random.random() < 0.5 else (*batches[:-1], last)
            cluster.rotten += 1
        cluster.read_back += 1
        self._later(life, ev.ReadBack(spilled.channel, spilled.number, batches))

    def drop(self, life: int, spilled: ev.DropSpilled) -> None:
        self._files.pop((life, spilled.channel, spilled.number), None)

    def withdraw(self, life: int) -> None:
        for key in [key for key in self._files if key[0] == life]:
            del self._files[key]
