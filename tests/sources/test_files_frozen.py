"""The list of files is frozen at the first start: the error of another list says what to do."""

from __future__ import annotations

import json

import pytest

import clonos
from clonos.errors import OtherJob
from clonos.graph.description import describe, require_same

UPGRADE = "; or let it settle with that graph, and start this one with upgrade=True"


def graph(folder, kind="csv", schema="n long"):
    job = clonos.Job("j", parallelism=2)
    source = clonos.sources.files(f"{folder}/*.csv", kind, schema)
    job.source(source, name="in.put").sink(clonos.sinks.collect())
    return json.loads(json.dumps(describe(job.compile())))


@pytest.fixture
def folder(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("n\n1\n")
    return tmp_path


def refusal(before, now):
    with pytest.raises(OtherJob) as caught:
        require_same(before, now, "graph.json", UPGRADE)
    assert caught.value.where == "graph.json"
    return caught.value.what, caught.value.remedy


def test_files_that_came_are_named_with_what_to_do(folder):
    before = graph(folder)
    (folder / "c.csv").write_text("n\n1\n")
    what, remedy = refusal(before, graph(folder))
    assert what == (
        "the files of source in.put are not those with which the job was first started. "
        f"new: {folder}/c.csv"
    )
    assert remedy.startswith("move the new ones away until the job is complete, then start it")
    assert "another checkpoint_dir" in remedy
    assert "upgrade" not in remedy
    for i in range(20):
        (folder / f"d{i:02}.csv").write_text("n\n1\n")
    assert f"{folder}/d08.csv and 11 more" in refusal(before, graph(folder))[0]
    (folder / "c.csv").unlink()
    for path in folder.glob("d*"):
        path.unlink()
    require_same(before, graph(folder), "graph.json", UPGRADE)


def test_files_that_are_gone_or_changed_are_named(folder):
    before = graph(folder)
    (folder / "a.csv").rename(folder / "z.csv")
    what, remedy = refusal(before, graph(folder))
    assert what.endswith(f"new: {folder}/z.csv; gone: {folder}/a.csv")
    assert "and put those back that are gone" in remedy
    (folder / "z.csv").rename(folder / "a.csv")
    (folder / "b.csv").write_text("n\n1\n2\n")
    what, remedy = refusal(before, graph(folder))
    assert what.endswith(f". of another size: {folder}/b.csv")
    assert remedy.startswith("put back what the others contained")


def test_another_graph_is_not_taken_for_other_files(folder):
    before = graph(folder)
    what, remedy = refusal(before, graph(folder, "text", None))
    assert "another graph" in what
    assert "upgrade=True" in remedy
