"""A task that is slow where it is: its standby overtakes it, and every row comes once."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


class Numbered(clonos.Process):
    """Numbers the rows of a key; in a process for which there is a file, that takes its time."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_row(self, row: Any, ctx: Any) -> Any:
        if os.path.exists(f"{self.folder}/slow-{os.getpid()}"):  # noqa: PTH110 - for each row
            time.sleep(0.005)
        seen = ctx.state("seen", "long")
        seen.set(seen.get(0) + 1)
        yield row.n, row.n % 7, seen.get()


def test_a_slow_task_is_overtaken(kit, spark, tmp_path):
    job = clonos.Job(
        "rivals",
        parallelism=2,
        standbys=1,
        speculation=True,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        checkpoint_interval="300 ms",
    )
    numbers = job.source(
        kit.until_tapped(tmp_path), name="numbers", parallelism=1, rows_per_second=2_000.0
    )
    keyed = numbers.map(lambda row: (row.n, row.n % 7), "n long, key long").slot_group("count")
    counted = keyed.key_by("key").process(
        Numbered(str(tmp_path)), "n long, key long, seen long", name="count"
    )
    counted.sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    events: list[Any] = []
    running.on_event(events.append)
    kit.wait_quiet(running)
    before = {task.name: task.pid for task in running.tasks()}
    (tmp_path / f"slow-{before['count[0]']}").touch()
    kit.wait_for(lambda: any(event.what == "moved" for event in events))
    (rival,) = [event for event in events if event.what == "rival"]
    assert rival.task == "count[0]"
    kit.wait_quiet(running)
    after = {task.name: task.pid for task in running.tasks()}
    assert {name for name in after if after[name] != before[name]} == {"count[0]"}
    kit.open_tap(tmp_path)
    result = running.wait(kit.WAIT_S)
    rows = result.table().to_pylist()
    assert sorted(row["n"] for row in rows) == list(range(len(rows)))
    assert Counter(row["key"] for row in rows) == {
        key: max(row["seen"] for row in rows if row["key"] == key) for key in range(7)
    }
    assert [recovery.name for recovery in result.recoveries] == ["count[0]"]
