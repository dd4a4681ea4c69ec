"""The header of a CSV file must name the columns of the schema, in their order."""

from __future__ import annotations

import bz2
import gzip

import pytest

import clonos
from clonos.columns.schema import parse_schema
from clonos.errors import SourceError, UnknownColumn
from clonos.sources.readers import EndOfInput
from clonos.testing import InMemoryRun

SCHEMA = "name string, n long"


def lines_of(spec, index=0, parallelism=1, rows_consumed=0):
    reader = spec.reader(index, parallelism)
    found = []
    try:
        reader.open(rows_consumed)
        while True:
            batch = reader.read(3, 0.0)
            found += batch.column(0).to_pylist()
    except EndOfInput:
        return found
    finally:
        reader.close()


def later_file(folder, content, name="b.csv"):
    """A source of a good file and this one, which is opened only when it is read."""
    (folder / "a.csv").write_text("name,n\nann,1\n")
    (folder / name).write_bytes(content)
    return clonos.sources.files(str(folder), "csv", SCHEMA)


def test_columns_in_another_order_are_refused_where_the_source_is_defined(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("city,name\nRome,ann\n")
    with pytest.raises(UnknownColumn) as caught:
        clonos.sources.files(str(path), "csv", "name string not null, city string")
    assert caught.value.where == str(path)
    assert "are city, name, but those of the schema are name, city" in caught.value.what
    fits = "city string, name string not null"
    assert f"schema={fits!r}" in caught.value.remedy
    job = clonos.Job()
    job.source(clonos.sources.files(str(path), "csv", fits)).sink(clonos.sinks.collect())
    rows = InMemoryRun(job.compile()).run()["collect"].to_pylist()
    assert rows == [{"city": "Rome", "name": "ann"}]


@pytest.mark.parametrize(
    ("header", "fits"),
    [
        ("n,name", "n long, name string"),
        ("first name,N", "`first name` string, N long"),
        ('"a ""b""",n', '`a "b"` string, n long'),
        ("name,n,new", "name string, n long, new string"),
        ("n", "n long"),
        ("n,N", "n long, N long"),
        ("ann,5", "ann string, 5 long"),
    ],
)
@pytest.mark.parametrize("pack", [None, gzip.compress, bz2.compress])
def test_every_file_is_checked_and_the_error_says_what_fits(tmp_path, header, fits, pack):
    content = f"{header}\n1,2\n".encode()
    name = {None: "b.csv", gzip.compress: "b.csv.gz", bz2.compress: "b.csv.bz2"}[pack]
    spec = later_file(tmp_path, pack(content) if pack else content, name)
    for rows_consumed in (0, 1):
        with pytest.raises(UnknownColumn) as caught:
            lines_of(spec, rows_consumed=rows_consumed)
        assert caught.value.where == f"{tmp_path}/{name}"
        assert f"schema={fits!r}" in caught.value.remedy
    assert parse_schema(fits)
    assert lines_of(spec, 0, 2) == [b"ann,1"]


@pytest.mark.parametrize(
    "content",
    [
        b"name,n\nx,2\n",
        b"name,n\r\nx,2",
        b'\xef\xbb\xbf"name","n"\nx,2\n',
        b" name, n \nx,2\n",
        b"NAME,N\nx,2\n",
    ],
)
def test_the_same_names_are_the_same_however_they_are_written(tmp_path, content):
    assert lines_of(later_file(tmp_path, content)) == [b"ann,1", b"x,2"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_needs_no_header(tmp_path, content):
    assert not any(lines_of(later_file(tmp_path, content))[1:])
    for parallelism in (1, 2, 3, 7):
        (tmp_path / "alone.csv").write_bytes(content)
        spec = clonos.sources.files(f"{tmp_path}/alone.csv", "csv", SCHEMA)
        assert not any(any(lines_of(spec, i, parallelism)) for i in range(parallelism))


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"\nx,2", UnknownColumn, "not named"),
        (b"n,n\nx,2\n", UnknownColumn, "name each column of the file once"),
        (b"\xff,n\nx,2\n", SourceError, "utf-8"),
        (b"name,n\rx,2\r", SourceError, r"a line ends with"),
    ],
)
def test_a_header_that_is_none(tmp_path, content, error, said):
    with pytest.raises(error, match=said) as caught:
        lines_of(later_file(tmp_path, content))
    assert caught.value.where == f"{tmp_path}/b.csv"


def test_names_that_differ_only_in_case_are_not_confused(tmp_path):
    (tmp_path / "x.csv").write_text("N,n\nx,2\n")
    with pytest.raises(UnknownColumn):
        clonos.sources.files(f"{tmp_path}/x.csv", "csv", "n string, N string")


def test_a_task_that_reads_a_part_of_a_file_checks_its_header(tmp_path):
    path = tmp_path / "x.csv"
    rows = [b"%d,x" % i for i in range(20)]
    path.write_bytes(b"\n".join([b"name,n", *rows, b""]))
    spec = clonos.sources.files(str(path), "csv", SCHEMA)
    parts = [lines_of(spec, i, 3) for i in range(3)]
    assert all(parts)
    assert [line for part in parts for line in part] == rows
    path.write_bytes(b"\n".join([b"n,name", *rows, b""]))
    for i in range(3):
        with pytest.raises(UnknownColumn):
            lines_of(spec, i, 3)


def test_a_file_that_the_driver_may_not_read_is_left_to_the_tasks(tmp_path):
    packed = tmp_path / "x.csv.gz"
    packed.write_bytes(b"not gzip")
    spec = clonos.sources.files(str(packed), "csv", SCHEMA)
    with pytest.raises(SourceError, match="cannot be read"):
        lines_of(spec)
