"""The contract of transactional sinks, kept by some and broken by others."""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import clonos
from clonos.errors import Fenced, MarkLost, SinkFailed, StoreAway
from clonos.sinks.lanes import Lane, incarnation_number
from clonos.testing import check_sink
from clonos.testing.sinks import _Check, _outputs
from examples.transactional import sqlite_sink
from tests import broken_sinks
from tests.broken_sinks import of

_numbers = itertools.count()
LANE = Lane("me", "out", 0, 1)


@pytest.fixture
def make():
    """Files in memory, if possible: a place for each line of a sink is many calls of fsync."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield lambda: of(sqlite_sink.sqlite(f"{folder}/{next(_numbers)}.db", "t", "id, word"))


def read(sink: Any) -> Any:
    with contextlib.closing(sqlite3.connect(sink.path)) as db:
        return db.execute("select id, word from t").fetchall()


@contextlib.contextmanager
def away(sink):
    """Somebody holds the file's lock."""
    with contextlib.closing(sqlite3.connect(sink.path, isolation_level=None)) as db:
        db.execute("begin exclusive")
        yield
        db.execute("rollback")


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_sqlite_keeps_the_contract(make, every):
    report = check_sink(make, read, away=away, patience="100 ms", every=every)
    assert report.passed, report
    assert len(report.findings) == 15
    assert all(f.points > 10 for f in report.findings if "every" in f.scenario), report


WRONG = "rows are missing|not committed|ence|mark|could not write"


@pytest.mark.parametrize(
    ("break_it", "caught"),
    [
        (broken_sinks.without_fence, "older_life"),
        (broken_sinks.with_its_mark_in_another_transaction, "killed"),
        (broken_sinks.that_does_not_compare, "frozen"),
        (broken_sinks.that_does_not_compare, "two_copies"),
        (broken_sinks.whose_lanes_share_a_mark, "two_lanes"),
        (broken_sinks.whose_mark_is_for_all_jobs, "two_lanes"),
        (broken_sinks.that_forgets_its_mark, "killed"),
        (broken_sinks.that_commits_each_batch, "killed"),
        (broken_sinks.that_swallows_errors, "failing"),
        (broken_sinks.that_takes_any_error_for_a_fence, "failing"),
        (broken_sinks.that_tries_again_by_itself, "failing"),
        (partial(broken_sinks.whose_mark_is_off_by, n=1), "offered_twice"),
        (partial(broken_sinks.whose_mark_is_off_by, n=-1), "offered_twice"),
        (broken_sinks.that_knows_no_generation, "generation_up"),
        (broken_sinks.that_fences_when_it_writes, "late"),
        (broken_sinks.that_looks_before_it_fences, "late"),
        (broken_sinks.whose_life_opens_once, "failing"),
        (broken_sinks.whose_rows_are_seen_before_they_are_committed, "killed"),
        (broken_sinks.that_takes_equal_rows_for_repetitions, "equal"),
        (broken_sinks.that_takes_equal_rows_for_repetitions, "killed"),
        (broken_sinks.that_commits_when_it_has_returned, "killed"),
        (broken_sinks.whose_lanes_share_a_stage, "beside"),
        (broken_sinks.that_knows_no_null, "texts"),
    ],
)
def test_a_broken_sink_is_caught(make, break_it, caught):
    check = _Check(lambda: break_it(make()), read, 0.1)
    assert not check.run("groups", check.groups).wrong
    found = check.run(caught, getattr(check, caught))
    assert re.search(WRONG, found.wrong), found


def test_lines_are_found_wherever_the_functions_call_them(make):
    """The lines of a callable object, and those that it calls in another file."""

    class Write:
        def __init__(self, written):
            self.written = written

        def __call__(self, *what):
            self.written(*what)

    def hidden():
        sink = make()
        functions = sink.store.transactions
        given = {"open": partial(functions.open_fn), "last_key": partial(functions.last_key_fn)}
        return of(sink, **given, write=Write(functions.write_fn))

    check = _Check(hidden, read, 0.1)
    plain = _Check(make, read, 0.1)
    assert check.killed() == plain.killed() + 1


def test_what_is_not_tested_is_said(make, monkeypatch):
    monkeypatch.setattr("clonos.testing.sinks.POINTS_MAX", 5)
    check = _Check(make, read, 0.1)
    assert "more than 5 points: say every=2" in check.run("killed", check.killed).wrong
    some = _Check(make, read, 0.1, every=20)
    assert not some.run("killed", some.killed).wrong
    monkeypatch.setattr("clonos.testing.interrupted.is_users_file", lambda name: False)
    monkeypatch.setattr("clonos.testing.interrupted._files_of", lambda store: set())
    assert "nothing of the sink's functions was seen" in check.run("killed", check.killed).wrong


# --- the writer ----------------------------------------------------------------------------------


class Store:
    """Functions of a user's, as bad as a test needs them."""

    def __init__(self):
        self.rows, self.mark, self.opened, self.closed = [], None, 0, 0
        self.errors = []

    def open(self, lane):
        self.opened += 1
        return self

    def close(self):
        self.closed += 1

    def write(self, db, lane, outputs, before, last):
        if self.errors:
            raise self.errors.pop(0)
        assert before == self.mark
        self.rows += [row["id"] for batch in outputs for row in batch.to_pylist()]
        self.mark = last

    def writer(self) -> Any:
        sink: Any = clonos.sinks.transactional(
            open=self.open, last_key=lambda db, lane: self.mark, write=self.write
        )
        return sink.store.writer(LANE)


def test_what_can_be_repeated_and_what_cannot():
    store = Store()
    store.errors = [ConnectionResetError("gone"), StoreAway("later"), ValueError("bad")]
    writer = store.writer()
    for _ in range(2):
        with pytest.raises(StoreAway):
            writer.write(_outputs(1, 2))
    with pytest.raises(SinkFailed, match="ValueError: bad") as caught:
        writer.write(_outputs(1, 2))
    assert caught.value.trace.startswith("Traceback of your code")
    assert caught.value.where == "out[0]"
    assert (store.opened, store.closed) == (3, 3)
    writer.write(_outputs(1, 2))
    writer.write(_outputs(3))
    assert store.rows == [1, 2, 3]
    assert store.opened == 4
    writer.close()
    assert store.closed == 4


def test_a_mark_that_should_be_there():
    store = Store()
    with pytest.raises(MarkLost, match="no mark"):
        store.writer().write(_outputs(3))
    store.mark = (0, 1)
    with pytest.raises(MarkLost):
        store.writer().write(_outputs(3))
    store.mark = (0, 2)
    store.writer().write(_outputs(3))
    assert store.rows == [3]


@pytest.mark.parametrize("mark", [7, "12", (1,), ("a", 2)])
def test_a_mark_that_is_none_is_shown(mark):
    store = Store()
    store.mark = mark
    with pytest.raises(SinkFailed, match=r"last_key has returned .*the two integers"):
        store.writer().write(_outputs(1))


def test_functions_are_asked_for():
    with pytest.raises(clonos.errors.WrongType, match="not a function"):
        clonos.sinks.transactional(open=Store().open, last_key=None, write=print)  # type: ignore[arg-type]


def test_other_sinks_cannot_be_checked():
    report = check_sink(clonos.sinks.collect, read)
    assert len(report.failures) == 14
    assert "collect is no sink with transactions" in str(report)


def test_what_was_discarded_need_not_be_there(make):
    """A job died with outputs delivered and not written, and went back in time: its lane goes on
    behind them. Whatever is missing else is missing."""
    sink, lives = make(), itertools.count(1)

    def write(began, generation, *seqs):
        writer = sink.store.writer(Lane("me", "out", 0, next(lives), began))
        try:
            writer.write(_outputs(*seqs, generation=generation))
        finally:
            writer.close()

    write(0, 0, 1, 2)  # 3 and 4 were delivered, too
    with pytest.raises(MarkLost):
        write(0, 0, 5)
    write(4, 1, 5, 6)
    with pytest.raises(MarkLost):
        write(4, 1, 8)
    write(4, 1, 6, 7)
    assert [number for number, _ in sorted(read(sink))] == [1, 2, 5, 6, 7]


def test_a_life_from_before_the_job_went_back_writes_until_the_next_one_does(make):
    """Its slot was told of outputs up to 4, and its driver was frozen when the job went back."""
    sink = make()
    old = sink.store.writer(Lane("me", "out", 0, incarnation_number(1, 9)))
    new = sink.store.writer(Lane("me", "out", 0, incarnation_number(3, 1), began=4))
    old.write(_outputs(1, 2))
    old.write(_outputs(3))  # the job is back, and nobody has written since
    new.write(_outputs(5, generation=1))
    with pytest.raises(Fenced):
        old.write(_outputs(4))
    new.write(_outputs(6, generation=1))
    for writer in (old, new):
        writer.close()
    assert [number for number, _ in sorted(read(sink))] == [1, 2, 3, 5, 6]
