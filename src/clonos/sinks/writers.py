"""Sinks that write where they run: one file per output, once, whoever dies meanwhile.

The name of a file is the output's key, so a sink that is replayed finds its own file. A file
appears whole or not at all; what a killed or frozen writer left has a hidden name of its own.

As other jobs' outputs have the same keys, a folder belongs to one sink of one checkpoint, its
*owner*, which is written down in it before the first output is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from clonos.errors import ClonosError
from clonos.sinks.errors import OutputExists, SinkFailed
from clonos.sinks.lanes import Lane, Output, OutputWriter
from clonos.sinks.spec import Claim, SinkSpec, Store
from clonos.storage.files import Durability, Files, files_of
from clonos.storage.folder import Folder
from clonos.storage.retry import StoreAway, may_pass
from clonos.storage.tables import Table


class Writer(OutputWriter, Protocol):
    """What :class:`FolderClaim` asks of a sink that writes itself, beside what its tasks do."""

    path: str

    def owner(self) -> str | None:
        """Whose the folder is; None: nobody's."""

    def has_output(self) -> bool:
        """Whether something was written that counts."""

    def claim(self, schema: pa.Schema, owner: str) -> None:
        """Write down whose the folder is."""

    def owner_file(self) -> str:
        """Where that is written down."""

    def release(self) -> None:
        """Let the folder be nobody's again."""

    def end(self) -> None:
        """Nobody writes any more: sweep away what killed writers left."""


def folder_of(sink: SinkSpec, durability: Durability, task: int = 0) -> Writer | None:
    """What writes to the folder of a sink; None if it has none."""
    if sink.path is None:
        return None
    if sink.kind == "table":
        return TableWriter(sink.path, durability, task)
    return ParquetWriter(sink.path, durability, task)


def writer_of(
    sink: SinkSpec, durability: Durability, lane: Lane
) -> Callable[[int], OutputWriter] | None:
    """How to make a lane's writer for a life, by its incarnation; None: its rows go elsewhere."""
    if not sink.writes_itself:
        return None
    if sink.store is not None:
        return partial(_store_writer, sink.store, lane)
    return partial(_folder_writer, sink, durability, lane.number)


def _store_writer(store: Store, lane: Lane, incarnation: int) -> OutputWriter:
    return store.writer(replace(lane, incarnation=incarnation))


def _folder_writer(
    sink: SinkSpec, durability: Durability, task: int, incarnation: int
) -> OutputWriter:
    del incarnation  # files have names: it does no harm that an older life writes the same ones
    writer = folder_of(sink, durability, task)
    assert writer is not None
    return writer


class FolderClaim:
    """The folder of a sink, as its job's driver claims it and lets it go: a
    :class:`~clonos.sinks.spec.Claim`.

    Everything but :meth:`withdraw` raises :class:`~clonos.sinks.errors.SinkFailed` if the folder
    cannot be used.
    """

    def __init__(self, writer: Writer, owner: str) -> None:
        self._writer, self._owner = writer, owner

    def begin(self, schema: pa.Schema, *, is_new: bool) -> None:
        writer = self._writer
        with _naming(writer.path):
            found = writer.owner()
            if found not in (None, self._owner) or (is_new and writer.has_output()):
                raise _exists(writer)
            if found is None and not is_new:
                raise _gone(writer.path)
            if found is None:
                writer.claim(schema, self._owner)

    def widen(self) -> None:
        """Files have names: any task may write."""

    def check(self) -> None:
        with _naming(self._writer.path):
            if self._writer.owner() != self._owner:
                raise _exists(self._writer)

    def withdraw(self) -> None:
        # Where that fails, the next job is told whose the folder is.
        with contextlib.suppress(OSError, pa.ArrowException, ClonosError):
            if self._writer.owner() == self._owner and not self._writer.has_output():
                self._writer.release()

    def end(self) -> None:
        # A folder that was moved away since, or is another's by now, is none of our business.
        with _naming(self._writer.path):
            if self._writer.owner() == self._owner:
                self._writer.end()


class Claims:
    """The places that a job's sinks write to themselves, claimed together.

    Parameters
    ----------
    sinks
        By operator.
    job
        A name that no other job has, or the same job with another checkpoint.
    tasks
        How many each sink has.
    """

    def __init__(
        self,
        sinks: Mapping[str, SinkSpec],
        durability: Durability,
        job: str,
        tasks: Mapping[str, int],
    ) -> None:
        self._claims: dict[str, Claim] = {}
        for operator, sink in sinks.items():
            claim: Claim | None = None
            if sink.store is not None:
                claim = sink.store.claim(Lane(job, operator, 0), tasks[operator])
            elif (writer := folder_of(sink, durability)) is not None:
                claim = FolderClaim(writer, f"{job} {operator}")
            if claim is not None:
                self._claims[operator] = claim

    def begin(
        self,
        schemas: Mapping[str, pa.Schema],
        *,
        is_new: bool,
        added: Collection[str] | None = None,
    ) -> None:
        """Claim them, before the tasks write.

        Parameters
        ----------
        added
            The job has another graph than before, with these sinks that are new.

        Raises
        ------
        OutputExists
            A place is another's, or the job is a new one and has output there.
        """
        for operator, claim in self._claims.items():
            is_added = added is not None and operator in added
            if added is not None and not is_added:
                claim.widen()
            claim.begin(schemas[operator], is_new=is_new or is_added)
        self.check()

    def check(self) -> None:
        """See that no other job has claimed a place at the same moment.

        Raises
        ------
        OutputExists
            One has.
        """
        for claim in self._claims.values():
            claim.check()

    def withdraw(self) -> None:
        """The job will not go on: places where nothing was written are nobody's again."""
        for claim in self._claims.values():
            claim.withdraw()

    def end(self) -> None:
        """The job is complete and nobody writes."""
        for claim in self._claims.values():
            claim.end()


_OWNER: Final = "_owner"
"""A name that readers of Parquet folders ignore."""


class ParquetWriter:
    """Parquet files side by side in one folder."""

    def __init__(
        self, path: str, durability: Durability, task: int = 0, files: Files | None = None
    ) -> None:
        self.path, self._task = path, task
        with _naming(path):
            found, root = files_of(path) if files is None else (files, path)
            self._folder = Folder(found, root, durability)
        self._is_there = False

    def write(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._write(output)

    def close(self) -> None:
        """Nothing is kept open."""

    def _write(self, output: Output) -> None:
        generation, seq = output.key
        name = f"part-{generation:04d}-{self._task:05d}-{seq:012d}.parquet"
        table = pa.Table.from_batches([output.batch])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        with _naming(self.path, is_patient=True):
            self._require_folder()
            self._folder.keep(name, sink.getvalue(), lambda found: _rows(found).equals(table))

    def _require_folder(self) -> None:
        """The driver has made it; a new one would have a part of the output only."""
        if not self._is_there and self._folder.files.info(self._folder.root) is None:
            raise FileNotFoundError(f"{self._folder.root} is gone")
        self._is_there = True

    def owner(self) -> str | None:
        try:
            found: bytes = self._folder.read(_OWNER).to_pybytes()
        except FileNotFoundError:
            return None
        return found.decode(errors="replace")

    def has_output(self) -> bool:
        return any(info.name.startswith("part-") for info in self._folder.entries())

    def claim(self, schema: pa.Schema, owner: str) -> None:
        self._folder.create(_OWNER, owner.encode())

    def owner_file(self) -> str:
        return self._folder.path(_OWNER)

    def release(self) -> None:
        self._folder.delete([_OWNER])

    def end(self) -> None:
        leftovers = self._folder.unfinished()
        self._folder.delete(i.path for i in leftovers if i.name.startswith(".part-"))


def _rows(content: pa.Buffer) -> pa.Table:
    return pq.read_table(pa.BufferReader(content))


class TableWriter:
    """Segments of a :class:`~clonos.storage.tables.Table`."""

    def __init__(self, path: str, durability: Durability, task: int = 0) -> None:
        self.path, self._task = path, task
        self._error: ClonosError | None = None
        with _naming(path):
            self._table = Table(path, durability)

    def write(self, outputs: Sequence[Output]) -> None:
        # Readers take what is before a segment for complete: after a failure there is no next.
        if self._error is not None:
            raise self._error
        try:
            with _naming(self.path, is_patient=True):
                for (generation, seq), batch in outputs:
                    self._table.write(self._task, generation, seq, batch)
        except SinkFailed as error:
            self._error = error
            raise

    def close(self) -> None:
        """Nothing is kept open."""

    def owner(self) -> str | None:
        return self._table.owner if self._table.exists else None

    def has_output(self) -> bool:
        table = self._table
        return table.ended or bool(table.segments() or table.removed)

    def claim(self, schema: pa.Schema, owner: str) -> None:
        self._table.create(schema, owner)

    def owner_file(self) -> str:
        return self._table.about_path

    def release(self) -> None:
        self._table.withdraw()

    def end(self) -> None:
        self._table.end()


@contextlib.contextmanager
def _naming(path: str, *, is_patient: bool = False) -> Iterator[None]:
    """Say which folder it is that cannot be used, and whether waiting may help."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        kind = StoreAway if is_patient and may_pass(error) else SinkFailed
        raise kind(
            f"cannot write: {error}",
            where=path,
            remedy="check that every executor reaches the folder and may write to it",
        ) from error


def _exists(writer: Writer) -> OutputExists:
    remedy = "give an empty folder; to continue a job, give its checkpoint_dir"
    if not writer.has_output():  # its job was killed, or it has not come so far yet
        remedy += f"; if no job is running there, delete {writer.owner_file()}"
    return OutputExists(
        "the folder is another job's, or another sink's, or has output of another run of this job",
        where=writer.path,
        remedy=remedy,
    )


def _gone(path: str) -> SinkFailed:
    return SinkFailed(
        "the output that this job has written before is gone",
        where=path,
        remedy="put it back, or start the job afresh with another checkpoint_dir",
    )
