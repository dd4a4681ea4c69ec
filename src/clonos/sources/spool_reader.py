"""The reader of a spool (:mod:`clonos.sources.spool`)."""

from __future__ import annotations

import threading
import time
from typing import Final

import pyarrow as pa

from clonos.columns.batches import concat
from clonos.errors import SourceError, UnreadableLayer
from clonos.sources.readers import BaseReader, EndOfInput
from clonos.sources.spool import NAME, WAITS, Manifest, Part, load_manifest, manifest_path
from clonos.storage.layers import LayerStore
from clonos.storage.retry import Retry

FIRST_PAUSE_S: Final = 0.002
"""Delay before a reader that found nothing looks again; doubled each time ..."""
PAUSE_MAX_S: Final = 0.01
"""... up to this on a local file system"""
REMOTE_PAUSE_MAX_S: Final = 0.25
"""... and to this elsewhere, where each look costs money."""


class SpoolReader(BaseReader):
    """The reader of one task.

    It finds a new batch by looking for the next manifest's name, so the writer need not know the
    readers. It looks at nothing before the first read, so a standby's reader may be placed below a
    floor, where files are gone.
    """

    def __init__(self, uri: str, schema: pa.Schema, task_index: int, parallelism: int) -> None:
        self.schema = schema
        self._uri = uri
        self._task_index = task_index
        del parallelism  # manifests say how files are dealt out
        self._opened: LayerStore | None = None
        self._closing = threading.Event()
        self._at = 0
        self._manifest: Manifest | None = None
        self._parts: list[Part] = []
        self._ready: list[pa.RecordBatch] = []
        self._pause_s = FIRST_PAUSE_S
        self._look_at = 0.0

    @property
    def _store(self) -> LayerStore:
        if self._opened is None:
            retry = Retry(WAITS, self._closing.wait)
            self._opened = LayerStore(self._uri, "process", retry=retry)
        return self._opened

    def close(self) -> None:
        """See :meth:`Reader.close`."""
        self._closing.set()

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self._closing.clear()
        self._at = rows_consumed
        self._manifest = None
        self._parts, self._ready = [], []
        self._look_at = 0.0

    def skip(self, rows: int) -> None:
        """See :meth:`Reader.skip`."""
        self.open(self._at + rows)

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        has_waited = False
        while not self._ready:
            if self._parts:
                self._ready = self._load(self._parts.pop(0))
            elif not self._advance():
                if has_waited:
                    return None
                time.sleep(max(0.0, min(max_wait_s, self._look_at - time.monotonic())))
                has_waited = True
        first = self._ready[0]
        batch = first.slice(0, max_rows)
        rest = first.slice(batch.num_rows)
        self._ready[:1] = [rest] if rest.num_rows else []
        self._at += batch.num_rows
        return batch

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """See :meth:`Reader.read_exactly`; never waits."""
        batches: list[pa.RecordBatch] = []
        missing = rows
        while missing:
            self._look_at = 0.0
            try:
                batch = self.read(missing, 0.0)
            except EndOfInput:
                batch = None
            if batch is None:
                raise self._lost(f"{missing} rows behind row {self._at} are missing")
            batches.append(batch)
            missing -= batch.num_rows
        return concat(batches)

    def _advance(self) -> bool:
        """Move to the next manifest; False if it does not exist yet."""
        if self._manifest is not None and self._manifest.is_end:
            raise EndOfInput
        now = time.monotonic()
        if now < self._look_at:
            return False
        found = self._find() if self._manifest is None else self._next(self._manifest.number + 1)
        if found is None:
            most = PAUSE_MAX_S if self._store.is_local else REMOTE_PAUSE_MAX_S
            self._look_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, most)
            return False
        self._pause_s, self._look_at = FIRST_PAUSE_S, 0.0
        self._manifest = found
        self._parts = found.dealt(self._task_index)
        self._drop(self._at - found.before[self._task_index])
        return True

    def _next(self, number: int) -> Manifest | None:
        path = manifest_path(number)
        return load_manifest(self._store, path) if self._store.has(path) else None

    def _find(self) -> Manifest | None:
        """The newest manifest whose earlier batches this task has read completely."""
        paths = [path for path in self._store.list() if path.startswith(NAME)]
        found: Manifest | None = None
        low, high = 0, len(paths)
        while low < high:
            middle = (low + high) // 2
            try:
                manifest = load_manifest(self._store, paths[middle])
            except SourceError:
                if self._store.has(paths[middle]):
                    raise
                low = middle + 1  # it has just been deleted, so we are far beyond it
                continue
            if manifest.before[self._task_index] <= self._at:
                found, low = manifest, middle + 1
            else:
                high = middle
        if found is None and (paths or self._at):
            raise self._lost(f"row {self._at} is not there any more")
        return found

    def _drop(self, rows: int) -> None:
        """Drop the first rows of the current files."""
        while rows and self._parts:
            part = self._parts.pop(0)
            if part.rows <= rows:
                rows -= part.rows
                continue
            table = pa.Table.from_batches(self._load(part)).slice(rows)
            self._ready = table.to_batches()
            rows = 0
        if rows:
            raise self._lost(f"it ends {rows} rows before row {self._at}")

    def _load(self, part: Part) -> list[pa.RecordBatch]:
        try:
            data = self._store.get(part.path)
        except UnreadableLayer as error:
            raise self._lost(f"{part.path}: {error.what}") from error
        with pa.ipc.open_stream(data) as reader:
            if not reader.schema.equals(self.schema):
                raise self._lost(f"{part.path} has columns {reader.schema.names}")
            batches: list[pa.RecordBatch] = reader.read_all().to_batches()
        if sum(batch.num_rows for batch in batches) != part.rows:
            raise self._lost(f"{part.path} does not have its {part.rows} rows")
        return batches

    def _lost(self, why: str) -> SourceError:
        return SourceError(
            f"the spool does not have what it had: {why}",
            where=self._uri,
            remedy="check that nothing else deletes from the checkpoint_dir; if the journal of the "
            "job was lost, start it in another checkpoint_dir",
        )
