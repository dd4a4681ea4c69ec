"""A job whose output is known beforehand, and the means to kill parts of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import clonos
from clonos.cluster import shipping
from clonos.cluster.driver import RunningJob
from clonos.graph.code import TaskCode
from clonos.sources.readers import BaseReader, EndOfInput, IteratorReader, Reader

cloudpickle.register_pickle_by_value(sys.modules[__name__])

START = datetime(2024, 1, 1, tzinfo=timezone.utc)
KEYS = 7
ROW_STEP = timedelta(milliseconds=10)
WINDOW = timedelta(seconds=2)
WAIT_S = 600.0
"""Nothing depends on it but how long a test hangs that has failed."""


class Running(clonos.Process):
    """Adds up `n` per key."""

    def open(self, ctx: Any) -> None:
        self.total = ctx.state("total", "long")

    def on_row(self, row: Any, ctx: Any) -> Iterator[Any]:
        total = self.total.get(0) + row.n
        self.total.set(total)
        yield (row.at, row.key, row.n, total)


def row(i: int) -> tuple[datetime, str, int]:
    return (START + i * ROW_STEP, f"k{i * 31 % KEYS}", i % 13)


class Gated(BaseReader):
    """Keeps the rows from number `hold` on back until there is a file `tap`."""

    def __init__(self, reader: Reader, hold: int, tap: Path) -> None:
        self.schema = reader.schema
        self._reader, self._hold, self._tap = reader, hold, tap
        self._next = 0

    def open(self, rows_consumed: int) -> None:
        self._next = rows_consumed
        self._reader.open(rows_consumed)

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        if self._next < self._hold:
            max_rows = min(max_rows, self._hold - self._next)
        elif not self._tap.exists():
            time.sleep(max_wait_s)
            return None
        return self._counted(self._reader.read(max_rows, max_wait_s))

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        return self._counted(self._reader.read_exactly(rows))

    def _counted(self, batch: Any) -> Any:
        self._next += batch.num_rows if batch is not None else 0
        return batch


def gated(factory: Any, hold: int, tap: Path, index: int, parallelism: int) -> Reader:
    return Gated(factory(index, parallelism), hold, tap)


def held_rows(hold: int, tap: Path, code: TaskCode, batches: Any) -> Reader:
    assert code.source is not None
    return Gated(IteratorReader(batches, code.source.schema), hold, tap)


class Until(BaseReader):
    """Numbers from 0 on, until there is a file `tap`."""

    schema = pa.schema([pa.field("n", pa.int64())])

    def __init__(self, tap: Path) -> None:
        self._tap = tap
        self._next = 0

    def open(self, rows_consumed: int) -> None:
        self._next = rows_consumed

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch:
        if self._tap.exists():
            raise EndOfInput
        return self.read_exactly(max_rows)

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        first, self._next = self._next, self._next + rows
        return pa.RecordBatch.from_pydict({"n": range(first, self._next)}, schema=self.schema)


def until(tap: Path, index: int, parallelism: int) -> Reader:
    assert (index, parallelism) == (0, 1)
    return Until(tap)


class Kit:
    """What the tests of this folder share."""

    SCHEMA = "at timestamp, key string, n long"
    WAIT_S = WAIT_S
    row = staticmethod(row)

    def write_input(self, path: Path, rows: int) -> str:
        lines = (f"{at:%Y-%m-%dT%H:%M:%S.%fZ},{key},{n}\n" for at, key, n in map(row, range(rows)))
        path.write_text("at,key,n\n" + "".join(lines))
        return str(path)

    def gated(self, folder: Path, rows: int, *, begins: bool = True) -> Any:
        """A source of so many rows, the last fifth of which comes after :meth:`open_tap`, and all
        but a few after :meth:`begin`, unless it `begins` by itself."""
        source = clonos.sources.files(self.write_input(folder / "in.csv", rows), "csv", self.SCHEMA)
        factory = partial(gated, source.factory, rows * 4 // 5, folder / "tap")
        if not begins:
            factory = partial(gated, factory, rows // 20, folder / "begin")
        return replace(source, factory=factory)

    def held_batches(self, folder: Path, batches: list[pa.RecordBatch], hold: int) -> Any:
        """A source of these rows; those from number `hold` on come after :meth:`open_tap`."""
        source = clonos.sources.from_batches(batches)
        return replace(source, factory=partial(gated, source.factory, hold, folder / "tap"))

    def begin(self, folder: Path) -> None:
        (folder / "begin").touch()

    def hold_dataframe(self, monkeypatch: Any, folder: Path, rows: int) -> None:
        """The same for a DataFrame, whose reader a slot makes."""
        held = partial(held_rows, rows * 4 // 5, folder / "tap")
        monkeypatch.setattr(shipping, "reader_of", held)

    def open_tap(self, folder: Path) -> None:
        (folder / "tap").touch()

    def until_tapped(self, folder: Path, hold: int | None = None) -> Any:
        """A source of the numbers from 0 on that ends some time after :meth:`open_tap`; those from
        `hold` on come after :meth:`begin`."""
        source = clonos.sources.from_batches([], "n long")
        factory: Any = partial(until, folder / "tap")
        if hold is not None:
            factory = partial(gated, factory, hold, folder / "begin")
        return replace(source, factory=factory)

    def dataframe(self, spark: SparkSession, rows: int) -> Any:
        """The same rows, in order, from one partition."""
        return spark.range(0, rows, 1, 1).selectExpr(
            "timestamp_millis(1704067200000 + id * 10) AS at",
            f"concat('k', id * 31 % {KEYS}) AS key",
            "id % 13 AS n",
        )

    def build(
        self,
        source: Any,
        *,
        sink: Any = None,
        rate: float | None = 2000.0,
        is_fused: bool = False,
        is_apart: bool = True,
        **settings: Any,
    ) -> clonos.Job:
        """Per key, running totals, and their sum and maximum in windows of event time.

        The sink has tasks of its own but if `is_fused`; all tasks have slots of their own if they
        are `is_apart`, so that each can be killed alone.
        """

        def group(stream: Any, name: str) -> Any:
            return stream.slot_group(name) if is_apart else stream

        settings = {"parallelism": 2, "checkpoint_interval": "300 ms", **settings}
        materialize = settings.pop("materialize", False)
        job = clonos.Job("windows", **settings)
        events = job.source(
            source, name="events", parallelism=1, rows_per_second=rate, materialize=materialize
        )
        totals = (
            group(events.with_watermark("at", "1 second"), "running")
            .key_by("key")
            .process(Running(), "at timestamp, key string, n long, total long", name="running")
        )
        windows = (
            group(totals, "windows")
            .key_by("key")
            .window(clonos.tumbling(WINDOW, on="at"))
            .agg(name="windows", n=clonos.sum("n"), top=clonos.max("total"), rows=clonos.count())
        )
        end = windows if is_fused else group(windows.start_new_chain(), "out")
        end.sink(sink or clonos.sinks.collect(), name="out")
        return job

    def expected(self, rows: int) -> list[tuple[Any, ...]]:
        totals: dict[str, int] = defaultdict(int)
        windows: dict[tuple[str, datetime], list[int]] = {}
        for i in range(rows):
            at, key, n = row(i)
            totals[key] += n
            number = (at - START) // WINDOW
            window = windows.setdefault((key, START + number * WINDOW), [0, 0, 0])
            window[:] = window[0] + n, totals[key], window[2] + 1
        return sorted((k, s, s + WINDOW, *values) for (k, s), values in windows.items())

    def rows_of(self, table: pa.Table) -> list[tuple[Any, ...]]:
        return sorted(tuple(r.values()) for r in table.to_pylist())

    def check(self, table: pa.Table, rows: int) -> None:
        """Every row exactly once, none changed."""
        assert self.rows_of(table) == self.expected(rows)

    # --- a running job ---

    def wait_for(self, condition: Callable[[], Any], wait_s: float = WAIT_S) -> None:
        until = time.monotonic() + wait_s
        while not condition():
            assert time.monotonic() < until, "it has not come about"
            time.sleep(0.01)

    def is_quiet(self, job: RunningJob) -> bool:
        """All tasks are live and have all their standbys, or have finished."""
        kept = [name for slot in job.slots() for name in slot.keeps]
        return all(
            task.phase == "finished"
            or (task.phase == "live" and kept.count(task.name) >= job.options.standbys)
            for task in job.tasks()
        )

    def wait_quiet(self, job: RunningJob, floors: int = 1) -> None:
        """... and so many checkpoints have been taken since, or there is nothing to be taken."""
        self.wait_for(lambda: not job.is_running or self.is_quiet(job))
        floor = job.observer.floors + floors
        before = job.last_progress

        def is_sealed() -> bool:
            now = job.last_progress
            if now is None or (before is not None and now.number <= before.number + 1):
                return False
            return not any(task.steps_to_replay for task in now.tasks)

        self.wait_for(lambda: not job.is_running or job.observer.floors >= floor or is_sealed())
        if not job.is_running:
            job.wait(0)
        assert job.is_running, "the job ended too soon"

    def wait_rows(self, job: RunningJob, rows: int, sink: str = "out") -> None:
        """So many rows more are delivered."""
        goal = job.delivered[sink] + rows
        self.wait_for(lambda: not job.is_running or job.delivered[sink] >= goal)
        if not job.is_running:
            job.wait(0)
        assert job.is_running, "the job ended too soon"

    def wait_recovered(self, job: RunningJob, count: int) -> None:
        def recovered() -> bool:
            return sum(r.finished for r in job.observer.recoveries) >= count

        self.wait_for(lambda: not job.is_running or recovered())
        if not recovered():
            job.wait(0)
        assert recovered(), "the job ended too soon"

    def pids(self, job: RunningJob, *tasks: str) -> list[int]:
        """Of the processes that run these tasks, each once; as soon as each of them has one."""
        found: dict[str, int] = {}

        def have_come() -> bool:
            found.update((name, slot.pid) for slot in job.slots() for name in slot.runs)
            return not job.is_running or found.keys() >= set(tasks)

        self.wait_for(have_come)
        return list(dict.fromkeys(found[task] for task in tasks))

    def kill(self, job: RunningJob, *tasks: str) -> None:
        self.kill_processes(*self.pids(job, *tasks))

    def kill_processes(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture(autouse=True)
def _no_job_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    started: list[RunningJob] = []
    start = RunningJob.start

    def recording(job: RunningJob) -> RunningJob:
        started.append(job)
        return start(job)

    monkeypatch.setattr(RunningJob, "start", recording)
    yield
    for job in started:
        if job.is_running:
            job.stop()
