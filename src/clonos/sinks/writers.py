"""Sinks whose tasks write files: one file per output, exactly once, whatever dies.

The name of a file is the output's key, so a replaying sink finds its own file. A file appears whole
or not at all; what a killed or frozen writer leaves has a hidden name.

Outputs of other jobs have the same keys. So a folder belongs to one sink of one checkpoint, its
*owner*, which is recorded in the folder before the first output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from clonos.columns.batches import from_table
from clonos.columns.digest import have_same_rows
from clonos.columns.schema import to_ddl
from clonos.errors import CannotUpgrade, ClonosError, OutputExists, SinkFailed, StoreAway
from clonos.sinks.lanes import Lane, Output, OutputWriter
from clonos.sinks.spec import Claim, SinkSpec, Store
from clonos.storage.files import Durability, Files, files_of
from clonos.storage.folder import Folder
from clonos.storage.retry import may_pass
from clonos.storage.tables import Table


class Writer(OutputWriter, Protocol):
    """The additional methods that :class:`FolderClaim` needs."""

    path: str

    def owner(self) -> str | None:
        """The folder's owner; None if it has none."""

    def has_output(self) -> bool:
        """Whether the folder has valid output."""

    def foreign(self) -> str | None:
        """The name of something else in the folder that readers would take for output."""

    def require(self, schema: pa.Schema) -> None:
        """Raise `CannotUpgrade` if its readers could not read rows with these columns."""

    def claim(self, schema: pa.Schema, owner: str) -> None:
        """Record the folder's owner."""

    def owner_file(self) -> str:
        """The file that records the owner."""

    def release(self) -> None:
        """Delete the record of the owner."""

    def end(self) -> None:
        """No task writes any more: delete what killed writers left."""


def folder_of(sink: SinkSpec, durability: Durability, task: int = 0) -> Writer | None:
    """The writer of a sink's folder; None if the sink has no folder."""
    if sink.path is None:
        return None
    if sink.kind == "table":
        return TableWriter(sink.path, durability, task)
    return ParquetWriter(sink.path, durability, task)


def writer_of(
    sink: SinkSpec, durability: Durability, lane: Lane
) -> Callable[[int], OutputWriter] | None:
    """A function from incarnation to writer; None: the sink's tasks do not write themselves."""
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
    del incarnation  # an older life may write, too: it writes the same files
    writer = folder_of(sink, durability, task)
    assert writer is not None
    return writer


class FolderClaim:
    """The driver's claim on a sink's folder, a :class:`~clonos.sinks.spec.Claim`.

    Everything but :meth:`withdraw` raises :class:`~clonos.errors.SinkFailed` if the folder
    cannot be used.
    """

    def __init__(self, writer: Writer, job: str, operator: str) -> None:
        self._writer, self._job, self._owner = writer, job, f"{job} {operator}"
        self.is_fresh = False

    def begin(self, schema: pa.Schema, *, is_new: bool, is_added: bool = False) -> None:
        writer = self._writer
        with _naming(writer.path):
            found = writer.owner()
            if is_added and found == self._owner:
                writer.require(schema)
                return  # the sink comes back, with a later generation
            if found not in (None, self._owner) or (is_new and writer.has_output()):
                raise _exists(writer, self._sibling(found))
            if found is None and not is_new:
                raise _gone(writer.path)
            if found is None and (other := writer.foreign()) is not None:
                raise _mixed(writer.path, other)
            if found is None:
                self.is_fresh = True
                writer.claim(schema, self._owner)

    def widen(self) -> None:
        """Nothing to do: the claim covers any number of tasks."""

    def require(self, schema: pa.Schema) -> None:
        with _naming(self._writer.path):
            if self._writer.owner() == self._owner:
                self._writer.require(schema)

    def check(self) -> None:
        with _naming(self._writer.path):
            if (found := self._writer.owner()) != self._owner:
                raise _exists(self._writer, self._sibling(found))

    def _sibling(self, owner: str | None) -> str:
        """The name of the owner if it is another sink of the job; else empty."""
        prefix = f"{self._job} "
        is_other = owner is not None and owner != self._owner and owner.startswith(prefix)
        return owner.removeprefix(prefix) if owner is not None and is_other else ""

    def withdraw(self) -> None:
        # If this fails, the next job gets an error that names the folder's owner.
        with contextlib.suppress(OSError, pa.ArrowException, ClonosError):
            if self._writer.owner() == self._owner and not self._writer.has_output():
                self._writer.release()

    def end(self) -> None:
        # Leave the folder alone if it was moved away or now has another owner.
        with _naming(self._writer.path):
            if self._writer.owner() == self._owner:
                self._writer.end()


class Claims:
    """The claims of all sinks of a job, made together.

    Parameters
    ----------
    sinks
        The sinks, by operator.
    job
        A name that is unique to this job and checkpoint.
    tasks
        The number of tasks of each sink.
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
                claim = FolderClaim(writer, job, operator)
            if claim is not None:
                self._claims[operator] = claim

    def begin(
        self,
        schemas: Mapping[str, pa.Schema],
        *,
        is_new: bool,
        added: Collection[str] | None = None,
    ) -> None:
        """Claim all places before the tasks write.

        Parameters
        ----------
        added
            If the job's graph has changed: the sinks that are new.

        Raises
        ------
        OutputExists
            A place has another owner, or a new job has output there.
        """
        for operator, claim in self._claims.items():
            is_added = added is not None and operator in added
            if added is not None and not is_added:
                claim.widen()
            claim.begin(schemas[operator], is_new=is_new or is_added, is_added=is_added)
        self.check()

    def require(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Check that rows with these columns fit what is there; see :meth:`Claim.require`."""
        for operator, claim in self._claims.items():
            claim.require(schemas[operator])

    def has(self, operator: str) -> bool:
        """Whether a sink has a place to claim."""
        return operator in self._claims

    def check(self) -> None:
        """Check that no other job has claimed a place at the same moment.

        Raises
        ------
        OutputExists
            Another job has.
        """
        for claim in self._claims.values():
            claim.check()

    def withdraw(self, *, only_fresh: bool = False) -> None:
        """The job will not go on: release places where nothing was written.

        Parameters
        ----------
        only_fresh
            It goes on as it was before :meth:`begin`, so release only what that has claimed.
        """
        for claim in self._claims.values():
            if claim.is_fresh or not only_fresh:
                claim.withdraw()

    def end(self) -> None:
        """The job is complete, and no task writes: clean up."""
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
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_batches([output.batch]), sink)

        def is_same(found: pa.Buffer) -> bool:
            rows = from_table(pq.read_table(pa.BufferReader(found)))
            return have_same_rows(rows, output.batch)

        with _naming(self.path, is_patient=True):
            self._require_folder()
            self._folder.keep(name, sink.getvalue(), is_same)

    def _require_folder(self) -> None:
        """Check that the folder, made by the driver, exists; a new one would lack output."""
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

    def foreign(self) -> str | None:
        names = (info.name for info in self._folder.entries())
        return next((name for name in names if not name.startswith(("part-", "_", "."))), None)

    def require(self, schema: pa.Schema) -> None:
        """Each file has its own columns."""

    def claim(self, schema: pa.Schema, owner: str) -> None:
        self._folder.create(_OWNER, owner.encode())

    def owner_file(self) -> str:
        return self._folder.path(_OWNER)

    def release(self) -> None:
        self._folder.delete([_OWNER])

    def end(self) -> None:
        leftovers = self._folder.unfinished()
        self._folder.delete(i.path for i in leftovers if i.name.startswith(".part-"))


class TableWriter:
    """Segments of a :class:`~clonos.storage.tables.Table`."""

    def __init__(self, path: str, durability: Durability, task: int = 0) -> None:
        self.path, self._task = path, task
        self._error: ClonosError | None = None
        with _naming(path):
            self._table = Table(path, durability)

    def write(self, outputs: Sequence[Output]) -> None:
        # Readers take everything before a segment to be complete, so nothing follows a failure.
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

    def foreign(self) -> str | None:
        return None  # readers of a table read its segments, and nothing else

    def require(self, schema: pa.Schema) -> None:
        if not (there := self._table.schema).equals(schema):
            raise CannotUpgrade(
                f"the table has the columns {to_ddl(there)}, and rows would have {to_ddl(schema)}: "
                "its readers could not read them",
                where=self.path,
                remedy="give the sink another folder, or select the table's columns before it",
            )

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
    """Translate errors: name the folder, and say whether to retry."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        kind = StoreAway if is_patient and may_pass(error) else SinkFailed
        raise kind(
            f"cannot write: {error}",
            where=path,
            remedy="check that every executor reaches the folder and may write to it",
        ) from error


def _exists(writer: Writer, sibling: str) -> OutputExists:
    if sibling:
        return OutputExists(
            f"the folder belongs to {sibling!r}, another sink that this job has or had",
            where=writer.path,
            remedy=f"give another folder; or, if {sibling!r} was removed, give this sink its name: "
            "then its output goes on there",
        )
    remedy = "give an empty folder; to continue a job, give its checkpoint_dir"
    if not writer.has_output():  # its job was killed, or has written nothing yet
        remedy += f"; if no job is running there, delete {writer.owner_file()}"
    return OutputExists(
        "the folder is another job's, or another sink's, or has output of another run of this job",
        where=writer.path,
        remedy=remedy,
    )


def _mixed(path: str, other: str) -> OutputExists:
    return OutputExists(
        f"the folder has {other!r}, which its readers would take for output",
        where=path,
        remedy="give a folder that is empty or does not exist",
    )


def _gone(path: str) -> SinkFailed:
    return SinkFailed(
        "the output that this job has written before is gone",
        where=path,
        remedy="put it back, or start the job afresh with another checkpoint_dir",
    )
