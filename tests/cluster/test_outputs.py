"""What the driver and the direct sink do with output."""

from __future__ import annotations

import logging
from functools import partial

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from clonos.cluster.errors import OutputExists, SinkFailed
from clonos.cluster.progress import JobEvent, Observer, Sample
from clonos.cluster.writers import ParquetWriter, TableWriter, withdraw
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


@pytest.fixture(params=[ParquetWriter, partial(TableWriter, durability="process")])
def make(request):
    return request.param


def test_a_folder_is_of_one_sink_of_one_checkpoint(tmp_path, make):
    path = str(tmp_path / "out")
    writer = make(path)
    writer.begin(BATCH.schema, "me", is_new=True)
    before = Table(path).id if make is not ParquetWriter else None
    writer.begin(BATCH.schema, "me", is_new=True)  # the driver died before it began to work
    for is_new in (True, False):  # though there are no rows yet
        with pytest.raises(OutputExists, match="another job's"):
            make(path).begin(BATCH.schema, "another", is_new=is_new)
    make(path).begin(BATCH.schema, "me", is_new=False)
    if before is not None:
        assert Table(path).id == before, "whoever reads it reads on"
    writer.write(0, 0, 1, BATCH)
    assert pads.dataset(path, format="arrow" if before else "parquet").count_rows() == 2
    writer.withdraw()
    with pytest.raises(OutputExists, match="checkpoint_dir"):  # its journal was lost
        writer.begin(BATCH.schema, "me", is_new=True)
    with pytest.raises(OutputExists):
        make(path).begin(BATCH.schema, "another", is_new=True)


def test_the_folder_of_a_job_that_did_not_start_is_free(tmp_path, make):
    writer = make(str(tmp_path / "out"))
    writer.begin(BATCH.schema, "me", is_new=True)
    withdraw([writer, writer])
    make(str(tmp_path / "out")).begin(BATCH.schema, "another", is_new=True)


def test_output_that_is_gone_is_missed(tmp_path, make):
    with pytest.raises(SinkFailed, match="gone"):
        make(str(tmp_path / "out")).begin(BATCH.schema, "me", is_new=False)


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


def test_no_segment_follows_one_that_failed(tmp_path):
    writer = TableWriter(str(tmp_path / "t"), "process")
    writer.begin(BATCH.schema, "me", is_new=True)
    in_the_way = tmp_path / "t" / "00000" / "0000-0000000000"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    for seq in (1, 300):
        with pytest.raises(SinkFailed, match="executor"):
            writer.write(0, 0, seq, BATCH)
    in_the_way.unlink()
    assert Table(str(tmp_path / "t")).segments() == []
