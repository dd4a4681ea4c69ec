"""Delivered output of sinks, moved from the journal into Arrow IPC files.

A file holds consecutive batches of one sink task in one generation, which its name identifies. So
equal names mean equal content (stable output), and a file that exists need not be written again::

    <operator>/<generation>-<task>-<first seq>-<last seq>.arrow

Beside them, notes say what was taken back (:mod:`clonos.storage.taken_back`).

The number (`seq`) of each batch is in its custom metadata: a channel also numbers its markers and
watermarks, so the batches of a file need not be consecutive. Any Arrow reader can read the files.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from clonos.columns.digest import have_same_rows
from clonos.errors import ProtocolError, UnreadableOutput
from clonos.storage.files import Durability, Files, LocalFiles, files_of, folder_name
from clonos.storage.folder import Folder
from clonos.storage.taken_back import Notes, TakenBack

_NAME: Final = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)\.arrow")
_SEQ: Final = b"clonos.seq"


class DeliveredFile(NamedTuple):
    """A file of delivered output, with the parts of its name; sorting puts files in order.

    Batches of the file beyond `last_seq`, if there are any, were taken back.
    """

    generation: int
    task_index: int
    first_seq: int
    last_seq: int
    path: str


class Delivered(NamedTuple):
    """One delivered batch under its output key."""

    generation: int
    task_index: int
    seq: int
    batch: pa.RecordBatch


class DeliveredStore:
    """Stores delivered output for later readers.

    Parameters
    ----------
    directory
        A local path or a URI; one folder per sink operator is made in it.
    durability
        With ``"fsync"`` the journal may forget a batch as soon as :meth:`write` returns.

    Examples
    --------
    >>> import tempfile
    >>> store = DeliveredStore(tempfile.mkdtemp())
    >>> batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
    >>> path = store.write("counts", 0, 0, 1, 2, [batch, batch])
    >>> [(d.seq, d.batch.num_rows) for d in store.read("counts")]
    [(1, 2), (2, 2)]
    """

    def __init__(
        self,
        directory: str | Path,
        durability: Durability = "fsync",
        files: Files | None = None,
    ) -> None:
        found, root = files_of(directory)
        self._files, self.uri = files or found, str(directory)
        self._folder = Folder(self._files, root, durability)
        self._notes = Notes(self._folder)
        self._begun: set[str] = set()

    @property
    def directory(self) -> str:
        """The folder's path in its file system."""
        return self._folder.root

    def write(
        self,
        sink_operator: str,
        task_index: int,
        generation: int,
        first_seq: int,
        last_seq: int,
        batches: Sequence[pa.RecordBatch],
        *,
        seqs: Sequence[int] | None = None,
    ) -> str:
        """Store one task's batches as one durable file, unless another process has done so.

        Parameters
        ----------
        first_seq, last_seq
            The range of the channel that the file covers.
        batches
            At least one; all of one schema.
        seqs
            The number of each batch, ascending within the range. Without it, batches are numbered
            consecutively from `first_seq` to `last_seq`.

        Raises
        ------
        OtherContent
            A file of this name has other batches. (A damaged one is written again.)
        """
        numbers = range(first_seq, last_seq + 1) if seqs is None else seqs
        ascending = all(a < b for a, b in pairwise(numbers))
        if (
            not batches
            or len(batches) != len(numbers)
            or not ascending
            or not first_seq <= numbers[0] <= numbers[-1] <= last_seq
        ):
            raise ProtocolError(
                f"{len(batches)} batches cannot be numbered {list(numbers)[:10]} within "
                f"{first_seq} to {last_seq}",
                where=f"{sink_operator}[{task_index}]",
                remedy="report this: it is a bug in clonos",
            )
        folder = folder_name(sink_operator)
        self._require_folder(folder)
        name = f"{generation:06d}-{task_index:06d}-{first_seq:012d}-{last_seq:012d}.arrow"
        path = f"{folder}/{name}"
        mine = list(zip(numbers, batches, strict=True))

        def is_same(found: pa.Buffer) -> bool:
            theirs = list(_batches(found))
            return len(theirs) == len(mine) and all(
                a == b and have_same_rows(one, other)
                for (a, one), (b, other) in zip(mine, theirs, strict=True)
            )

        self._folder.keep(path, _encode(mine), is_same)
        self._begun.add(folder)
        return self._folder.path(path)

    def _require_folder(self, folder: str) -> None:
        """Check that a folder in which files were put is there; a new one would lack output."""
        if folder in self._begun and self._files.is_local and not self._folder.has(folder):
            raise UnreadableOutput(
                "output that was delivered before has been deleted",
                where=self._folder.path(folder),
                remedy="find out who deletes there (in folders for temporary files, systems do); "
                "put the files back, or start the job afresh with another checkpoint_dir",
            )

    def take_back(self, operator: str, generation: int, kept: Mapping[int, int]) -> None:
        """Delete output of earlier generations beyond these numbers, by task. Output of tasks not
        in `kept`, which the sink had in an earlier graph, stays. What a driver that was frozen
        writes later does not count."""
        folder = folder_name(operator)
        self._notes.write(folder, generation, kept)
        every, taken_back = self._all(folder)
        untils = {file: taken_back.last(file.task_index, file.generation) for file in every}
        gone = [file for file, until in untils.items() if file.last_seq > until]
        for file in gone:
            until = untils[file]
            stays = [one for one in read_file(file.path, self._files) if one[0] <= until]
            if stays:
                seqs, batches = zip(*stays, strict=True)
                lane = operator, file.task_index, file.generation, file.first_seq
                self.write(*lane, until, batches, seqs=seqs)
        names = (file.path.rpartition("/")[2] for file in gone)
        self._folder.delete(f"{folder}/{name}" for name in names)

    def files(self, operator: str) -> list[DeliveredFile]:
        """Files of a sink operator, ordered by generation, task and seq."""
        every, taken_back = self._all(folder_name(operator))
        found = []
        for file in every:
            last = min(file.last_seq, taken_back.last(file.task_index, file.generation))
            if file.first_seq <= last:
                found.append(file._replace(last_seq=last))
        return found

    def _all(self, folder: str) -> tuple[list[DeliveredFile], TakenBack]:
        """All files of a folder, and what was taken back."""
        entries, found = self._folder.entries(folder), []
        try:
            taken_back = self._notes.among(entries, folder)
        except (OSError, ValueError) as error:
            raise _unreadable(error, self._folder.path(folder)) from error
        for info in entries:
            if match := _NAME.fullmatch(info.name):
                generation, task, first, last = map(int, match.groups())
                path = self._folder.path(info.path)
                found.append(DeliveredFile(generation, task, first, last, path))
        return sorted(found), taken_back

    def read(self, operator: str) -> Iterator[Delivered]:
        """Yield every delivered batch once, ordered by generation, task and seq.

        Files may overlap, because after a crash the house-keeper divides the output differently.
        Batches already read are skipped, as they are the same.
        """
        task, newest = (-1, -1), -1
        for file in self.files(operator):
            if (file.generation, file.task_index) != task:
                task, newest = (file.generation, file.task_index), -1
            if file.last_seq <= newest:
                continue
            for seq, batch in read_file(file.path, self._files):
                if newest < seq <= file.last_seq:
                    yield Delivered(file.generation, file.task_index, seq, batch)
            newest = file.last_seq

    def count(self, operator: str) -> int:
        """The number of delivered rows. Files are mapped, and only the head of each batch is read,
        so the cost does not depend on the size of rows."""
        return sum(delivered.batch.num_rows for delivered in self.read(operator))


def _encode(numbered: Sequence[tuple[int, pa.RecordBatch]]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, numbered[0][1].schema) as writer:
        for seq, batch in numbered:
            writer.write_batch(batch, custom_metadata={_SEQ: str(seq).encode()})
    return sink.getvalue()


def _batches(content: pa.Buffer) -> Iterator[tuple[int, pa.RecordBatch]]:
    with contextlib.closing(pa.BufferReader(content)) as source, pa.ipc.open_file(source) as reader:
        for index in range(reader.num_record_batches):
            batch, metadata = reader.get_batch_with_custom_metadata(index)
            yield int(metadata[_SEQ]), batch


def read_file(path: str, files: Files | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of one file with their numbers."""
    try:
        yield from _batches((files or LocalFiles()).read(path))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise _unreadable(error, path) from error


def _unreadable(error: Exception, path: str) -> UnreadableOutput:
    return UnreadableOutput(
        f"delivered output cannot be read: {error}",
        where=path,
        remedy="check the disk and restore the file from a copy",
    )
