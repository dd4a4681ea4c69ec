"""A job goes back while its driver, or all of its processes, are frozen; then they thaw."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos
from clonos.errors import CannotRewind
from tests.cluster.conftest import gated

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

ROWS = 1000
BEFORE = 100
"""So many rows are in the table before they are frozen."""

DRIVER = """
import sys
from pathlib import Path
from clonos.spark.session import get_or_create
from tests.cluster.test_frozen_rewind import build
build(Path(sys.argv[1])).start(get_or_create("local[4]"), journal=sys.argv[2]).wait()
"""


class Totals(clonos.Process):
    def open(self, ctx: Any) -> None:
        self.sum = ctx.state("sum", "long")

    def on_row(self, row: Any, ctx: Any) -> Any:
        self.sum.set(self.sum.get(0) + row.n)
        yield row.key, self.sum.get()


def build(folder: Path) -> clonos.Job:
    """Its last fifth of rows waits, so that no driver is through before it is frozen."""
    job = clonos.Job(
        "totals",
        checkpoint_dir=str(folder / "job"),
        checkpoint_interval="100 ms",
        history="1 hour",
        history_interval="100 ms",
        parallelism=1,
    )
    batch = [(n % 7, n) for n in range(ROWS)]
    source = clonos.sources.from_batches([batch], "key long, n long")
    held = replace(source, factory=partial(gated, source.factory, ROWS * 4 // 5, folder / "tap"))
    rows = job.source(held, rows_per_second=300)
    totals = rows.key_by("key").process(Totals(), "key long, total long", name="totals")
    totals.sink(clonos.sinks.collect(), name="out")
    totals.sink(clonos.sinks.table(str(folder / "table")), name="table")
    return job


def due() -> Counter[tuple[int, int]]:
    sums: Counter[int] = Counter()
    found: Counter[tuple[int, int]] = Counter()
    for n in range(ROWS):
        sums[n % 7] += n
        found[n % 7, sums[n % 7]] += 1
    return found


def in_table(spark: Any, folder: Path) -> Counter[tuple[int, int]]:
    if not (folder / "table").exists():
        return Counter()
    found = spark.read.format("clonos").load(str(folder / "table")).collect()
    return Counter((row["key"], row["total"]) for row in found)


@pytest.mark.parametrize("frozen", ["driver", "all"])
def test_what_thaws_delivers_nothing(kit, spark, tmp_path, postgres, frozen):
    """What the old life still writes belongs to outputs that were taken back."""
    command = [sys.executable, "-c", DRIVER, str(tmp_path), postgres]
    driver = subprocess.Popen(command, cwd=Path(__file__).parents[2], start_new_session=True)
    job = build(tmp_path)

    def send(number: int) -> None:
        (os.kill if frozen == "driver" else os.killpg)(driver.pid, number)

    def goes_back() -> bool:
        try:
            done = job.rewind(at="oldest", outputs="supersede", journal=postgres)
        except CannotRewind as error:
            if "is running" not in str(error):
                raise
            return False  # until the frozen driver's lease is over
        assert done.generation == 1
        return True

    try:
        kit.wait_for(
            lambda: driver.poll() is not None or in_table(spark, tmp_path).total() >= BEFORE
        )
        assert driver.poll() is None
        send(signal.SIGSTOP)
        kit.wait_for(goes_back)
        running = job.start(spark, journal=postgres)
        kit.wait_rows(running, 100, sink="out")
        send(signal.SIGCONT)
        assert driver.wait(kit.WAIT_S) != 0
        kit.open_tap(tmp_path)
        result = running.wait(kit.WAIT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    out = result.table("out").to_pylist()
    assert Counter((row["key"], row["total"]) for row in out) == due()
    assert in_table(spark, tmp_path) == due()
