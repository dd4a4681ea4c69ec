"""Sinks of one's own in Delta and Iceberg tables: the contract, tried out; read back by others."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import clonos
from clonos.sinks import Lane, OutputKey
from clonos.testing import check_sink
from examples.transactional.delta_sink import delta
from examples.transactional.iceberg_sink import iceberg

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(1800),
]

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
_numbers = itertools.count()
_fork = multiprocessing.get_context("fork")


def elsewhere(fn: Callable[..., Any], *arguments: Any) -> Any:
    """Call something in a process of its own: what it starts would not survive a fork."""
    ours, theirs = _fork.Pipe(duplex=False)
    process = _fork.Process(target=lambda: theirs.send(fn(*arguments)))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


class DeltaLake:
    def __init__(self, folder: Any) -> None:
        pytest.importorskip("deltalake")
        self._folder = folder

    def make(self) -> Any:
        path = str(self._folder / f"{next(_numbers)}")
        made = delta(path, SCHEMA)
        object.__setattr__(made, "place", path)
        return made

    @staticmethod
    def rows(path: str) -> list[tuple[int, str]]:
        """By deltalake itself, which is compared with DuckDB."""
        from deltalake import DeltaTable

        table = DeltaTable(path)
        columns = table.to_pyarrow_table().to_pylist()
        found = [(row["id"], row["word"]) for row in columns]
        files = table.file_uris()
        if files:
            assert sorted(found) == sorted(duckdb.read_parquet(files).fetchall())
        return found


class Iceberg:
    def __init__(self, folder: Any) -> None:
        pytest.importorskip("pyiceberg")
        self._folder = folder

    def make(self) -> Any:
        folder = str(self._folder / f"{next(_numbers)}")
        elsewhere(self.begin, folder)
        made = iceberg(lambda: self.catalog(folder), "db.t", SCHEMA)
        object.__setattr__(made, "place", folder)
        return made

    @staticmethod
    def catalog(folder: str) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(
            "c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/tables"
        )

    @classmethod
    def begin(cls, folder: str) -> None:
        from pathlib import Path

        Path(folder).mkdir()
        cls.catalog(folder).create_namespace("db")

    @classmethod
    def rows(cls, folder: str) -> list[tuple[int, str]]:
        """By pyiceberg itself, which is compared with DuckDB."""
        table = cls.catalog(folder).load_table("db.t")
        found = [(row["id"], row["word"]) for row in table.scan().to_arrow().to_pylist()]
        files = [task.file.file_path for task in table.scan().plan_files()]
        if files:
            assert sorted(found) == sorted(duckdb.read_parquet(files).fetchall())
        return found


@pytest.fixture(params=[DeltaLake, Iceberg])
def lake(request, tmp_path):
    return request.param(tmp_path)


def test_the_contract_is_kept(tmp_path):
    """Iceberg only: ``deltalake`` does not work in a process that was forked after it began."""
    lake = Iceberg(tmp_path)

    def read(sink: Any) -> Any:
        return elsewhere(lake.rows, vars(sink)["place"])

    report = check_sink(lake.make, read, patience="1 second", every=5)
    assert report.passed, report


def life(sink: Any, incarnation: int, asked: Any, *writes: tuple[int | None, int]) -> Any:
    """Open a lane and write these outputs, each when it is told to; then say how that went."""
    functions = sink.store.transactions
    lane = Lane("me", "out", 0, incarnation)
    said: list[Any] = []
    db = functions.open_fn(lane)
    said.append(functions.last_key_fn(db, lane))
    for before, last in writes:
        asked.send(None)
        asked.recv()
        key = None if before is None else OutputKey(0, before)
        rows = pa.record_batch({"id": [last], "word": [f"{incarnation}"]}, schema=SCHEMA)
        try:
            functions.write_fn(db, lane, [rows], key, OutputKey(0, last))
        except (clonos.Fenced, clonos.sinks.StoreAway) as error:
            said.append(type(error).__name__)
        else:
            said.append(last)
    asked.send(said)


class Life:
    """A life in a process of its own."""

    def __init__(self, sink: Any, incarnation: int, *writes: tuple[int | None, int]) -> None:
        self._asked, theirs = _fork.Pipe()
        target = lambda: life(sink, incarnation, theirs, *writes)  # noqa: E731 - for fork
        self._process = _fork.Process(target=target)
        self._process.start()
        theirs.close()
        self.said = self._asked.recv()  # it is ready

    def write(self) -> Any:
        self._asked.send(None)
        self.said = self._asked.recv()
        return self.said


def test_an_older_life_cannot_write(lake):
    sink = lake.make()
    first = Life(sink, 1, (None, 3), (3, 5), (5, 7))
    first.write()
    first.write()
    second = Life(sink, 2, (5, 7))
    assert second.write() == [(0, 5), 7]  # where it begins, and what it has written
    ended = first.write()
    assert ended[:3] == [None, 3, 5]
    assert ended[3] in {"Fenced", "StoreAway"}
    third = Life(sink, 3, (7, 9))
    assert third.write() == [(0, 7), 9]
    found = elsewhere(lake.rows, vars(sink)["place"])
    assert sorted(found) == [(3, "1"), (5, "1"), (7, "2"), (9, "3")]
    with pytest.raises(EOFError):
        Life(sink, 2, (9, 11))  # it does not even begin
