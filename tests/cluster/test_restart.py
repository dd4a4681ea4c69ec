"""Jobs that are stopped, or whose driver is killed, and started again by the same call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.cluster.durable import JournalFile, house_keeper
from clonos.errors import OtherJournal
from clonos.sinks.delivered import DeliveredStore

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import Kit
from clonos.spark.session import get_or_create
folder, rows = Path(sys.argv[2]), int(sys.argv[3])
kit = Kit()
spark = get_or_create("local[12]")
job = kit.build(
    kit.gated(folder, rows),
    checkpoint_dir=str(folder / "checkpoint"),
    checkpoints=sys.argv[4],
    rate=1000,
    parallelism=1,
)
running = job.start(spark)
running.on_event(lambda event: print(event.what, event.value, flush=True))
print("rows", running.wait().rows["out"], flush=True)
"""


@pytest.mark.parametrize(
    ("checkpoints", "floors"),
    # Once all is sealed, without markers no more floors come.
    [("marked", 6), pytest.param("uncoordinated", 1, marks=pytest.mark.soak)],
)
def test_a_killed_driver(kit, spark, tmp_path, checkpoints, floors):
    rows = 4_000
    source, folder = kit.gated(tmp_path, rows), str(tmp_path / "checkpoint")
    settings = {"checkpoint_dir": folder, "checkpoints": checkpoints, "parallelism": 1}
    job = kit.build(source, rate=1000, **settings)
    here = str(Path(__file__).parent)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, here, str(tmp_path), str(rows), checkpoints],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    try:
        for line in driver.stdout:
            if line.startswith("floor") and int(line.split()[1]) >= floors:
                break
        time.sleep(0.2)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
    before = _delivered(job, tmp_path / "checkpoint")
    assert before.num_rows
    running = job.start(spark)
    assert running.term == 2
    kit.wait_for(lambda: running.last_progress)
    assert running.last_progress.checkpoint.id >= floors
    kit.open_tap(tmp_path)
    result = running.wait(600)
    kit.check(result.table(), rows)
    assert result.table().slice(0, before.num_rows).equals(before)
    # It is complete: the same result at once.
    start = time.monotonic()
    again = job.run(spark, timeout_s=600)
    assert time.monotonic() - start < 5
    assert again.is_complete
    assert again.table().equals(result.table())


def test_stopped_and_started(kit, spark, tmp_path):
    rows = 4_000
    written: list[int] = []
    sink = clonos.sinks.spark_write(lambda df: written.append(df.count()))
    job = kit.build(
        kit.gated(tmp_path, rows), sink=sink, checkpoint_dir=str(tmp_path / "checkpoint")
    )
    delivered = 0
    for term in (1, 2):
        running = job.start(spark)
        assert running.term == term
        kit.wait_quiet(running)
        kit.wait_for(lambda r=running, d=delivered: r.delivered["out"] or d)
        running.stop()
        result = running.wait(0)
        assert not result.is_complete
        assert result.rows["out"] >= delivered
        delivered = result.rows["out"]
    kit.open_tap(tmp_path)
    result = job.run(spark, timeout_s=600)
    kit.check(result.table(), rows)
    job.run(spark, timeout_s=600)
    assert written == [result.rows["out"]]


class Versioned(clonos.Process):
    """The sum by key, and which version of the function has added the row."""

    def __init__(self, version: int) -> None:
        self._version = version

    def open(self, ctx: Any) -> None:
        self.total = ctx.state("total", "long")

    def on_row(self, row: Any, ctx: Any) -> Any:
        self.total.set(self.total.get(0) + row.n)
        yield (row.key, self._version, self.total.get())


def test_settled_and_started_with_another_function(kit, spark, tmp_path):
    """Whatever the first version has taken it has delivered; the second has its state."""
    rows, source = 2_000, None

    def job(version: int) -> clonos.Job:
        made = clonos.Job("sums", parallelism=2, checkpoint_dir=str(tmp_path / "checkpoint"))
        events = made.source(source, name="events", parallelism=1, rows_per_second=2000.0)
        sums = events.key_by("key").process(
            Versioned(version), "key string, version int, total long", name="sums"
        )
        sums.sink(clonos.sinks.collect(), name="out")
        return made

    source = kit.gated(tmp_path, rows)
    running = job(1).start(spark)
    kit.wait_rows(running, 1)
    assert running.stop(settle="120 seconds")
    before = running.wait(0).rows["out"]
    kit.open_tap(tmp_path)
    made = job(2).run(spark, timeout_s=600).table().to_pylist()
    assert [row["version"] for row in made].count(1) == before
    totals: dict[str, int] = {}
    expected = []
    for _, key, n in map(kit.row, range(rows)):
        totals[key] = totals.get(key, 0) + n
        expected.append((key, totals[key]))
    assert sorted((row["key"], row["total"]) for row in made) == sorted(expected)


def test_stopped_parquet_sink(kit, spark, tmp_path):
    import pyarrow.parquet as pq

    rows = 3_000
    sink = clonos.sinks.parquet(str(tmp_path / "out"), rows_per_file=5, linger="50 ms")
    job = kit.build(
        kit.gated(tmp_path, rows), sink=sink, checkpoint_dir=str(tmp_path / "checkpoint")
    )
    running, delivered = job.start(spark), threading.Event()
    running.consumers.watch(lambda sink, output: delivered.set())
    kit.wait_quiet(running)
    assert delivered.wait(60)
    running.stop()
    with pytest.raises(OtherJournal, match="the journal that belongs"):
        job.start(spark, journal=tmp_path / "another")
    kit.open_tap(tmp_path)
    job.run(spark, timeout_s=600)
    kit.check(pq.read_table(tmp_path / "out"), rows)


def _delivered(job: clonos.Job, folder: Path) -> Any:
    """What a dead driver's journal says was delivered, in order."""
    compiled = job.compile()
    journal = JournalFile(folder / "journal", "process", print)
    recovered = journal.recover(house_keeper(compiled.plan))
    journal.close()
    batches = [d.batch for d in DeliveredStore(folder / "delivered").read("out")]
    batches += [o.item.batch.payload for o in recovered if o.item.batch is not None]
    schema = compiled.codes[-1].schemas[compiled.codes[-1].task.outputs[-1]]
    return pa.Table.from_batches(batches, schema=schema)
