"""What a test hands to spark-submit: a job whose functions are defined here, in ``__main__``.

    spark-submit --py-files clonos.zip application.py FOLDER

While the job runs, one of its executors is killed. What came of it is left in FOLDER.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import clonos
from clonos.sources.readers import BaseReader, EndOfInput

ROWS = 3_000
WAIT_S = 300.0
"""Nothing depends on it but how long it hangs when it has failed."""
HELD = 600
"""So many of them, the last ones, come after the executor was killed."""


def home() -> str:
    """Where a slot has its clonos from; an executor's own folder would be another after a
    recovery."""
    import clonos.runtime.slot

    file = str(clonos.runtime.slot.__file__)
    return next((part for part in Path(file).parts if part in ("clonos.zip", "environment")), file)


class Held(BaseReader):
    """The numbers in order; the last ones come when there is a file `tap`."""

    schema = pa.schema([pa.field("n", pa.int64())])

    def __init__(self, tap: Path) -> None:
        self._tap = tap
        self._next = 0

    def open(self, rows_consumed):
        self._next = rows_consumed

    def read(self, max_rows, max_wait_s):
        if self._next == ROWS:
            raise EndOfInput
        end = ROWS if self._next >= ROWS - HELD else ROWS - HELD
        if end == ROWS and not self._tap.exists():
            time.sleep(max_wait_s)
            return None
        return self.read_exactly(min(max_rows, end - self._next))

    def read_exactly(self, rows):
        first, self._next = self._next, self._next + rows
        return pa.RecordBatch.from_pydict({"n": range(first, self._next)}, schema=self.schema)


def held(tap: Path, index: int, parallelism: int) -> Held:
    assert (index, parallelism) == (0, 1)
    return Held(tap)


class Numbered(clonos.Process):
    """Counts its rows."""

    def on_row(self, row, ctx):
        seen = ctx.state("seen", "long")
        seen.set(seen.get(0) + 1)
        yield (row.n, row.key, seen.get(), home())


def main(folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    job = clonos.Job(
        "submitted", parallelism=2, checkpoint_interval="300 ms", checkpoint_dir=str(folder / "job")
    )
    numbers = clonos.sources.from_batches([], schema="n long")
    numbers = replace(numbers, factory=partial(held, folder / "tap"))
    rows = job.source(numbers, name="numbers", parallelism=1, rows_per_second=300)
    # Tasks with slots of their own: so many slots do not fit into one executor.
    keyed = (
        rows.map(lambda row: (row.n, row.n % 7), "n long, key long")
        .slot_group("count")
        .key_by("key")
    )
    counted = keyed.process(Numbered(), "n long, key long, seen long, home string", name="count")
    counted.start_new_chain().slot_group("out").sink(clonos.sinks.collect(), name="out")
    running = job.start(spark, tls=True)
    address = running._plane.address
    until = time.monotonic() + WAIT_S
    while running.is_running and time.monotonic() < until:
        if running.observer.floors and len({slot.executor for slot in running.slots()}) == 2:
            break
        time.sleep(0.05)
    slots = running.slots()
    victim = next(slot.executor_pid for slot in slots if "count[0]" in slot.runs)
    os.kill(victim, signal.SIGKILL)
    (folder / "tap").touch()
    result = running.wait(WAIT_S)
    said = {
        "rows": sorted(tuple(row.values()) for row in result.table().to_pylist()),
        "executors": len({slot.executor_pid for slot in slots}),
        "recovered": sorted({recovery.name for recovery in result.recoveries}),
        "address": address,
    }
    (folder / "said.json").write_text(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
