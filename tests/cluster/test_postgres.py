"""Rows into a real PostgreSQL, each once, while processes and the server are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clonos
from clonos.errors import MarkLost, OutputExists, RowRefused
from clonos.nodes import alarms, places
from examples.transactional.sqlite_sink import sqlite

psycopg = pytest.importorskip("psycopg")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
ROWS = 3_000


class Table:
    """The table of a test, and a second connection that looks at it and gets in the way."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn, self.name = dsn, name

    def sink(self, **options: Any) -> Any:
        return clonos.sinks.postgres(self.dsn, self.name, **options)

    def sql(self, query: str) -> list[Any]:
        with psycopg.connect(self.dsn, options="-c timezone=UTC") as sql:
            cursor = sql.execute(query)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[Any]:
        return sorted(self.sql(f"select * from {self.name}"))

    def count(self) -> int:
        return int(self.sql(f"select count(*) from {self.name}")[0][0])

    def locked(self) -> Any:
        """Whoever writes to it waits, in the midst of its transaction."""
        lock = psycopg.connect(self.dsn)
        lock.execute(f"lock table {self.name} in exclusive mode")
        return lock

    def waiting(self) -> list[int]:
        """The sessions of sinks that wait for the table."""
        query = (
            "select pid from pg_stat_activity where application_name like 'clonos %'"
            " and wait_event_type = 'Lock' and wait_event = 'relation'"
        )
        return [pid for (pid,) in self.sql(query)]


@pytest.fixture
def table(postgres, request):
    name = request.node.originalname.removeprefix("test_")[:50]
    made = Table(postgres, name)
    yield made
    made.sql(f"drop table if exists {name}")


def check(kit, table, rows=ROWS):
    assert table.rows() == kit.expected(rows)


@pytest.mark.parametrize(
    "checkpoints", ["marked", pytest.param("uncoordinated", marks=pytest.mark.soak)]
)
def test_kills(kit, spark, tmp_path, table, checkpoints):
    """Of the sink's process, between and within its transactions, and of another task's."""
    source, sink = kit.gated(tmp_path, ROWS), table.sink()
    job = kit.build(source, sink=sink, checkpoints=checkpoints).start(spark)
    for count, victim in enumerate(("out[0]", "running[1]"), 1):
        kit.wait_quiet(job)
        kit.wait_for(table.count)
        kit.kill(job, victim)
        kit.wait_recovered(job, count)
    with table.locked():
        kit.open_tap(tmp_path)
        kit.wait_for(table.waiting)
        kit.kill(job, "out[0]", "out[1]")
    job.wait(kit.WAIT_S)
    check(kit, table)
    with pytest.raises(OutputExists, match="another job"):
        kit.build(source, sink=sink).start(spark)


def test_frozen_in_a_transaction(kit, spark, tmp_path, table, monkeypatch):
    """Its successor has the server end its session; when it wakes up, it changes nothing."""
    monkeypatch.setattr(places, "EXPELLED_S", 60.0)
    source, settings = kit.gated(tmp_path, ROWS), {"sink": table.sink(), "parallelism": 1}
    job = kit.build(source, **settings).start(spark, silence_s=3.0)
    kit.wait_quiet(job)
    with table.locked():
        kit.open_tap(tmp_path)
        kit.wait_for(table.waiting)
        (before,) = table.waiting()
        (frozen,) = kit.pids(job, "out[0]")
        os.kill(frozen, signal.SIGSTOP)
        try:
            kit.wait_for(lambda: table.waiting() not in ([], [before]))
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert before not in table.waiting()
    job.wait(kit.WAIT_S)
    assert "out[0]" in {r.name for r in job.observer.recoveries}
    check(kit, table)


@pytest.mark.parametrize("away", ["stopped", "frozen"])
def test_server_away_and_back(kit, spark, tmp_path, table, postgres_server, monkeypatch, away):
    monkeypatch.setattr(alarms, "AWAY_S", 1)
    job = kit.build(kit.gated(tmp_path, ROWS), sink=table.sink(), is_fused=True).start(spark)
    kit.wait_quiet(job)
    kit.wait_for(table.count)
    with getattr(postgres_server, away)():
        kit.open_tap(tmp_path)
        kit.wait_for(lambda: job.delivered["out"] == len(kit.expected(ROWS)))
        kit.wait_for(lambda: any("has taken nothing for" in told for told in job.warnings))
    job.wait(kit.WAIT_S)
    check(kit, table)


DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import Kit
import clonos
from clonos.spark.session import get_or_create
folder, rows, dsn, table = Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
kit = Kit()
spark = get_or_create("local[12]")
job = kit.build(
    kit.gated(folder, rows),
    sink=clonos.sinks.postgres(dsn, table),
    checkpoint_dir=str(folder / "checkpoint"),
    parallelism=1,
)
print("rows", job.start(spark).wait(), flush=True)
"""


def test_a_killed_driver_and_a_lost_mark(kit, spark, tmp_path, table):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", DRIVER, here, str(tmp_path), str(ROWS), table.dsn, table.name]
    driver = subprocess.Popen(command)
    try:
        kit.wait_for(lambda: table.sql(f"select to_regclass('{table.name}')")[0][0])
        kit.wait_for(table.count)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    before = table.count()
    source, folder = kit.gated(tmp_path, ROWS), str(tmp_path / "checkpoint")
    job = kit.build(source, sink=table.sink(), checkpoint_dir=folder, parallelism=1)
    marks = "from clonos_sink_marks where target = '" + table.name + "'"
    table.sql(f"create table kept as select * {marks}; delete {marks}")
    with pytest.raises(MarkLost):
        job.start(spark)
    assert table.count() == before
    table.sql("insert into clonos_sink_marks select * from kept; drop table kept")
    running = job.start(spark)
    assert running.term > 1
    kit.open_tap(tmp_path)
    running.wait(kit.WAIT_S)
    check(kit, table)


def test_a_refused_row_ends_the_job(kit, spark, tmp_path, table):
    """... which goes on once the table takes it."""
    table.sql(f"create table {table.name} (n bigint check (n <> 70))")
    job = clonos.Job("refused", parallelism=1, checkpoint_dir=str(tmp_path / "checkpoint"))
    numbers = clonos.sources.from_batches([[(n,) for n in range(100)]], "n long")
    job.source(numbers, name="numbers").sink(table.sink(), name="out")
    with pytest.raises(RowRefused, match=r"\{'n': 70\}") as caught:
        job.run(spark, timeout_s=kit.WAIT_S)
    assert table.name in str(caught.value)
    assert not table.count()
    table.sql(f"alter table {table.name} drop constraint {table.name}_n_check")
    job.run(spark, timeout_s=kit.WAIT_S)
    assert table.rows() == [(n,) for n in range(100)]


def test_a_sink_of_ones_own(kit, spark, tmp_path):
    """Its functions are sent to slots; two tasks of two processes share a file."""
    path = tmp_path / "rows.db"
    sink = sqlite(str(path), "t", 'key, "from", "to", n, top, rows')
    job = kit.build(kit.gated(tmp_path, ROWS), sink=sink, is_fused=True).start(spark)
    kit.wait_quiet(job)
    kit.wait_for(lambda: job.delivered["out"])
    kit.kill(job, "windows[0]")
    kit.wait_recovered(job, 1)
    kit.open_tap(tmp_path)
    job.wait(kit.WAIT_S)
    with contextlib.closing(sqlite3.connect(path)) as db:
        found = sorted(db.execute("select * from t"))
    assert found == [(k, str(a), str(b), *more) for k, a, b, *more in kit.expected(ROWS)]
