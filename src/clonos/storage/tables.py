"""A growing table of Arrow files, written by a sink or by one of Spark's queries.

Each output of a sink task is one file, a *segment*. It appears whole and never changes. Its key is
in its path, so writing it again is no work, and a reader needs only a list of names::

    <path>/_table.json                                        columns, which table this is, whose
    <path>/<task>/<generation>-<block>/<seq>-<rows>.arrow     rows, as any Arrow reader reads them
    <path>/_removed-<which>.json                              up to where rows were removed
    <path>/_taken_back-<generation>.json                      what a rewound job has taken back
    <path>/_readers/<reader>/<which>.json                     up to where a job has read for good
    <path>/_ended                                             this is all

The segments of a task appear in order, so a reader's offset is, for each task, the position of the
newest segment that it has. Segments are kept in blocks: a reader that follows the table lists only
the newest block, however long the job has run.

A streaming query has no such keys: a repeated batch may have other files. Its batches are taken by
manifests (:mod:`~clonos.storage.table_batches`), and count as the rows of one task.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from clonos.columns.digest import have_same_rows
from clonos.errors import NoTable, RowsRemoved, UnreadableTable
from clonos.storage.files import Durability, Files, Info, files_of, folder_name
from clonos.storage.folder import Folder
from clonos.storage.segments import START, Position, Positions, Segment
from clonos.storage.table_batches import MANIFESTS, TASK, Batches, StagedFile
from clonos.storage.taken_back import Notes, TakenBack

_BLOCK: Final = 256
"""Segments of a channel per folder."""
_ABOUT: Final = "_table.json"
_REMOVED: Final = re.compile(r"_removed(-[0-9a-f]+)?\.json")
_ENDED: Final = "_ended"
_READERS: Final = "_readers"
OF_QUERY: Final = "query "
"""How the owner begins if it is a query; the query's id follows."""
_TASK: Final = re.compile(r"\d{5}")
_BLOCK_NAME: Final = re.compile(r"(\d{4})-(\d{10})")
_SEGMENT: Final = re.compile(r"(\d{12})-(\d+)\.arrow")


class Table:
    """A folder of segments on any file system of pyarrow.

    Parameters
    ----------
    path
        A local path or a URI.
    durability
        ``"fsync"``: what is written survives a crash of the machine (on local disks; other file
        systems are durable by themselves).

    Examples
    --------
    >>> import tempfile
    >>> table = Table(tempfile.mkdtemp())
    >>> batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
    >>> table.create(batch.schema)
    >>> table.write(0, 0, 7, batch)
    >>> [(segment.position.seq, segment.rows) for segment in table.segments()]
    [(7, 2)]
    """

    def __init__(
        self, path: str, durability: Durability = "process", files: Files | None = None
    ) -> None:
        self.path = path
        found, root = files_of(path) if files is None else (files, path)
        self._folder = Folder(found, root, durability)
        self._batches = Batches(self._folder)
        self._notes = Notes(self._folder)

    # --- what the job does ----------------------------------------------------------------------

    def create(self, schema: pa.Schema, owner: str = "") -> None:
        """Begin a table, unless the folder has one; only `owner` writes it."""
        columns = base64.b64encode(schema.serialize().to_pybytes()).decode()
        about = {"id": secrets.token_hex(8), "owner": owner, "schema": columns}
        self._folder.create(_ABOUT, json.dumps(about).encode())

    def withdraw(self) -> None:
        """Give up a table that is still empty."""
        self._folder.delete([_ABOUT])

    @property
    def about_path(self) -> str:
        """The path of the file that says which table this is, and its owner."""
        return self._folder.path(_ABOUT)

    def write(self, task: int, generation: int, seq: int, batch: pa.RecordBatch) -> None:
        """Add a segment, unless it is there.

        Raises
        ------
        OtherContent
            A segment with other rows is there. (A damaged one is written again.)
        """
        folder = f"{task:05d}/{generation:04d}-{seq // _BLOCK:010d}"
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        self._folder.keep(
            f"{folder}/{seq:012d}-{batch.num_rows}.arrow",
            sink.getvalue(),
            lambda found: [have_same_rows(one, batch) for one in _batches(found)] == [True],
        )

    def stage(
        self, batch: int, partition: int, rows: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[StagedFile]:
        """Write rows of a query's partition; they count only when their batch is taken."""
        return self._batches.stage(batch, partition, rows, schema)

    def take(self, batch: int, files: Sequence[StagedFile], extent: str = "") -> bool:
        """Take a batch of a query; see :meth:`Batches.take`."""
        return self._batches.take(batch, files, extent)

    def discard(self, batch: int, files: Iterable[StagedFile]) -> None:
        """An attempt has failed; see :meth:`Batches.discard`."""
        self._batches.discard(batch, files)

    def end(self) -> None:
        """The table is complete; files that killed writers have left are deleted, and those that
        frozen ones have written since their output was taken back."""
        self._folder.delete(
            info.path for info in self._folder.unfinished(recursive=True) if ".arrow." in info.name
        )
        self._delete_taken_back()
        self._folder.create(_ENDED, b"")

    # --- what readers ask -----------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether a job has begun to write here."""
        return self._folder.has(_ABOUT)

    @property
    def ended(self) -> bool:
        """Whether the job has ended: there will be no further segment."""
        return self._folder.has(_ENDED)

    @property
    def id(self) -> str:
        """A name that no other table has, not even a later one in the same folder."""
        return str(self._about["id"])

    @property
    def owner(self) -> str:
        """The job and sink, or the query, that writes it; empty if unknown."""
        return self._about.get("owner", "")

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._about["schema"])))

    @property
    def is_of_query(self) -> bool:
        """Whether a query of Spark's writes it, or has."""
        return self.owner.startswith(OF_QUERY)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine's file system."""
        return self._folder.files.is_local

    @property
    def removed(self) -> dict[int, Position]:
        """By task, up to where rows have been removed."""
        return self._removals()[0]

    def segments(self, after: Positions | None = None) -> list[Segment]:
        """The segments after these positions, task by task, in order.

        Segments that were removed or taken back do not count, even if there are files of them.
        """
        behind = self.removed
        for task, position in (after or {}).items():
            behind[task] = max(position, behind.get(task, START))
        entries = self._list(self._root)
        taken_back = self._taken_back(entries)
        found = self._behind(entries, behind)
        return [one for one in found if taken_back.counts(one.task, *one.position)]

    def read(self, path: str) -> Iterator[pa.RecordBatch]:
        """The rows of a segment."""
        try:
            yield from _batches(self._folder.files.read(path))
        except FileNotFoundError as error:
            raise RowsRemoved(
                "a file was removed while it was to be read",
                where=path,
                remedy="keep rows for longer than their slowest reader needs",
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    # --- who reads it ---------------------------------------------------------------------------

    def is_noted(self, reader: str) -> bool:
        """Whether a reader has said how far it is."""
        return bool(self._folder.entries(f"{_READERS}/{folder_name(reader)}"))

    def note_reader(self, reader: str, passed: Positions) -> None:
        """A reader will never ask again for rows up to these positions, whatever happens."""
        folder = f"{_READERS}/{folder_name(reader)}"
        before = self._folder.entries(folder)
        self._write_json(f"{folder}/{secrets.token_hex(8)}.json", _said(passed))
        self._folder.delete(info.path for info in before)

    def forget_reader(self, reader: str) -> None:
        """A reader has ended for good."""
        folder = f"{_READERS}/{folder_name(reader)}"
        self._folder.delete(info.path for info in self._folder.entries(folder))
        with suppress(OSError):  # another note has come just now
            self._folder.files.delete_folder(self._folder.path(folder))

    def readers(self) -> dict[str, dict[int, Position]]:
        """By reader, the positions up to which it will never ask again. Instead of the end of a
        very long name there is a digest, and :meth:`forget_reader` takes that, too."""
        found: dict[str, dict[int, Position]] = {}
        for info in self._folder.entries(_READERS):
            passed, notes = self._noted(
                lambda info=info: [i.path for i in self._folder.entries(info.path)]  # type: ignore[misc]
            )
            if notes:
                found[unquote(info.name.replace("=", "%"))] = passed
        return found

    # --- what the user decides ------------------------------------------------------------------

    def remove(self, older_than_s: float) -> int:
        """Remove segments older than a given age, and return their number.

        Per task, these are the oldest ones up to the first that is younger, and those left by
        interrupted removals. The positions are recorded first, so that readers notice what they
        have missed.
        """
        until_s = time.time() - older_than_s
        return self._remove(lambda segment: segment.mtime_s <= until_s)

    def remove_read(self) -> int:
        """Remove segments that all noted readers have passed; nothing if there are no readers."""
        readers = list(self.readers().values())
        if not readers:
            return 0
        return self._remove(
            lambda segment: all(
                segment.position <= passed.get(segment.task, START) for passed in readers
            )
        )

    def _remove(self, may: Callable[[Segment], bool]) -> int:
        removed, notes = self._removals()
        before, files, kept = dict(removed), list[str](), set[int]()
        for segment in self._behind(self._list(self._root), {}):
            task, position = segment.task, segment.position
            if position > removed.get(task, START):
                if task in kept or not may(segment):
                    kept.add(task)
                    continue
                removed[task] = position
            files.append(segment.path)
        if removed != before:
            self._write_json(f"_removed-{secrets.token_hex(8)}.json", _said(removed))
            self._folder.delete(notes)
        gone = 0
        for path in files:
            with suppress(FileNotFoundError):  # another process removes, too
                self._folder.files.delete(path)
                gone += 1
        self._delete_folders(files)
        self._batches.forget(removed.get(TASK, START))
        return gone

    def _delete_folders(self, files: Iterable[str]) -> None:
        """Delete the folders of these files that are empty now, except the newest ones."""
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in files):
            newest = folder.rpartition("/")[0]
            blocks = sorted(info.path for info in self._list(newest))
            if folder != blocks[-1] and not self._list(folder):
                with suppress(FileNotFoundError):
                    self._folder.files.delete_folder(folder)

    def take_back(self, generation: int, kept: Mapping[int, int]) -> None:
        """Delete segments of earlier generations beyond these numbers, by task: the job that writes
        here was rewound. Readers may have read them already. Those that appear later, from writers
        that were frozen, do not count."""
        self._notes.write("", generation, kept)
        self._delete_taken_back()

    def _delete_taken_back(self) -> None:
        entries = self._list(self._root)
        if not (taken_back := self._taken_back(entries)).notes:
            return
        for segment in self._behind(entries, {}):
            if not taken_back.counts(segment.task, *segment.position):
                with suppress(FileNotFoundError):
                    self._folder.files.delete(segment.path)

    def _taken_back(self, entries: Sequence[Info]) -> TakenBack:
        try:
            return self._notes.among(entries)
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def _removals(self) -> tuple[dict[int, Position], list[str]]:
        """What was removed according to all notes, and the paths of these notes."""
        return self._noted(
            lambda: [i.path for i in self._folder.entries() if _REMOVED.fullmatch(i.name)]
        )

    def _noted(self, look: Callable[[], list[str]]) -> tuple[dict[int, Position], list[str]]:
        """The furthest positions of some notes.

        A note is never changed, because not every file system can replace a file without a moment
        in which there is none. The writer of a new note deletes the notes that it includes.
        """
        while True:
            notes = look()
            said = [self._read_json(note) for note in notes]
            if None not in said:
                break  # none was replaced while we were reading
        furthest: dict[int, Position] = {}
        for note in said:
            for task, text in (note or {}).items():
                position = Position.parse(text)
                furthest[int(task)] = max(furthest.get(int(task), START), position)
        return furthest, notes

    # --- files ----------------------------------------------------------------------------------

    @property
    def _root(self) -> str:
        return self._folder.root

    @property
    def _about(self) -> dict[str, str]:
        about = self._read_json(_ABOUT)
        if about is None:
            raise NoTable(
                "there is no table of a job here",
                where=self.path,
                remedy="start the job with clonos.sinks.table(path) first, and give the same path",
            )
        return about

    def _behind(self, entries: Sequence[Info], positions: Positions) -> list[Segment]:
        found: list[Segment] = []
        for info in entries:
            if info.is_folder and _TASK.fullmatch(info.name):
                task = int(info.name)
                found += self._segments_of(task, info.path, positions.get(task, START))
            elif info.is_folder and info.name == MANIFESTS:
                found += self._batches_behind(positions.get(TASK, START))
        return sorted(found)

    def _batches_behind(self, position: Position) -> list[Segment]:
        try:
            return list(self._batches.behind(position))
        except (ValueError, TypeError, KeyError) as error:
            raise self._unreadable(error) from error

    def _segments_of(self, task: int, folder: str, behind: Position) -> Iterator[Segment]:
        first = (behind.generation, behind.seq // _BLOCK)
        for block in self._list(folder):
            name = _BLOCK_NAME.fullmatch(block.name)
            if name is None or (int(name[1]), int(name[2])) < first:
                continue
            for info in self._list(block.path):
                file = _SEGMENT.fullmatch(info.name)
                if file is None:
                    continue
                position = Position(int(name[1]), int(file[1]))
                if position > behind:
                    rows = int(file[2])
                    yield Segment(task, position, rows, info.nbytes, info.mtime_s, info.path)

    def _list(self, folder: str) -> list[Info]:
        return self._folder.files.entries(folder)

    def _read_json(self, name: str) -> dict[str, str] | None:
        try:
            found: dict[str, str] = json.loads(self._folder.read(name).to_pybytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        return found

    def _write_json(self, name: str, content: Mapping[str, str]) -> None:
        self._folder.put(name, json.dumps(content).encode())

    def _unreadable(self, error: Exception) -> UnreadableTable:
        return UnreadableTable(
            f"a table cannot be read: {error}",
            where=self.path,
            remedy="check that all processes reach the folder; restore a damaged file from a copy",
        )


def _said(positions: Positions) -> dict[str, str]:
    return {str(task): str(position) for task, position in sorted(positions.items())}


def _batches(content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_file(pa.BufferReader(content)) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
