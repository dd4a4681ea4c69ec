"""What the driver and the direct sink do with output."""

from __future__ import annotations

import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clonos.cluster.errors import OutputExists, SinkFailed
from clonos.cluster.progress import JobEvent, Observer, Sample
from clonos.cluster.writers import ParquetWriter, TableWriter
from clonos.core.coordinator import Note
from clonos.storage.table import Table

BATCH = pa.RecordBatch.from_pydict({"n": [1, 2]})


def test_an_output_is_written_once(tmp_path):
    writer = ParquetWriter(str(tmp_path / "out"))
    writer.write(0, 0, 3, BATCH)
    writer.write(0, 0, 3, BATCH.slice(1))
    writer.write(0, 1, 3, BATCH)
    assert pq.read_table(tmp_path / "out").num_rows == 4


def test_what_killed_writers_leave_is_hidden_and_swept(tmp_path):
    writer = ParquetWriter(str(tmp_path))
    writer.write(0, 0, 1, BATCH)
    (tmp_path / ".part-0000-00000-000000000002.parquet.abcd.tmp").write_bytes(b"half")
    (tmp_path / ".somebody-elses").touch()
    assert pq.read_table(tmp_path).num_rows == 2
    writer.end()
    assert len(list(tmp_path.iterdir())) == 2


def test_output_of_another_job_is_not_ours(tmp_path):
    writer = ParquetWriter(str(tmp_path))
    writer.begin(BATCH.schema, is_new=True)
    writer.write(0, 0, 1, BATCH)
    with pytest.raises(OutputExists, match="checkpoint_dir"):
        writer.begin(BATCH.schema, is_new=True)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SinkFailed, match="file"):
        ParquetWriter(str(tmp_path / "file"))
    writer = ParquetWriter(str(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    with pytest.raises(SinkFailed, match="gone"):
        writer.write(0, 0, 1, BATCH)


def test_listeners_hear_and_cannot_harm(caplog):
    observer = Observer({0: "count[0]"})
    heard: list[JobEvent] = []

    def broken(event: JobEvent) -> None:
        raise ValueError(event.what)

    observer.listeners += [broken, heard.append]
    with caplog.at_level(logging.ERROR, "clonos"):
        observer.note(Note("standby", 0, value=7), 1.5)
    assert heard == [JobEvent("standby", "count[0]", 7, 1.5)]
    assert "ValueError" in caplog.text


def test_dropped_rows_are_added_up():
    observer = Observer({0: "a[0]", 1: "a[1]"})
    for task, at_s, count in ((0, 1.0, 1), (0, 2.0, 3), (1, 1.0, 4)):
        observer.sample(Sample(at_s, task, {"a: bad_records": count, "rows": 9}))
    assert observer.dropped() == {"a: bad_records": 7}


def test_a_table_is_of_one_job(tmp_path):
    path = str(tmp_path / "t")
    writer = TableWriter(path, "process")
    writer.begin(BATCH.schema, is_new=True)
    writer.begin(BATCH.schema, is_new=True)  # the driver died before it had claimed it
    table = Table(path)
    first = table.id
    writer.begin(BATCH.schema, is_new=False)
    assert table.id == first
    writer.write(0, 0, 1, BATCH)
    with pytest.raises(OutputExists, match="checkpoint_dir"):
        writer.begin(BATCH.schema, is_new=True)
    writer.end()
    assert table.ended
    with pytest.raises(SinkFailed, match="gone"):
        TableWriter(str(tmp_path / "gone"), "process").begin(BATCH.schema, is_new=False)


def test_no_segment_follows_one_that_failed(tmp_path):
    writer = TableWriter(str(tmp_path / "t"), "process")
    writer.begin(BATCH.schema, is_new=True)
    in_the_way = tmp_path / "t" / "00000" / "0000-0000000000"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    for seq in (1, 300):
        with pytest.raises(SinkFailed, match="executor"):
            writer.write(0, 0, seq, BATCH)
    in_the_way.unlink()
    assert Table(str(tmp_path / "t")).segments() == []
