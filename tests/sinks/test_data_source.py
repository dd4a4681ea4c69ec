"""Offsets and limits of the format `clonos`, without a JVM."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import IntegerType, StructType

import clonos
from clonos.errors import DefinitionError, NoTable, OtherTable, RowsRemoved
from clonos.sinks import data_source
from clonos.sinks.data_source import TableSource, TableStream, finish, remove_rows
from clonos.storage.tables import Table

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ALL = ReadAllAvailable()


@pytest.fixture
def table(tmp_path):
    made = Table(str(tmp_path / "t"))
    made.create(SCHEMA)
    return made


def put(table, task, seq, *values, generation=0):
    rows = {"n": list(values), "s": [str(v) for v in values]}
    table.write(task, generation, seq, pa.RecordBatch.from_pydict(rows, schema=SCHEMA))


def stream(table, **options):
    source = TableSource({"path": table.path, **options})
    return source.streamReader(source.schema())


def rows(reader, start, end):
    """The values between two offsets, partition by partition."""
    return [
        [n for batch in reader.read(part) for n in batch.column("n").to_pylist()]
        for part in reader.partitions(start, end)
    ]


def follow(reader, start, limit=ALL):
    end = reader.latestOffset(start, limit)
    return end, rows(reader, start, end)


def test_options_of_spark_are_not_shown():
    options = {"kafka.sasl.jaas.config": "a secret"}
    sink = clonos.sinks.spark("kafka", through="/data/out", **options)
    assert sink.query is not None
    assert sink.query.options == options
    assert "secret" not in repr(sink)


def test_every_row_once_in_order_of_its_task(table):
    reader = stream(table)
    start = reader.initialOffset()
    assert follow(reader, start) == (start, [])
    put(table, 0, 2, 1, 2)
    put(table, 1, 3, 10)
    put(table, 0, 4, 3)
    first, got = follow(reader, start)
    assert got == [[1, 2, 3, 10]]
    put(table, 1, 300, 11)
    put(table, 1, 2, 99, generation=1)
    second, got = follow(reader, first)
    assert got == [[11, 99]]
    assert second == {"table": table.id, "0": "0-4", "1": "1-2"}
    # Another reader, later: the same rows between the same offsets.
    put(table, 0, 5, 4)
    assert rows(stream(table), start, first) == [[1, 2, 3, 10]]
    assert rows(stream(table), first, second) == [[11, 99]]


def test_limits(table):
    for seq in (1, 2, 3):
        put(table, 0, seq, seq, seq)
        put(table, 1, seq, -seq)
    reader = stream(table, maxRowsPerTrigger="4")
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    assert stream(table, maxFilesPerTrigger="2").getDefaultReadLimit() == ReadMaxFiles(2)
    assert stream(table).getDefaultReadLimit() == ALL
    end, got = follow(reader, reader.initialOffset(), ReadMaxRows(4))
    assert got == [[1, 1, -1, -2]]
    end, got = follow(reader, end, ReadMaxRows(1))
    assert got == [[2, 2]]  # one file at least
    end, got = follow(reader, end, ReadMaxFiles(1))
    assert got == [[3, 3]]
    assert follow(reader, end)[1] == [[-3]]


def test_available_now_ends_where_the_table_ended(table):
    put(table, 0, 1, 1)
    put(table, 0, 2, 2)
    reader = stream(table)
    assert issubclass(TableStream, SupportsTriggerAvailableNow)
    reader.prepareForTriggerAvailableNow()
    put(table, 0, 3, 3)
    put(table, 1, 1, 4)
    end, got = follow(reader, reader.initialOffset(), ReadMaxFiles(1))
    assert got == [[1]]
    end, got = follow(reader, end)
    assert got == [[2]]
    assert follow(reader, end) == (end, [])
    assert reader.reportLatestOffset() == end | {"0": "0-3", "1": "0-1"}


def test_removed_rows_are_missed(table):
    put(table, 0, 1, 1)
    put(table, 1, 1, 10)
    reader = stream(table)
    start = reader.initialOffset()
    end, _ = follow(reader, start)
    assert remove_rows(table.path, timedelta(0)) == 2
    put(table, 0, 2, 2)
    for call in (lambda: reader.latestOffset(start, ALL), lambda: rows(reader, start, end)):
        with pytest.raises(RowsRemoved, match=r"task 0, task 1 .*failOnDataLoss"):
            call()
    assert follow(reader, end)[1] == [[2]]  # it has read them
    tolerant = stream(table, failOnDataLoss="false")
    assert follow(tolerant, start)[1] == [[2]]
    assert rows(tolerant, start, end) == []


def test_before_spark_4_2_nobody_says_from_where(table):
    put(table, 0, 1, 1)
    put(table, 1, 1, 10)
    reader = stream(table)
    first = reader.latestOffset()
    assert rows(reader, reader.initialOffset(), first) == [[1, 10]]
    assert remove_rows(table.path, timedelta(0)) == 2
    put(table, 0, 2, 2)
    for follower in (reader, stream(table)):  # which has read them; and started again
        second = follower.latestOffset()
        assert second == {"table": table.id, "0": "0-2", "1": "0-1"}
        assert rows(follower, first, second) == [[2]]
    for new in (stream(table), reader):
        with pytest.raises(RowsRemoved):
            rows(new, new.initialOffset(), second)
    put(table, 0, 3, 3)
    reader.partitions(second, reader.latestOffset())
    put(table, 0, 4, 4)
    remove_rows(table.path, timedelta(0))
    with pytest.raises(RowsRemoved):
        reader.latestOffset()


def test_a_file_that_is_removed_when_its_partition_is_planned(table):
    for seq in (1, 2):
        put(table, 0, seq, seq)
    for options in ({}, {"failOnDataLoss": "false"}):
        reader = stream(table, **options)
        start = reader.initialOffset()
        (partition,) = reader.partitions(start, reader.latestOffset(start, ALL))
        Path(table.segments()[0].path).rename(Path(table.path) / "elsewhere")
        if options:
            assert [n for b in reader.read(partition) for n in b.column("n").to_pylist()] == [2]
        else:
            with pytest.raises(RowsRemoved):
                list(reader.read(partition))
            (Path(table.path) / "elsewhere").rename(partition.paths[0])


def test_to_finish_what_is_not_there(table):
    with pytest.raises(NoTable, match="correct the path"):
        finish(None, table.path + "x")


def test_an_offset_whose_files_are_gone_without_a_word(table):
    put(table, 0, 1, 1)
    put(table, 0, 2, 2)
    reader = stream(table)
    end, _ = follow(reader, reader.initialOffset())
    for segment in table.segments()[1:]:
        Path(segment.path).unlink()
    with pytest.raises(RowsRemoved):
        reader.partitions(reader.initialOffset(), end)


def test_another_table_in_the_same_place(table):
    put(table, 0, 1, 1)
    reader = stream(table)
    end, _ = follow(reader, reader.initialOffset())
    table.withdraw()
    table.create(SCHEMA)
    with pytest.raises(OtherTable, match="checkpointLocation"):
        stream(table).latestOffset(end, ALL)


def test_what_is_small_is_one_partition_and_else_they_are_of_one_task(table, monkeypatch):
    for seq in range(1, 5):
        put(table, 0, seq, seq)
    put(table, 1, 1, 10)
    size = table.segments()[0].nbytes
    reader = stream(table)
    assert follow(reader, reader.initialOffset())[1] == [[1, 2, 3, 4, 10]]
    monkeypatch.setattr(data_source, "PARTITION_BYTES", 3 * size)
    monkeypatch.setattr(data_source, "TOGETHER_BYTES", 3 * size // 2)
    assert follow(reader, reader.initialOffset())[1] == [[1, 2, 3], [4], [10]]
    put(table, 2, 1, 20)
    monkeypatch.setattr(data_source, "TOGETHER_BYTES", 5 * size // 2)
    assert follow(reader, reader.initialOffset())[1] == [[1, 2, 3], [4, 10], [20]]


def test_columns_are_chosen_and_cast(table):
    put(table, 0, 1, 1)
    reader = TableSource({"path": table.path}).reader(StructType().add("n", IntegerType()))
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    assert batch.schema == pa.schema([("n", pa.int32())])


def test_only_streaming_queries_write(table):
    with pytest.raises(DefinitionError, match=r"writeStream.*clonos\.sinks\.table"):
        TableSource({"path": table.path}).writer(StructType(), overwrite=False)


@pytest.mark.parametrize(
    "options",
    [{"maxRowsPerTrigger": "0"}, {"maxFilesPerTrigger": "x"}, {"path": ""},
     {"maxRowsPerTrigger": "1", "maxFilesPerTrigger": "1"}],
)  # fmt: skip
def test_bad_options(table, options):
    with pytest.raises(DefinitionError):
        stream(table, **options)
