"""What the error of a line that cannot be read says: where it is, what is wrong, what to do."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

import clonos
from clonos.errors import OperatorError
from clonos.graph.description import describe
from clonos.testing import InMemoryRun


def run(source, parallelism=1, **options):
    job = clonos.Job(parallelism=parallelism, **options)
    job.source(source, name="in").sink(clonos.sinks.collect(), name="out")
    if options:
        job.bad_records.sink(clonos.sinks.collect(), name="bad")
    return InMemoryRun(job.compile()).run()


def error_of(source, parallelism=1):
    with pytest.raises(OperatorError) as caught:
        run(source, parallelism)
    return caught.value


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_error_names_file_line_column_and_type(tmp_path, pack):
    end = ".gz" if pack is gzip.compress else ""
    for number in range(3):
        rows = ["user,cents", *["a,1"] * 7, *(["b,abc"] if number == 1 else []), "c,2", ""]
        (tmp_path / f"{number}.csv{end}").write_bytes(pack("\n".join(rows).encode()))
    source = clonos.sources.files(str(tmp_path), "csv", "user string, cents long")
    error = error_of(source)
    assert error.what == (
        f"BrokenLine: line 9 of {tmp_path}/1.csv{end} cannot be read as csv: "
        "cents: 'abc' is no long (for b'b,abc')"
    )
    assert error.remedy.startswith("correct the line")
    assert 'on_bad_record="drop"' in error.remedy
    assert "function" not in str(error)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_the_line_is_counted_also_if_several_tasks_read_the_file(tmp_path, parallelism):
    path = tmp_path / "x.jsonl"
    for bad in range(0, 12, 3):
        lines = ['{"n": 1}'] * 12
        lines[bad] = '{"n": "x"}'
        lines.insert(1, "")
        path.write_text("\n".join(lines))
        source = clonos.sources.files(str(path), "json", "n int")
        at = bad + 1 + (bad > 0)
        said = f"line {at} of {path} cannot be read as json: n: 'x' is no int (for "
        assert said in error_of(source, parallelism).what


def test_a_csv_line_in_the_middle_of_a_file_that_several_tasks_read(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,n\n" + "x,1\n" * 30 + "x,1,2\n" + "x,1\n" * 10)
    source = clonos.sources.files(str(path), "csv", "a string, n int")
    for parallelism in (1, 2, 3):
        said = error_of(source, parallelism).what
        assert f"line 32 of {path} cannot be read as csv: " in said
        assert "Expected 2 columns, got 3" in said
        assert "Row #" not in said


def test_records_that_are_kept_have_no_place_and_the_same_text_each_time(tmp_path):
    (tmp_path / "x.csv").write_text("user,at\nb,abc\n")
    source = clonos.sources.files(str(tmp_path), "csv", "user string, at timestamp")
    (kept,) = run(source, on_bad_record="keep")["bad"].to_pylist()
    said = "BrokenLine: a line cannot be read as csv: at: 'abc' is no timestamp"
    assert (kept["error"], kept["record"]) == (said, "b,abc")


def test_a_line_that_is_no_more_to_be_found_has_no_place(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1}\n{"n"\n')
    head: Any = clonos.sources.files(str(path), "json", "n int").head
    find = head.find
    assert find(b'{"n"', 0, 1) == f"line 2 of {path}"
    assert find(b"{", 0, 1) == ""
    path.unlink()
    assert find(b'{"n"', 0, 1) == ""


def test_a_source_is_the_same_graph_as_before(tmp_path):
    (tmp_path / "x.csv").write_text("n\n1\n")
    job = clonos.Job()
    source = clonos.sources.files(str(tmp_path), "csv", "n int")
    job.source(source, name="in").sink(clonos.sinks.collect())
    (task,) = (t for t in describe(job.compile())["tasks"].values() if t["source"])
    assert json.loads(json.dumps(task["operators"][0])) == ["in", "ParseLines", "csv"]
