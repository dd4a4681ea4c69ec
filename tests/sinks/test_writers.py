"""What the driver and the direct sink do with output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import clonos
from clonos.errors import OtherContent, OutputExists, SinkFailed
from clonos.sinks.lanes import Lane, Output, OutputKey
from clonos.sinks.writers import Claims, ParquetWriter, TableWriter, writer_of
from clonos.storage.files import LocalFiles
from clonos.storage.tables import Table

LANE = Lane("me", "op", 0)
BATCH = pa.RecordBatch.from_pydict({"n": [1, 2]})


def output(seq, batch=BATCH, generation=0):
    return [Output(OutputKey(generation, seq), batch)]


def test_an_output_is_written_once(tmp_path):
    (tmp_path / "out").mkdir()
    writer = ParquetWriter(str(tmp_path / "out"), "process")
    writer.write(output(3))
    writer.write(output(3))
    writer.write(output(3, BATCH, 1))
    assert pq.read_table(tmp_path / "out").num_rows == 4


def test_what_killed_writers_leave_is_hidden_and_swept(tmp_path):
    writer = ParquetWriter(str(tmp_path), "process")
    writer.write(output(1))
    (tmp_path / ".part-0000-00000-000000000002.parquet.abcd.tmp").write_bytes(b"half")
    (tmp_path / ".somebody-elses").touch()
    assert pq.read_table(tmp_path).num_rows == 2
    writer.end()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture(params=["parquet", "table"])
def sink(request, tmp_path):
    return getattr(clonos.sinks, request.param)(str(tmp_path / "out"))


def folders(sink, job="me"):
    return Claims({"op": sink}, "process", job, {"op": 1})


def begin(sink, job="me", *, is_new=True):
    made = folders(sink, job)
    made.begin({"op": BATCH.schema}, is_new=is_new)
    return made


def write(sink):
    make = writer_of(sink, "process", LANE)
    assert make is not None
    make(1).write(output(1))


def test_a_folder_is_of_one_sink_of_one_checkpoint(sink):
    begin(sink)
    before = Table(sink.path).id if sink.kind == "table" else None
    begin(sink)  # the driver died before it began to work
    for is_new in (True, False):  # though there are no rows yet
        with pytest.raises(OutputExists, match="another job's") as caught:
            begin(sink, "another", is_new=is_new)
    file = caught.value.remedy.partition("delete ")[2]
    begin(sink, is_new=False)
    if before is not None:
        assert Table(sink.path).id == before, "whoever reads it reads on"
    write(sink)
    form = "arrow" if before else "parquet"
    assert pads.dataset(sink.path, format=form).count_rows() == 2
    with pytest.raises(OutputExists) as caught:
        begin(sink, "another")
    assert "delete" not in caught.value.remedy
    Path(file).unlink()
    for job in ("me", "another"):
        with pytest.raises(OutputExists, match="checkpoint_dir"):  # its journal was lost
            begin(sink, job)


def test_the_folder_of_a_job_that_wrote_nothing_is_free(sink):
    made = begin(sink)
    made.withdraw()
    made.withdraw()
    other = begin(sink, "another")
    made.withdraw()
    made.end()
    other.check()  # it is not ours any more
    write(sink)
    other.withdraw()
    with pytest.raises(OutputExists):
        begin(sink)


@pytest.mark.parametrize("other", ["old.parquet", "notes.csv", "day=1/part-0.parquet"])
def test_other_files_in_a_folder_would_be_read_as_output(tmp_path, other):
    sink = clonos.sinks.parquet(str(tmp_path / "out"))
    file = tmp_path / "out" / other
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(OutputExists, match=f"has '{other.partition('/')[0]}'"):
        begin(sink)
    assert not (tmp_path / "out" / "_owner").exists()
    file.rename(tmp_path / "out" / ".hidden")
    (tmp_path / "out" / "_SUCCESS").touch()
    if "/" in other:
        file.parent.rmdir()
    begin(sink)
    write(sink)
    file.parent.mkdir(exist_ok=True)
    file.touch()
    begin(sink, is_new=False)  # what came later is the reader's affair: the job goes on


def test_a_folder_whose_job_was_killed_can_be_freed(sink):
    begin(sink)
    with pytest.raises(OutputExists, match="if no job is running there, delete") as caught:
        begin(sink, "another")
    Path(caught.value.remedy.partition("delete ")[2]).unlink()
    begin(sink, "another")


def test_rows_that_were_removed_were_output(tmp_path):
    sink = clonos.sinks.table(str(tmp_path / "out"))
    made = begin(sink)
    write(sink)
    assert Table(str(tmp_path / "out")).remove(older_than_s=0) == 1
    made.withdraw()
    made.check()


@pytest.mark.parametrize("refuses", [True, False])
def test_of_two_that_begin_at_once_one_goes_on(sink, monkeypatch, refuses):
    """The other one comes between the first look and the claim; on an object store it may be told
    only when it is about to start."""
    made: list[Claims] = []
    name = LocalFiles.name

    def late(files, path, new):
        monkeypatch.undo()
        made.append(begin(sink, "other"))
        return name(files, path, new) if refuses else files.rename(path, new) is None

    monkeypatch.setattr(LocalFiles, "name", late)
    if refuses:
        with pytest.raises(OutputExists, match="another job's"):
            begin(sink)
        made[0].check()
    else:
        begin(sink).check()
        with pytest.raises(OutputExists, match="another job's"):
            made[0].check()


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_a_damaged_file_under_the_right_name_is_written_again(sink, content):
    """A machine that died had the name on its disk, and not what was in the file."""
    begin(sink)
    write(sink)
    form = "arrow" if sink.kind == "table" else "parquet"
    (path,) = Path(sink.path).rglob(f"*.{form}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    write(sink)
    assert path.read_bytes() == whole
    assert pads.dataset(sink.path, format=form).to_table().equals(pa.table(BATCH))


def test_other_rows_under_the_right_name_are_an_error(sink):
    begin(sink)
    make = writer_of(sink, "process", LANE)
    assert make is not None
    make(1).write(output(1))
    with pytest.raises(OtherContent, match="other content") as caught:
        make(1).write(output(1, pa.RecordBatch.from_pydict({"n": [1, 3]})))
    assert "1" in caught.value.where
    form = "arrow" if sink.kind == "table" else "parquet"
    assert pads.dataset(sink.path, format=form).to_table().equals(pa.table(BATCH))


def test_the_same_rows_laid_out_otherwise_are_the_same_output(sink):
    """Arrow defines no bytes under a null, nor does each of its versions write the same file; and
    to Arrow, NaN is not NaN."""
    values = pa.array([1.0, float("nan"), None])
    valid, under = values.buffers()[0], np.array([1.0, np.nan, 7.0])
    again = pa.Array.from_buffers(pa.float64(), 3, [valid, pa.py_buffer(under)])
    rows, laid_out_otherwise = (pa.record_batch({"x": x}) for x in (values, again))
    folders(sink).begin({"op": rows.schema}, is_new=True)
    make = writer_of(sink, "process", LANE)
    assert make is not None
    make(1).write(output(1, rows))
    for path in Path(sink.path).rglob("*.parquet"):
        pq.write_table(pq.read_table(path), path, compression="gzip")
    make(2).write(output(1, laid_out_otherwise))
    with pytest.raises(OtherContent):
        make(2).write(output(1, pa.record_batch({"x": [1.0, None, float("nan")]})))


def test_output_that_is_gone_is_missed(sink):
    with pytest.raises(SinkFailed, match="gone"):
        begin(sink, is_new=False)


def test_a_complete_job_leaves_a_folder_alone_that_is_gone(sink):
    folders(sink).end()
    assert not Path(sink.path).exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SinkFailed, match="file"):
        begin(clonos.sinks.parquet(str(tmp_path / "file")))
    with pytest.raises(SinkFailed, match="gone"):
        ParquetWriter(str(tmp_path / "gone"), "process").write(output(1))


def test_no_segment_follows_one_that_failed(tmp_path):
    writer = TableWriter(str(tmp_path / "t"), "process")
    writer.claim(BATCH.schema, "me")
    in_the_way = tmp_path / "t" / "00000" / "0000-0000000000"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    for seq in (1, 300):
        with pytest.raises(SinkFailed, match="executor"):
            writer.write(output(seq))
    in_the_way.unlink()
    assert Table(str(tmp_path / "t")).segments() == []
