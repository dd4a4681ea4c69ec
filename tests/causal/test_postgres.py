"""The log in a real PostgreSQL, and sinks that take a batch once."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import clonos
from clonos import causal
from clonos.causal import postgres as store
from clonos.causal import process
from clonos.causal.entries import CALL, Entry, digest_of, encode_chunk
from clonos.causal.holder import LogAccess
from clonos.causal.messages import AnswerKey
from clonos.errors import StoreAway
from clonos.postgres import Server

from .conftest import Attempt

psycopg = pytest.importorskip("psycopg")

_scopes = itertools.count()


@pytest.fixture
def where():
    return AnswerKey(f"query {next(_scopes)}", 0, "f", 3)


@pytest.fixture
def holder(postgres):
    holders = []

    def make(bytes_max=1 << 20):
        holders.append(store.PostgresHolder(postgres, bytes_max))
        return holders[-1]

    yield make
    for one in holders:
        one.close()


@pytest.fixture
def attempt(postgres, where):
    return Attempt(LogAccess(where.scope, "term", 60.0, dsn=postgres, bytes_max=1 << 20))


def test_only_the_owner_appends(holder, where):
    owner, other = holder(), holder()
    opened = owner.open(where, "1", "e")
    assert (opened.owner, opened.length, opened.shared) == (True, 0, False)
    owner.append(where, "e", b"one")
    again = other.open(where, "2", "e")
    assert (again.owner, again.length, again.seed) == (False, 1, opened.seed)
    with pytest.raises(causal.Fenced):
        other.append(where, "e", b"two")
    owner.close_log(where)
    assert other.open(where, "2", "e").owner
    with pytest.raises(causal.Fenced):
        owner.append(where, "e", b"late")
    other.append(where, "e", b"two")
    assert other.read(where, 0).chunks == (b"one", b"two")


def test_taking_over_fences_a_living_owner(holder, where):
    owner, other = holder(), holder()
    owner.open(where, "1", "e")
    assert other.open(where, "2", "e", take_over=True).owner
    with pytest.raises(causal.Fenced):
        owner.append(where, "e", b"late")
    other.append(where, "e", b"one")


def test_a_follower_sees_news_and_inherits_the_log(holder, where):
    owner, follower = holder(), holder()
    owner.open(where, "1", "e")
    assert not follower.open(where, "2", "e").owner
    later = threading.Timer(0.1, owner.append, (where, "e", b"news"))
    later.start()
    assert follower.read(where, 0, wait_s=10.0).chunks == (b"news",)
    later.join()
    later = threading.Timer(0.1, owner.close)
    later.start()
    assert follower.read(where, 1, wait_s=10.0).is_free
    later.join()
    assert follower.open(where, "2", "e").owner


_OWNER = """
import sys, time
from clonos.causal.messages import AnswerKey
from clonos.causal.postgres import PostgresHolder
where = AnswerKey(sys.argv[2], 0, "f", 3)
holder = PostgresHolder(sys.argv[1], 1 << 20)
holder.open(where, "1", "e")
holder.append(where, "e", b"acknowledged")
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_owner_lets_go_and_loses_nothing(postgres, holder, where):
    source = str(Path(clonos.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, postgres, where.scope],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        other = holder()
        assert not other.open(where, "2", "e").owner
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert other.read(where, 1, wait_s=10.0).is_free
    opened = other.open(where, "2", "e")
    assert (opened.owner, opened.length) == (True, 1)


def test_a_batch_that_begins_is_the_floor(holder, where):
    one = holder()
    for batch in (7, 8):
        one.open(where._replace(batch=batch), "1", "e")
        one.append(where._replace(batch=batch), "e", b"answer")
    with pytest.raises(causal.BelowFloor):
        one.open(where._replace(batch=7), "2", "e")
    with pytest.raises(causal.BelowFloor):
        one.append(where._replace(batch=7), "e", b"zombie")
    one.forget(where.scope)
    assert one.open(where, "3", "e").length == 0


def test_the_budget_is_kept(holder, where):
    one = holder(bytes_max=1000)
    one.open(where, "1", "e")
    one.append(where, "e", bytes(500))
    with pytest.raises(causal.LogFull, match="bytes_max"):
        one.append(where, "e", bytes(500))


def test_two_operators_with_one_name(holder, where):
    one, other = holder(), holder()
    one.open(where, "1", "e")
    with pytest.raises(causal.OperatorUsedTwice):
        other.open(where, "1", "e")


def test_other_partitions_answer_for_earlier_executions(holder, where):
    one = holder()
    one.open(where, "1", "e1")
    answers = [Entry(digest_of("what?"), CALL, True, value) for value in (b"1", b"2")]
    one.append(where, "e1", encode_chunk(answers))
    other = where._replace(partition=4)
    assert not one.open(other, "2", "e1").shared
    assert one.open(other, "2", "e2").shared
    found = [one.lookup(other, "e2", digest_of("what?"), rank) for rank in range(3)]
    assert found == [*answers, None]
    assert one.lookup(other, "e1", digest_of("what?"), 0) is None


def test_a_database_that_is_gone(where):
    nowhere = store.PostgresHolder("postgresql://x@127.0.0.1:1/x", 1000)
    with pytest.raises(causal.LogUnreachable, match="database"):
        nowhere.open(where, "1", "e")


@pytest.mark.timeout(60)
def test_a_database_that_hangs(holder, where, postgres, monkeypatch):
    """Its kernel still answers, so the connection does not end by itself."""
    monkeypatch.setattr(store, "ANSWER_S", 1.0)
    one = holder()
    assert one.open(where, "1", "e").owner
    pid = one._connection.info.backend_pid
    with psycopg.connect(postgres, autocommit=True) as other:
        (told,) = other.execute(
            "select application_name from pg_stat_activity where pid = %s", [pid]
        ).fetchone()
    assert told == "clonos answers"
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(causal.LogUnreachable, match="does not answer"):
            one.append(where, "e", b"one")
    finally:
        os.kill(pid, signal.SIGCONT)
    again = one.open(where, "2", "e", take_over=True)
    one.append(where, "e", b"two")
    assert one.read(where, 0).chunks[again.length :] == (b"two",)


@pytest.mark.timeout(60)
def test_a_database_that_lets_us_in_and_then_hangs(where, monkeypatch):
    """As a pool of connections does while its database is away."""
    monkeypatch.setattr(store, "ANSWER_S", 1.0)
    let_in = b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I"
    connections = []

    def greet() -> None:
        connections.append(listening.accept()[0])
        connections[0].recv(4096)
        connections[0].sendall(let_in)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        greeter = threading.Thread(target=greet, daemon=True)
        greeter.start()
        port = listening.getsockname()[1]
        dsn = f"postgresql://x@127.0.0.1:{port}/x?sslmode=disable&gssencmode=disable"
        one = store.PostgresHolder(dsn, 1000)
        with pytest.raises(causal.LogUnreachable, match="does not answer"):
            one.open(where, "1", "e")
        greeter.join()
        while connections[0].recv(4096):  # until our end is closed
            pass
        connections[0].close()
        one.close()


def test_a_role_that_may_create_nothing_keeps_no_connection(holder, where, postgres, monkeypatch):
    one = holder()
    monkeypatch.setattr(store, "_SCHEMA", "create table pg_catalog.clonos (n int)")
    monkeypatch.setattr(Server, "connect", _in_an_empty_schema(Server.connect))
    with pytest.raises(causal.LogBroken, match="refuses"):
        one.open(where, "1", "e")
    assert one._connection is None


def _in_an_empty_schema(connect):
    def made(*args, **options):
        found = connect(*args, **options)
        found.execute("set search_path = pg_temp")
        return found

    return made


def test_the_server_breaks_off_statements_of_its_own_accord(holder, where):
    one = holder()
    assert one.open(where, "1", "e").owner
    (limit,) = one._connection.execute("show statement_timeout").fetchone()
    assert limit == "5min"


def test_no_password_is_told(where):
    broken = store.PostgresHolder("postgresql://me:hunter/two@127.0.0.1:1/x", 1000)
    with pytest.raises(clonos.errors.DefinitionError, match="cannot be understood") as caught:
        broken.open(where, "1", "e")
    assert "hunter" not in f"{caught.value} {caught.value.__context__!r}"
    gone = store.PostgresHolder("postgresql://me:hunter@127.0.0.1:1/x", 1000)
    with pytest.raises(causal.LogUnreachable) as away:
        gone.open(where, "1", "e")
    assert "hunter" not in str(away.value)


def test_nothing_is_kept_of_a_log_that_was_closed(holder, where):
    """A worker of Spark may live for months, and each micro-batch has logs of its own."""
    one, other = holder(), holder()
    for batch in range(3):
        key = where._replace(batch=batch)
        assert one.open(key, "1", "e").owner
        assert not other.open(key, "2", "e").owner
        other.close_log(key)
        one.close_log(key)
    assert not any((one._ids, one._owned, other._ids, other._owned))
    assert one.read(key, 0).is_free  # whoever follows it opens it again


def test_a_role_that_may_not(postgres, where):
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create role nobody login")
        connection.execute("create schema empty authorization postgres")
    nobody = store.PostgresHolder(
        postgres.replace("postgres@", "nobody@") + "?options=-csearch_path%3Dempty", 1000
    )
    with pytest.raises(causal.LogBroken, match="may create and change"):
        nobody.open(where, "1", "e")
    nobody.close()


def test_attempts_use_answers_again(attempt):
    numbers = itertools.count()
    ask = causal.service(lambda _: next(numbers), name="ask")
    with attempt(dies=True):
        first = [ask(x) for x in "abca"]
        process.settle()
    with attempt():
        assert [ask(x) for x in "caba"] == [first[2], first[0], first[1], first[3]]
        process.holder().close()  # the network
        ask("new")
    with attempt():
        assert ask("new") == 4


def test_a_copy_waits(attempt, postgres):
    numbers = itertools.count()
    ask = causal.service(lambda _: next(numbers), name="ask")
    scope = attempt.access.run
    where = AnswerKey(scope, 0, "g", 0)
    first = attempt.access.holder()
    first.open(where, "another", "term/1")
    entry = Entry(digest_of(["ask", None, ["a"], []]), CALL, True, b"\x2a")

    def go_on():
        time.sleep(0.2)
        first.append(where, "term/1", encode_chunk([entry]))
        first.close()

    running = threading.Thread(target=go_on)
    running.start()
    with attempt(), process.named("g"):
        assert [ask("a"), ask("b")] == [42, 0]
    running.join()


# --- sinks ---------------------------------------------------------------------------------------


@pytest.fixture
def table(postgres):
    name = f"target_{next(_scopes)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"create table {name} (id bigint)")
    return name


def ids(postgres, table):
    with psycopg.connect(postgres) as connection:
        return sorted(row[0] for row in connection.execute(f"select id from {table}"))


def test_a_batch_is_written_once(postgres, table):
    with psycopg.connect(postgres, autocommit=True) as connection:

        def write(value):
            return lambda sql: sql.execute(f"insert into {table} values (%s)", [value])

        assert causal.write_once(connection, table, 0, write(0))
        assert not causal.write_once(connection, table, 0, write(0))
        with pytest.raises(ZeroDivisionError):
            causal.write_once(connection, table, 1, lambda sql: (write(1)(sql), 1 / 0))
        assert causal.write_once(connection, table, 1, write(1))
        assert causal.write_once(connection, "another stream", 0, write(2))
    assert ids(postgres, table) == [0, 1, 2]


def test_two_drivers_write_a_batch_once(postgres, table):
    """A zombie and its successor: the mark is locked, one of them finds it moved."""
    wrote = []

    def write(sql):
        time.sleep(0.2)
        sql.execute(f"insert into {table} values (0)")

    def driver():
        with psycopg.connect(postgres, autocommit=True) as connection:
            wrote.append(causal.write_once(connection, table, 0, write))

    drivers = [threading.Thread(target=driver) for _ in range(3)]
    for one in drivers:
        one.start()
    for one in drivers:
        one.join()
    assert sorted(wrote) == [False, False, True]
    assert ids(postgres, table) == [0]


class Frame:
    """A DataFrame, as far as the sink uses it; its tasks run here."""

    columns = ("id",)

    def __init__(self, *batches, before=bool):
        self.batches, self.before = batches, before

    def mapInArrow(self, fn, _):  # noqa: N802 - PySpark's name
        def given():
            for numbers in self.batches:
                self.before(numbers)
                yield pa.RecordBatch.from_pydict({"id": numbers})

        self.made = [SimpleNamespace(**row) for out in fn(given()) for row in out.to_pylist()]
        return self

    def collect(self):
        return self.made


@pytest.mark.parametrize("when", ["at first", "between batches", "when rows are moved"])
def test_the_sink_gives_a_frozen_server_up_and_writes_a_batch_once(
    postgres_server, postgres, table, monkeypatch, when
):
    monkeypatch.setattr(clonos.postgres, "LOOK_S", 0.5)
    monkeypatch.setattr(clonos.postgres, "CONNECT_S", 2)
    insert = causal.postgres_sink(postgres, table)
    insert(Frame([0]), 0)
    with ExitStack() as held:
        freeze = {when: lambda: held.enter_context(postgres_server.frozen())}
        if when == "at first":
            freeze.pop(when)()
        if when == "when rows are moved":
            moved = causal.sinks.write_once
            late = lambda *args: (freeze.pop(when)(), moved(*args))  # noqa: E731
            monkeypatch.setattr(causal.sinks, "write_once", late)
        frame = Frame([1], [2], before=lambda n: n == [2] and freeze.pop("between batches", bool)())
        with pytest.raises(StoreAway, match=r"does not answer.*To do: see that it runs"):
            insert(frame, 1)
        monkeypatch.undo()
    insert(Frame([1], [2]), 1)
    insert(Frame([1], [2]), 1)
    assert ids(postgres, table) == [0, 1, 2]


def test_the_sink_waits_for_batches_and_statements_that_take_long(postgres, table, monkeypatch):
    """Longer than a server lets a transaction do nothing, or a statement of jobs take."""
    monkeypatch.setattr(clonos.postgres, "IDLE_MS", 300)
    monkeypatch.setattr(clonos.postgres, "STATEMENT_MS", 300)
    with psycopg.connect(postgres, autocommit=True) as sql:
        sql.execute(
            f"create function slow_{table}() returns trigger language plpgsql as "
            "$$ begin perform pg_sleep(0.5); return new; end $$"
        )
        sql.execute(
            f"create trigger slow before insert on {table} for each row "
            f"execute function slow_{table}()"
        )
    causal.postgres_sink(postgres, table)(Frame([1], [2], before=lambda _: time.sleep(0.5)), 0)
    assert ids(postgres, table) == [1, 2]
