"""Writes bundles: a past, or a part of it, as the files of a bundle.

No code of the job runs while these are written, except that the items sent to a single task must be
made again by the tasks upstream. So a past can be bundled even if its last step kills the process
that repeats it.
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa

from clonos.branch.redaction import Redaction
from clonos.branch.rows import Rows
from clonos.columns.batches import from_bytes, to_bytes
from clonos.core.codec import CODEC
from clonos.core.determinants import (
    Determinant,
    Outcomes,
    Source,
    SourceCut,
    decode_record,
    encode_record,
)
from clonos.core.history import RECORDS
from clonos.core.levels import LayerRef
from clonos.core.messages import Data, Item
from clonos.graph.code import TaskCode
from clonos.replay import Replay
from clonos.replay.bundle import ABOUT, FORMAT, JOURNAL, LAYERS, items_path, portable, rows_path
from clonos.replay.past import Past
from clonos.sources.readers import CutReader
from clonos.storage.layers import LayerStore, put_whole


class Draft:
    """The files of a bundle, in a folder.

    Parameters
    ----------
    past
        The past to bundle.
    records
        The journal from which it was read, as summarised by the house-keeper.
    task
        The only task to include; None: all.
    ends
        The last step of each task.
    is_whole
        Whether these are the ends of the logs.
    redaction
        Replaces values.
    """

    def __init__(
        self,
        folder: Path,
        past: Past,
        records: Sequence[bytes],
        *,
        task: int | None,
        ends: Mapping[int, int],
        is_whole: bool,
        redaction: Redaction | None = None,
    ) -> None:
        self.folder, self._past, self._records = folder, past, records
        self._task, self._ends, self._redaction = task, ends, redaction
        self._is_whole = is_whole and redaction is None
        tasks = past.compiled.plan.tasks
        self._tasks = tasks if task is None else (tasks[task],)
        self.failed = {
            t: step for t, step in past.failed.items() if ends[t] >= step and task in {None, t}
        }

    @property
    def nbytes(self) -> int:
        """The size of its layers and its journal, before they are copied."""
        refs = [ref for task in self._tasks for ref in self._past.activations[task.id].layers]
        return sum(ref.nbytes for ref in refs) + sum(map(len, self._records))

    def write(self, kills: str) -> None:
        """Write everything that is needed to repeat this past.

        Parameters
        ----------
        kills
            A message about the failed step, if it kills the process that takes it.

        Raises
        ------
        ClonosError
            Rows cannot be read again, or the past cannot be redacted.
        """
        chains = {task.id: self._put_layers(task.id) for task in self._tasks}
        rows = {task.id: self._put_rows(task.id) for task in self._tasks if task.is_source}
        if self._task is not None:
            for channel, items in sent_to(self._past, self._task, self._ends).items():
                self._put_items(channel, items)
        if self._redaction is not None:
            self._redaction.require_keys()
        records = [new for old in self._records if (new := self._record(old, chains, rows))]
        (self.folder / JOURNAL).write_bytes(b"".join(map(msgpack.packb, records)))
        self.put_about(kills)

    # --- the journal ----------------------------------------------------------------------------

    def _record(
        self,
        record: bytes,
        chains: Mapping[int, Sequence[LayerRef]],
        digests: Mapping[int, Mapping[int, int]],
    ) -> bytes | None:
        kind, *fields = msgpack.unpackb(record, strict_map_key=False)
        if kind in RECORDS:
            return None
        if kind == "run":
            task, term, n, start, entries = fields
            entries = [
                self._entry(task, position, entry, digests.get(task, {}))
                for position, entry in enumerate(entries, start)
                if position <= self._ends[task]
            ]
            return _packed(kind, task, term, n, start, entries) if entries else None
        if kind == "failed":
            task, position, entry = fields
            if task not in self.failed:
                return None
            entry = self._entry(task, position, entry, digests.get(task, {}))
            return _packed(kind, task, position, entry)
        if kind == "floor" and self._redaction is not None:
            fields[3] |= {t: [ref.named for ref in chain] for t, chain in chains.items() if chain}
            return _packed(kind, *fields)
        if kind == "world" and not (self._is_whole and self._task is None):
            return _packed(kind, *fields[:-1], {})  # its dependencies may lie beyond the end
        return record

    def _entry(self, task: int, position: int, entry: bytes, digests: Mapping[int, int]) -> bytes:
        """A log entry; for tasks that are not included, only the items that it took."""
        if self._task not in {None, task}:
            return encode_record([_in_outline(decode_record(entry)[0])])
        if self._redaction is None:
            return entry
        return self._redaction.entry(entry, digests.get(position))

    # --- state, rows, items ---------------------------------------------------------------------

    def _put_layers(self, task: int) -> list[LayerRef]:
        to = LayerStore(str(self.folder / LAYERS), "process")
        if self._redaction is not None:
            layers = self._past.layers(task)
            code = self._past.compiled.codes[task]
            return [put_whole(to, self._redaction.layer(code, layers))] if layers else []
        for ref in self._past.activations[task].layers:
            to.put(ref.path, self._past.store.get(ref.path))
        return []

    def _put_rows(self, task: int) -> dict[int, int]:
        """Write the rows of a source; returns the digest of each step's rows, if redacted."""
        path, found = rows_path(self.folder, task), dict[int, int]()
        path.parent.mkdir(exist_ok=True)
        rows = Rows(path)
        for position, read in given(self._past, task, self._ends[task]):
            batch = read
            if self._redaction is not None:
                batch, found[position] = self._redaction.sealed(read)
            if batch.num_rows:
                rows.add(batch)
        rows.close()
        return found

    def _put_items(self, channel: int, items: Sequence[Item]) -> None:
        path = items_path(self.folder, channel)
        path.parent.mkdir(exist_ok=True)
        plan = self._past.compiled.plan
        spec, maker = plan.channels[channel], plan.makers[channel]
        if self._redaction is not None:
            layers = self._past.layers(spec.receiver)
            before = layers[-1].ins.get(channel, (0, 0))[1] if layers else 0
            items = self._redaction.items(items, before)
        with path.open("wb") as file:
            for item in items:
                own = item.of(maker)
                data = CODEC.encode(Data(channel, own.dep[maker].incarnation, own, ()))
                rows = b"" if own.batch is None else to_bytes(own.batch.payload)
                file.write(msgpack.packb((data, rows)))

    # --- the archive ----------------------------------------------------------------------------

    def put_about(self, kills: str) -> None:
        """Write the description of the bundle, when everything else is written."""
        past, compiled = self._past, self._past.compiled
        said = {
            "format": FORMAT,
            "job": compiled.name,
            "made_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "hash_seed": past.hash_seed,
            "lineage": past.lineage,
            "run": past.run,
            "task": None if self._task is None else self._tasks[0].name,
            "is_exact": self._is_whole,
            "is_redacted": self._redaction is not None,
            "kills": kills if self.failed else "",
            "files": [path.relative_to(self.folder).as_posix() for path in self._files()],
            "graph": portable(compiled),
        }
        (self.folder / ABOUT).write_text(json.dumps(said, indent=1))

    def _files(self) -> list[Path]:
        return sorted(
            path for path in self.folder.rglob("*") if path.is_file() and path.name != ABOUT
        )

    def pack(self, to: Path, *, replaces: bool = False) -> int:
        """Pack the files into an archive that only the user can read; returns its size in bytes.

        Raises
        ------
        FileExistsError
            The target exists and must not be replaced.
        """
        whole = to.with_name(f".{to.name}.part")
        try:
            whole.unlink(missing_ok=True)  # left by a process that was killed, or somebody else's
            descriptor = os.open(whole, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            with (
                os.fdopen(descriptor, "w+b") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            ):
                for path in [self.folder / ABOUT, *self._files()]:
                    archive.write(path, path.relative_to(self.folder))
            if replaces:
                whole.replace(to)
            else:
                os.link(whole, to)  # fails if the name is taken
        finally:
            whole.unlink(missing_ok=True)
        return to.stat().st_size


def _packed(*fields: Any) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


def _in_outline(cause: Determinant) -> Determinant:
    if isinstance(cause, Source):
        return cause._replace(content=None)
    return Outcomes(()) if isinstance(cause, Outcomes) else cause


def given(past: Past, task: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a task's source by step, read again or taken from the log."""
    code, layers, reader = past.codes[task], past.layers(task), None
    for position, record in past.records(task):
        cause = decode_record(record)[0]
        if position > end or not isinstance(cause, Source | SourceCut):
            continue
        if isinstance(cause, Source) and cause.content is not None:
            yield position, from_bytes(cause.content)
            continue
        if reader is None:
            claimed = past.activations[task].claimed
            at = (layers[-1].source_rows, layers[-1].source_cut) if layers else claimed
            reader = _opened(code, *at)
        if isinstance(reader, CutReader):
            yield position, reader.read_cut(cause.cut if isinstance(cause, SourceCut) else b"")
        else:
            yield position, reader.read_exactly(cause.rows)
    if reader is not None:
        reader.close()


def _opened(code: TaskCode, rows: int, cut: bytes) -> Any:
    assert code.source is not None
    reader = code.source.reader(code.task.index, code.parallelism)
    if isinstance(reader, CutReader):
        reader.open(rows, cut)
    else:
        reader.open(rows)
    return reader


def sent_to(past: Past, task: int, ends: Mapping[int, int]) -> dict[int, list[Item]]:
    """The items sent to a task, by channel, made again by the tasks upstream."""
    with Replay(past) as replay:
        others = [one for one in replay if one.machine.id != task]

        def goes_on() -> bool:
            for one in reversed(others):
                is_implied = one.machine.spec.is_implied  # no log shows where it ends
                if is_implied or one.position < ends[one.machine.id]:
                    replay.feed(one)
                    if one.step(beyond=False) is not None:
                        return True
            return False

        while goes_on():
            pass
        (mine,) = (one for one in replay if one.machine.id == task)
        senders = {one.machine.id: one for one in others}
        channels = past.compiled.plan.channels
        return {
            channel: senders[channels[channel].sender].items(channel, end.consumed)
            for channel, end in mine.machine.inputs.items()
        }
