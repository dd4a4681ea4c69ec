"""A driver that is frozen while effects wait for their turn in its slots, which live on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos

from .test_succession import Standby

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

ROWS = 40
BEFORE = 4
"""So many effects are made before the driver is frozen."""

DRIVER = """
import sys
from pathlib import Path
from clonos.spark.session import get_or_create
from tests.cluster.test_frozen_driver import build
build(Path(sys.argv[1])).start(get_or_create("local[4]"), journal=sys.argv[2]).wait()
"""


def pay(ledger: str, n: int, *, call: clonos.EffectCall) -> str:
    with Path(ledger).open("a") as file:  # one write, which no other process cuts in two
        file.write(f"{n} {call.key} {os.getpid()}\n")
    return call.key


def find(ledger: str, n: int, *, call: clonos.EffectCall) -> object:
    made = [(row, key) for row, key, _ in entries(Path(ledger))]
    return clonos.Made(call.key) if (str(n), call.key) in made else clonos.NotMade


def entries(ledger: Path) -> list[list[str]]:
    return [line.split() for line in ledger.read_text().splitlines()]


def build(folder: Path) -> clonos.Job:
    ledger = str(folder / "ledger")
    job = clonos.Job("shop", checkpoint_dir=str(folder / "job"), parallelism=1)
    rows = job.source(clonos.sources.from_batches([[(n,) for n in range(ROWS)]], "n long"))
    effect = clonos.effect(partial(pay, ledger), check=partial(find, ledger))
    how: dict[str, Any] = {"in_flight": ROWS, "ordered": False, "timeout": "2 seconds"}
    paid = rows.with_column_async("receipt string", effect, "n", name="pay", per_second=0.8, **how)
    paid.sink(clonos.sinks.collect(), name="out")
    return job


def test_no_effect_is_made_twice(kit, spark, tmp_path, postgres):
    """The slots of the first driver would make the others one by one, for most of a minute; the
    second one checks them after about twenty seconds."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    command = [sys.executable, "-c", DRIVER, str(tmp_path), postgres]
    driver = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    standby = Standby()
    try:
        kit.wait_for(lambda: driver.poll() is not None or len(entries(ledger)) >= BEFORE)
        assert driver.poll() is None
        standby.start(build(tmp_path), spark, postgres)
        assert standby.waits.wait(kit.WAIT_S)
        os.kill(driver.pid, signal.SIGSTOP)
        running = standby.running.result(kit.WAIT_S)
        assert running.term == 2
        result = running.wait(kit.WAIT_S)
    finally:
        driver.kill()
        driver.communicate()
        standby.close()
    made = Counter(n for n, *_ in entries(ledger))
    assert made == {str(n): 1 for n in range(ROWS)}
    assert sorted(result.table("out")["n"].to_pylist()) == list(range(ROWS))
