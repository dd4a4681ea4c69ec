"""The disks of a simulated cluster, and where on them is what.

The driver's machine has a disk for the journal and delivered output; layers and terms are on a
file server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgpack

from clonos.simulator.disk import Disk, SimulatedFiles
from clonos.simulator.programs import AnyJob
from clonos.storage.folder import Folder
from clonos.storage.journal import Journal, check

HOME: Final = "/job"
JOURNAL: Final = f"{HOME}/journal"
DELIVERED: Final = f"{HOME}/delivered"
TERMS: Final = "/checkpoint/terms"
LAYERS: Final = "/checkpoint/layers"


class Disks:
    """All disks of a cluster. What they do is drawn apart from the rest: one call more or less
    changes nothing else.

    Attributes
    ----------
    local
        The one of the driver's machine.
    shared
        The one with the checkpoint, which all reach.
    """

    def __init__(self, random: Random) -> None:
        apart = Random()
        apart.setstate(random.getstate())
        self.local = Disk(Random(apart.getrandbits(64)))
        self.shared = Disk(Random(apart.getrandbits(64)))

    def journal(self) -> list[bytes]:
        """What the journal says. For when nobody writes it."""
        with Journal(JOURNAL, disk=self.local.observe()) as journal:
            return list(journal.replay())


class OutputFiles:
    """Delivered output in files, packed as the job packs it."""

    def __init__(self, job: AnyJob, files: SimulatedFiles) -> None:
        self.directory = Path(DELIVERED)
        self._job = job
        self._folder = Folder(files, DELIVERED, "fsync")

    def write(
        self,
        sink_operator: str,
        task_index: int,
        generation: int,
        first_seq: int,
        last_seq: int,
        batches: Sequence[Any],
        *,
        seqs: Sequence[int] | None = None,
    ) -> None:
        assert seqs is not None
        contents = [self._job.encode(self._job.wrap(payload)) for payload in batches]
        packed = msgpack.packb([generation, *zip(seqs, contents, strict=True)])
        name = f"{sink_operator}/{task_index}/{generation}-{first_seq}-{last_seq}"
        self._folder.keep(name, packed, lambda _: False)

    def stored(self) -> Iterator[tuple[tuple[int, int, int], Any]]:
        """Generation, task and number of every output, and what it is."""
        tasks = {(t.sink, str(t.index)): t.id for t in self._job.plan.tasks if t.is_sink}
        for info in self._folder.entries(recursive=True):
            if not info.is_folder:
                sink, index, _ = info.path.split("/")
                generation, *contents = msgpack.unpackb(self._folder.read(info.path).to_pybytes())
                for seq, content in contents:
                    yield (generation, tasks[sink, index], seq), self._job.decode(content)


class Rot:
    """A bit of the journal that is another one than was written.

    Not one of its newest group, unless that is vouched for: the format promises nothing there.
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
