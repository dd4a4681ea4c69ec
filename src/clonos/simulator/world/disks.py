"""The disks of a simulated cluster, and their folders.

The driver's machine has a disk for the journal and delivered output; layers and terms are on a
file server.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

import pyarrow as pa

from clonos.simulator.jobs.programs import AnyJob
from clonos.simulator.world.disk import Disk, SimulatedFiles
from clonos.sinks.delivered import DeliveredStore
from clonos.storage.journal import Journal, check

HOME: Final = "/job"
JOURNAL: Final = f"{HOME}/journal"
DELIVERED: Final = f"{HOME}/delivered"
TERMS: Final = "/checkpoint/terms"
LAYERS: Final = "/checkpoint/layers"


class Disks:
    """All disks of a cluster. Their faults are drawn separately, so that one call more or less
    changes nothing else in a seed.

    Attributes
    ----------
    local
        The disk of the driver's machine.
    shared
        The file server's disk with the checkpoint, which all processes reach.
    machines
        The disks of other machines, with names that are never used again.
    """

    def __init__(self, random: Random) -> None:
        apart = Random()
        apart.setstate(random.getstate())
        self.local = Disk(Random(apart.getrandbits(64)))
        self.shared = Disk(Random(apart.getrandbits(64)))
        self.machines: dict[str, tuple[str, Disk]] = {}
        self._names = 0

    def of_machine(self, machine: str) -> tuple[str, Disk]:
        """The disk of a machine; a new one if it is new."""
        if machine not in self.machines:
            self._names += 1
            self.machines[machine] = f"disk{self._names}", Disk(Random(self._names))
        return self.machines[machine]

    def journal(self) -> list[bytes]:
        """The records of the journal, while nobody writes it."""
        with Journal(JOURNAL, disk=self.local.observe()) as journal:
            return list(journal.replay())


def rows_of(job: AnyJob, payload: Any) -> pa.RecordBatch:
    """A batch of delivered output as it is stored, whatever kind of rows the job has."""
    content = job.encode(job.wrap(payload))
    return pa.record_batch([pa.array([content], pa.binary())], ["content"])


def stored(
    job: AnyJob, files: SimulatedFiles, since: int = 0
) -> Iterator[tuple[tuple[int, int, int], Any]]:
    """The name (generation, task, number) and content of every stored output.

    `since`: only of generations from this one on, whose tasks are those of the job."""
    store = DeliveredStore(DELIVERED, files=files)
    tasks = {(t.sink, t.index): t.id for t in job.plan.tasks}
    for sink in {t.sink for t in job.plan.tasks if t.sink is not None}:
        for generation, index, seq, batch in store.read(sink):
            content = batch.column("content")[0].as_py()
            if generation >= since:
                yield (generation, tasks[sink, index], seq), job.decode(content)


class Rot:
    """A flipped bit of the journal.

    It is not in the newest group unless a later record vouches for that group: the format cannot
    tell such damage from a torn write.
    """

    def __init__(self, disk: Disk) -> None:
        names = [i.path for i in disk.observe().entries(JOURNAL) if i.path.endswith(".journal")]
        self._disk, self._path = disk, names[-1]
        content = bytes(disk.file(self._path).data)
        segment = check(self._path, memoryview(content))
        last = segment.frames[-2].end if not segment.is_vouched else segment.end
        places = [*range(last), *range(segment.end, len(content))]
        self._bit = 8 * disk.random.choice(places) + disk.random.randrange(8)
        disk.flip(self._path, self._bit)

    def heal(self) -> None:
        """Somebody has restored the file from a copy."""
        self._disk.flip(self._path, self._bit)
