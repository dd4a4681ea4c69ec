"""What a streaming query writes into a table: batches that are whole or absent.

::

    _rows/<batch>/<partition>-<random>.arrow     files that any number of attempts wrote
    _batches/<block>/<batch>.json                which of them are the batch: a *manifest*

A file that no manifest names does not exist for readers. A manifest is created only if there is
none with this number. So that is the moment at which a batch is taken, whatever dies before or
after it, and a batch that is offered again changes nothing.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from clonos.errors import OtherQuery
from clonos.storage.files import Info
from clonos.storage.folder import Folder
from clonos.storage.segments import START, Position, Segment

FILE_BYTES: Final = 4 << 20
"""A file of this size is closed, because writer and reader each hold one file in memory."""
MANIFESTS: Final = "_batches"
ROWS: Final = "_rows"
TASK: Final = 0
"""A query's rows count as those of one task."""

_BLOCK: Final = 256
"""Manifests per folder."""
_MANIFEST: Final = re.compile(r"(\d{12})\.json")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of rows that is not part of the table yet."""

    name: str
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A batch that was taken.

    Attributes
    ----------
    batch
        Spark's number. Batches without rows have no manifest.
    extent
        Equal if and only if Spark takes the batches to have the very same rows; empty: unknown.
    """

    batch: int
    extent: str
    files: tuple[StagedFile, ...]

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Manifest:
        """The inverse of :meth:`encode`; `ValueError`, `TypeError` or `KeyError` for others."""
        said = json.loads(content)
        files = tuple(StagedFile(**file) for file in said["files"])
        return cls(said["batch"], said["extent"], files)


def by_file(rows: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """The rows of each file, in order; no file is empty."""
    gathered: list[pa.RecordBatch] = []
    nbytes = 0
    for piece in rows:
        if not piece.num_rows:
            continue
        gathered.append(piece)
        nbytes += piece.nbytes
        if nbytes >= FILE_BYTES:
            yield gathered
            gathered, nbytes = [], 0
    if gathered:
        yield gathered


def forgotten(newest: int, newest_extent: str, batch: int, extent: str) -> str:
    """What the query that offers this batch has forgotten; empty: nothing. Spark offers only its
    last batch again, and then unchanged.

    Examples
    --------
    >>> forgotten(7, "rows 20 to 22", 8, "rows 22 to 23")
    ''
    >>> forgotten(7, "rows 20 to 22", 6, "rows 18 to 20")
    'the query is at batch 6, but has handed over batch 7 before'
    """
    if batch < newest:
        return f"the query is at batch {batch}, but has handed over batch {newest} before"
    if batch == newest and extent != newest_extent:
        return f"batch {batch} was handed over before, but began or ended elsewhere"
    return ""


class Batches:
    """The batches in a table's folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    # --- writing --------------------------------------------------------------------------------

    def stage(
        self, batch: int, partition: int, rows: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[StagedFile]:
        """Write rows of a partition, in order. Every attempt writes files of its own."""
        stem = f"{batch:012d}/{partition:05d}-{secrets.token_hex(8)}"
        for number, gathered in enumerate(by_file(rows)):
            yield self._put(f"{stem}-{number:05d}.arrow", gathered, schema)

    def _put(self, name: str, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> StagedFile:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(sink, schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        content = sink.getvalue()
        self._folder.put(f"{ROWS}/{name}", content)
        return StagedFile(name, sum(batch.num_rows for batch in batches), content.size)

    def take(self, batch: int, files: Sequence[StagedFile], extent: str = "") -> bool:
        """Take a batch: when this returns, its rows are safe.

        Returns
        -------
        bool
            False if it was taken before; then the files offered now are deleted.

        Raises
        ------
        OtherQuery
            The query has handed over later batches before, or this one with other rows.
        """
        before = self.newest()
        if before is not None:
            self._require_same(before, batch, extent)
            if before.batch == batch:
                # Its writer may have died, or failed, before it was durable.
                self._folder.keep(_path(batch), before.encode(), lambda _: True)
                self.discard(batch, files)
                return False
        if not files:
            return True
        manifest = Manifest(batch, extent, tuple(files))
        if not self._folder.create(_path(batch), manifest.encode()):
            self.discard(batch, files)  # another driver of the query has taken it just now
            return False
        for done in filter(None, [before, manifest]):
            self._sweep(done)
        return True

    def discard(self, batch: int, files: Iterable[StagedFile]) -> None:
        """Delete files of an attempt, unless they are in the batch: Spark also aborts a commit of
        whose success it has not heard."""
        found = self._read(_path(batch)) if self._folder.has(_path(batch)) else None
        kept = {file.name for file in found.files} if found is not None else set()
        self._folder.delete(f"{ROWS}/{file.name}" for file in files if file.name not in kept)

    def _require_same(self, newest: Manifest, batch: int, extent: str) -> None:
        is_known = bool(extent and newest.extent)
        if what := forgotten(newest.batch, newest.extent if is_known else extent, batch, extent):
            raise OtherQuery(
                what,
                where=self._folder.root,
                remedy="the query's checkpoint was replaced by an older copy, or in part: restore "
                "its newest state, or let the query begin anew with a new checkpoint and a new "
                "folder",
            )

    def _sweep(self, manifest: Manifest) -> None:
        """Delete files of a batch that failed attempts have left."""
        kept = {file.name for file in manifest.files}
        found = self._folder.entries(f"{ROWS}/{manifest.batch:012d}")
        names = [f"{manifest.batch:012d}/{info.name}" for info in found]
        self._folder.delete(f"{ROWS}/{name}" for name in names if name not in kept)

    # --- reading --------------------------------------------------------------------------------

    def newest(self) -> Manifest | None:
        """The last batch that was taken."""
        for block in reversed(self._folder.entries(MANIFESTS)):
            found = [info for info in self._folder.entries(block.path) if _number(info) is not None]
            if found:
                return self._read(found[-1].path)
        return None

    def behind(self, position: Position) -> Iterator[Segment]:
        """The files after a position, in order."""
        for info in self._manifests(position):
            manifest = self._read(info.path)
            if manifest is None:
                continue
            for number, file in enumerate(manifest.files):
                at = Position(manifest.batch, number)
                path = self._folder.path(f"{ROWS}/{file.name}")
                if at > position:
                    yield Segment(TASK, at, file.rows, file.nbytes, info.mtime_s, path)

    def forget(self, until: Position) -> None:
        """Delete manifests whose files are all gone, up to a position. The newest one stays,
        because it says which batch was the last."""
        for info in self._manifests(START)[:-1]:
            manifest = self._read(info.path)
            if manifest is None or Position(manifest.batch, len(manifest.files) - 1) > until:
                return
            self._folder.delete([info.path])

    def _manifests(self, position: Position) -> list[Info]:
        found: list[Info] = []
        for block in self._folder.entries(MANIFESTS):
            if block.name.isdecimal() and int(block.name) >= position.generation // _BLOCK:
                entries = self._folder.entries(block.path)
                found += [i for i in entries if (_number(i) or 0) >= position.generation]
        return [info for info in found if _number(info) is not None]

    def _read(self, path: str) -> Manifest | None:
        """A manifest; None if it has just been removed."""
        try:
            return Manifest.decode(self._folder.read(path).to_pybytes())
        except FileNotFoundError:
            return None


def _path(batch: int) -> str:
    return f"{MANIFESTS}/{batch // _BLOCK:010d}/{batch:012d}.json"


def _number(info: Info) -> int | None:
    found = _MANIFEST.fullmatch(info.name)
    return int(found[1]) if found else None
