"""A sink of a user's own, in a real job, whose functions hang, fail and lie."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos
from clonos.errors import SinkFailed
from examples.transactional.sqlite_sink import sqlite
from tests.processes import is_there

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

ROWS = 200


def first(folder: Path, what: str, times: int = 1) -> bool:
    """Whether this is among the first times, in whichever process."""
    for n in range(times):
        with contextlib.suppress(FileExistsError):
            (folder / f"{what} {n}").touch(exist_ok=False)
            return True
    return False


def sink(folder: Path, trouble: str) -> Any:
    """SQLite, with functions that do something else at first."""
    good = sqlite(str(folder / "rows.db"), "numbers", "n integer").store.transactions

    def open_lane(lane: Any) -> Any:
        if trouble == "away" and first(folder, "away", 6):
            raise ConnectionError("nobody listens")
        if trouble == "leaves" and first(folder, "leaves"):
            sys.exit(3)
        return good.open_fn(lane)

    def write(*what: Any) -> None:
        if trouble == "hangs" and first(folder, "hangs"):
            (folder / "pid").write_text(str(os.getpid()))
            while not (folder / "gate").exists():
                time.sleep(0.05)
            try:
                good.write_fn(*what)
            except clonos.Fenced:
                (folder / "fenced").touch()
            return
        if trouble == "raises" and first(folder, "raises"):
            raise ValueError("it does not fit")
        if trouble == "lies" and first(folder, "lies"):
            raise clonos.Fenced("there is no later life")
        good.write_fn(*what)

    retry_on = (sqlite3.OperationalError, ConnectionError)
    return clonos.sinks.transactional(
        open=open_lane, last_key=good.last_key_fn, write=write, retry_on=retry_on
    )


def start(spark: Any, folder: Path, trouble: str) -> Any:
    job = clonos.Job("users", parallelism=1, checkpoint_dir=str(folder / "job"))
    batches = [[(n,) for n in range(at, at + 10)] for at in range(0, ROWS, 10)]
    rows = job.source(clonos.sources.from_batches(batches, "n long"), name="in")
    rows.sink(sink(folder, trouble), name="out")
    return job.start(spark)


def numbers(folder: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(folder / "rows.db")) as db:
        return [n for (n,) in db.execute("select n from numbers order by rowid")]


def test_a_store_that_is_away_when_it_is_opened(spark, tmp_path):
    start(spark, tmp_path, "away").wait(300)
    assert (tmp_path / "away 5").exists()
    assert numbers(tmp_path) == list(range(ROWS))


@pytest.mark.parametrize(
    ("trouble", "kind", "said"),
    [
        ("raises", SinkFailed, "ValueError: it does not fit"),
        ("leaves", SinkFailed, "SystemExit: 3"),
        ("lies", clonos.Fenced, "there is no later life"),
    ],
)
def test_an_error_ends_the_job_with_the_users_lines_and_the_next_start_goes_on(
    spark, tmp_path, trouble, kind, said
):
    with pytest.raises(kind, match=said) as caught:
        start(spark, tmp_path, trouble).wait(300)
    assert f'File "{__file__}"' in str(caught.value)
    start(spark, tmp_path, trouble).wait(300)
    assert numbers(tmp_path) == list(range(ROWS))


def test_a_write_that_hangs_holds_up_no_stop_and_is_fenced_when_it_comes_back(kit, spark, tmp_path):
    running = start(spark, tmp_path, "hangs")
    kit.wait_for((tmp_path / "pid").exists)
    kit.wait_for((tmp_path / "pid").read_text)
    began_s = time.monotonic()
    running.stop()
    assert time.monotonic() - began_s < 60
    start(spark, tmp_path, "hangs").wait(300)
    assert numbers(tmp_path) == list(range(ROWS))
    (tmp_path / "gate").touch()
    pid = int((tmp_path / "pid").read_text())
    kit.wait_for(lambda: (tmp_path / "fenced").exists() or not is_there(pid))
    assert numbers(tmp_path) == list(range(ROWS))
