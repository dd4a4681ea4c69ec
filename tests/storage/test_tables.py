"""A growing table: segments appear once, in order, and are missed by nobody when removed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from pyarrow.fs import LocalFileSystem

from clonos.errors import NoTable, OtherContent, RowsRemoved, UnreadableTable
from clonos.storage.files import ArrowFiles, LocalFiles
from clonos.storage.segments import Position
from clonos.storage.tables import Table

SCHEMA = pa.schema([("n", pa.int64())])


def batch(*values):
    return pa.RecordBatch.from_pydict({"n": list(values)}, schema=SCHEMA)


@pytest.fixture
def table(tmp_path):
    made = Table(str(tmp_path / "t"))
    made.create(SCHEMA)
    return made


def keys(segments):
    return [(s.task, *s.position) for s in segments]


def test_the_same_output_is_one_file(table):
    table.write(0, 0, 3, batch(1, 2))
    (segment,) = table.segments()
    before = Path(segment.path).read_bytes()
    Table(table.path).write(0, 0, 3, batch(1, 2))
    with pytest.raises(OtherContent):
        Table(table.path).write(0, 0, 3, batch(8, 9))
    assert keys(table.segments()) == [(0, 0, 3)]
    assert Path(segment.path).read_bytes() == before
    assert [b.to_pydict() for b in table.read(segment.path)] == [{"n": [1, 2]}]


def test_segments_behind_positions_across_blocks_and_generations(table):
    written = [(0, 0, 5), (0, 0, 255), (0, 0, 256), (0, 0, 9000), (0, 1, 7), (1, 0, 6)]
    for task, generation, seq in reversed(written):
        table.write(task, generation, seq, batch(seq))
    assert keys(table.segments()) == written
    for number, (task, generation, seq) in enumerate(written[:5]):
        behind = table.segments({task: Position(generation, seq)})
        assert keys(behind) == written[number + 1 :]
    assert pads.dataset(table.path, format="arrow").count_rows() == 6


def test_unfinished_files_are_nothing_and_go_at_the_end(table, tmp_path):
    table.write(0, 0, 1, batch(1))
    left = tmp_path / "t" / "00000" / "0000-0000000000" / ".000000000002-1.arrow.abcd.tmp"
    left.write_bytes(b"half")
    assert keys(table.segments()) == [(0, 0, 1)]
    assert not table.ended
    table.end()
    assert table.ended
    assert not left.exists()


def test_schema_and_identity(table, tmp_path):
    again = Table(table.path)
    assert again.schema == SCHEMA
    assert again.id == table.id
    other = Table(str(tmp_path / "other"))
    assert not other.exists
    with pytest.raises(NoTable, match="start the job"):
        _ = other.schema
    other.create(SCHEMA)
    assert other.id != table.id


def test_what_is_removed_is_written_down(table):
    for task, seq in ((0, 1), (0, 2), (0, 300), (1, 4)):
        table.write(task, 0, seq, batch(seq))
    for segment in table.segments():
        if segment.position.seq != 300:
            old = time.time() - 100
            os.utime(segment.path, (old, old))
    (gone, *_) = table.segments()
    assert table.remove(older_than_s=50) == 3
    assert table.removed == {0: Position(0, 2), 1: Position(0, 4)}
    assert keys(table.segments()) == [(0, 0, 300)]
    table.write(0, 0, 2, batch(2))  # a sink that is replayed
    assert keys(table.segments()) == [(0, 0, 300)]
    assert table.remove(older_than_s=1e9) == 1
    with pytest.raises(RowsRemoved, match="slowest reader"):
        list(table.read(gone.path))


def test_only_the_oldest_are_removed(table):
    for seq in (1, 2):
        table.write(0, 0, seq, batch(seq))
    newer, older = table.segments()
    os.utime(older.path, (0, 0))
    assert table.remove(older_than_s=50) == 0
    assert keys(table.segments()) == keys([newer, older])


def test_the_folder_around_a_table_may_be_closed_to_its_writers(tmp_path, monkeypatch):
    synced = []

    def sync(path):
        synced.append(Path(path))
        if Path(path) == tmp_path:
            raise PermissionError(path)

    monkeypatch.setattr(LocalFiles, "sync_folder", lambda _, path: sync(path))
    made = Table(str(tmp_path / "t"), "fsync")
    made.create(SCHEMA)
    made.write(0, 0, 1, batch(1))
    assert keys(made.segments()) == [(0, 0, 1)]
    assert {tmp_path, tmp_path / "t", tmp_path / "t" / "00000"} <= set(synced)


class Hdfs:
    """A file system that does not move a file onto another one."""

    type_name = "hdfs"

    def __init__(self, base):
        self.base = base

    def __getattr__(self, name):
        return getattr(self.base, name)

    def move(self, source, target):
        if Path(target).exists():
            raise OSError(f"cannot rename {source}: {target} exists")
        self.base.move(source, target)


def test_where_nothing_is_moved_onto_a_file(table, monkeypatch, tmp_path):
    table = Table(table.path, files=ArrowFiles(Hdfs(LocalFileSystem())))
    for seq in (1, 2):
        table.write(0, 0, seq, batch(seq))
        assert table.remove(older_than_s=0) == 1
        assert table.removed == {0: Position(0, seq)}
    fill = pa.ipc.new_file

    def meanwhile(*args, **options):  # the successor of a frozen writer
        monkeypatch.undo()
        Table(table.path).write(0, 0, 3, batch(3))
        return fill(*args, **options)

    monkeypatch.setattr(pa.ipc, "new_file", meanwhile)
    table.write(0, 0, 3, batch(3))
    assert keys(table.segments()) == [(0, 0, 3)]
    table.end()
    table.end()  # the complete job is started again
    assert sorted(p.name[:9] for p in (tmp_path / "t").iterdir()) == [
        "00000",
        "_ended",
        "_removed-",
        "_table.js",
    ]


def test_a_table_of_earlier_days(table, tmp_path):
    about = tmp_path / "t" / "_table.json"
    said = json.loads(about.read_text())
    del said["owner"]
    about.write_text(json.dumps(said))
    assert table.owner == ""
    for seq in (1, 2):
        table.write(0, 0, seq, batch(seq))
    (tmp_path / "t" / "_removed.json").write_text('{"0": "0-1"}')
    assert keys(table.segments()) == [(0, 0, 2)]
    assert table.remove(older_than_s=0) == 2
    assert table.removed == {0: Position(0, 2)}
    assert len(list((tmp_path / "t").glob("_removed*"))) == 1


def test_removers_do_not_set_each_other_back(table, monkeypatch):
    for task in (0, 1):
        table.write(task, 0, 1, batch(task))
    os.utime(table.segments()[0].path, (0, 0))
    write = Table._write_json

    def meanwhile(*args):  # another one, that removes more
        monkeypatch.undo()
        assert Table(table.path).remove(older_than_s=0) == 2
        write(*args)

    monkeypatch.setattr(Table, "_write_json", meanwhile)
    table.remove(older_than_s=50)
    assert table.removed == {0: Position(0, 1), 1: Position(0, 1)}
    table.write(0, 0, 2, batch(2))
    table.remove(older_than_s=0)
    assert table.removed == {0: Position(0, 2), 1: Position(0, 1)}
    assert len(table._removals()[1]) == 1


def test_durable_segments(tmp_path, monkeypatch):
    synced = []
    for name in ("sync", "sync_folder"):
        monkeypatch.setattr(LocalFiles, name, lambda _, path: synced.append(Path(path)))
    table = Table(str(tmp_path), "fsync")
    table.create(SCHEMA)
    assert tmp_path.parent in synced
    synced.clear()
    table.write(2, 0, 1, batch(5))
    assert keys(table.segments()) == [(2, 0, 1)]
    block = tmp_path / "00002" / "0000-0000000000"
    assert synced[:2] == [block.parent, tmp_path]
    assert synced[-2].parent == block, "the file, under its hidden name"
    assert synced[-1] == block


def test_a_damaged_file(table):
    table.write(0, 0, 1, batch(1))
    (segment,) = table.segments()
    Path(segment.path).write_bytes(b"nonsense")
    with pytest.raises(UnreadableTable):
        list(table.read(segment.path))
