"""A job into Delta and Iceberg tables, whose tasks are killed."""

from __future__ import annotations

import pytest

import clonos
from tests.sinks.test_lakes import DeltaLake, Iceberg, elsewhere

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 1_000


@pytest.mark.parametrize("kind", [DeltaLake, Iceberg])
def test_each_row_is_there_once_whoever_dies(kit, spark, tmp_path, kind):
    lake = kind(tmp_path)
    sink = lake.make()
    job = clonos.Job("lake", parallelism=2, checkpoint_dir=str(tmp_path / "checkpoint"))
    rows = job.source(kit.gated(tmp_path, ROWS), name="events", parallelism=1, rows_per_second=200)
    some = rows.select("n", "key").withColumnsRenamed({"n": "id", "key": "word"}).rebalance()
    some.map(lambda row: row, "id long, word string", name="turned").sink(sink, name="lake")
    running = job.start(spark)
    for kills in (1, 2):
        kit.wait_quiet(running)
        kit.kill(running, "turned[1]")
        kit.wait_recovered(running, kills)
    kit.open_tap(tmp_path)
    assert running.wait(600).is_complete
    found = elsewhere(lake.rows, vars(sink)["place"])
    expected = [(n, key) for _, key, n in map(kit.row, range(ROWS))]
    assert sorted(found) == sorted(expected)
