"""A past in one file, which can be replayed anywhere.

It is a ZIP archive::

    about.json          which job it is from, its beginning, and the format of the archive
    journal             the log since then, as records of the house-keeper's journal
    layers/<path>       the state of the tasks when it begins
    rows/<task>.arrow   the rows of their sources since
    items/<channel>     for a single task: the items that it was sent
    original            what happened, for changed code: see :mod:`clonos.branch.kept`
    outputs/<n>.arrow   delivered output

It has what a replay reads (rows, state and answers of services), and nothing else: no secrets of
the job, no certificates, no keys of URIs. :mod:`clonos.branch.draft` writes it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgpack
import pyarrow as pa

from clonos.columns.batches import concat, empty, from_bytes
from clonos.core.codec import CODEC
from clonos.core.housekeeper import HouseKeeper
from clonos.core.intake import cuts_to_read
from clonos.core.messages import Activate, Item
from clonos.core.plan import TaskSpec
from clonos.errors import NothingToReplay, ProtocolError, UnreadableBundle, masked
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe, require_same
from clonos.sources.readers import CutReader
from clonos.storage.files import in_this_process
from clonos.storage.layers import LayerStore

FORMAT: Final = 3
"""The format of the archive, and of everything in it."""

ABOUT, JOURNAL, LAYERS = "about.json", "journal", "layers"
ORIGINAL: Final = "original"


class Bundle:
    """An archive opened for reading; until it is closed, its content is in a temporary folder.

    Raises
    ------
    UnreadableBundle
        It is damaged, or has another format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.folder = Path(tempfile.mkdtemp(prefix="clonos-bundle-"))
        self.close = weakref.finalize(
            self, in_this_process(shutil.rmtree), self.folder, ignore_errors=True
        )
        """Remove the temporary folder."""
        try:
            with self.reading():
                with zipfile.ZipFile(path) as archive:
                    archive.extractall(self.folder)
                self.about: dict[str, Any] = json.loads((self.folder / ABOUT).read_bytes())
                self._require_whole()
                self.hash_seed = str(self.about["hash_seed"])
                self.lineage, self.run = str(self.about["lineage"]), str(self.about["run"])
                self.kills = str(self.about["kills"])
                self.is_exact = bool(self.about["is_exact"])
        except BaseException:
            self.close()
            raise

    def _require_whole(self) -> None:
        if self.about["format"] != FORMAT:
            raise UnreadableBundle(
                f"it has format {self.about['format']}, this clonos reads format {FORMAT} only",
                where=self.path,
                remedy="read it with the clonos that made it",
            )
        for name in self.about["files"]:
            if not (self.folder / name).is_file():
                raise FileNotFoundError(f"{name} is missing")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn all errors of reading into `UnreadableBundle`."""
        try:
            yield
        except (
            OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error,
            msgpack.UnpackException, pa.ArrowException, ProtocolError,
        ) as error:  # fmt: skip
            raise UnreadableBundle(
                f"it cannot be read: {type(error).__name__}: {error}",
                where=self.path,
                remedy="make it again with clonos bundle, or copy it again",
            ) from error

    @property
    def has_original(self) -> bool:
        """Whether it records what happened; if not, only the job's own code can find that out."""
        return ORIGINAL in self.about["files"]

    def only(self, compiled: CompiledJob) -> int | None:
        """The only task that it includes; None: all."""
        numbers = {task.name: task.id for task in compiled.plan.tasks}
        return None if self.about["task"] is None else numbers[self.about["task"]]

    def items(self, task: TaskSpec) -> dict[int, list[Item]]:
        """The items sent to the only task, by channel."""
        with self.reading():
            return {c: list(_items(items_path(self.folder, c))) for c in task.inputs}

    def require(self, compiled: CompiledJob) -> None:
        """Raise `OtherJob` if a job has another graph; places of sources and sinks may differ."""
        require_same(self.about["graph"], portable(compiled), self.path)

    @property
    def store(self) -> LayerStore:
        """The store with the layers."""
        return LayerStore(str(self.folder / LAYERS))

    def recover(self, keeper: HouseKeeper) -> None:
        """Restore an empty house-keeper from the journal."""
        with self.reading():
            keeper.recover(_unpacked((self.folder / JOURNAL).read_bytes()))

    def readable(self, code: TaskCode, activate: Activate) -> TaskCode:
        """A task whose source, if it has one, reads rows of the bundle."""
        if code.source is None:
            return code
        records = (record for run in activate.log for record in run.records)
        rows = [rows for rows, _ in cuts_to_read(records)]
        path = rows_path(self.folder, code.task.id)
        factory = partial(_reader, path, code.source.schema, rows)
        return replace(code, source=replace(code.source, dataframe=None, factory=factory))


def _reader(path: Path, schema: pa.Schema, rows: Sequence[int], *_: int) -> BundledRows:
    return BundledRows(path, schema, rows)


class BundledRows(CutReader):
    """The rows of a source, from a bundle.

    Parameters
    ----------
    path
        An Arrow file; it does not exist if there are no rows.
    rows
        The number of rows in each logged cut.
    """

    def __init__(self, path: Path, schema: pa.Schema, rows: Sequence[int]) -> None:
        self.schema, self._path = schema, path
        self._rows = iter(rows)
        self._batches = _batches(path)
        self._left: list[pa.RecordBatch] = []

    def open(self, rows_consumed: int, cut: bytes = b"") -> None:
        """See :meth:`CutReader.open`. The file begins where the task does."""
        self.cut = cut

    def read_cut(self, cut: bytes) -> pa.RecordBatch:
        """See :meth:`CutReader.read_cut`."""
        self.cut, missing = cut, next(self._rows, 0)
        found: list[pa.RecordBatch] = []
        while missing:
            batch = self._left.pop() if self._left else next(self._batches, None)
            if batch is None:
                raise UnreadableBundle(f"{missing} rows are missing", where=str(self._path))
            found.append(batch.slice(0, missing))
            if batch.num_rows > missing:
                self._left.append(batch.slice(missing))
            missing -= found[-1].num_rows
        return concat(found) if found else empty(self.schema)

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        raise NothingToReplay(
            "a bundle has no rows beyond the end of its log",
            where=str(self._path),
            remedy="go on from the checkpoint itself",
        )


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    if path.exists():
        with pa.memory_map(str(path)) as file:
            yield from pa.ipc.open_stream(file)


def rows_path(folder: Path, task: int) -> Path:
    """The file with the rows of a task's source."""
    return folder / "rows" / f"{task}.arrow"


def find_bundle(path: str) -> Path | None:
    """The path of a bundle, if it is one."""
    found = Path(path)
    with suppress(OSError):  # such as a name that is too long
        return found if "://" not in path and found.is_file() else None
    return None


def items_path(folder: Path, channel: int) -> Path:
    """The file with the items that a single task was sent by a channel."""
    return folder / "items" / str(channel)


def _items(path: Path) -> Iterator[Item]:
    for data, rows in _unpacked_pairs(path.read_bytes()) if path.exists() else ():
        found: Item = CODEC.decode(data, from_bytes(rows) if rows else None).item
        yield found


def _unpacked_pairs(packed: bytes) -> Iterator[tuple[bytes, bytes]]:
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(packed), 1))
    unpacker.feed(packed)
    yield from unpacker


def _unpacked(packed: bytes) -> Iterator[bytes]:
    unpacker = msgpack.Unpacker(max_buffer_size=len(packed))
    unpacker.feed(packed)
    yield from unpacker


def portable(compiled: CompiledJob) -> dict[str, Any]:
    """The graph of a job without the places of its sources and sinks, which differ in tests."""
    graph: dict[str, Any] = json.loads(masked(json.dumps(describe(compiled))))
    for task in graph["tasks"].values():
        for edge in ("source", "sink"):
            task[edge] = task[edge] and task[edge][:1]
    return graph
