"""Sinks of one's own in Delta and Iceberg tables: the contract, tried out; read back by others."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

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
    with _fork.Pool(1) as pool:
        return pool.apply(fn, arguments)


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


def test_the_contract_is_kept(lake):
    def read(sink: Any) -> Any:
        return elsewhere(lake.rows, vars(sink)["place"])

    report = check_sink(lake.make, read, patience="1 second", every=5)
    assert report.passed, report
