"""A call per row with Flink's asynchronous I/O, on a cluster: the counterpart of our own job."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from clonos.errors import ClonosError
from clonos_bench import call_jobs, run
from clonos_bench.flink.cluster import Cluster
from clonos_bench.flink.process import Installation, options
from clonos_bench.processes import CpuMeter

CHECKPOINT_MS: Final = 500
WAIT_S: Final = 120.0
MAIN: Final = "nexmark.AsyncCalls"
_BEGIN: Final = -(1 << 63)


@dataclass(frozen=True)
class Outs:
    """What came out of a job of Flink.

    Attributes
    ----------
    ids, came_s
        The rows, as they came, and when.
    final_s
        When the first checkpoint after a row was complete: a sink with transactions cannot show the
        row earlier. NaN: never, because the row was made again.
    """

    ids: call_jobs.Keys
    came_s: call_jobs.Times
    final_s: call_jobs.Times

    @classmethod
    def read(cls, folder: str) -> Outs:
        """The outputs of all processes."""
        kind = np.dtype([("id", "<i8"), ("at", "<f8"), ("is_complete", "?")])
        books = [np.fromfile(path, kind) for path in Path(folder).glob("*.outs")]
        parts = [_finals(book) for book in books]
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _finals(book: Any) -> tuple[Any, Any, Any]:
    """Rows of one process; a checkpoint has the rows before the record of its beginning."""
    rows = np.flatnonzero(book["id"] >= 0)
    final_s = np.full(len(rows), np.nan)
    began: dict[int, int] = {}
    first = 0
    for at in np.flatnonzero(book["id"] < 0):
        number, until = int(book["id"][at]), int(np.searchsorted(rows, at))
        if number == _BEGIN:  # what was in no checkpoint by then will be made again
            first, began = until, {}
        elif not book["is_complete"][at]:
            began[number] = until
        elif number in began:
            final_s[first : began[number]] = book["at"][at]
            first = max(first, began[number])
    return book["id"][rows], book["at"][rows], final_s


class Calls:
    """A job of Flink that runs.

    Attributes
    ----------
    folder
        Where it keeps its books, as ours does.
    """

    def __init__(self, cluster: Cluster, client: Any, schedule: Any) -> None:
        self.cluster, self.folder = cluster, schedule.folder
        self._client, self._schedule = client, schedule
        self._cpu = CpuMeter()

    def begin(self) -> float:
        """Rows are due from now on."""
        ready = lambda: self.cluster.is_running() or self._client.poll() is not None  # noqa: E731
        self.cluster.until(ready, WAIT_S, "all tasks run")
        self._schedule.begin()
        began_s = self._schedule.began_s()
        assert began_s is not None
        return float(began_s)

    def look(self) -> float:
        """CPU seconds of all processes of the cluster, from the first look on."""
        self._cpu.look(self.cluster.pids())
        return self._cpu.seconds

    def wait(self) -> None:
        """Until it has ended."""
        if self._client.wait(WAIT_S):
            raise ClonosError("the job of Flink has failed", remedy="see its logs")


@contextmanager
def running(
    arguments: Any,
    rows: int,
    rate: float,
    call_ms: float,
    *,
    in_flight: int,
    ordered: bool = False,
    spare: int = 0,
) -> Iterator[Calls]:
    """A job of so many rows, on a cluster of its own with `spare` task managers more."""
    flink = Installation.find(arguments.flink_python)
    logs = run.folder(arguments, "calls/flink")
    settings = {
        "execution.attached": "true",  # its client stays until the job has ended
        "execution.buffer-timeout.interval": "0 ms",  # each row is sent at once
        "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
        "parallelism.default": arguments.parallelism,
    }
    workers = arguments.parallelism + spare
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch,
        run.paced(rate) as schedule,
        Cluster(flink, Path(scratch), logs, workers, settings) as cluster,
    ):
        job = [schedule.folder, rows, rate, round(call_ms), in_flight]
        job.append("ordered" if ordered else "unordered")
        command = flink.java(MAIN, *map(str, job), *options(cluster.settings), options=["-Xmx512m"])
        with (logs / "client.log").open("wb") as log:
            client = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield Calls(cluster, client, schedule)
        finally:
            client.kill()
            client.wait()


def kill_one(calls: Calls) -> float:
    """``kill -9`` of a task manager; when."""
    at_s = time.time()
    calls.cluster.kill(calls.cluster.worker_of("rows", 0))
    return at_s
