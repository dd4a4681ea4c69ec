"""Rows of a job that Spark writes, by queries that start, stop, fail and recover with it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import clonos
from clonos.cluster import followers
from clonos.errors import SinkFailed, WrongType
from tests.cluster.test_upgrade import all_the_rest, more, staged

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 1_500


class Count(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        seen = ctx.state("seen", "long")
        seen.set(seen.get(0) + 1)
        yield row.key, seen.get()


@pytest.fixture
def made(kit, tmp_path, monkeypatch):
    # However slow the machine is: what is left for another start is not tried here.
    monkeypatch.setattr(followers, "TAKE_S", 600.0)
    source = staged(kit, tmp_path, ROWS)

    def make(rate: float = 600.0, **how: Any) -> clonos.Job:
        job = clonos.Job("counted", parallelism=2, checkpoint_dir=str(tmp_path / "checkpoint"))
        events = job.source(source, name="events", parallelism=1, rows_per_second=rate)
        counts = events.key_by("key").process(Count(), "key string, n long", name="count")
        kind = {"format": "parquet", "path": str(tmp_path / "out"), "partition_by": "key", **how}
        counts.sink(clonos.sinks.spark(**kind), name="out")
        return job

    return make


def test_each_row_is_there_once_whoever_dies(kit, spark, tmp_path, made):
    running = made().start(spark)
    kit.wait_rows(running, 100, sink="out")
    kit.wait_quiet(running)
    kit.kill(running, "count[1]")
    kit.wait_recovered(running, 1)
    more(tmp_path)
    kit.wait_rows(running, 100, sink="out")
    running.stop()
    stopped = spark.read.parquet(str(tmp_path / "out")).count()
    assert 0 < stopped < ROWS
    assert not spark.streams.active
    all_the_rest(kit, tmp_path)
    assert made(3000.0).start(spark).wait(300).is_complete
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    keys = Counter(key for _, key, _ in map(kit.row, range(ROWS)))
    due = sorted((key, n) for key, count in keys.items() for n in range(1, count + 1))
    assert sorted((row["key"], row["n"]) for row in found) == due
    assert {path.name.split("=")[0] for path in (tmp_path / "out").iterdir()} >= {"key"}


def test_a_query_that_fails_ends_the_job(kit, spark, tmp_path, made):
    (tmp_path / "out").write_text("a file, where a folder is due")
    all_the_rest(kit, tmp_path)
    with pytest.raises(SinkFailed, match="query"):
        made().start(spark).wait(300)
    (tmp_path / "out").unlink()
    assert made(3000.0).start(spark).wait(300).is_complete
    assert spark.read.parquet(str(tmp_path / "out")).count() == ROWS


def test_a_format_that_there_is_not_is_said_at_the_start(kit, spark, tmp_path, made):
    with pytest.raises(SinkFailed, match="does not start"):
        made(format="no_such_format").start(spark)
    assert not spark.streams.active


def test_rows_need_a_folder():
    with pytest.raises(WrongType, match="go through a folder"):
        clonos.sinks.spark("kafka", topic="judged")
