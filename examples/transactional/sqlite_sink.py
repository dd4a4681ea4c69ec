"""A transactional sink of one's own: SQLite, which comes with Python.

The whole contract is in three functions. ``clonos.testing.check_sink`` tries them out, as
``tests/sinks/test_transactional.py`` shows.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import clonos
from clonos.sinks import Lane, OutputKey

TABLES = """
create table if not exists marks (
    lane text primary key, incarnation integer not null, generation integer, seq integer
);
create table if not exists {table} ({columns});
"""


def sqlite(path: str, table: str, columns: str) -> Any:
    """Rows into a table of a file that all tasks see.

    Parameters
    ----------
    columns
        As in ``create table``, in the order of the stream's.
    """

    def open_lane(lane: Lane) -> sqlite3.Connection:
        db = sqlite3.connect(path, timeout=0.1, isolation_level=None)
        try:
            db.executescript(TABLES.format(table=table, columns=columns))
            take_over(db, lane)
        except BaseException:
            db.close()  # otherwise it keeps its locks until the garbage collector finds it
            raise
        return db

    def last_key(db: sqlite3.Connection, lane: Lane) -> tuple[int, int] | None:
        found = mark_of(db, lane)
        return None if found is None or found[2] is None else (found[1], found[2])

    def write(
        db: sqlite3.Connection,
        lane: Lane,
        outputs: list[Any],
        before: OutputKey | None,
        last: OutputKey,
    ) -> None:
        with transaction(db):
            if mark_of(db, lane) != (lane.incarnation, *(before or (None, None))):
                raise clonos.Fenced(f"{lane.name} has a later life")
            for batch in outputs:
                places = ", ".join("?" * batch.num_columns)
                rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                db.executemany(f"insert into {table} values ({places})", rows)  # noqa: S608 - ours
            query = "update marks set generation = ?, seq = ? where lane = ?"
            db.execute(query, (*last, lane.name))

    return clonos.sinks.transactional(
        open=open_lane,
        last_key=last_key,
        write=write,
        retry_on=(sqlite3.OperationalError,),  # "database is locked": another task writes
    )


def take_over(db: sqlite3.Connection, lane: Lane) -> None:
    """From now on no older life can commit."""
    with transaction(db):
        found = mark_of(db, lane)
        if found is None:
            db.execute("insert into marks values (?, ?, null, null)", mine(lane))
        elif found[0] > lane.incarnation:
            raise clonos.Fenced(f"{lane.name} has a later life")
        else:
            query = "update marks set incarnation = ? where lane = ?"
            db.execute(query, (lane.incarnation, lane.name))


def mine(lane: Lane) -> tuple[str, int]:
    """What a lane's row begins with."""
    return lane.name, lane.incarnation


def mark_of(db: sqlite3.Connection, lane: Lane) -> tuple[Any, ...] | None:
    """Incarnation, generation and number of a lane's newest output."""
    query = "select incarnation, generation, seq from marks where lane = ?"
    found: tuple[Any, ...] | None = db.execute(query, (lane.name,)).fetchone()
    return found


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Reads and writes of which nobody sees a part; nobody else writes meanwhile."""
    db.execute("begin immediate")
    try:
        yield
    except BaseException:
        db.execute("rollback")
        raise
    db.execute("commit")
