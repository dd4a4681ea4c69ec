"""Batches of a query in a table: each of them is there once, whatever is tried again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from clonos.errors import OtherQuery, UnreadableTable
from clonos.storage import table_batches
from clonos.storage.segments import Position
from clonos.storage.table_batches import StagedFile
from clonos.storage.tables import Table

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def table(tmp_path):
    made = Table(str(tmp_path / "t"))
    made.create(SCHEMA, "query q")
    return made


def staged(table: Table, batch: int, *partitions: list[int]) -> list[StagedFile]:
    return [
        file
        for number, values in enumerate(partitions)
        for file in table.stage(batch, number, [pa.record_batch({"n": values})], SCHEMA)
    ]


def put(table: Table, batch: int, *partitions: list[int], extent: str = "") -> bool:
    return table.take(batch, staged(table, batch, *partitions), extent)


def rows(table: Table, after: dict[int, Position] | None = None) -> list[list[int]]:
    return [
        [n for batch in table.read(segment.path) for n in batch.column("n").to_pylist()]
        for segment in table.segments(after)
    ]


def files(table: Table) -> int:
    return len(list(Path(table.path).glob("_rows/*/*")))


def test_what_no_manifest_names_is_not_there(table):
    lost = staged(table, 0, [1, 2], [3])
    assert rows(table) == []
    assert put(table, 0, [2, 1], [3])
    assert rows(table) == [[2, 1], [3]]
    assert files(table) == 2  # those of the other attempt are gone
    assert not table.take(0, lost)
    assert not put(table, 0, [9])
    assert rows(table) == [[2, 1], [3]]
    assert files(table) == 2
    assert table.is_of_query


def test_positions_across_batches_and_blocks(table):
    for batch in (0, 1, 255, 256, 700):
        put(table, batch, [batch], [-batch])
    put(table, 701)  # without rows
    positions = [segment.position for segment in table.segments()]
    assert positions == [(b, i) for b in (0, 1, 255, 256, 700) for i in (0, 1)]
    for number, position in enumerate(positions):
        assert [s.position for s in table.segments({0: position})] == positions[number + 1 :]


def test_a_batch_that_was_committed_is_not_aborted(table):
    first = staged(table, 3, [1])
    assert table.take(3, first)
    table.discard(3, first)  # Spark has not heard of its commit
    assert rows(table) == [[1]]
    other = staged(table, 4, [2])
    table.discard(4, other)
    assert files(table) == 1


@pytest.mark.parametrize(
    ("batch", "extent", "told"),
    [(4, "", "is at batch 4, but has handed over batch 5"), (5, "other", "began or ended")],
)
def test_a_query_that_went_back_is_refused(table, batch, extent, told):
    put(table, 5, [1], extent="planned")
    with pytest.raises(OtherQuery, match=told):
        put(table, batch, [2], extent=extent)
    assert not put(table, 5, [1])  # nobody says what was planned now
    assert not put(table, 5, [1], extent="planned")


def test_large_partitions_are_several_files(table, monkeypatch):
    monkeypatch.setattr(table_batches, "FILE_BYTES", 64)
    pieces = [pa.record_batch({"n": list(range(10 * i, 10 * i + 10))}) for i in range(5)]
    pieces.insert(2, pieces[0].slice(0, 0))
    found = list(table.stage(0, 0, pieces, SCHEMA))
    assert [file.rows for file in found] == [10] * 5
    table.take(0, found)
    assert [n for some in rows(table) for n in some] == list(range(50))


def test_readers_with_very_long_names_are_told_apart(table):
    one, other = "注文" * 50 + " (1)", "注文" * 50 + " (2)"
    assert not table.is_noted(one)
    table.note_reader(one, {0: Position(2, 0)})
    assert (table.is_noted(one), table.is_noted(other)) == (True, False)
    table.note_reader(other, {})
    table.note_reader(one, {0: Position(3, 0)})
    assert sorted(table.readers().values(), key=len) == [{}, {0: (3, 0)}]
    assert all(name.startswith("注文注文") for name in table.readers())
    for name in table.readers():
        table.forget_reader(name)
    assert not table.readers()


def test_what_all_readers_have_passed_is_removed(table):
    for batch in range(4):
        put(table, batch, [batch], [-batch])
    assert table.remove_read() == 0  # nobody reads it: nobody knows
    table.note_reader("first/job", {0: Position(2, 0)})
    table.note_reader("second", {})
    assert table.remove_read() == 0
    table.note_reader("second", {0: Position(1, 1)})
    assert table.readers() == {"first/job": {0: (2, 0)}, "second": {0: (1, 1)}}
    assert table.remove_read() == 4
    assert rows(table) == [[2], [-2], [3], [-3]]
    assert table.removed == {0: (1, 1)}
    table.forget_reader("second")
    assert table.remove_read() == 1
    assert rows(table) == [[-2], [3], [-3]]
    assert table.remove_read() == 0
    assert len(list(Path(table.path).glob("_removed*"))) == 1
    table.note_reader("first/job", {0: Position(3, 1)})
    assert table.remove_read() == 3
    assert rows(table) == []
    assert not put(table, 3, [3])  # the newest manifest has stayed
    assert put(table, 4, [4])
    assert rows(table) == [[4]]


def test_a_damaged_manifest_is_an_error(table):
    put(table, 0, [1])
    (manifest,) = Path(table.path).glob("_batches/*/*.json")
    manifest.write_text("{}")
    with pytest.raises(UnreadableTable):
        table.segments()
