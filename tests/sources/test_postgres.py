"""PostgreSQL as a source: what is read, when it may be read, and what is read again."""

from __future__ import annotations

import itertools
import random
import threading
import time
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.errors import BadSchema, OperatorError, SourceError, WrongType
from clonos.sources import outage
from clonos.sources import postgres as postgres_source
from clonos.sources.postgres_reader import Frontier, PostgresReader, Span
from clonos.testing.harness import Source, StepHarness

psycopg = pytest.importorskip("psycopg")
_numbers = itertools.count()


class Table:
    """A table of a test."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.name = dsn, f"events{next(_numbers)}"
        self.sql = self.connect()
        self.sql.execute(f"create table {self.name} (id bigserial primary key, n bigint)")

    def connect(self, *, autocommit: bool = True) -> Any:
        return psycopg.connect(self.dsn, autocommit=autocommit)

    def add(self, *numbers: int) -> None:
        for n in numbers:
            self.sql.execute(f"insert into {self.name} (n) values (%s)", [n])

    def add_unfinished(self, n: int) -> Any:
        """A row of a transaction that stays open."""
        sql = self.connect(autocommit=False)
        sql.execute(f"insert into {self.name} (n) values (%s)", [n])
        return sql

    def spec(self, query: str | None = None, **options: Any) -> Any:
        given = {"column": "id", "schema": "id long, n long", "every": "1 ms", **options}
        return postgres_source(self.dsn, query or f"select * from {self.name}", **given)

    def opened(self, cut: bytes = b"", **options: Any) -> PostgresReader:
        reader: Any = self.spec(**options).reader(0, 1)
        reader.open(0, cut)
        return reader  # type: ignore[no-any-return]


@pytest.fixture
def table(postgres):
    made = Table(postgres)
    yield made
    made.sql.execute(f"drop table {made.name}")
    made.sql.close()


class Naive(PostgresReader):
    """Asks nobody who is writing, as a loop around ``where id > last`` does."""

    def _writers(self) -> set[str]:
        return set()


def numbers(*batches: pa.RecordBatch) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("n").to_pylist()]


def rest(reader: PostgresReader, max_rows: int = 1000, until: int = 1) -> list[int]:
    """What comes, until there were `until` rows and nothing follows."""
    found: list[int] = []
    for _ in range(3000):
        batch = reader.read(max_rows, 0.02)
        if batch is not None:
            found += numbers(batch)
        elif len(found) >= until:
            return found
    raise AssertionError(f"nothing follows {found}")


def none(reader: PostgresReader) -> bool:
    """Whether looks find nothing."""
    return all(reader.read(1000, 0.05) is None for _ in range(5))


# --- rows that appear below others ---------------------------------------------------------------


def late_row(table: Table, reader: PostgresReader) -> list[int]:
    """Row 1 is inserted before row 2, and committed after it was looked for."""
    assert reader.read(10, 0.1).num_rows == 0  # type: ignore[union-attr] # where it begins
    first = table.add_unfinished(1)
    table.add(2)
    found = []
    for _ in range(5):
        batch = reader.read(10, 0.05)
        found += [] if batch is None else numbers(batch)
    first.commit()
    first.close()
    for _ in range(5):
        batch = reader.read(10, 0.05)
        found += [] if batch is None else numbers(batch)
    reader.close()
    return found


def test_a_row_that_is_committed_below_others_is_lost_to_who_reads_on_behind_the_greatest(table):
    naive = Naive(table.opened()._query)
    naive.open(0)
    assert late_row(table, naive) == [2]


def test_a_row_that_is_committed_below_others_is_waited_for(table):
    assert late_row(table, table.opened()) == [1, 2]


def test_nothing_waits_for_who_writes_only_later_or_rolls_back_or_only_reads(table):
    reader = table.opened()
    reader.read(10, 0.1)
    lost = table.add_unfinished(1)
    table.add(2)
    assert none(reader)
    later = table.add_unfinished(3)
    lost.rollback()
    reading = table.connect(autocommit=False)
    reading.execute(f"select * from {table.name}").fetchall()
    assert rest(reader) == [2]
    later.commit()
    assert rest(reader) == [3]
    for sql in (lost, later, reading):
        sql.close()
    reader.close()


def test_a_transaction_that_is_prepared_meanwhile_is_waited_for(table):
    reader = table.opened()
    reader.read(10, 0.1)
    first = table.connect()
    name = f"prepared-{table.name}"
    first.execute("begin")
    first.execute(f"insert into {table.name} (n) values (1)")
    table.add(2)
    assert none(reader)
    first.execute(f"prepare transaction '{name}'")
    assert none(reader)
    first.execute(f"commit prepared '{name}'")
    assert rest(reader) == [1, 2]
    first.close()
    reader.close()


def test_nothing_waits_for_who_writes_in_another_database(table):
    name = f"other{next(_numbers)}"
    table.sql.execute(f"create database {name}")
    other = psycopg.connect(table.dsn.rpartition("/")[0] + f"/{name}")
    other.execute("create table t (n int)")
    reader = table.opened()
    table.add(1)
    assert rest(reader) == [1]
    other.execute(f"prepare transaction '{name}'")
    table.add(2)
    assert rest(reader) == [2]
    other.autocommit = True
    other.execute(f"rollback prepared '{name}'")
    other.close()
    reader.close()
    table.sql.execute(f"drop database {name}")


def test_every_row_is_read_once_while_many_write(table):
    seeds = [7, 8, 9, 10]
    committed: list[int] = []

    def write(seed: int) -> None:
        dice = random.Random(seed)
        sql = table.connect(autocommit=False)
        for k in range(60):
            mine = [1000 * (100 * seed + k) + i for i in range(dice.randint(1, 4))]
            for n in mine:
                sql.execute(f"insert into {table.name} (n) values (%s)", [n])
                time.sleep(dice.random() * 0.003)
            if dice.random() < 0.2:
                sql.rollback()
            else:
                sql.commit()
                committed.extend(mine)
        sql.close()

    threads = [threading.Thread(target=write, args=[seed]) for seed in seeds]
    reader = table.opened()
    found: list[int] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        batch = reader.read(20, 0.001)
        found += [] if batch is None else numbers(batch)
    found += rest(reader, 20, until=0)
    query = f"select n from {table.name} order by id"
    assert found == [n for (n,) in table.sql.execute(query).fetchall()]
    assert sorted(found) == sorted(committed)
    reader.close()


def test_a_value_is_read_only_when_it_was_seen_long_enough():
    frontier = Frontier(5.0)
    frontier.mark("42", set(), 100.0)
    assert frontier.settled(set(), 104.9) is None
    assert frontier.settled(set(), 105.0) == "42"
    frontier.mark("43", {"a", "b"}, 200.0)
    assert frontier.settled({"b", "c"}, 300.0) is None
    assert frontier.settled({"c", "x prepared"}, 300.0) is None  # b, perhaps
    assert frontier.settled({"c"}, 300.0) == "43"


# --- reading, and reading again ------------------------------------------------------------------


def test_a_job_begins_where_it_says(table):
    table.add(10, 11, 12)
    for start, expected in (("earliest", [10, 11, 12]), (1, [11, 12]), ("2", [12])):
        reader = table.opened(start=start)
        assert rest(reader) == expected
        reader.close()
    reader = table.opened(start="latest")
    begin = reader.read(10, 0.1)
    assert begin is not None
    assert begin.num_rows == 0
    table.add(13)
    assert rest(reader) == [13]
    reader.close()


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
def test_a_start_with_a_zone_is_for_a_column_with_a_zone(table, kind):
    query = (
        f"select moment::{kind} as at, n from (values (timestamp '2024-01-01 11:00', 1),"
        " ('2024-01-01 12:00', 2), ('2024-01-02 12:00', 3)) made (moment, n)"
    )
    zoned = datetime(2024, 1, 1, 13, 15, tzinfo=timezone(timedelta(hours=2)))
    local = datetime(2024, 1, 1, 11, 15)  # noqa: DTZ001 - without a zone
    reader = table.opened(query=query, column="at", schema="n long", start=zoned)
    if kind == "timestamptz":
        assert rest(reader) == [2, 3]
    else:
        with pytest.raises(SourceError, match=r"13:15:00\+02:00 has a zone, but at has none"):
            reader.read(10, 0.1)
    reader.close()
    reader = table.opened(query=query, column="at", schema="n long", start=local)
    assert rest(reader) == ([3] if kind == "date" else [2, 3])
    reader.close()


def test_cuts_are_read_again_exactly_and_then_what_follows(table):
    table.add(*range(50))
    first = table.opened()
    given = [(first.read(10, 0.1), first.cut)]
    given += [(first.read(7, 1.0), first.cut) for _ in range(4)]
    assert numbers(*(batch for batch, _ in given if batch)) == list(range(28))
    first.close()
    again = table.opened()
    assert [again.read_cut(cut) for _, cut in given] == [batch for batch, _ in given]
    standby = table.opened(given[-1][1])
    assert rest(again) == rest(standby) == list(range(28, 50))
    again.close()
    standby.close()


@pytest.mark.parametrize("change", ["delete from {} where id = 2", "insert into {} values (-1, 7)"])
def test_rows_that_have_changed_are_named(table, change):
    table.add(1, 2, 3)
    first = table.opened()
    begin = (first.read(10, 0.1), first.cut)[1]
    assert rest(first) == [1, 2, 3]
    cut = first.cut
    first.close()
    table.sql.execute(change.format(table.name))
    again = table.opened(begin)
    with pytest.raises(SourceError, match=r"have changed: of 3 behind id = None"):
        again.read_cut(cut)
    again.close()


def test_a_server_that_restarts_is_waited_for(table, postgres_server):
    reader = table.opened()
    table.add(1)
    assert rest(reader) == [1]
    cut = reader.cut
    postgres_server.stop()
    assert none(reader)
    postgres_server.start()
    table.sql.close()
    table.sql = table.connect()
    table.add(2)
    assert rest(reader) == [2]
    reader.open(0, cut)
    assert rest(reader) == [2]
    reader.close()


def test_two_rows_with_one_value_are_refused(table):
    table.add(5, 6, 6, 7)
    reader = table.opened(column="n")
    reader.read(10, 0.1)
    with pytest.raises(SourceError, match="two rows have n = 6"):
        rest(reader, 2)
    reader.close()


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("more", [(), (6,)])
def test_a_row_with_a_value_that_was_read_before_is_refused(table, start, more):
    table.add(5)
    reader = table.opened(column="n", start=start)
    assert rest(reader, until=int(start == "earliest")) == [5] * (start == "earliest")
    cut = reader.cut
    table.add(5, *more)
    for again in (b"", cut):  # also after the task has died
        if again:
            reader.open(0, again)
        with pytest.raises(SourceError, match="two rows have n = 5"):
            rest(reader)
    reader.close()


def test_a_value_that_a_start_names_may_be_that_of_many_rows_and_rows_that_were_read_may_go(table):
    table.add(5, 5)
    reader = table.opened(column="n", start=5)
    assert rest(reader, until=0) == []
    table.add(6, 7)
    assert rest(reader) == [6, 7]
    table.sql.execute(f"delete from {table.name}")
    assert none(reader)
    table.add(8)
    assert rest(reader) == [8]
    reader.close()


def test_a_query_may_have_percent_signs_comments_and_a_semicolon(table):
    table.add(*range(20))
    query = f"select id, n, 'a%' as word from {table.name} where n % 2 = 1 and 'ab' like 'a%';\n"
    reader = table.opened(query=query, schema="n long, word string")
    assert rest(reader) == list(range(1, 20, 2))
    reader.close()
    reader = table.opened(query=query.replace(";", " -- the odd ones"), schema="n long")
    assert rest(reader) == list(range(1, 20, 2))
    reader.close()


def test_types_and_values_that_do_not_fit(postgres):
    table = Table(postgres)
    table.sql.execute(
        f"alter table {table.name} add b boolean, add f real, add d numeric, add t text,"
        " add raw bytea, add day date, add at timestamptz, add local timestamp, add j jsonb,"
        " add u uuid"
    )
    at = datetime(2024, 2, 29, 12, 0, 0, 5, timezone.utc)
    values = [7, True, 0.5, Decimal("1.25"), "é", b"\0\xff", date(2024, 2, 29), at]
    marks = ", ".join(["%s"] * len(values))
    table.sql.execute(
        f"insert into {table.name} (n, b, f, d, t, raw, day, at, local, j, u) values"
        f" ({marks}, '2024-02-29 01:02:03.5', '[1]', gen_random_uuid())",
        values,
    )
    table.sql.execute(f"insert into {table.name} default values")
    table.sql.execute(f"insert into {table.name} (t, at) values ('bad', 'infinity')")
    schema = (
        "n long, b boolean, f float, d decimal(10,2), t string, raw binary, day date,"
        " at timestamp, local timestamp_ntz, j string, u string"
    )
    spec = table.spec(schema=schema)
    reader = table.opened(schema=schema)
    reader.read(10, 0.1)
    batch = next(b for b in (reader.read(10, 0.1) for _ in range(100)) if b is not None)
    reader.close()

    def harness(bad: Any) -> StepHarness:
        job = clonos.Job(on_bad_record=bad)
        job.source(spec).sink(clonos.sinks.collect(), name="out")
        return StepHarness(job.compile().codes[0].program())

    (out,) = harness("drop").feed(Source(batch)).batches.values()
    full, empty = out.payload.to_pylist()
    local = datetime(2024, 2, 29, 1, 2, 3, 500000)  # noqa: DTZ001 - without a zone
    assert [*full.values()][:-1] == [*values, local, "[1]"]
    assert set(empty.values()) == {None}
    with pytest.raises(OperatorError, match="does not fit the schema"):
        harness("fail").feed(Source(batch))
    table.sql.execute(f"drop table {table.name}")
    table.sql.close()


# --- what is said --------------------------------------------------------------------------------


def test_what_is_said_of_a_server_that_is_away_and_of_a_query_that_is_wrong(table):
    away = "postgresql://me:secret@127.0.0.1:1/shop"
    spec = postgres_source(away, "select 1", column="id", schema="id long")
    assert "secret" not in repr(spec)
    reader: Any = spec.reader(0, 1)
    reader.open(0)
    with pytest.raises(SourceError, match="cannot be read") as caught:
        reader.read(10, 0.1)
    assert caught.value.where == "127.0.0.1:1/shop"
    assert "secret" not in str(caught.value)
    reader.open(1, Span(None, "1", 1).encode())
    assert reader.read(10, 0.1) is None  # it has begun: it waits
    wrong = table.opened(query="select nothing from nowhere")
    wrong.read(10, 0.1)
    with pytest.raises(SourceError, match='"nowhere" does not exist'):
        wrong.read(10, 0.1)


def test_a_server_that_stays_away_is_mentioned_once(monkeypatch, caplog):
    monkeypatch.setattr(outage, "SILENT_S", 0.2)
    away = "postgresql://me:secret@127.0.0.1:1/shop"
    given: Any = {"column": "id", "schema": "id long", "every": "1 ms"}
    reader: Any = postgres_source(away, "select 1", **given).reader(0, 1)
    reader.open(1, Span(None, "1", 1).encode())
    assert [reader.read(10, 0.1) for _ in range(5)] == [None] * 5
    (said,) = caplog.messages
    assert said.startswith("127.0.0.1:1/shop: for ")
    assert "secret" not in said


def test_a_user_who_may_not_connect_any_more_is_an_error(table):
    name = f"user_of_{table.name}"
    table.sql.execute(f"create role {name} login; grant select on {table.name} to {name}")
    admin, table.dsn = table.dsn, table.dsn.replace("postgres@", f"{name}@")
    reader = table.opened()
    table.add(1)
    assert rest(reader) == [1]
    table.sql.execute(f"alter role {name} nologin")
    table.sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [name]
    )
    with pytest.raises(SourceError, match="is not permitted to log in") as caught:
        none(reader)
    assert "password" in caught.value.remedy
    table.dsn = admin
    table.sql.execute(f"drop owned by {name}; drop role {name}")
    reader.open(0, Span(None, "1", 1).encode())
    with pytest.raises(SourceError, match="does not exist"):
        none(reader)


def test_a_query_that_always_takes_too_long_is_an_error(table, monkeypatch):
    monkeypatch.setattr(clonos.postgres, "STATEMENT_MS", 100)
    reader = table.opened(query=f"select id, n from {table.name}, pg_sleep(n)")
    reader.read(10, 0.1)
    table.add(1)
    assert [reader.read(10, 0.1) for _ in range(2)] == [None] * 2  # somebody may have cancelled it
    with pytest.raises(SourceError, match="statement timeout") as caught:
        reader.read(10, 0.1)
    assert "index" in caught.value.remedy


def test_a_replica_is_refused(table):
    table.sql.execute("create schema replica")
    table.sql.execute("create function replica.pg_is_in_recovery() returns bool return true")
    dsn = f"{table.dsn}?options=-csearch_path%3Dreplica,pg_catalog,public"
    reader: Any = postgres_source(dsn, "select 1 as id", column="id", schema="id long").reader(0, 1)
    reader.open(0)
    with pytest.raises(SourceError, match="this is a replica"):
        reader.read(10, 0.1)
    reader.close()
    table.sql.execute("drop schema replica cascade")


def test_bytes_that_are_no_cut():
    for wrong in (b"\xc1", b"\x81\xa1a\x01", b"\x01"):
        with pytest.raises(SourceError, match="do not say where"):
            Span.decode(wrong)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"schema": "n array<long>"}, BadSchema),
        ({"start": 1.5}, WrongType),
        ({"query": " "}, WrongType),
    ],
)
def test_wrong_arguments(options, kind):
    given = {"query": "select 1", "column": "id", "schema": "n long", **options}
    with pytest.raises(kind) as caught:
        postgres_source("host=a", **given)
    assert caught.value.remedy


def test_columns_that_nobody_reads_are_not_asked_for(table):
    table.add(3)
    spec = table.spec(schema="id long, n long, missing string").narrow(["n"])
    reader = spec.reader(0, 1)
    reader.open(0)
    assert rest(reader) == [3]
    reader.close()
