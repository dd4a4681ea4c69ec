"""Transactional sinks that break their contract, each in another way."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from typing import Any

import clonos
from clonos.sinks.lanes import Lane
from examples.transactional import sqlite_sink


def of(sink, **changed) -> Any:
    """A sink whose functions may be others; it knows its file."""
    functions = sink.store.transactions
    (path,) = [c.cell_contents for c in functions.open_fn.__closure__ if ".db" in c.cell_contents]
    given = {"open": functions.open_fn, "last_key": functions.last_key_fn}
    given |= {"write": functions.write_fn, "retry_on": functions.retry_on} | changed
    made: Any = clonos.sinks.transactional(**given)
    object.__setattr__(made, "path", path)
    return made


def insert(db, outputs):
    for batch in outputs:
        rows = [tuple(row.values()) for row in batch.to_pylist()]
        db.executemany("insert into t values (?, ?)", rows)


def move(db, lane, last):
    query = "update marks set generation = ?, seq = ? where lane = ?"
    db.execute(query, (*last, lane.name))


def require_incarnation(db, lane):
    found: Any = sqlite_sink.mark_of(db, lane)
    if found[0] != lane.incarnation:
        raise clonos.Fenced("a later life")


def require_mark(db, lane, before):
    if sqlite_sink.mark_of(db, lane) != (lane.incarnation, *(before or (None, None))):
        raise clonos.Fenced("a later life")


def write_unless_fenced(db, lane, outputs, before, last):
    """It looks at the life, and not at the mark."""
    with sqlite_sink.transaction(db):
        require_incarnation(db, lane)
        insert(db, outputs)
        move(db, lane, last)


def without_fence(sink):
    """`open` does not look at the incarnation, `write` neither."""
    functions = sink.store.transactions

    def open_lane(lane):
        return functions.open_fn(Lane(lane.run, lane.operator, lane.number, 0))

    def write(db, lane, outputs, before, last):
        with sqlite_sink.transaction(db):
            insert(db, outputs)
            move(db, lane, last)

    return of(sink, open=open_lane, write=write)


def with_its_mark_in_another_transaction(sink):
    def write(db, lane, outputs, before, last):
        require_mark(db, lane, before)
        with sqlite_sink.transaction(db):
            insert(db, outputs)
        move(db, lane, last)

    return of(sink, write=write)


def that_does_not_compare(sink):
    """The incarnation is looked at before the transaction, the mark is not looked at."""

    def write(db, lane, outputs, before, last):
        found: Any = sqlite_sink.mark_of(db, lane)
        if found[0] != lane.incarnation:
            raise clonos.Fenced("a later life")
        with sqlite_sink.transaction(db):
            insert(db, outputs)
            move(db, lane, last)

    return of(sink, write=write)


def whose_lanes_share_a_mark(sink):
    functions = sink.store.transactions

    def one(fn):
        return lambda *args: fn(
            *[Lane("", "", 0, a.incarnation) if isinstance(a, Lane) else a for a in args]
        )

    return of(
        sink,
        open=one(functions.open_fn),
        last_key=one(functions.last_key_fn),
        write=one(functions.write_fn),
    )


def that_forgets_its_mark(sink):
    def write(db, lane, outputs, before, last):
        with sqlite_sink.transaction(db):
            require_incarnation(db, lane)
            insert(db, outputs)

    return of(sink, write=write)


def that_commits_each_batch(sink):
    def write(db, lane, outputs, before, last):
        for batch in outputs:
            with sqlite_sink.transaction(db):
                require_mark(db, lane, before)
                insert(db, [batch])
                if batch is outputs[-1]:
                    move(db, lane, last)

    return of(sink, write=write)


def that_swallows_errors(sink):
    def write(db, lane, outputs, before, last):
        with contextlib.suppress(sqlite3.Error), sqlite_sink.transaction(db):
            require_mark(db, lane, before)
            insert(db, outputs)
            move(db, lane, last)

    return of(sink, write=write)


def that_takes_any_error_for_a_fence(sink):
    written = sink.store.transactions.write_fn

    def write(*what):
        try:
            written(*what)
        except Exception as error:
            raise clonos.Fenced("it does not work") from error

    return of(sink, write=write)


def that_tries_again_by_itself(sink):
    """If the answer to the commit is lost, nobody looks at the mark."""

    def write(db, lane, outputs, before, last):
        for _ in range(3):
            try:
                write_unless_fenced(db, lane, outputs, before, last)
                return
            except sqlite3.OperationalError:
                pass
        raise sqlite3.OperationalError("three times")

    return of(sink, write=write)


def whose_mark_is_off_by(sink, n):
    last_key = sink.store.transactions.last_key_fn

    def off(db, lane):
        found = last_key(db, lane)
        return None if found is None else (found[0], found[1] + n)

    return of(sink, last_key=off, write=write_unless_fenced)


def that_knows_no_generation(sink):
    last_key = sink.store.transactions.last_key_fn

    def without(db, lane):
        found = last_key(db, lane)
        return None if found is None else (0, found[1])

    return of(sink, last_key=without, write=write_unless_fenced)


def that_fences_when_it_writes(sink):
    """Between `open` and the first `write` an older life can still commit."""
    functions = sink.store.transactions

    def open_lane(lane):
        return functions.open_fn(Lane(lane.run, lane.operator, lane.number, 0))

    def write(db, lane, outputs, before, last):
        with sqlite_sink.transaction(db):
            found: Any = sqlite_sink.mark_of(db, lane)
            if found[0] > lane.incarnation:
                raise clonos.Fenced("a later life")
            db.execute("update marks set incarnation = ?", (lane.incarnation,))
            insert(db, outputs)
            move(db, lane, last)

    return of(sink, open=open_lane, write=write)


def that_looks_before_it_fences(sink):
    functions, known = sink.store.transactions, {}

    def open_lane(lane):
        db = functions.open_fn(Lane(lane.run, lane.operator, lane.number, 0))
        known["mark"] = functions.last_key_fn(db, lane)
        db.execute("update marks set incarnation = ?", (lane.incarnation,))
        return db

    return of(
        sink, open=open_lane, last_key=lambda db, lane: known["mark"], write=write_unless_fenced
    )


def whose_life_opens_once(sink):
    opened = sink.store.transactions.open_fn

    def open_lane(lane):
        with contextlib.closing(opened(Lane(lane.run, lane.operator, lane.number, 0))) as db:
            found: Any = sqlite_sink.mark_of(db, lane)
            if found[0] >= lane.incarnation:
                raise clonos.Fenced("a life of this number, or a later one")
        return opened(lane)

    return of(sink, open=open_lane)


def whose_mark_is_for_all_jobs(sink):
    functions = sink.store.transactions

    def one(fn):
        return lambda *args: fn(
            *[
                Lane("", a.operator, a.number, a.incarnation) if isinstance(a, Lane) else a
                for a in args
            ]
        )

    return of(
        sink,
        open=one(functions.open_fn),
        last_key=one(functions.last_key_fn),
        write=one(functions.write_fn),
    )


def whose_rows_are_seen_before_they_are_committed(sink):
    """If it is killed between, its successor takes them out again."""
    opened = sink.store.transactions.open_fn

    def forget(db, lane):
        db.execute("delete from begun where lane = ?", [lane.name])

    def open_lane(lane):
        db = opened(lane)
        db.execute("create table if not exists begun (lane text, id integer)")
        with sqlite_sink.transaction(db):
            query = "delete from t where id in (select id from begun where lane = ?)"
            db.execute(query, [lane.name])
            forget(db, lane)
        return db

    def write(db, lane, outputs, before, last):
        ids = [(lane.name, id_) for batch in outputs for id_ in batch["id"].to_pylist()]
        with sqlite_sink.transaction(db):
            require_mark(db, lane, before)
            db.executemany("insert into begun values (?, ?)", ids)
            insert(db, outputs)
        with sqlite_sink.transaction(db):
            require_mark(db, lane, before)
            forget(db, lane)
            move(db, lane, last)

    return of(sink, open=open_lane, write=write)


def that_commits_when_it_has_returned(sink):
    """A thread does so, and its process may end before it."""
    functions, home = sink.store.transactions, os.getpid()

    def write(db, lane, *what):
        def later():
            with contextlib.closing(functions.open_fn(lane)) as another:
                functions.write_fn(another, lane, *what)

        thread = threading.Thread(target=later)
        if os.getpid() == home:
            thread.start()
            thread.join()
        db.execute("select 1")

    return of(sink, write=write)


def that_takes_equal_rows_for_repetitions(sink):
    """So it may commit as often as it likes."""
    opened = sink.store.transactions.open_fn

    def open_lane(lane):
        db = opened(lane)
        db.execute("create unique index if not exists once on t (id, word)")
        return db

    def write(db, lane, outputs, before, last):
        for batch in outputs:
            with sqlite_sink.transaction(db):
                require_mark(db, lane, before)
                rows = [tuple(row.values()) for row in batch.to_pylist()]
                db.executemany("insert or ignore into t values (?, ?)", rows)
                if batch is outputs[-1]:
                    move(db, lane, last)

    return of(sink, open=open_lane, write=write)


def whose_lanes_share_a_stage(sink):
    opened = sink.store.transactions.open_fn

    def open_lane(lane):
        db = opened(lane)
        db.execute("create table if not exists stage (id integer, word text)")
        return db

    def write(db, lane, outputs, before, last):
        with sqlite_sink.transaction(db):
            db.execute("delete from stage")
            for batch in outputs:
                rows = [tuple(row.values()) for row in batch.to_pylist()]
                db.executemany("insert into stage values (?, ?)", rows)
        with sqlite_sink.transaction(db):
            require_mark(db, lane, before)
            db.execute("insert into t select * from stage")
            move(db, lane, last)

    return of(sink, open=open_lane, write=write)


def that_knows_no_null(sink):
    def write(db, lane, outputs, before, last):
        with sqlite_sink.transaction(db):
            require_mark(db, lane, before)
            for batch in outputs:
                rows = [(row["id"], row["word"] or "") for row in batch.to_pylist()]
                db.executemany("insert into t values (?, ?)", rows)
            move(db, lane, last)

    return of(sink, write=write)
