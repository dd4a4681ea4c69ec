"""The jobs that are measured, and their source."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import clonos
from clonos.sources.readers import BaseReader, EndOfInput
from clonos.sources.spec import SourceSpec

IDS: Final = pa.schema([pa.field("id", pa.int64())])
_PIECE_ROWS: Final = 1024
"""What the source gives at once while it does not keep a pace: bounds the length of a step."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class PacedReader(BaseReader):
    """Rows ``(id,)`` = 0, 1, 2, ... shared out to the tasks: the first ones at once, then paced.

    Parameters
    ----------
    rate
        Rows per second of all tasks together, after the first `at_once` rows.
    rows
        How many in all; None: until `stop_file` exists.
    """

    schema = IDS

    def __init__(
        self,
        rate: float,
        at_once: int,
        rows: int | None,
        stop_file: str,
        task_index: int,
        parallelism: int,
    ) -> None:
        def share(total: int) -> int:
            return len(range(task_index, total, parallelism))

        self._rate = rate / parallelism
        self._at_once = share(at_once)
        self._rows = None if rows is None else share(rows)
        self._stop_file = Path(stop_file)
        self._task_index = task_index
        self._parallelism = parallelism
        self._next = 0
        self._paced: tuple[float, int] | None = None

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self._next = rows_consumed
        self._paced = None

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        left = None if self._rows is None else self._rows - self._next
        if left == 0 or (left is None and self._stop_file.exists()):
            raise EndOfInput
        wanted = max_rows if left is None else min(max_rows, left)
        if self._next < self._at_once:
            return self.read_exactly(min(wanted, _PIECE_ROWS, self._at_once - self._next))
        now = time.monotonic()
        since, first = self._paced = self._paced or (now, self._next)
        due_at = since + (self._next - first + 1) / self._rate
        # A batch that is worth its cost, but not older than the job lets it become.
        time.sleep(max(0.0, min(due_at - now, 0.05), max_wait_s))
        due = first + int((time.monotonic() - since) * self._rate) - self._next
        return self.read_exactly(min(due, wanted)) if due > 0 else None

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """See :meth:`Reader.read_exactly`."""
        numbers = np.arange(self._next, self._next + rows, dtype=np.int64)
        self._next += rows
        ids = pa.array(numbers * self._parallelism + self._task_index)
        return pa.RecordBatch.from_arrays([ids], schema=IDS)


def paced(rate: float, *, at_once: int = 0, rows: int | None = None, stop_file: str) -> SourceSpec:
    """A source of :class:`PacedReader`."""
    factory = partial(PacedReader, rate, at_once, rows, stop_file)
    return SourceSpec("paced", IDS, factory, True, IDS)


class AddKey:
    """Gives every row a key: the first `keys` rows one each, then at random (but reproducibly)."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column(0).to_numpy()
        mixed = (ids.astype(np.uint64) * _SPREAD) >> np.uint64(20)
        keys = np.where(ids < self._keys, ids, (mixed % np.uint64(self._keys)).astype(np.int64))
        return pa.RecordBatch.from_arrays([pa.array(keys), batch.column(0)], ["key", "id"])


class Touch(clonos.Process):
    """Counts the rows of a key in state of `value_bytes` bytes, all of which every row replaces."""

    def __init__(self, value_bytes: int) -> None:
        self._filler = bytes(max(0, value_bytes - 8))

    def open(self, ctx: clonos.ProcessContext) -> None:
        self._value = ctx.state("value")

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> list[tuple[int, int, int]]:
        value = self._value.get()
        seen = 1 if value is None else int.from_bytes(value[:8], "big") + 1
        self._value.set(seen.to_bytes(8, "big") + self._filler)
        return [(row.key, row.id, seen)]


def stateful(
    source: SourceSpec,
    *,
    keys: int,
    value_bytes: int,
    parallelism: int = 2,
    standbys: int = 1,
    protected: bool = True,
    checkpoint_ms: int | None = 500,
    checkpoints: Any = "marked",
    is_apart: bool = False,
    job: clonos.Job | None = None,
) -> clonos.Job:
    """Source -> map -> keyed state -> sink: four tasks deep, every row delivered.

    Parameters
    ----------
    protected
        With causal logs.
    checkpoint_ms
        None: no checkpoints.
    checkpoints
        "marked" or "uncoordinated".
    is_apart
        Each task has a slot of its own, and can die alone.
    job
        To add the operators to, instead of a new one of these settings.
    """
    job = job or clonos.Job(
        "touch",
        parallelism=parallelism,
        standbys=standbys,
        checkpoint_interval="1 day" if checkpoint_ms is None else f"{checkpoint_ms} ms",
        checkpoints=checkpoints,
        guarantee="exactly_once" if protected else "at_least_once",
        on_orphan="consistency" if protected else "availability",
    )

    def placed(stream: Any, name: str) -> Any:
        return stream.slot_group(name) if is_apart else stream

    ids = job.source(source, name="source").start_new_chain()
    keyed = placed(ids, "map").map_batches(AddKey(keys), schema="key long, id long", name="map")
    touched = (
        placed(keyed, "state")
        .key_by("key")
        .process(Touch(value_bytes), schema="key long, id long, seen long", name="state")
    )
    placed(touched.start_new_chain(), "sink").sink(clonos.sinks.callback(nothing), name="sink")
    return job


class RepeatReader(BaseReader):
    """The same prebuilt batches over and over: a source that costs nothing."""

    schema = pa.schema([pa.field("key", pa.int64()), pa.field("value", pa.int64())])

    def __init__(
        self, rows: int, batch_rows: int, keys: int, task_index: int, parallelism: int
    ) -> None:
        self._rows = len(range(task_index, rows, parallelism))
        self._batch_rows = batch_rows
        self._keys = keys
        self._seed = task_index
        self._next = 0

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        random = np.random.default_rng(self._seed)
        keys = pa.array(random.integers(0, self._keys, self._batch_rows))
        values = pa.array(random.integers(0, self._keys, self._batch_rows))
        self._batch = pa.RecordBatch.from_arrays([keys, values], schema=self.schema)
        self._next = rows_consumed

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`; never waits."""
        if self._next >= self._rows:
            raise EndOfInput
        start = self._next % self._batch_rows
        size = min(max_rows, self._batch_rows - start, self._rows - self._next)
        self._next += size
        return self._batch.slice(start, size)


def rekey(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The value becomes the key, so that the second shuffle moves the rows again."""
    return pa.RecordBatch.from_arrays(
        [batch.column(1), pc.add(batch.column(0), batch.column(1))], ["key", "value"]
    )


def count_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One row: how many there were (and one of their keys, as the stream stays keyed)."""
    columns = [batch.column(0).slice(0, 1), pa.array([batch.num_rows])]
    return pa.RecordBatch.from_arrays(columns, ["key", "rows"])


def shuffle(
    *, rows: int, batch_rows: int, keys: int, parallelism: int = 2, standbys: int = 1
) -> clonos.Job:
    """Batches -> key_by -> map_batches -> key_by -> count: two shuffles, only counts go out."""
    factory = partial(RepeatReader, rows, batch_rows, keys)
    source = SourceSpec("repeat", RepeatReader.schema, factory, True, RepeatReader.schema)
    job = clonos.Job("shuffle", parallelism=parallelism, standbys=standbys)
    first = job.source(source, name="source").key_by("key")
    second = first.map_batches(rekey, schema="key long, value long", name="rekey").key_by("key")
    counts = second.map_batches(count_rows, schema="key long, rows long", name="count")
    counts.sink(clonos.sinks.callback(nothing), name="sink")
    return job


def nothing(batch: pa.RecordBatch) -> None:
    """Takes delivered batches; they are observed elsewhere."""
