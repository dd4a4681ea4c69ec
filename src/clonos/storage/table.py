"""A growing table of Arrow files: what a sink leaves for readers that follow it.

Each output of a sink task is one file, a *segment*. It appears whole, never changes, and its place
is its key, so that writing it again is no work and a list of names is all that a reader needs::

    <path>/_table.json                                        columns, which table this is, whose
    <path>/<task>/<generation>-<block>/<seq>-<rows>.arrow     rows, as any Arrow reader reads them
    <path>/_removed-<which>.json                              up to where rows were removed
    <path>/_ended                                             the job has ended: this is all

The segments of a task appear in order, so a reader's offset is, for each task, the position of
the newest segment that it has. Segments are kept in blocks: whoever follows the table lists only
the newest block, however long the job has run.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs

from clonos.errors import ClonosError
from clonos.storage.files import (
    UNFINISHED,
    Durability,
    name_once,
    sync_directory,
    sync_file,
    unfinished_name,
)

_BLOCK: Final = 256
"""So many numbers of a channel share a folder."""
_ABOUT: Final = "_table.json"
_REMOVED: Final = re.compile(r"_removed(-[0-9a-f]+)?\.json")
_ENDED: Final = "_ended"
_TASK: Final = re.compile(r"\d{5}")
_BLOCK_NAME: Final = re.compile(r"(\d{4})-(\d{10})")
_SEGMENT: Final = re.compile(r"(\d{12})-(\d+)\.arrow")


class NoTable(ClonosError):
    """There is no table where one is to be read."""


class RowsRemoved(ClonosError):
    """Rows that a reader has not read yet have been removed."""


class OtherTable(ClonosError):
    """A reader's offset is of another table than the one that is there now."""


class UnreadableTable(ClonosError):
    """A file of a table is damaged or cannot be reached."""


class Position(NamedTuple):
    """How far a task's output goes; compared in this order."""

    generation: int
    seq: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The inverse of ``str``."""
        generation, _, seq = text.partition("-")
        return cls(int(generation), int(seq))


START: Final = Position(-1, -1)
"""Before the first segment."""

Positions = Mapping[int, Position]
"""By task; one that is not named is at :data:`START`."""


class Segment(NamedTuple):
    """One file of a table."""

    task: int
    position: Position
    rows: int
    nbytes: int
    mtime_s: float
    path: str


class Table:
    """A folder of segments on any file system of pyarrow.

    Parameters
    ----------
    path
        A local path or a URI.
    durability
        ``"fsync"``: what is written survives the machine (on local disks; elsewhere it is the
        file system's business).

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

    def __init__(self, path: str, durability: Durability = "process") -> None:
        self.path = path
        self._durability = durability
        self._fs, root = pafs.FileSystem.from_uri(
            path if "://" in path else Path(path).absolute().as_uri()
        )
        self._root = root.rstrip("/")
        self._folders: set[str] = set()

    # --- what the job does ----------------------------------------------------------------------

    def create(self, schema: pa.Schema, owner: str = "") -> None:
        """Begin a table in a folder that has none, or an empty one; only `owner` writes it."""
        self._fs.create_dir(self._root, recursive=True)
        columns = base64.b64encode(schema.serialize().to_pybytes()).decode()
        self._write_json(_ABOUT, {"id": secrets.token_hex(8), "owner": owner, "schema": columns})

    def withdraw(self) -> None:
        """Let the folder be nobody's again: nothing has been written to it."""
        self._fs.delete_file(self.about_path)

    @property
    def about_path(self) -> str:
        """Where it is written down which table this is, and whose."""
        return f"{self._root}/{_ABOUT}"

    def write(self, task: int, generation: int, seq: int, batch: pa.RecordBatch) -> None:
        """Add a segment, unless it is there."""
        folder = f"{self._root}/{task:05d}/{generation:04d}-{seq // _BLOCK:010d}"
        if folder not in self._folders:
            self._fs.create_dir(folder, recursive=True)
            if self._is_synced:  # a file is no safer than the folders that it is in
                sync_directory(Path(folder).parent)
                sync_directory(self._root)
                with suppress(PermissionError):  # this one is others', who may keep it from us
                    sync_directory(Path(self._root).parent)
            self._folders = {folder}
        path = f"{folder}/{seq:012d}-{batch.num_rows}.arrow"
        if self._fs.get_file_info(path).is_file:
            return

        def fill(stream: Any) -> None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_file(stream, batch.schema, options=options) as writer:
                writer.write_batch(batch)

        self._write(path, fill)

    def end(self) -> None:
        """The job has ended; what killed writers left is swept away."""
        for info in self._list(self._root, recursive=True):
            if ".arrow." in info.base_name and info.base_name.endswith(UNFINISHED):
                self._fs.delete_file(info.path)
        if not self.ended:
            self._write(f"{self._root}/{_ENDED}", lambda stream: stream.write(b""))

    # --- what readers ask -----------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether a job has begun to write here."""
        return bool(self._fs.get_file_info(f"{self._root}/{_ABOUT}").is_file)

    @property
    def ended(self) -> bool:
        """Whether the job has ended: there will be no further segment."""
        return bool(self._fs.get_file_info(f"{self._root}/{_ENDED}").is_file)

    @property
    def id(self) -> str:
        """A name that no other table has, not even a later one in the same folder."""
        return str(self._about["id"])

    @property
    def owner(self) -> str:
        """The sink, of which job, that writes it; empty if nobody has said so."""
        return self._about.get("owner", "")

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._about["schema"])))

    @property
    def removed(self) -> dict[int, Position]:
        """Up to where each task's rows have been removed."""
        return self._removals()[0]

    def segments(self, after: Positions | None = None) -> list[Segment]:
        """The segments behind these positions, task by task, in order.

        Those that are to be removed do not count, though they may still be there.
        """
        behind = self.removed
        for task, position in (after or {}).items():
            behind[task] = max(position, behind.get(task, START))
        return self._behind(behind)

    def read(self, path: str) -> Iterator[pa.RecordBatch]:
        """The rows of a segment."""
        try:
            with self._fs.open_input_file(path) as source, pa.ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
        except FileNotFoundError as error:
            raise RowsRemoved(
                "a file was removed while it was to be read",
                where=path,
                remedy="keep rows for longer than their slowest reader needs",
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    # --- what the user decides ------------------------------------------------------------------

    def remove(self, older_than_s: float) -> int:
        """Remove the segments that were written so long ago, and say how many there were.

        Of each task its oldest ones, up to the first that is younger, and what is left of earlier
        removals that were broken off. First it is written down
        how far this goes, so that no reader can miss them without noticing.
        """
        until_s = time.time() - older_than_s
        removed, notes = self._removals()
        files, kept = list[str](), set[int]()
        for segment in self._behind({}):
            task, position = segment.task, segment.position
            if position > removed.get(task, START):
                if task in kept or segment.mtime_s > until_s:
                    kept.add(task)
                    continue
                removed[task] = position
            files.append(segment.path)
        if files:
            said = {str(task): str(position) for task, position in removed.items()}
            self._write_json(f"_removed-{secrets.token_hex(8)}.json", said)
        for path in [*files, *(notes if files else [])]:
            with suppress(FileNotFoundError):  # somebody else removes, too
                self._fs.delete_file(path)
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in files):
            newest = folder.rpartition("/")[0]
            blocks = sorted(info.path for info in self._list(newest))
            if folder != blocks[-1] and not self._list(folder):
                with suppress(FileNotFoundError):
                    self._fs.delete_dir(folder)
        return len(files)

    def _removals(self) -> tuple[dict[int, Position], list[str]]:
        """What was removed according to all notes of it, and where these are.

        A note is never changed, as not every file system can do that without a moment in which
        there is none. Whoever has written a new one deletes those that he has taken up into it.
        """
        while True:
            notes = [i.path for i in self._list(self._root) if _REMOVED.fullmatch(i.base_name)]
            said = [self._read_json(note.rpartition("/")[2]) for note in notes]
            if None not in said:
                break  # none was replaced while we were reading
        removed: dict[int, Position] = {}
        for note in said:
            for task, text in (note or {}).items():
                position = Position.parse(text)
                removed[int(task)] = max(removed.get(int(task), START), position)
        return removed, notes

    # --- files ----------------------------------------------------------------------------------

    @property
    def _is_synced(self) -> bool:
        return self._durability == "fsync" and self._fs.type_name == "local"

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

    def _behind(self, positions: Positions) -> list[Segment]:
        found: list[Segment] = []
        for info in self._list(self._root):
            if info.type == pafs.FileType.Directory and _TASK.fullmatch(info.base_name):
                task = int(info.base_name)
                found += self._segments_of(task, info.path, positions.get(task, START))
        return sorted(found)

    def _segments_of(self, task: int, folder: str, behind: Position) -> Iterator[Segment]:
        first = (behind.generation, behind.seq // _BLOCK)
        for block in self._list(folder):
            name = _BLOCK_NAME.fullmatch(block.base_name)
            if name is None or (int(name[1]), int(name[2])) < first:
                continue
            for info in self._list(block.path):
                file = _SEGMENT.fullmatch(info.base_name)
                if file is None:
                    continue
                position = Position(int(name[1]), int(file[1]))
                if position > behind:
                    written_s = (info.mtime_ns or 0) / 1e9
                    rows, nbytes = int(file[2]), info.size or 0
                    yield Segment(task, position, rows, nbytes, written_s, info.path)

    def _list(self, folder: str, *, recursive: bool = False) -> list[Any]:
        selector = pafs.FileSelector(folder, recursive=recursive, allow_not_found=True)
        found: list[Any] = self._fs.get_file_info(selector)
        return found

    def _read_json(self, name: str) -> dict[str, str] | None:
        try:
            with self._fs.open_input_stream(f"{self._root}/{name}") as stream:
                found: dict[str, str] = json.loads(stream.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        return found

    def _write_json(self, name: str, content: Mapping[str, str]) -> None:
        text = json.dumps(content).encode()
        self._write(f"{self._root}/{name}", lambda stream: stream.write(text))

    def _write(self, path: str, fill: Any) -> None:
        """Let a file appear whole."""
        folder, _, name = path.rpartition("/")
        hidden = unfinished_name(f"{folder}/.{name}")
        with self._fs.open_output_stream(hidden) as stream:
            fill(stream)
        is_synced = self._is_synced
        if is_synced:
            sync_file(hidden)
        name_once(self._fs, hidden, path)
        if is_synced:
            sync_directory(folder)

    def _unreadable(self, error: Exception) -> UnreadableTable:
        return UnreadableTable(
            f"a table cannot be read: {error}",
            where=self.path,
            remedy="see that everybody reaches the folder; restore a damaged file from a copy",
        )
