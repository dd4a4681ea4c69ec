"""What is left of a driver after another one has taken its place in the same process: nothing."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import clonos
from tests.cluster.conftest import Running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

CHANGES = 3


def totals(kit: Any, folder: Path) -> clonos.Job:
    job = clonos.Job("totals", parallelism=1, checkpoint_dir=str(folder / "checkpoint"))
    events = job.source(kit.gated(folder, 2_000), name="events", parallelism=1)
    told = events.key_by("key").process(
        Running(), "at timestamp, key string, n long, total long", name="sums"
    )
    told.sink(clonos.sinks.collect(), name="out")
    return job


def test_drivers_that_were_replaced_are_freed(kit, spark, tmp_path):
    """A job that is rescaled each hour kept everything of all drivers that it had had: their
    journals' records, samples, views and lists of layers."""
    running = totals(kit, tmp_path).start(spark)
    kit.wait_rows(running, 100)
    drivers = [weakref.ref(running._setup.node)]
    for change in range(CHANGES):
        running.rescale({"sums": 2 - change % 2})
        drivers.append(weakref.ref(running._setup.node))
    until = time.monotonic() + 60
    while sum(driver() is not None for driver in drivers) > 1 and time.monotonic() < until:
        time.sleep(0.2)
        gc.collect()
    alive = [number for number, driver in enumerate(drivers) if driver() is not None]
    kit.open_tap(tmp_path)
    assert running.wait(300).is_complete
    assert alive == [CHANGES]
