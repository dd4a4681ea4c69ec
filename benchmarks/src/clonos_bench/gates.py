"""Runs whose start is not measured with them: sources that wait for a word, and a stopwatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

import clonos
from clonos.errors import ClonosError
from clonos.sources.readers import BaseReader, Reader
from clonos.sources.spec import SourceSpec
from clonos_bench import run
from clonos_bench.processes import machine_cpu_seconds, resident_bytes

LOOK_S: Final = 0.05
"""Between looks at what processes keep in memory."""
LIVE_S: Final = 120.0
RUN_S: Final = 900.0

_NAP_S: Final = 0.002

AnyRan = TypeVar("AnyRan", bound="Ran")


class GatedReader(BaseReader):
    """Another reader, once the file `gate` exists."""

    def __init__(self, reader: Reader, gate: str) -> None:
        self.schema = reader.schema
        self.replayable = reader.replayable
        self._reader = reader
        self._gate = Path(gate)
        self._is_open = False

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self._reader.open(rows_consumed)

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        if not self._is_open:
            self._is_open = self._gate.exists()
        if self._is_open:
            return self._reader.read(max_rows, max_wait_s)
        time.sleep(min(max_wait_s, _NAP_S))
        return None

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """See :meth:`Reader.read_exactly`; they were let go before."""
        return self._reader.read_exactly(rows)

    def skip(self, rows: int) -> None:
        """See :meth:`Reader.skip`."""
        self._reader.skip(rows)

    def close(self) -> None:
        """See :meth:`Reader.close`."""
        self._reader.close()


def gated(source: SourceSpec, gate: Path) -> SourceSpec:
    """The same source, but nothing of it before the file `gate` exists.

    Examples
    --------
    >>> rows = clonos.sources.from_batches([[(1,)]], "n long")
    >>> reader = gated(rows, Path("does/not/exist")).reader(0, 1)
    >>> reader.read(10, 0.0) is None
    True
    """
    narrow = source.narrow
    return replace(
        source,
        factory=partial(_gated, source, str(gate)),
        narrow=narrow and (lambda columns: gated(narrow(columns), gate)),
    )


def _gated(source: SourceSpec, gate: str, index: int, parallelism: int) -> GatedReader:
    return GatedReader(source.reader(index, parallelism), gate)


@dataclass(frozen=True)
class Ran:
    """One run of some system, from when its sources were let go until its last row was out.

    ``cpu_s``: what the whole machine's processors were busy for meanwhile.
    """

    wall_s: float
    cpu_s: float
    rows_out: int


TRIAL_EVENTS: Final = 200_000
_FEWEST_EVENTS: Final = 100_000
_TRIALS: Final = 2


def tried_out(
    once: Callable[[int], AnyRan], run_s: float, warm_up_s: float = 0.0
) -> tuple[int, AnyRan]:
    """How many events take `run_s`: by runs that do not count, until `warm_up_s` of work is done.

    Returns also the first of these, which has :data:`TRIAL_EVENTS`.

    Examples
    --------
    >>> tried_out(lambda size: Ran(size / 1e6, 0.0, size), 2.0)
    (2000000, Ran(wall_s=0.2, cpu_s=0.0, rows_out=200000))
    """
    size, done = TRIAL_EVENTS, list[AnyRan]()
    while len(done) < _TRIALS or sum(each.wall_s for each in done) < warm_up_s:
        done.append(once(size))
        size = max(_FEWEST_EVENTS, round(size / done[-1].wall_s * run_s))
    return size, done[0]


@dataclass(frozen=True)
class Timed(Ran):
    """One of ours, until its last output was delivered; CPU until the job has ended.

    ``memory_bytes``: the most that all slots together kept resident. ``counters``: per operator,
    what its tasks said last, added up. ``checkpoints``: that were completed.
    """

    memory_bytes: int
    counters: Mapping[str, Mapping[str, int]]
    events: int = 1
    checkpoints: int = 0

    def total(self, counter: str) -> int:
        """Of all operators."""
        return sum(each.get(counter, 0) for each in self.counters.values())


def timed(job: clonos.Job, spark: Any, gate: Path, *, events: int = 1, **options: Any) -> Timed:
    """Start a job, let its gated sources go when all tasks are live, and measure until its end."""
    memory = 0
    with run.running(job, spark, **options) as (started, watch):
        live = lambda: all(t.phase == "live" for t in started.tasks())  # noqa: E731
        run.until(started, watch, live, LIVE_S, "all tasks are live")
        pids = [slot.pid for slot in started.slots()]
        used, began = machine_cpu_seconds(), time.monotonic()
        gate.touch()
        while started.is_running:
            time.sleep(LOOK_S)
            watch.drain()
            memory = max(memory, sum(map(resident_bytes, pids)))
            if time.monotonic() - began > RUN_S:
                raise ClonosError(f"a run has not ended after {RUN_S:g} s", remedy="--events less")
        used = machine_cpu_seconds() - used
        started.wait(0)
        watch.drain()
    gate.unlink()
    if not watch.tasks():
        raise ClonosError("the job has delivered nothing", remedy="give it more --events")
    last = max(float(watch.series(task)[0][-1]) for task in watch.tasks())
    counters: dict[str, dict[str, int]] = {}
    epochs = [0]
    for sample in started.observer.newest():
        of = counters.setdefault(started.plan.tasks[sample.task].operator, {})
        epochs.append(sample.counters.get("epoch", 0))
        for name, value in sample.counters.items():
            of[name] = of.get(name, 0) + value
    return Timed(
        last - began, used, watch.counted, memory, counters, events, checkpoints=max(epochs)
    )
