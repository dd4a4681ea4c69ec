"""A standby driver, and a job whose journal is in a database: it outlives its driver's machine."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import clonos
from clonos.errors import JournalInUse

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 2_000

DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import Kit
from clonos.spark.session import get_or_create
folder, rows, journal = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] or None
kit = Kit()
spark = get_or_create("local[4]")
job = kit.build(
    kit.gated(folder, rows),
    checkpoint_dir=str(folder / "checkpoint"),
    rate=1000,
    parallelism=1,
    is_apart=False,
)
running = job.start(spark, journal=journal)
running.on_event(lambda event: print(event.what, event.value, flush=True))
running.wait()
"""


class Standby(logging.Handler):
    """A standby driver in this process, and whether it waits."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.waits = threading.Event()
        self._logger = logging.getLogger("clonos")
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        self._pool = ThreadPoolExecutor(1)

    def start(self, job: clonos.Job, spark: Any, journal: str | None) -> None:
        self.running = self._pool.submit(job.start, spark, journal=journal, standby=True)

    def emit(self, record: logging.LogRecord) -> None:
        if "stands by" in record.getMessage():
            self.waits.set()

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._pool.shutdown(wait=False)
        super().close()


@pytest.mark.parametrize(
    ("in_database", "strike"),
    [
        (True, signal.SIGSTOP),
        pytest.param(True, signal.SIGKILL, marks=pytest.mark.soak),
        pytest.param(False, signal.SIGKILL, marks=pytest.mark.soak),
    ],
)
def test_a_standby_driver_goes_on(kit, spark, tmp_path, request, in_database, strike):
    journal = request.getfixturevalue("postgres") if in_database else None
    job = kit.build(
        kit.gated(tmp_path, ROWS),
        rate=1000,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        parallelism=1,
        is_apart=False,
    )
    standby, errors = Standby(), tmp_path / "errors"
    with errors.open("w") as stderr:
        driver = subprocess.Popen(
            [
                *(sys.executable, "-c", DRIVER, str(Path(__file__).parent)),
                *(str(tmp_path), str(ROWS), journal or ""),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert driver.stdout is not None
    try:
        for line in driver.stdout:
            if line.startswith("floor") and int(line.split()[1]) >= 2:
                break
        with pytest.raises(JournalInUse, match=str(driver.pid)):
            job.start(spark, journal=journal)
        standby.start(job, spark, journal)
        assert standby.waits.wait(kit.WAIT_S)
        os.kill(driver.pid, strike)
        running = standby.running.result(kit.WAIT_S)
        assert running.term == 2
        kit.wait_for(lambda: running.delivered["out"])
        kit.open_tap(tmp_path)
        if strike is signal.SIGSTOP:  # it wakes up, and finds that it is no driver any more
            os.kill(driver.pid, signal.SIGCONT)
            assert driver.wait(kit.WAIT_S) == 1
            said = errors.read_text()
            assert "Superseded" in said
            assert "another driver" in said
        kit.check(running.wait(600).table(), ROWS)
    finally:
        driver.kill()
        driver.communicate()
        standby.close()
    again = job.run(spark, journal=journal, timeout_s=600)
    assert again.is_complete
    kit.check(again.table(), ROWS)
