"""The jobs that are measured, and their source."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from dataclasses import dataclass
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
_NAP_S: Final = 0.01
_NEVER_MS: Final = 4_000_000_000_000
_MOMENT_MS: Final = 20
_INSTANT: Final = pa.timestamp("us", "UTC")
_LOOK_S: Final = 0.05
"""How often the source looks whether it shall stop."""
SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class PacedReader(BaseReader):
    """Rows ``(id,)`` = 0, 1, 2, ..., shared out to the tasks: each is there when it is due.

    Parameters
    ----------
    schedule
        When rows are due. A reader that was away is behind, and does not begin its pace anew: a
        failure hides nothing.
    rows
        How many in all; None: until the schedule's ``stop`` exists.
    """

    schema = IDS

    def __init__(
        self, schedule: Schedule, rows: int | None, task_index: int, parallelism: int
    ) -> None:
        def share(total: int) -> int:
            return len(range(task_index, total, parallelism))

        self._schedule = schedule
        self._began_s: float | None = None
        self._at_once = share(schedule.at_once)
        self._rows = None if rows is None else share(rows)
        self._task_index = task_index
        self._parallelism = parallelism
        self._next = 0

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self._next = rows_consumed

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        left = None if self._rows is None else self._rows - self._next
        if left == 0 or (left is None and self._schedule.stop.exists()):
            raise EndOfInput
        wanted = max_rows if left is None else min(max_rows, left)
        if self._next < self._at_once:
            return self.read_exactly(min(wanted, _PIECE_ROWS, self._at_once - self._next))
        if self._began_s is None:
            self._began_s = self._schedule.began_s()
        if self._began_s is None:
            time.sleep(min(max_wait_s, _NAP_S))
            return None
        first, rate = self._number(self._next) - self._schedule.at_once, self._schedule.rate
        # A batch that is worth its cost, but not older than the job lets it become.
        more = int(max_wait_s * rate / self._parallelism) * self._parallelism
        full_s = self._began_s + (first + more) / rate
        time.sleep(max(0.0, min(full_s - time.time(), _LOOK_S)))
        due = 1 + int((time.time() - self._began_s) * rate) - first
        due = -(-due // self._parallelism)  # of these rows, one in so many is ours
        return self.read_exactly(min(due, wanted, _PIECE_ROWS)) if due > 0 else None

    def _number(self, mine: Any) -> Any:
        """The number of a row in all tasks, from its number in ours."""
        return mine * self._parallelism + self._task_index

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """See :meth:`Reader.read_exactly`."""
        numbers = np.arange(self._next, self._next + rows, dtype=np.int64)
        self._next += rows
        ids = pa.array(self._number(numbers))
        return pa.RecordBatch.from_arrays([ids], schema=IDS)


@dataclass(frozen=True)
class Schedule:
    """When rows are due: the first `at_once` immediately, each of the others ``1 / rate`` s later.

    All processes agree on it by the files of a folder: ``begin`` holds the moment (s since the
    epoch) from which on rows are due, and as soon as ``stop`` exists no more rows come.

    Parameters
    ----------
    waits
        Somebody else begins; else the first reader that is through with its first rows.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     schedule = Schedule(100.0, 10, folder)
    ...     began_s = schedule.began_s()
    ...     schedule.began_s() == began_s, round(schedule.late_ms(60, began_s + 2.0))
    (True, 1500)
    """

    rate: float
    at_once: int
    folder: str
    waits: bool = False

    @property
    def stop(self) -> Path:
        return Path(self.folder) / "stop"

    def began_s(self) -> float | None:
        """The moment from which on rows are due; None if it has not come."""
        path = Path(self.folder) / "begin"
        if not path.exists():
            if self.waits:
                return None
            self.begin()
        return float(path.read_text())

    def begin(self) -> None:
        """Rows are due from now on, unless somebody has said so before."""
        path = Path(self.folder) / "begin"
        mine = path.with_name(f"begin-{os.getpid()}-{threading.get_ident()}")
        mine.write_text(repr(time.time()))
        with contextlib.suppress(FileExistsError):
            os.link(mine, path)  # whole, and only once
        mine.unlink()

    def late_ms(self, row: int, now_s: float) -> float:
        """How long ago a row was due; NaN if it had no moment, as the first ones."""
        began_s = None if row < self.at_once else self.began_s()
        if began_s is None:
            return math.nan
        return (now_s - began_s) * 1000 - (row - self.at_once) / self.rate * 1000


def paced(schedule: Schedule, *, rows: int | None = None) -> SourceSpec:
    """A source of :class:`PacedReader`."""
    factory = partial(PacedReader, schedule, rows)
    return SourceSpec("paced", IDS, factory, True, IDS)


def at_once(rows: int) -> SourceSpec:
    """So many rows, as fast as they are taken."""
    return paced(Schedule(1.0, rows, os.devnull), rows=rows)


class AddKey:
    """Gives every row a key: the first `keys` rows one each, then at random (but reproducibly)."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column(0).to_numpy()
        mixed = (ids.astype(np.uint64) * SPREAD) >> np.uint64(20)
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


def interval(checkpoint_ms: int | None) -> str:
    """The interval of a job's checkpoints. 0: as the engine chooses; None: none at all.

    Examples
    --------
    >>> [interval(ms) for ms in (200, 0, None)]
    ['200 ms', 'auto', '1 day']
    """
    if checkpoint_ms is None:
        return "1 day"
    return f"{checkpoint_ms} ms" if checkpoint_ms else "auto"


def stateful(
    source: SourceSpec,
    *,
    keys: int,
    value_bytes: int,
    parallelism: int = 2,
    standbys: int = 1,
    protected: bool = True,
    checkpoint_ms: int | None = 500,
    checkpoints: Any = "auto",
    is_apart: bool = False,
    persistence: Any = "store",
    job: clonos.Job | None = None,
) -> clonos.Job:
    """Source -> map -> keyed state -> sink: four tasks deep, every row delivered.

    Parameters
    ----------
    protected
        With causal logs.
    checkpoint_ms
        0: as the engine chooses. None: no checkpoints.
    checkpoints
        "auto", "marked" or "uncoordinated".
    is_apart
        Each task has a slot of its own, and can die alone.
    persistence
        Where state is kept.
    job
        To add the operators to, instead of a new one of these settings.
    """
    job = job or clonos.Job(
        "touch",
        parallelism=parallelism,
        standbys=standbys,
        checkpoint_interval=interval(checkpoint_ms),
        checkpoints=checkpoints,
        guarantee="exactly_once" if protected else "at_least_once",
        on_orphan="consistency" if protected else "availability",
        persistence=persistence,
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


class TakeTurns:
    """Gives every row a key, one after the other."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column(0)
        keys = pa.array(ids.to_numpy() % self._keys)
        return pa.RecordBatch.from_arrays([keys, ids], ["key", "id"])


class Known:
    """Of the first row of each key, a row of `value_bytes` bytes that others are joined with."""

    def __init__(self, keys: int, value_bytes: int) -> None:
        self._keys, self._value_bytes = keys, value_bytes

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch.filter(pc.less(batch.column("id"), self._keys))
        filler = pa.array([bytes(max(0, self._value_bytes - 8))] * first.num_rows, pa.binary())
        return pa.RecordBatch.from_arrays([first.column("key"), filler], ["of", "filler"])


class Seen:
    """How many rows of its key there have been, as keys take turns."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        seen = pa.array(batch.column("id").to_numpy() // self._keys + 1)
        columns = [batch.column("key"), batch.column("id"), seen]
        return pa.RecordBatch.from_arrays(columns, ["key", "id", "seen"])


def joined(source: SourceSpec, *, keys: int, value_bytes: int, job: clonos.Job) -> None:
    """Source -> map -> join with the first row of each key -> sink: every row delivered once."""
    ids = job.source(source, name="source").start_new_chain()
    rows = ids.slot_group("map").map_batches(
        TakeTurns(keys), schema="key long, id long", name="map"
    )
    known = rows.map_batches(
        Known(keys, value_bytes), schema="of long, filler binary", name="known"
    )
    sides = (rows.slot_group("state").key_by("key"), known.slot_group("state").key_by("of"))
    seen = (
        sides[0]
        .join(sides[1], name="state")
        .map_batches(Seen(keys), schema="key long, id long, seen long", name="seen")
    )
    seen.start_new_chain().slot_group("sink").sink(clonos.sinks.callback(nothing), name="sink")


class Name:
    """Gives keys, which take turns, a name of `nbytes` bytes."""

    def __init__(self, keys: int, nbytes: int) -> None:
        self._turns, self._nbytes = TakeTurns(keys), nbytes

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, ids = self._turns(batch).columns
        names = pc.utf8_lpad(keys.cast(pa.string()), self._nbytes, "0")
        return pa.RecordBatch.from_arrays([names, keys, ids], ["name", "key", "id"])


class Remind(clonos.Process):
    """A timer per key, which never fires and which every row sets to another time. When there is
    one for each key, a row goes out by a timer of its own, a moment later."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def open(self, ctx: clonos.ProcessContext) -> None:
        self._row = ctx.state("row")

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> list[tuple[int, int, int]] | None:
        turn = row.id // self._keys
        ctx.timers.delete(_NEVER_MS + turn - 1)
        ctx.timers.processing_time(_NEVER_MS + turn)
        if turn == 0:
            return [(row.key, row.id, 1)]
        self._row.set((row.key, row.id, turn + 1))
        ctx.timers.processing_time(ctx.clock.now_ms() + _MOMENT_MS)
        return None

    def on_timer(
        self, key: Any, due: int, ctx: clonos.ProcessContext
    ) -> list[tuple[int, int, int]]:
        del key, due, ctx
        row = self._row.get()
        self._row.clear()
        return [row]


def reminded(source: SourceSpec, *, keys: int, value_bytes: int, job: clonos.Job) -> None:
    """Source -> map -> timers -> sink: every row delivered once."""
    ids = job.source(source, name="source").start_new_chain()
    rows = ids.slot_group("map").map_batches(
        Name(keys, value_bytes), schema="name string, key long, id long", name="map"
    )
    seen = (
        rows.slot_group("state")
        .key_by("name")
        .process(Remind(keys), schema="key long, id long, seen long", name="state")
    )
    seen.start_new_chain().slot_group("sink").sink(clonos.sinks.callback(nothing), name="sink")


class TwoWindows:
    """Each row goes into a short window and, with all of its key, into one that does not end."""

    schema = "name string, key long, id long, at timestamp, opens timestamp, closes timestamp"

    def __init__(self, keys: int, value_bytes: int) -> None:
        self._name = Name(keys, value_bytes)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        named = self._name(batch)
        ids = named.column("id").to_numpy()
        begin = np.zeros_like(ids)
        halves = [
            [*named.columns, *(pa.array(ms * 1000, _INSTANT) for ms in (ids, opens, closes))]
            for opens, closes in ((ids, ids + _MOMENT_MS), (begin, begin + _NEVER_MS))
        ]
        names = [*named.schema.names, "at", "opens", "closes"]
        parts = [pa.RecordBatch.from_arrays(half, names) for half in halves]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


class CountedRight:
    """The rows of short windows; of the one that does not end, all rows must have been counted."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        seen = batch.column("id").to_numpy() // self._keys + 1
        is_long = batch.column("window_start").cast(pa.int64()).to_numpy() == 0
        is_long &= batch.column("window_end").cast(pa.int64()).to_numpy() == _NEVER_MS * 1000
        rows = batch.column("rows").to_numpy()
        if (rows[is_long] != seen[is_long]).any():
            raise ValueError("the rows of a key were counted wrongly")
        columns = [batch.column("key"), batch.column("id"), pa.array(seen)]
        counted = pa.RecordBatch.from_arrays(columns, ["key", "id", "seen"])
        return counted.filter(pa.array(~is_long))


def windowed(source: SourceSpec, *, keys: int, value_bytes: int, job: clonos.Job) -> None:
    """Source -> map -> windows -> sink: every row delivered once."""
    ids = job.source(source, name="source").start_new_chain()
    rows = ids.slot_group("map").map_batches(
        TwoWindows(keys, value_bytes), schema=TwoWindows.schema, name="map"
    )
    of_names = rows.with_watermark("at", "0 ms").slot_group("state").key_by("name")
    counts = of_names.window(clonos.between("opens", "closes")).agg(
        rows=clonos.count(),
        key=clonos.max("key"),
        id=clonos.max("id"),
        name="state",
        pre_aggregate=False,
    )
    seen = counts.map_batches(
        CountedRight(keys), schema="key long, id long, seen long", name="seen"
    )
    seen.start_new_chain().slot_group("sink").sink(clonos.sinks.callback(nothing), name="sink")


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
