"""A user's own sink in PostgreSQL, with no more care than users take; and wrong ones."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

import clonos
from clonos.testing import check_sink, sinks
from clonos.testing.sinks import _Check

psycopg = pytest.importorskip("psycopg")

TABLES = """
create table if not exists MARKS
    (lane text primary key, incarnation bigint not null, generation int, seq bigint);
create table if not exists ROWS (id bigint, word text)
"""
_numbers = itertools.count()


class Sink:
    """Its functions; a test replaces some by wrong ones."""

    autocommit = False

    def __init__(self, dsn: str) -> None:
        self.dsn, self.name = dsn, f"u{next(_numbers)}"
        with psycopg.connect(dsn) as db:
            db.execute(self.sql(TABLES))

    def sql(self, text: str) -> str:
        return text.replace("MARKS", f"{self.name}_marks").replace("ROWS", f"{self.name}_rows")

    def connect(self) -> Any:
        return psycopg.connect(self.dsn, autocommit=self.autocommit, application_name=self.name)

    def open(self, lane: Any) -> Any:
        db = self.connect()
        try:
            self.take_over(db, lane)
        except BaseException:
            db.close()
            raise
        return db

    def take_over(self, db: Any, lane: Any) -> None:
        found = db.execute(
            self.sql(
                "insert into MARKS values (%s, %s) on conflict (lane) do update"
                " set incarnation = excluded.incarnation"
                " where MARKS.incarnation <= excluded.incarnation"
            ),
            (lane.name, lane.incarnation),
        )
        if not found.rowcount:
            raise clonos.Fenced("a later life")
        db.commit()

    def last_key(self, db: Any, lane: Any) -> Any:
        query = self.sql("select generation, seq from MARKS where lane = %s")
        found = db.execute(query, (lane.name,)).fetchone()
        db.commit()
        return None if found[0] is None else found

    def write(self, db: Any, lane: Any, outputs: Any, before: Any, last: Any) -> None:
        self.move(db, lane, before, last)
        self.insert(db, outputs)
        db.commit()

    def move(self, db: Any, lane: Any, before: Any, last: Any) -> None:
        moved = db.execute(
            self.sql(
                "update MARKS set generation = %s, seq = %s where lane = %s and incarnation = %s"
                " and generation is not distinct from %s::int"
                " and seq is not distinct from %s::bigint"
            ),
            (*last, lane.name, lane.incarnation, *(before or (None, None))),
        )
        if not moved.rowcount:
            raise clonos.Fenced("a later life")

    def insert(self, db: Any, outputs: Any) -> None:
        with db.cursor().copy(self.sql("copy ROWS from stdin")) as copy:
            for batch in outputs:
                for row in batch.to_pylist():
                    copy.write_row(tuple(row.values()))

    def made(self) -> Any:
        sink: Any = clonos.sinks.transactional(
            open=self.open,
            last_key=self.last_key,
            write=self.write,
            retry_on=(psycopg.OperationalError,),
        )
        object.__setattr__(sink, "of", self)
        return sink


def read(sink: Any) -> Any:
    with psycopg.connect(sink.of.dsn) as db:
        return db.execute(sink.of.sql("select id, word from ROWS")).fetchall()


@contextlib.contextmanager
def away(sink: Any) -> Any:
    """The server hangs up, and takes no connections of this sink any more."""
    of = sink.of
    with psycopg.connect(of.dsn, autocommit=True) as db:
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s",
            (of.name,),
        )
    dsn, of.dsn = of.dsn, "host=127.0.0.1 port=1"
    yield
    of.dsn = dsn


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_it_keeps_the_contract(postgres):
    """Its locks cannot be broken: whoever waits for those of a frozen life waits until it wakes."""
    report = check_sink(lambda: Sink(postgres).made(), read, away=away, patience="300 ms", every=2)
    assert report.passed, report


class WithAutocommit(Sink):
    autocommit = True


class ThatForgetsToCommit(Sink):
    def write(self, db: Any, lane: Any, outputs: Any, before: Any, last: Any) -> None:
        self.move(db, lane, before, last)
        self.insert(db, outputs)


class WithItsMarkOnAnotherConnection(Sink):
    def write(self, db: Any, lane: Any, outputs: Any, before: Any, last: Any) -> None:
        self.insert(db, outputs)
        with self.connect() as other:
            self.move(other, lane, before, last)
        db.commit()


class ThatLooksWithoutALock(Sink):
    """Nobody else is to move the mark between the look and the end, but nothing prevents it."""

    def write(self, db: Any, lane: Any, outputs: Any, before: Any, last: Any) -> None:
        query = self.sql("select incarnation, generation, seq from MARKS where lane = %s")
        found = db.execute(query, (lane.name,)).fetchone()
        if found != (lane.incarnation, *(before or (None, None))):
            raise clonos.Fenced("a later life")
        self.insert(db, outputs)
        query = self.sql("update MARKS set generation = %s, seq = %s where lane = %s")
        db.execute(query, (*last, lane.name))
        db.commit()


class ThatSwallowsErrors(Sink):
    def write(self, *what: Any) -> None:
        with contextlib.suppress(psycopg.Error):
            super().write(*what)


class ThatRaisesItsIncarnationLate(Sink):
    """With the first write, not in `open`."""

    def take_over(self, db: Any, lane: Any) -> None:
        query = self.sql("insert into MARKS values (%s, %s) on conflict do nothing")
        db.execute(query, (lane.name, lane.incarnation))
        db.commit()

    def move(self, db: Any, lane: Any, before: Any, last: Any) -> None:
        query = "update MARKS set incarnation = %s, generation = %s, seq = %s where lane = %s"
        db.execute(self.sql(query), (lane.incarnation, *last, lane.name))


class ThatTriesAgain(Sink):
    """Its second attempt waits for the locks of the first."""

    def write(self, db: Any, lane: Any, outputs: Any, before: Any, last: Any) -> None:
        try:
            super().write(db, lane, outputs, before, last)
        except psycopg.Error:
            with self.connect() as other:
                self.move(other, lane, before, last)
                self.insert(other, outputs)


def test_one_that_hangs_says_where(postgres, monkeypatch):
    monkeypatch.setattr(sinks, "_HANGS_S", 4.0)
    check = _Check(lambda: ThatTriesAgain(postgres).made(), read, 0.3, every=5)
    found = check.run("failing", check.failing)
    assert "it hangs" in found.wrong
    assert "in move" in found.wrong


@pytest.mark.parametrize(
    ("kind", "caught"),
    [
        (ThatRaisesItsIncarnationLate, "older_life"),
        (WithAutocommit, "killed"),
        (ThatForgetsToCommit, "groups"),
        (WithItsMarkOnAnotherConnection, "killed"),
        (ThatLooksWithoutALock, "frozen"),
        (ThatSwallowsErrors, "failing"),
    ],
)
def test_a_wrong_one_is_caught(postgres, kind, caught):
    check = _Check(lambda: kind(postgres).made(), read, 0.3)
    found = check.run(caught, getattr(check, caught))
    assert found.wrong, "it has passed"
