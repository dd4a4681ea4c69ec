"""A sink gets another name: its output goes on exactly once, or the change is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import clonos
from clonos.errors import CannotUpgrade, OutputExists
from clonos.sinks.data_source import finish
from clonos.storage.tables import Table
from tests.cluster.test_upgrade import all_the_rest, more, staged

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 2_000


def rows_in(folder: Path) -> Counter[Any]:
    table = pq.read_table(folder)
    return Counter(zip(table["key"].to_pylist(), table["n"].to_pylist(), strict=True))


def rows_of(kit: Any, first: int = 0) -> Counter[Any]:
    return Counter((key, n) for _, key, n in map(kit.row, range(first, ROWS)))


def test_its_place_keeps_its_name(kit, spark, tmp_path):
    source = staged(kit, tmp_path, ROWS)

    def make(name: str, place: str = "out", parallelism: int = 1) -> clonos.Job:
        folder = str(tmp_path / "checkpoint")
        job = clonos.Job("named", parallelism=parallelism, checkpoint_dir=folder)
        events = job.source(source, name="events", parallelism=1, rows_per_second=1000.0)
        kept = events.key_by("key").process(Passing(), "key string, n long", name="pass")
        kept.sink(clonos.sinks.parquet(str(tmp_path / place), linger="50 ms"), name=name)
        return job

    running = make("out").start(spark)
    kit.wait_rows(running, 100, sink="out")
    with pytest.raises(CannotUpgrade, match="place of its output has its name"):
        running.upgrade(make("result"), renamed={"out": "result"})
    with pytest.raises(OutputExists):
        running.upgrade(make("result"))
    more(tmp_path)
    kit.wait_rows(running, 100, sink="out")
    assert running.stop(settle="60 seconds")
    with pytest.raises(OutputExists):
        make("result").start(spark, upgrade=True)
    again = make("out").start(spark)
    more(tmp_path)
    kit.wait_rows(again, 100, sink="out")
    again.upgrade(make("result", "more", 2))
    all_the_rest(kit, tmp_path)
    assert again.wait(300).is_complete
    assert rows_in(tmp_path / "more")
    assert rows_in(tmp_path / "out") + rows_in(tmp_path / "more") == rows_of(kit)


class Passing(clonos.Process):
    """Passes each row on."""

    def on_row(self, row: Any, ctx: Any) -> Any:
        return [(row.key, row.n)]


def test_a_place_without_output_keeps_its_name_too(kit, spark, tmp_path):
    source, begins = staged(kit, tmp_path, ROWS), kit.row(ROWS - 10)[0]

    def make(name: str) -> clonos.Job:
        job = clonos.Job("named", checkpoint_dir=str(tmp_path / "checkpoint"))
        events = job.source(source, name="events", parallelism=1, rows_per_second=1000.0)
        events.select("key", "n").sink(clonos.sinks.parquet(str(tmp_path / "all")), name="all")
        late = events.filter(lambda row: row.at >= begins, name="late").select("key", "n")
        late.sink(clonos.sinks.parquet(str(tmp_path / "out")), name=name)
        return job

    running = make("out").start(spark)
    kit.wait_rows(running, 100, sink="all")
    with pytest.raises(CannotUpgrade, match="place of its output has its name"):
        running.upgrade(make("result"), renamed={"out": "result"})
    more(tmp_path)
    kit.wait_rows(running, 100, sink="all")
    all_the_rest(kit, tmp_path)
    assert running.wait(300).is_complete
    assert rows_in(tmp_path / "all") == rows_of(kit)
    assert rows_in(tmp_path / "out") == rows_of(kit, ROWS - 10)


def test_a_sink_that_was_removed_comes_back(kit, spark, tmp_path):
    """With more tasks. The rows that went by meanwhile are in the other sink only. That includes
    those that this one was still collecting for a file when the job was stopped."""
    source = staged(kit, tmp_path, ROWS)

    def make(*names: str, parallelism: int = 1) -> clonos.Job:
        folder = str(tmp_path / "checkpoint")
        job = clonos.Job("named", parallelism=parallelism, checkpoint_dir=folder)
        events = job.source(source, name="events", parallelism=1, rows_per_second=1000.0)
        kept = events.key_by("key").process(Passing(), "key string, n long", name="pass")
        for name in names:
            kept.sink(clonos.sinks.parquet(str(tmp_path / name), linger="50 ms"), name=name)
        return job

    running = make("all", "out").start(spark)
    kit.wait_rows(running, 100, sink="out")
    running.upgrade(make("all"))
    before = rows_in(tmp_path / "out")
    more(tmp_path)
    kit.wait_rows(running, 100, sink="all")
    assert running.stop(settle="60 seconds")
    between = rows_in(tmp_path / "all")
    running = make("all", "out", parallelism=2).start(spark, upgrade=True)
    all_the_rest(kit, tmp_path)
    assert running.wait(300).is_complete
    assert rows_in(tmp_path / "all") == rows_of(kit)
    out = rows_in(tmp_path / "out")
    again_from = ROWS - (out.total() - before.total())
    assert before.total() < between.total() <= again_from < ROWS
    assert out == before + rows_of(kit, again_from)


def test_a_table_whose_sink_was_removed_is_ended_with_the_job(kit, spark, tmp_path):
    """Whoever reads it to its end would wait for ever."""
    source = staged(kit, tmp_path, ROWS)

    def make(*names: str) -> clonos.Job:
        folder = str(tmp_path / "checkpoint")
        job = clonos.Job("named", parallelism=1, checkpoint_dir=folder)
        events = job.source(source, name="events", rows_per_second=1000.0)
        kept = events.key_by("key").process(Passing(), "key string, n long", name="pass")
        for name in names:
            kept.sink(clonos.sinks.table(str(tmp_path / name)), name=name)
        return job

    running = make("all", "out", "back").start(spark)
    kit.wait_rows(running, 100, sink="out")
    running.upgrade(make("all"))
    assert running.stop(settle="60 seconds")
    running = make("all", "back").start(spark, upgrade=True)
    assert not Table(str(tmp_path / "out")).ended, "it may come back"
    all_the_rest(kit, tmp_path)
    assert running.wait(300).is_complete
    assert not running.warnings
    assert [Table(str(tmp_path / name)).ended for name in ("all", "back", "out")] == [True] * 3
    frame = spark.readStream.format("clonos").load(str(tmp_path / "out"))
    query = frame.writeStream.format("memory").queryName("left").start()
    finish(query, str(tmp_path / "out"), timeout_s=120)
    assert spark.table("left").count() == sum(
        s.rows for s in Table(str(tmp_path / "out")).segments()
    )
