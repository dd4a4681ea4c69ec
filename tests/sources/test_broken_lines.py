"""What the error of a line that cannot be read says: where it is, what is wrong, what to do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

import clonos
from clonos.errors import OperatorError
from clonos.graph.description import describe
from clonos.sources.lines import LINES
from clonos.testing import InMemoryRun, StepHarness, task_code


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


def test_records_that_are_kept_say_the_same(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("user,at\nb,abc\n")
    source = clonos.sources.files(str(tmp_path), "csv", "user string, at timestamp")
    (kept,) = run(source, on_bad_record="keep")["bad"].to_pylist()
    said = f"BrokenLine: line 2 of {path} cannot be read as csv: at: 'abc' is no timestamp"
    assert (kept["error"], kept["record"]) == (said, "b,abc")


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_equal_lines_that_are_kept_have_places_of_their_own(tmp_path, parallelism):
    bad = {1, 2, 3, 9, 17, 29, 30}
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        path.write_text("n\n" + "".join("x\n" if n in bad else f"{n}\n" for n in range(31)))
    source = clonos.sources.files(str(tmp_path), "csv", "n int")
    kept = run(source, parallelism, on_bad_record="keep")["bad"].column("error").to_pylist()
    assert sorted(text.split(" cannot")[0] for text in kept) == sorted(
        f"BrokenLine: line {n + 2} of {path}" for path in paths for n in bad
    )


def kept_by(source: Any, answers: Iterator[Any] | None = None) -> tuple[list[Any], list[Any]]:
    """What a task makes of three batches, and what was asked on the way."""
    job = clonos.Job(on_bad_record="keep")
    job.source(source, name="in").sink(clonos.sinks.collect(), name="out")
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    asked: list[Any] = []

    def call(fn: Any, args: Any, kwargs: Any) -> Any:
        asked.append(fn(*args, **kwargs) if answers is None else next(answers))
        return asked[-1]

    harness = StepHarness(task_code(job.compile(), "in[0]").program(), call=call)
    lines = [[b"x"], [b"1", b"x"], [b"2"]]
    steps = [harness.source([(line,) for line in batch], LINES) for batch in lines]
    return [step.seen for step in steps], asked


def test_where_a_line_was_is_in_the_log(tmp_path):
    """A replay may be where the files are not."""
    path = tmp_path / "x.csv"
    path.write_text("n\nx\n1\nx\n2\n")
    source = clonos.sources.files(str(path), "csv", "n int")
    seen, asked = kept_by(source)
    assert asked == [[f"line 2 of {path}"], [f"line 4 of {path}"]]
    path.unlink()
    assert kept_by(source, iter(asked))[0] == seen
    assert kept_by(source)[1] == [[""], [""]]


def test_lines_are_found_in_the_order_in_which_they_were_read(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 1}\n{"n"\n{"n": 2}\n{"n"\n{"n": 3}\n')
    head: Any = clonos.sources.files(str(path), "json", "n int").head
    bad = b'{"n"'
    trail = head.find.trail(0, 1)
    assert trail.find([(1, bad), (3, bad)], 60.0) == [f"line {n} of {path}" for n in (2, 4)]
    trail = head.find.trail(0, 1)
    assert trail.find([(3, bad)], 60.0) == [f"line 4 of {path}"], "after a recovery"
    trail = head.find.trail(0, 1)
    assert trail.find([(0, bad)], 60.0) == [f"line 2 of {path}"], "one before it was left out"
    assert trail.find([(4, b"{")], 60.0) == [""]
    path.unlink()
    assert head.find.trail(0, 1).find([(1, bad)], 60.0) == [""]


def test_who_looks_for_too_long_goes_on_from_there(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n')
    head: Any = clonos.sources.files(str(tmp_path), "json", "n int").head
    trail, wanted = head.find.trail(0, 1), [(2, b'{"n": 2}')]
    found = [trail.find(wanted, -1.0), trail.find(wanted, 60.0)]
    assert found == [[""], [f"line 1 of {tmp_path}/2.jsonl"]]


def test_a_source_is_the_same_graph_as_before(tmp_path):
    (tmp_path / "x.csv").write_text("n\n1\n")
    job = clonos.Job()
    source = clonos.sources.files(str(tmp_path), "csv", "n int")
    job.source(source, name="in").sink(clonos.sinks.collect())
    (task,) = (t for t in describe(job.compile())["tasks"].values() if t["source"])
    assert json.loads(json.dumps(task["operators"][0])) == ["in", "ParseLines", "csv"]
