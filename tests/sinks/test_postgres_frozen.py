"""A PostgreSQL server that is frozen, though its kernel is not: sinks and sources give it up, as
one that is away, and nothing is lost or there twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos import postgres
from clonos.errors import StoreAway
from clonos.sinks.lanes import Lane, Output, OutputKey
from clonos.sinks.writers import Claims
from clonos.sources import outage

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.timeout(60)

SCHEMA = pa.schema([("id", pa.int64())])


def output(seq: int) -> Output:
    return Output(OutputKey(0, seq), pa.RecordBatch.from_pydict({"id": [seq]}, SCHEMA))


@pytest.fixture
def limits(monkeypatch):
    monkeypatch.setattr(postgres, "LOOK_S", 0.5)
    monkeypatch.setattr(postgres, "CONNECT_S", 2)


@pytest.fixture
def writer_of(postgres_server, request):
    sink: Any = clonos.sinks.postgres(postgres_server.dsn, f"frozen_{time.monotonic_ns()}")
    Claims({"out": sink}, "process", "me", {"out": 1}).begin({"out": SCHEMA}, is_new=True)

    def make(life: int) -> Any:
        writer = sink.store.writer(Lane("me", "out", 0, life))
        request.addfinalizer(writer.close)
        return writer

    def rows() -> list[int]:
        with psycopg.connect(postgres_server.dsn) as sql:
            found = sql.execute(f"select id from {sink.store.transactions.target.table} order by 1")
            return [n for (n,) in found]

    return make, rows


def test_a_sink_gives_a_frozen_server_up_and_writes_each_row_once(
    postgres_server, writer_of, limits
):
    make, rows = writer_of
    writer = make(1)
    writer.write([output(1)])
    with postgres_server.frozen():
        with pytest.raises(StoreAway, match="no answer for"):
            writer.write([output(2)])
        with pytest.raises(StoreAway, match="timeout"):  # nor does it let anybody in
            writer.write([output(2)])
    writer.write([output(2)])
    make(2).write([output(2), output(3)])
    assert rows() == [1, 2, 3]


@pytest.mark.parametrize("where", ["copy", "commit"])
def test_a_server_that_freezes_within_a_transaction(
    postgres_server, writer_of, limits, monkeypatch, where
):
    """What comes of it when the server goes on counts once."""
    make, rows = writer_of
    writer = make(1)
    writer.write([output(1)])
    held: list[Any] = []

    def freeze() -> None:
        if not held:
            held.append(postgres_server.frozen())
            held[0].__enter__()

    if where == "copy":
        of, name = type(writer._transactions), "_copy"
    else:
        of, name = type(writer._db.sql), "commit"
    monkeypatch.setattr(of, name, _before(freeze, getattr(of, name)))
    try:
        with pytest.raises(StoreAway, match="no answer for"):
            writer.write([output(2)])
    finally:
        held[0].__exit__(None, None, None)
    writer.write([output(2), output(3)])
    assert rows() == [1, 2, 3]


def _before(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any) -> Any:
        first()
        return then(*args)

    return both


def test_a_statement_that_takes_long_is_waited_for(postgres_server, limits):
    with postgres.Server(postgres_server.dsn).connect("clonos test") as sql:
        assert sql.execute("select 1 from pg_sleep(2)").fetchone() == (1,)


def test_a_session_that_is_frozen_in_a_server_that_is_not(postgres_server, limits):
    """As one that waits for a disk that does not answer, which no timeout of the server ends."""
    sql = postgres.Server(postgres_server.dsn).connect("clonos test", answer_s=1)
    pid = sql.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(psycopg.OperationalError, match="no answer for"):
            sql.execute("select 1")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert sql.closed


def test_a_source_waits_for_a_frozen_server_and_reads_each_row_once(
    postgres_server, limits, monkeypatch, caplog
):
    monkeypatch.setattr(outage, "SILENT_S", 0.0)
    table = f"frozen_{time.monotonic_ns()}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as sql:
        sql.execute(f"create table {table} (id bigserial primary key)")
        sql.execute(f"insert into {table} values (1), (2)")
        given: Any = {"column": "id", "schema": "id long", "every": "1 ms"}
        spec = clonos.sources.postgres(postgres_server.dsn, f"select * from {table}", **given)
        reader: Any = spec.reader(0, 1)
        reader.open(0)
        found: list[bytes] = []

        def read() -> None:
            batch = reader.read(10, 0.1)
            found.extend(() if batch is None else batch.column("id").to_pylist())

        while len(found) < 2:
            read()
        with postgres_server.frozen():
            while not reader.away_s:
                read()
        (said,) = caplog.messages
        assert "cannot be read: no answer for" in said
        sql.execute(f"insert into {table} values (3)")
        while len(found) < 3:
            read()
        assert [int(value) for value in found] == [1, 2, 3]
        reader.close()
