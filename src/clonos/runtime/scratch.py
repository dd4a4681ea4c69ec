"""Spilled items on the local disk: files without a name, so that a killed process leaves none.

The files are read, not mapped: SIGBUS kills a process that has mapped a page which cannot be read.
Content is parsed only if it is what was written, because Arrow trusts the lengths in its input.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.nodes.events import DiskAnswered, WorkFailed


@dataclass(frozen=True, slots=True)
class Written:
    """A file, with size and checksum of what was written."""

    file: IO[bytes]
    nbytes: int
    checksum: int

    def content(self) -> bytes | None:
        """The content of the file; None: it is not what was written."""
        self.file.seek(0)
        content = self.file.read(self.nbytes)
        return content if xxh3_64_intdigest(content) == self.checksum else None


class LocalScratch:
    """A :class:`~clonos.nodes.ports.Scratch`: Arrow IPC files, written and read by one thread.

    Parameters
    ----------
    answer
        Takes the outcomes.
    digests
        Whether batches have digests.
    """

    def __init__(
        self, answer: Callable[[DiskAnswered | WorkFailed], Any], *, digests: bool
    ) -> None:
        self._answer, self._digests = answer, digests
        self._files: dict[tuple[int, int, int], Written] = {}  # used by the thread only
        self._over = set[int]()
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clonos-scratch")

    def write(self, life: int, spill: ev.Spill) -> None:
        self._thread.submit(self._do, life, lambda: self._write(life, spill))

    def read(self, life: int, spilled: ev.ReadSpilled) -> None:
        self._thread.submit(self._do, life, lambda: self._read(life, spilled))

    def _do(self, life: int, work: Callable[[], ev.Spilled | ev.ReadBack]) -> None:
        """Do some work and tell its outcome, for which the task waits."""
        if self._is_closed or life in self._over:
            return
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - not the disk's fault: a bug
            self._answer(WorkFailed(life, error))
        else:
            self._answer(DiskAnswered(life, outcome))

    def _write(self, life: int, spill: ev.Spill) -> ev.Spilled:
        try:
            self._files[life, spill.channel, spill.number] = self._written(spill)
        except (OSError, MemoryError):
            return ev.Spilled(spill.channel, spill.number, is_written=False)
        return ev.Spilled(spill.channel, spill.number, is_written=True)

    def _written(self, spill: ev.Spill) -> Written:
        batches = [batch.payload for batch in spill.batches]
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        content = buffer.getvalue()
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed when it is dropped
        try:
            file.write(content)
            file.flush()
        except BaseException:
            file.close()
            raise
        return Written(file, content.size, xxh3_64_intdigest(content))

    def _read(self, life: int, spilled: ev.ReadSpilled) -> ev.ReadBack:
        written = self._files.get((life, spilled.channel, spilled.number))
        batches = None
        try:
            content = written.content() if written is not None else None
        except (OSError, MemoryError):
            content = None
        if content is not None:
            with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
                batches = tuple(seal(batch, digests=self._digests) for batch in reader)
        return ev.ReadBack(spilled.channel, spilled.number, batches)

    def drop(self, life: int, spilled: ev.DropSpilled) -> None:
        self._thread.submit(self._drop, (life, spilled.channel, spilled.number))

    def _drop(self, key: tuple[int, int, int]) -> None:
        if written := self._files.pop(key, None):
            with suppress(OSError):  # nobody needs it
                written.file.close()

    def withdraw(self, life: int) -> None:
        self._over.add(life)
        self._thread.submit(self._withdraw, life)

    def _withdraw(self, life: int) -> None:
        for key in [key for key in self._files if key[0] == life]:
            self._drop(key)
        self._over.discard(life)  # nothing of it follows

    def close(self) -> None:
        """The slot ends."""
        self._is_closed = True
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        for key in list(self._files):
            self._drop(key)
