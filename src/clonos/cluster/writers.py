"""Sinks that write where they run: one file per output, once, whoever dies meanwhile.

The name of a file is the output's key, so a sink that is replayed finds its own file. A file
appears whole or not at all; what a killed or frozen writer left has a hidden name of its own.

As other jobs' outputs have the same keys, a folder belongs to one sink of one checkpoint, its
*owner*, which is written down in it before the first output is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from clonos.cluster.errors import OutputExists, SinkFailed
from clonos.errors import ClonosError
from clonos.operators.specs import SinkSpec
from clonos.runtime.shipment import OutputWriter
from clonos.storage.files import UNFINISHED, Durability, unfinished_name
from clonos.storage.table import Table


class Writer(OutputWriter, Protocol):
    """What the driver asks of a sink that writes itself, beside what its tasks do.

    Everything raises :class:`~clonos.cluster.errors.SinkFailed` if the folder cannot be used.
    """

    def begin(self, schema: pa.Schema, owner: str, *, is_new: bool) -> None:
        """Before the tasks write.

        Raises
        ------
        OutputExists
            The folder is another's, or the job is a new one and has output there.
        """

    def withdraw(self) -> None:
        """The job did not start: a folder in which nothing was written is nobody's again."""

    def end(self) -> None:
        """The job is complete and nobody writes: sweep away what killed writers left."""


def writer_of(sink: SinkSpec, durability: Durability) -> Callable[[], Writer] | None:
    """How to make the writer of a sink; None if its rows go elsewhere."""
    if sink.path is None:
        return None
    if sink.kind == "table":
        return partial(TableWriter, sink.path, durability)
    return partial(ParquetWriter, sink.path)


def withdraw(writers: Iterable[Writer]) -> None:
    """See :meth:`Writer.withdraw`; where that fails, the next job is told whose the folder is."""
    for writer in writers:
        with contextlib.suppress(OSError, pa.ArrowException, ClonosError):
            writer.withdraw()


_OWNER: Final = "_owner"
"""A name that readers of Parquet folders leave out."""


class ParquetWriter:
    """Parquet files side by side in one folder."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fs, self._root = pafs.FileSystem.from_uri(
                path if "://" in path else Path(path).absolute().as_uri()
            )
            self._fs.create_dir(self._root, recursive=True)
        except (OSError, pa.ArrowException) as error:
            raise _failed(self._path, error) from error

    def write(self, task: int, generation: int, seq: int, batch: pa.RecordBatch) -> None:
        name = f"part-{generation:04d}-{task:05d}-{seq:012d}.parquet"
        path = f"{self._root}/{name}"
        try:
            if self._fs.get_file_info(path).is_file:
                return
            hidden = unfinished_name(f"{self._root}/.{name}")
            with self._fs.open_output_stream(hidden) as stream:
                pq.write_table(pa.Table.from_batches([batch]), stream)
            try:
                self._fs.move(hidden, path)
            except OSError:
                if not self._fs.get_file_info(path).is_file:
                    raise
                self._fs.delete_file(hidden)  # see Table
        except (OSError, pa.ArrowException) as error:
            raise _failed(self._path, error) from error

    def begin(self, schema: pa.Schema, owner: str, *, is_new: bool) -> None:
        try:
            found = self._owner()
            if found not in (None, owner) or (is_new and self._has_output()):
                raise _exists(self._path)
            if found is None and not is_new:
                raise _gone(self._path)
            if found is None:
                hidden = unfinished_name(f"{self._root}/.{_OWNER}")
                with self._fs.open_output_stream(hidden) as stream:
                    stream.write(owner.encode())
                self._fs.move(hidden, f"{self._root}/{_OWNER}")
                if self._owner() != owner:  # another job has begun at the same moment
                    raise _exists(self._path)
        except (OSError, pa.ArrowException) as error:
            raise _failed(self._path, error) from error

    def withdraw(self) -> None:
        if not self._has_output():
            self._fs.delete_file(f"{self._root}/{_OWNER}")

    def _owner(self) -> str | None:
        try:
            with self._fs.open_input_stream(f"{self._root}/{_OWNER}") as stream:
                found: bytes = stream.read()
        except FileNotFoundError:
            return None
        return found.decode(errors="replace")

    def _has_output(self) -> bool:
        return any(info.base_name.startswith("part-") for info in self._list())

    def end(self) -> None:
        for info in self._list():
            if info.base_name.startswith(".part-") and info.base_name.endswith(UNFINISHED):
                self._fs.delete_file(info.path)

    def _list(self) -> list[Any]:
        found: list[Any] = self._fs.get_file_info(pafs.FileSelector(self._root))
        return found


class TableWriter:
    """Segments of a :class:`~clonos.storage.table.Table`."""

    def __init__(self, path: str, durability: Durability) -> None:
        self._path = path
        self._error: ClonosError | None = None
        try:
            self._table = Table(path, durability)
        except (OSError, pa.ArrowException) as error:
            raise _failed(path, error) from error

    def begin(self, schema: pa.Schema, owner: str, *, is_new: bool) -> None:
        try:
            exists = self._table.exists
            if (exists and self._table.owner != owner) or (is_new and self._has_output()):
                raise _exists(self._path)
            if not exists and not is_new:
                raise _gone(self._path)
            if not exists:
                self._table.create(schema, owner)
                if self._table.owner != owner:  # another job has begun at the same moment
                    raise _exists(self._path)
        except (OSError, pa.ArrowException) as error:
            raise _failed(self._path, error) from error

    def withdraw(self) -> None:
        if not self._has_output():
            self._table.withdraw()

    def _has_output(self) -> bool:
        return self._table.ended or bool(self._table.segments())

    def write(self, task: int, generation: int, seq: int, batch: pa.RecordBatch) -> None:
        # Readers take what is before a segment for complete: after a failure there is no next.
        if self._error is not None:
            raise self._error
        try:
            self._table.write(task, generation, seq, batch)
        except (OSError, pa.ArrowException) as error:
            self._error = _failed(self._path, error)
            raise self._error from error

    def end(self) -> None:
        try:
            self._table.end()
        except (OSError, pa.ArrowException) as error:
            raise _failed(self._path, error) from error


def _exists(path: str) -> OutputExists:
    return OutputExists(
        "the folder is another job's, or another sink's, or has output of another run of this job",
        where=path,
        remedy="give an empty folder; to continue a job, give its checkpoint_dir",
    )


def _gone(path: str) -> SinkFailed:
    return SinkFailed(
        "the output that this job has written before is gone",
        where=path,
        remedy="put it back, or start the job afresh with another checkpoint_dir",
    )


def _failed(path: str, error: Exception) -> SinkFailed:
    return SinkFailed(
        f"cannot write: {error}",
        where=path,
        remedy="see that every executor reaches the folder and may write to it",
    )
