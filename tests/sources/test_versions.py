"""Tables that rows are looked up in, as the driver reads them: no Spark is needed for that."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import clonos
from clonos.columns.batches import from_bytes
from clonos.errors import TableFailed
from clonos.operators.by_key.look_up import VERSIONS
from clonos.sources.spool import Spool
from clonos.sources.spool_reader import SpoolReader
from clonos.sources.versions import Refresher, Tables
from clonos.storage.folder import Folder

SCHEMA = pa.schema([("id", pa.int64())])
WAIT_S = 5.0


class Changing:
    """A table, as somebody else changes it."""

    def __init__(self):
        self.ids = [1]
        self.error: Exception | None = None
        self.reads = 0

    def __call__(self):
        self.reads += 1
        if self.error is not None:
            raise self.error
        return pa.table({"id": self.ids}, schema=SCHEMA)


class Refreshed:
    """A table that is read again every few ms, and what of it is spooled."""

    def __init__(self, folder, content):
        self.content = content
        tables = Tables(str(folder), "process")
        job = clonos.Job()
        stream = job.source(clonos.sources.from_batches([], "id long"))
        made = stream.look_up(content, "id", name="op", refresh="1 second")
        made.sink(clonos.sinks.collect())
        (code,) = (c for c in job.compile().codes if c.task.operator == "op")
        operation: Any = code.operators[0][1]
        self.side = operation.table
        pinned: Any = tables.pinned(code.operators)[0][1]
        self.shipped = pinned.table
        self.warnings: list[str] = []
        self.spool = Spool(str(folder / "batches"), 1, "process")
        first = tables.first(self.side)
        self.refresher = Refresher("op", self.side, first, 5, self.spool, self.warnings.append)
        self.refresher.start()

    def versions(self):
        reader = SpoolReader(self.spool.uri, VERSIONS, 0, 1)
        reader.open(0)
        found = []
        while (rows := reader.read(1, 0.0)) is not None:
            found.append(from_bytes(rows.column("table")[0].as_py()).column(0).to_pylist())
        return found

    def wait_for(self, condition):
        until = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.005)


def test_a_table_is_shipped_once_for_all_tasks(tmp_path):
    job = clonos.Job(parallelism=4)
    stream = job.source(clonos.sources.from_batches([], "id long"))
    content = pa.table({"id": range(10_000)})
    stream.look_up(lambda: content, "id", name="op").sink(clonos.sinks.collect())
    tables = Tables(str(tmp_path), "process")
    codes = [tables.pinned(code.operators) for code in job.compile().codes]
    assert content.nbytes < len(cloudpickle.dumps(codes)) < 2 * content.nbytes


def test_no_name_leads_out_of_the_folder(tmp_path):
    base = tmp_path / "spool"
    for name, uri in (("..", str(base)), ("a/..", base.as_uri())):
        job = clonos.Job()
        stream = job.source(clonos.sources.from_batches([], "id long"))
        stream.look_up(Changing(), "id", name=name).sink(clonos.sinks.collect())
        for code in job.compile().codes:
            Tables(uri, "process").pinned(code.operators)
    assert [path.name for path in tmp_path.iterdir()] == ["spool"]
    assert sorted(path.name for path in base.iterdir()) == ["=2E=2E", "a=2F=2E=2E"]


def test_a_table_is_read_again_and_spooled_when_it_has_changed(tmp_path):
    table = Changing()
    here = Refreshed(tmp_path, table)
    assert here.shipped.column(0).to_pylist() == [1]
    here.wait_for(lambda: table.reads > 5)
    assert here.versions() == [[1]]
    table.ids = [1, 2]
    here.wait_for(lambda: len(here.versions()) == 2)
    reads = table.reads
    table.error = RuntimeError("gone")
    here.wait_for(lambda: table.reads > reads + 4)
    assert len(here.warnings) == 1
    assert "go on seeing an older version" in here.warnings[0]
    assert "gone" in here.warnings[0]
    table.error, table.ids = None, []
    here.wait_for(lambda: here.versions() == [[1], [1, 2], []])
    table.error = RuntimeError("gone again")
    here.wait_for(lambda: len(here.warnings) == 2)
    here.refresher.close()
    reads = table.reads
    time.sleep(0.03)
    assert table.reads == reads


def test_a_job_that_is_started_again_begins_with_the_table_it_had(tmp_path):
    table = Changing()
    Refreshed(tmp_path, table).refresher.close()
    table.ids = [7]
    again = Refreshed(tmp_path, table)
    assert again.shipped.column(0).to_pylist() == [1]
    again.wait_for(lambda: again.versions()[-1] == [7])
    again.refresher.close()
    assert again.versions() == [[1], [7]]


def test_a_version_that_seemed_lost_is_followed_by_the_newest(tmp_path, monkeypatch):
    """What was written, though the disk said otherwise, is found when it is tried again."""
    table = Changing()
    here = Refreshed(tmp_path, table)
    keep = Folder.keep

    def failing(folder, path, *arguments):
        kept = keep(folder, path, *arguments)
        if path.startswith("batch-") and table.ids == [2]:
            table.ids = [3]
            raise OSError("the folder cannot be synced")
        return kept

    monkeypatch.setattr(Folder, "keep", failing)
    table.ids = [2]
    here.wait_for(lambda: here.versions()[-1] == [3])
    here.refresher.close()
    assert here.versions() == [[1], [2], [3]]
    assert not here.warnings


def test_no_error_ends_the_reading_of_a_table_in_silence(tmp_path, monkeypatch):
    table = Changing()
    here = Refreshed(tmp_path, table)
    with monkeypatch.context() as patch:
        patch.setattr("clonos.sources.versions.write_parts", None)
        table.ids = [2]
        here.wait_for(lambda: here.warnings)
    here.wait_for(lambda: here.versions()[-1] == [2])
    here.refresher.close()


def test_a_full_spool_holds_back_versions_and_not_the_end(tmp_path):
    table = Changing()
    here = Refreshed(tmp_path, table)
    here.spool._backlog_bytes_max = 0
    table.ids = [2]
    here.wait_for(lambda: here.spool.is_waiting)
    assert here.versions() == [[1]]
    here.spool.truncate([1])
    here.wait_for(lambda: here.spool.rows == 2)
    table.ids = [3]
    here.wait_for(lambda: here.spool.is_waiting)
    here.refresher.close()
    assert not here.warnings


def test_what_cannot_be_looked_up_in(tmp_path, monkeypatch):
    table = Changing()
    table.error = OSError("no such file")
    stream = clonos.Job().source(clonos.sources.from_batches([], "id long"))
    with pytest.raises(OSError, match="no such file"):
        stream.look_up(table, "id")
    table.error = None
    monkeypatch.setattr("clonos.sources.versions.TABLE_BYTES_MAX", 100)
    with pytest.raises(TableFailed, match="more than 100"):
        Refreshed(tmp_path, table)
