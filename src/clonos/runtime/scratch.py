"""Spilled items on the local disk: files without a name, so that a killed process leaves none."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import pyarrow as pa

from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.nodes.events import DiskAnswered


class LocalScratch:
    """A :class:`~clonos.nodes.ports.Scratch`: Arrow IPC files, written and read by one thread.

    Parameters
    ----------
    answer
        Takes what has come of it.
    digests
        Whether batches have digests.
    """

    def __init__(self, answer: Callable[[DiskAnswered], Any], *, digests: bool) -> None:
        self._answer, self._digests = answer, digests
        self._files: dict[tuple[int, int, int], IO[bytes]] = {}  # touched by the thread only
        self._over = set[int]()
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clonos-scratch")

    def write(self, life: int, spill: ev.Spill) -> None:
        self._thread.submit(self._write, life, spill)

    def _write(self, life: int, spill: ev.Spill) -> None:
        if self._is_closed or life in self._over:
            return
        try:
            file = self._written(spill)
        except (OSError, pa.ArrowException):
            is_written = False
        else:
            is_written = True
            self._files[life, spill.channel, spill.number] = file
        self._answer(DiskAnswered(life, ev.Spilled(spill.channel, spill.number, is_written)))

    def _written(self, spill: ev.Spill) -> IO[bytes]:
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed when it is dropped
        try:
            batches = [batch.payload for batch in spill.batches]
            with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), batches[0].schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
        except BaseException:
            file.close()
            raise
        return file

    def read(self, life: int, spilled: ev.ReadSpilled) -> None:
        self._thread.submit(self._read, life, spilled)

    def _read(self, life: int, spilled: ev.ReadSpilled) -> None:
        if self._is_closed or life in self._over:
            return
        key = life, spilled.channel, spilled.number
        try:
            content = mmap.mmap(self._files[key].fileno(), 0, access=mmap.ACCESS_READ)
            with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
                batches = tuple(seal(batch, digests=self._digests) for batch in reader)
        except (OSError, KeyError, ValueError, pa.ArrowException):
            batches = None
        self._answer(DiskAnswered(life, ev.ReadBack(spilled.channel, spilled.number, batches)))

    def drop(self, life: int, spilled: ev.DropSpilled) -> None:
        self._thread.submit(self._drop, (life, spilled.channel, spilled.number))

    def _drop(self, key: tuple[int, int, int]) -> None:
        if file := self._files.pop(key, None):
            file.close()

    def withdraw(self, life: int) -> None:
        self._over.add(life)
        self._thread.submit(self._withdraw, life)

    def _withdraw(self, life: int) -> None:
        for key in [key for key in self._files if key[0] == life]:
            self._drop(key)

    def close(self) -> None:
        """The slot ends."""
        self._is_closed = True
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        for key in list(self._files):
            self._drop(key)
