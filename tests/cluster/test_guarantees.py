"""What each guarantee permits when a process dies, shown with real kills.

A process is killed within a row, behind others that it has delivered; then the process of the
source. Exactly once, nothing is to be seen. At least once, what was delivered comes again. At most
once, the row is gone.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import clonos

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
]

HELD = 150
"""Within this row the first life of a task stays."""


def delivered(kit: Any, spark: Any, folder: Path, guarantee: Any) -> Counter[int]:
    """How often each row has come out of a job of which two processes were killed."""
    reached, goes_on = folder / "reached", folder / "goes on"

    def pass_on(row: Any) -> tuple[int]:
        if row.n == HELD and not goes_on.exists():
            reached.touch()
            while True:
                time.sleep(1)
        return (row.n,)

    settings: dict[str, Any] = {
        "standbys": 0,
        "checkpoint_interval": "1 hour",
    }  # all before the kill comes again
    job = clonos.Job("guarantees", guarantee=guarantee, **settings)
    rows = job.source(kit.until_tapped(folder, hold=HELD), name="numbers", rows_per_second=250)
    passed = rows.slot_group("passed").map(pass_on, "n long", name="passed")
    passed.slot_group("out").start_new_chain().sink(clonos.sinks.collect(), name="out")
    running = job.start(spark, standby_slots=2)
    kit.wait_rows(running, HELD)  # else they may be in one batch with what follows
    kit.begin(folder)
    kit.wait_for(reached.exists)
    goes_on.touch()
    kit.kill(running, "passed[0]")
    kit.wait_recovered(running, 1)
    kit.wait_rows(running, 100)
    kit.kill(running, "numbers[0]")
    kit.wait_recovered(running, 2)
    kit.wait_rows(running, 100)
    kit.open_tap(folder)
    table = running.wait(kit.WAIT_S).table()
    return Counter(table.column("n").to_pylist())


def missing(counts: Counter[int]) -> set[int]:
    return set(range(max(counts))) - counts.keys()


def test_exactly_once_shows_nothing(kit, spark, tmp_path):
    counts = delivered(kit, spark, tmp_path, "exactly_once")
    assert not missing(counts)
    assert set(counts.values()) == {1}


def test_at_least_once_repeats_and_loses_nothing(kit, spark, tmp_path):
    counts = delivered(kit, spark, tmp_path, "at_least_once")
    assert not missing(counts)
    assert max(counts.values()) > 1, "what was delivered before the kill comes again"


def test_at_most_once_loses_and_repeats_nothing(kit, spark, tmp_path):
    counts = delivered(kit, spark, tmp_path, "at_most_once")
    assert HELD in missing(counts), "the row in which the process died is not tried again"
    assert set(counts.values()) == {1}
