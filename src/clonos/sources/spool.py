"""The spool: rows handed over batch by batch, and kept until every source task has passed them.

::

    batch-000000000007      the *manifest* of the eighth batch: a list of its files
    rows/...                its rows: files of Arrow batches, written by any number of attempts

Readers ignore files that no manifest names. So a batch is taken at the moment when its manifest is
written, whatever dies before or after. If a batch is offered again, its manifest already exists,
and nothing changes. Manifests have one writer (the driver, which holds the lock of the job's
journal) and many readers.

A driver that was frozen does not know yet that another one goes on. So a driver that begins writes
a manifest without rows first: the next name is taken, and only then it deletes the rows that no
manifest names. And a batch counts only if its driver was still in office when the manifest was
there; who has taken office later has seen it.

Files are dealt to the tasks of a source in turn, over all batches. A manifest says how many rows
each task had been dealt before, so that a reader can be opened at any row although the batches
below the floors of all tasks are gone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import msgpack
import pyarrow as pa

from clonos.columns.batches import conform
from clonos.errors import (
    ClonosError,
    OtherQuery,
    SourceError,
    StoreAway,
    Superseded,
    UnreadableLayer,
)
from clonos.storage.files import Durability
from clonos.storage.layers import LayerStore
from clonos.storage.retry import Retry, may_pass
from clonos.storage.table_batches import by_file, forgotten

VOUCHED_S: Final = 1.0
"""Who has been in office so lately does not ask before it writes a manifest, only after."""
CLOSE_S: Final = 0.5
"""How long closing a spool waits for a write under way."""

_FORMAT: Final = "clonos-spool-2"
NAME: Final = "batch-"
"""With what the names of manifests begin."""
WAITS: Final = "rows between Spark and a source"
"""What waits while a store is away, for messages."""


class SpoolClosed(ClonosError):
    """The job that reads a spool is being stopped, so no more rows are taken."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of rows."""

    path: str
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A batch that was taken, or the end of the input (``is_end``).

    Attributes
    ----------
    number
        0, 1, 2, ... without a gap. Batches without rows have none.
    query, batch
        Spark's names for the micro-batch.
    extent
        Identifies the range of the input: equal if, and only if, Spark means the same rows.
    first
        The number of files of all earlier batches.
    before
        For each task, how many rows it was dealt in earlier batches.
    """

    number: int
    query: str
    batch: int
    extent: str
    first: int
    before: tuple[int, ...]
    parts: tuple[Part, ...] = ()
    is_end: bool = False

    @property
    def path(self) -> str:
        return manifest_path(self.number)

    def dealt(self, task_index: int) -> list[Part]:
        """The files of one task."""
        tasks = len(self.before)
        return list(self.parts[(task_index - self.first) % tasks :: tasks])

    @property
    def after(self) -> tuple[int, ...]:
        """For each task, how many rows it has been dealt up to and including this batch."""
        return tuple(
            rows + sum(part.rows for part in self.dealt(i)) for i, rows in enumerate(self.before)
        )

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def followed_by(
        self,
        query: str,
        batch: int,
        parts: tuple[Part, ...],
        extent: str = "",
        *,
        is_end: bool = False,
    ) -> Manifest:
        """The next one."""
        number, first = self.number + 1, self.first + len(self.parts)
        return Manifest(number, query, batch, extent, first, self.after, parts, is_end)

    def encode(self) -> bytes:
        parts = [(part.path, part.rows, part.nbytes) for part in self.parts]
        names = (self.number, self.query, self.batch, self.extent, self.first, self.before)
        packed: bytes = msgpack.packb((_FORMAT, *names, parts, self.is_end))
        return packed

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """The inverse of :meth:`encode`; raises `ValueError` for anything else."""
        form, *content = msgpack.unpackb(data)
        if form != _FORMAT:
            raise ValueError(f"its format is {form!r}, this clonos reads {_FORMAT!r}")
        number, query, batch, extent, first, before, parts, is_end = content
        named = tuple(Part(*part) for part in parts)
        return cls(number, query, batch, extent, first, tuple(before), named, is_end)


def write_parts(
    store: LayerStore, batch: int, partition: int, batches: Iterable[pa.RecordBatch], schema: Any
) -> Iterator[Part]:
    """Write the rows of a partition, in order. Every attempt writes its own files.

    Raises
    ------
    SourceError
        Rows do not fit the schema.
    """
    stem = f"rows/{batch:012d}-{partition:05d}-{secrets.token_hex(8)}"
    fitting = (_fitting(rows, schema) for rows in batches if rows.num_rows)
    for number, gathered in enumerate(by_file(fitting)):
        yield _put(store, f"{stem}-{number:05d}", gathered)


def _fitting(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    try:
        return conform(rows, schema)
    except (pa.ArrowException, ValueError) as error:
        raise SourceError(
            f"the streaming query gives other columns than the stream has: {error}",
            remedy="let the query give what its schema says",
        ) from error


def _put(store: LayerStore, path: str, batches: Sequence[pa.RecordBatch]) -> Part:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    nbytes = store.put(path, sink.getvalue())
    return Part(path, sum(batch.num_rows for batch in batches), nbytes)


class Spool:
    """The driver's end: takes batches, and deletes those that every task has passed.

    Parameters
    ----------
    uri
        A folder that all processes of the job reach.
    tasks
        How many tasks read it; fixed for the life of the spool.
    backlog_bytes_max
        A batch waits (see :meth:`wait_for_room`) while the backlog is larger than this.
    office
        Raises `Superseded` if another driver goes on with the job, and `OSError` if that is not
        known.

    Examples
    --------
    >>> import tempfile
    >>> spool = Spool(tempfile.mkdtemp(), tasks=1)
    >>> rows = pa.record_batch({"n": [1, 2, 3]})
    >>> spool.take("q", 0, list(write_parts(spool.store, 0, 0, [rows], rows.schema)))
    True
    >>> spool.take("q", 0, [])
    False
    >>> from clonos.sources.spool_reader import SpoolReader
    >>> reader = SpoolReader(spool.uri, rows.schema, 0, 1)
    >>> reader.open(1)
    >>> reader.read(10, 0.0).column("n").to_pylist()
    [2, 3]
    """

    def __init__(
        self,
        uri: str,
        tasks: int,
        durability: Durability = "fsync",
        *,
        backlog_bytes_max: int = 256 << 20,
        office: Callable[[], None] = lambda: None,
    ) -> None:
        self.uri = uri
        self.durability = durability
        self.store = LayerStore(uri, durability)
        self._tasks = tasks
        self._backlog_bytes_max = backlog_bytes_max
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._below = 0  # no recovery needs files of manifests with lower numbers
        self._gone = 0  # files of manifests with lower numbers are deleted
        self.is_waiting = False
        self._retry = Retry(WAITS, self._closing.wait)
        self._office, self._vouched_at = office, -inf
        self._begin()
        # If the store is unusable at the start, that is an error; from now on it is waited for.
        self.store = LayerStore(uri, durability, retry=self._retry)

    def _begin(self) -> None:
        self.store.sweep()
        while True:
            listed = self.store.list()
            self._kept = [load_manifest(self.store, p) for p in listed if p.startswith(NAME)]
            self._check()
            if self._fence():
                break
        named = {part.path for manifest in self._kept for part in manifest.parts}
        self.store.delete(p for p in listed if not p.startswith(NAME) and p not in named)

    def _fence(self) -> bool:
        """Take the next name, so that no former driver can; False if one just has. Nobody writes
        behind the end."""
        last = self._kept[-1] if self._kept else Manifest(-1, "", -1, "", 0, (0,) * self._tasks)
        if last.is_end:
            return True
        fence = last.followed_by(last.query, last.batch, (), last.extent)
        if is_ours := self.store.create(fence.path, fence.encode()):
            self._kept.append(fence)
        return is_ours

    @property
    def _is_closed(self) -> bool:
        return self._closing.is_set()

    def _check(self) -> None:
        numbers = [manifest.number for manifest in self._kept]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
            raise SourceError(
                "manifests of the spool are missing",
                where=self.uri,
                remedy="restore them from a copy, or start the job in another checkpoint_dir",
            )

    # --- content ---------

    @property
    def newest(self) -> Manifest | None:
        """The last batch taken, or the end; perhaps as said by a fence behind it."""
        last = self._kept[-1]
        return last if last.query or last.is_end else None

    @property
    def is_ended(self) -> bool:
        return self.newest is not None and self.newest.is_end

    @property
    def backlog_bytes(self) -> int:
        """The size of files that a recovery may still need."""
        return sum(m.nbytes for m in list(self._kept) if m.number >= self._below)

    @property
    def kept_bytes(self) -> int:
        """The size of all files, including those kept only for the history."""
        return sum(m.nbytes for m in list(self._kept) if m.number >= self._gone)

    @property
    def rows(self) -> int:
        """The number of rows ever taken."""
        return sum(self.newest.after) if self.newest is not None else 0

    # --- taking ---

    def wait_for_room(self) -> None:
        """Wait until another batch may come.

        Raises
        ------
        SpoolClosed
            No batch will be taken any more.
        """
        with self._changed:
            self.is_waiting = self.backlog_bytes > self._backlog_bytes_max
            self._changed.wait_for(
                lambda: self._is_closed or self.backlog_bytes <= self._backlog_bytes_max
            )
            self.is_waiting = False
            self._require_open()

    def take(self, query: str, batch: int, parts: Sequence[Part], extent: str = "") -> bool:
        """Take a batch: when this returns, its rows are safe.

        Parameters
        ----------
        extent
            See :class:`Manifest`.

        Returns
        -------
        bool
            False if it was taken before; then the files offered now are deleted.

        Raises
        ------
        OtherQuery
            Earlier batches came from a query of another name, or from a newer state of this query.
        SpoolClosed
            The batch was not taken.
        Superseded
            Another driver writes to this spool.
        """
        with self._changed:
            self._require_open()
            newest = self.newest
            if newest is not None and not newest.is_end:
                self._require_same(newest, query, batch, extent)
            if newest is not None and (newest.is_end or batch == newest.batch):
                self.store.delete(part.path for part in parts)
                return False
            if parts:
                self._write(query, batch, tuple(parts), extent)
            return True

    def _require_same(self, newest: Manifest, query: str, batch: int, extent: str) -> None:
        what = forgotten(newest.batch, newest.extent, batch, extent)
        if newest.query != query:
            what = f"the rows so far came from the streaming query {newest.query}, these come from "
            what += query
        if not what:
            return
        raise OtherQuery(
            what,
            where=self.uri,
            remedy="the query's own checkpoint was lost or replaced, by an older copy or in part: "
            "restore its newest state, or start the job in another checkpoint_dir",
        )

    def end(self) -> None:
        """End the input for good."""
        with self._changed:
            if not self._is_closed and not self.is_ended:
                newest = self.newest
                query, batch = (newest.query, newest.batch) if newest else ("", -1)
                self._write(query, batch, (), "", is_end=True)

    def _require_open(self) -> None:
        if self._is_closed:
            raise SpoolClosed("the job that reads these rows is being stopped", where=self.uri)

    def _write(
        self, query: str, batch: int, parts: tuple[Part, ...], extent: str, *, is_end: bool = False
    ) -> None:
        manifest = self._kept[-1].followed_by(query, batch, parts, extent, is_end=is_end)
        if time.monotonic() - self._vouched_at > VOUCHED_S:
            self._require_office()
        if not self.store.create(manifest.path, manifest.encode()):
            raise Superseded(
                "another driver has taken a batch of this spool",
                where=f"{self.uri}/{manifest.path}",
                remedy="find out who started it; rows that were taken are safe",
            )
        self._require_office()
        self._kept.append(manifest)

    def _require_office(self) -> None:
        """Raise `Superseded` if another driver goes on with the job."""

        def look() -> None:
            try:
                self._office()
            except OSError as error:
                if not may_pass(error):
                    raise
                said = f"it is not known whether another driver goes on with the job: {error}"
                raise StoreAway(said, where=self.uri) from error

        self._vouched_at = -inf  # whatever the answer was before
        self._retry(look)
        self._vouched_at = time.monotonic()

    # --- deleting ---

    def truncate(self, consumed: Sequence[int], kept: Sequence[int] | None = None) -> None:
        """Delete batches below the floors of all tasks; `consumed`: for each task, the rows below
        its floor. For a job with a history, delete only below `kept`, which is not higher.

        The newest manifest stays, because the next one's number follows from it. Only one thread
        calls this. What it has not deleted when the spool is closed is left to the next start.
        """
        with self._changed:
            newest = self._kept[-1]
            below = self._passed(consumed)
            passed = below if kept is None else self._passed(kept)
        # Rows first, so that a death leaves no file without a manifest.
        gone = [manifest for manifest in passed if manifest is not newest]
        self._delete([part.path for manifest in passed for part in manifest.parts])
        self._delete([manifest.path for manifest in gone])
        with self._changed:
            if not self._is_closed:
                self._kept = [manifest for manifest in self._kept if manifest not in gone]
                self._below = max([self._below, *(manifest.number + 1 for manifest in below)])
                self._gone = max([self._gone, *(manifest.number + 1 for manifest in passed)])
                self._changed.notify_all()

    def _passed(self, consumed: Sequence[int]) -> list[Manifest]:
        """The manifests whose rows are all below `consumed`."""
        return [
            manifest
            for manifest in self._kept
            if all(a <= b for a, b in zip(manifest.after, consumed, strict=True))
        ]

    def _delete(self, paths: Iterable[str]) -> None:
        """Delete files; stop when the spool is closed, rather than wait for a slow store."""
        for path in paths:
            if self._is_closed:
                return
            self.store.delete([path])

    def close(self) -> None:
        """Take no more batches, and release threads that wait.

        A write under way may hang. After a short wait, closing goes on without it.
        """
        self._closing.set()
        if self._changed.acquire(timeout=CLOSE_S):
            self._changed.notify_all()
            self._changed.release()


def manifest_path(number: int) -> str:
    """The path of a manifest in its store."""
    return f"{NAME}{number:012d}"


def load_manifest(store: LayerStore, path: str) -> Manifest:
    """Read a manifest.

    Raises
    ------
    SourceError
        It is missing or damaged.
    """
    try:
        return Manifest.decode(store.get(path))
    except (UnreadableLayer, ValueError, TypeError, msgpack.UnpackException) as error:
        raise SourceError(
            f"a manifest of the spool cannot be read: {error}",
            where=path,
            remedy="restore it from a copy, or start the job in another checkpoint_dir",
        ) from error
