"""Whose checkpoint a folder is, and what it needs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.cluster.directory import JobDirectory
from clonos.cluster.sink_places import end_left
from clonos.columns.formula import Column, Constant, apply
from clonos.errors import BadDirectory, OtherJob, OtherJournal, UnreadableCheckpoint
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe, differences
from clonos.operators.operations import Project, Where
from clonos.operators.stateless.columns import Projection
from clonos.storage.journal import Journal
from clonos.storage.tables import Table


def compiled(
    *, name="count", depth=1, size="5 seconds", path=None, checkpoints="marked"
) -> CompiledJob:
    job = clonos.Job("words", sharing_depth=depth, checkpoints=checkpoints)
    source = (
        clonos.sources.from_batches([], schema="word string")
        if path is None
        else clonos.sources.files(str(path), "text", "word string")
    )
    counts = job.source(source).key_by("word").window(clonos.tumbling(size))
    counts.agg(n=clonos.count(), name=name).sink(clonos.sinks.collect(), name="out")
    return job.compile()


def directory(path: object) -> JobDirectory:
    return JobDirectory(str(path), None, on_one_machine=True)


def test_a_forked_child_leaves_a_temporary_checkpoint_alone():
    code = (
        "import os, sys; from clonos.cluster.directory import JobDirectory\n"
        "made = JobDirectory(None, None, on_one_machine=True)\n"
        "if not (child := os.fork()): sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(made.root, os.path.exists(made.root))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert found[1] == "True"
    assert not Path(found[0]).exists()


def divided(by: int, above: int) -> CompiledJob:
    """A job with an expression in a condition, and in a column."""
    job = clonos.Job("divided")
    stream: Any = job.source(clonos.sources.from_batches([], schema="n long"))
    n = Column("n", pa.int64())
    made = apply("IntegralDivide", [n, Constant(pa.scalar(by))], pa.int64())
    condition = apply("GreaterThan", [n, Constant(pa.scalar(above))], pa.bool_())
    operation = Where(condition)
    some = stream._like_this(stream._add("where", None, stream.schema, None, operation))
    projection = Projection(((pa.field("n", pa.int64()), made),))
    some._projected("select", Project(projection), None, None).sink(clonos.sinks.collect())
    return job.compile()


def test_an_expression_is_part_of_the_graph(tmp_path):
    directory(tmp_path).claim(divided(2, 5))
    directory(tmp_path).check(divided(2, 5))
    for other in (divided(3, 5), divided(2, 6)):
        with pytest.raises(OtherJob, match="another graph: tasks"):
            directory(tmp_path).check(other)


def test_the_same_graph_is_welcome(tmp_path):
    first = directory(tmp_path)
    first.check(compiled())
    first.claim(compiled())
    directory(tmp_path).check(compiled())
    assert (tmp_path / "job.json").stat().st_mode & 0o77 == 0, "others do not read keys in it"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"depth": 0}, "sharing_depth was 1, is 0"),
        ({"checkpoints": "uncoordinated"}, "say checkpoints='marked'"),
        ({"size": "6 seconds"}, r"operators.* was 5000, is 6000"),
        ({"name": "n"}, 'was "count_partial", is "n_partial"'),
    ],
)
def test_another_graph_is_refused(tmp_path, other, told):
    directory(tmp_path).claim(compiled())
    with pytest.raises(OtherJob, match=told) as caught:
        directory(tmp_path).check(compiled(**other))
    assert caught.value.remedy


def reading(source: Any) -> CompiledJob:
    job = clonos.Job("words", parallelism=1)
    job.source(source, name="clicks").sink(clonos.sinks.collect(), name="out")
    return job.compile()


def kafka(*topics: str) -> CompiledJob:
    return reading(clonos.sources.kafka("kafka:9092", topics, value="text"))


@pytest.mark.parametrize(
    ("was", "becomes", "read", "reads"),
    [
        (kafka("a", "b"), kafka("a", "c"), "a, b", "a, c"),
        (kafka("a"), kafka("a", "b"), "a", "a, b"),
    ],
)
def test_other_topics_are_refused_and_both_are_named(tmp_path, was, becomes, read, reads):
    directory(tmp_path).claim(was)
    directory(tmp_path).check(was)
    for version in (None, 0):
        with pytest.raises(OtherJob) as caught:
            directory(tmp_path).check(becomes, version)
        assert f"source clicks read {read}, and is to read {reads}:" in caught.value.what
        assert "upgrade=True lets you add to the list" in caught.value.remedy
        assert "a source of another name" in caught.value.remedy
    directory(tmp_path).check(becomes, is_upgrade=True)


def test_another_query_stream_or_subscription_is_refused(tmp_path):
    sources = clonos.sources
    pairs = [
        [sources.redis("redis://cache", name, schema="n long") for name in "ab"],
        [sources.mqtt("broker", name, client_id="job", value="text") for name in "ab"],
        [
            sources.postgres("dbname=x", f"select * from {name}", column="id", schema="n long")
            for name in "ab"
        ],
    ]
    for number, (was, becomes) in enumerate(pairs):
        place = tmp_path / str(number)
        directory(place).claim(reading(was))
        directory(place).check(reading(was))
        with pytest.raises(OtherJob, match=r"source clicks read .+, and is to read"):
            directory(place).check(reading(becomes))


def test_a_description_that_does_not_say_what_is_read_is_completed(tmp_path):
    directory(tmp_path).claim(kafka("a"))
    about = json.loads((tmp_path / "job.json").read_text())
    for task in about["graph"]["tasks"].values():
        task["source"] = task["source"] and ["kafka"]  # as earlier versions wrote it
    (tmp_path / "job.json").write_text(json.dumps(about))
    first = directory(tmp_path)
    for version in (None, 0):
        first.check(kafka("b"), version)
    assert first.is_same(kafka("b"), 0)
    first.claim(kafka("b"))
    with pytest.raises(OtherJob, match="read b, and is to read a"):
        directory(tmp_path).check(kafka("a"))


def test_other_files_are_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("to be\n")
    directory(tmp_path).claim(compiled(path=text))
    text.write_text("to be or not\n")
    with pytest.raises(OtherJob, match="source"):
        directory(tmp_path).check(compiled(path=text))


def test_unreadable(tmp_path):
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(UnreadableCheckpoint, match=r"job\.json"):
        directory(tmp_path).check(compiled())


def test_another_format_is_refused(tmp_path):
    directory(tmp_path).claim(compiled())
    file = tmp_path / "job.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 1}))
    with pytest.raises(UnreadableCheckpoint, match="format 1, this clonos reads") as caught:
        directory(tmp_path).check(compiled())
    assert "clonos that wrote it" in caught.value.remedy


def test_a_journal_of_nobody(tmp_path):
    with Journal(tmp_path / "journal") as journal:
        journal.append([b"a record"])
        journal.commit()
    with pytest.raises(UnreadableCheckpoint, match="missing"):
        directory(tmp_path).check(compiled())


def test_what_is_written_is_remembered(tmp_path):
    first = directory(tmp_path)
    first.claim(compiled())
    first.set_written("out", compiled())
    again = directory(tmp_path)
    again.check(compiled())
    assert again.is_written("out")
    assert not again.is_written("other")


def test_remote_checkpoints_need_a_local_journal(tmp_path):
    with pytest.raises(BadDirectory, match="give journal="):
        JobDirectory("s3://bucket/job", None, on_one_machine=False)
    mixed = JobDirectory("s3://bucket/job/", tmp_path, on_one_machine=False)
    assert mixed.layers_uri == f"s3://bucket/job/layers/{mixed.checkpoint_id}"
    assert mixed.root == str(tmp_path)


def test_file_uris_are_local():
    assert JobDirectory("file:///data/a%20b", None, on_one_machine=True).root == "/data/a b"


def test_scratch_folders_are_for_one_machine():
    with pytest.raises(BadDirectory, match="checkpoint_dir"):
        JobDirectory(None, None, on_one_machine=False)
    scratch = JobDirectory(None, None, on_one_machine=True)
    folder = Path(scratch.root)
    assert folder.is_dir()
    assert scratch.is_temporary
    del scratch
    assert not folder.exists()


def test_descriptions_are_plain_and_stable():
    one, two = (json.dumps(describe(compiled())) for _ in range(2))
    assert one == two
    assert not list(differences(json.loads(one), json.loads(two)))


def test_no_two_checkpoints_have_one_name(tmp_path):
    first = directory(tmp_path / "a")
    Path(first.root).mkdir()
    assert not first.is_temporary
    again, other = directory(tmp_path / "a"), directory(tmp_path / "b")
    assert first.checkpoint_id == again.checkpoint_id != other.checkpoint_id
    for uri in ("layers_uri", "spool_uri"):
        assert first.checkpoint_id in getattr(first, uri)


def two_journals(tmp_path):
    """Two drivers, each with a journal of its own, in one checkpoint_dir."""
    checkpoint = str(tmp_path / "checkpoint")
    for name in ("journal", "another"):
        made = JobDirectory(checkpoint, tmp_path / name, on_one_machine=True)
        made.check(compiled())
        yield made


def test_a_second_driver_with_a_journal_of_its_own_is_refused(tmp_path):
    """It used to write its layers over those of the first, and to delete its rows."""
    first, second = two_journals(tmp_path)
    assert first.begin_term(position=0, before=0) == 1
    with pytest.raises(OtherJournal, match="journal on") as caught:
        second.begin_term(position=0, before=0)
    assert "journal that" in caught.value.remedy
    assert first.rival() is None
    assert (first.layers_uri, first.spool_uri) != (second.layers_uri, second.spool_uri)


def test_the_second_driver_of_two_that_have_one_checkpoint_goes_on(tmp_path):
    """On another machine, with a copy of the journal: there the lock is free."""
    first = JobDirectory(str(tmp_path / "checkpoint"), tmp_path / "journal", on_one_machine=True)
    first.begin_term(position=5, before=0)
    shutil.copytree(tmp_path / "journal", tmp_path / "copy")
    second = JobDirectory(str(tmp_path / "checkpoint"), tmp_path / "copy", on_one_machine=True)
    assert second.begin_term(position=9, before=1) == 2
    assert second.rival() is None
    rival = first.rival()
    assert rival is not None
    assert rival.number == 2
    third = JobDirectory(str(tmp_path / "checkpoint"), tmp_path / "journal", on_one_machine=True)
    with pytest.raises(OtherJournal, match="old copy"):
        third.begin_term(position=8, before=1)


def test_a_folder_that_cannot_be_used_is_a_typed_error(tmp_path):
    (tmp_path / "terms").touch()
    with pytest.raises(BadDirectory, match="cannot be used"):
        directory(tmp_path).begin_term(position=0, before=0)


def test_a_file_in_its_place_is_a_typed_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadDirectory, match="is no folder"):
        directory(tmp_path / "file").read()


def test_what_is_no_journal_is_said_without_its_password(tmp_path):
    with pytest.raises(BadDirectory, match="cannot be kept in") as caught:
        JobDirectory(str(tmp_path), "postgresql+psycopg://me:secret@host/db", on_one_machine=True)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("journal", ["s3://", "file:///"])
def test_a_scheme_alone_is_no_place_for_a_journal(tmp_path, monkeypatch, journal):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadDirectory, match="cannot be kept in"):
        JobDirectory(str(tmp_path / "job"), journal, on_one_machine=True)
    assert not list(tmp_path.iterdir())


# --- another graph --------------------------------------------------------------------------------


def test_while_a_graph_is_replaced_the_journal_says_which_counts(tmp_path):
    before, after = compiled(), compiled(size="6 seconds")
    directory(tmp_path).claim(before)
    one = directory(tmp_path)
    one.check(after, is_upgrade=True)
    one.announce(after, 1)
    for graph, version in ((before, 0), (after, 1)):
        found = directory(tmp_path)
        found.check(graph)  # nobody has looked into the journal yet
        found.check(graph, version)
        assert found.is_same(graph, version)
        assert not found.is_same(graph, 1 - version)
        with pytest.raises(OtherJob, match="5000") as told:
            found.check(graph, 1 - version)
        assert "upgrade=True" in told.value.remedy


def test_once_the_new_graph_is_claimed_the_old_one_is_refused(tmp_path):
    before, after = compiled(), compiled(name="other")
    directory(tmp_path).claim(before)
    one = directory(tmp_path)
    one.check(after, is_upgrade=True)
    one.announce(after, 1)
    assert one.graph_before(1) is not None
    one.claim(after, 1)
    found = directory(tmp_path)
    found.check(after, 1)
    assert found.graph_before(1) is None
    assert found.retired(1) == ["count", "count_partial"]
    with pytest.raises(OtherJob):
        found.check(before)
    with pytest.raises(UnreadableCheckpoint, match="version 0"):
        found.check(after, 0)


def test_a_switch_that_was_not_made_is_forgotten(tmp_path):
    before, after = compiled(), compiled(name="other")
    directory(tmp_path).claim(before)
    one = directory(tmp_path)
    one.read()
    one.announce(after, 1)
    again = directory(tmp_path)
    again.check(before, 0)
    again.claim(before, 0)
    found = directory(tmp_path)
    with pytest.raises(OtherJob):
        found.check(after)
    assert found.retired(0) == []


def test_names_of_a_switch_that_was_not_made_are_forgotten(tmp_path):
    """Else the next change would take a state to have its name already, and begin it empty."""
    before, after, renamed = compiled(), compiled(name="other"), {("count", "total"): "sum"}
    directory(tmp_path).claim(before)
    one = directory(tmp_path)
    one.read()
    one.announce(after, 1, renamed=renamed)
    other = directory(tmp_path)
    other.read()
    other.announce(after, 1)
    other.claim(after, 1)
    found = directory(tmp_path)
    found.read()
    assert found.is_to_rename(renamed, 1)


def test_a_graph_that_was_never_claimed_is_replaced(tmp_path):
    """Its driver died after the switch. What the graph before it had is not forgotten."""
    first, second, third = (compiled(name=name) for name in ("one", "two", "three"))
    directory(tmp_path).claim(first)
    one = directory(tmp_path)
    one.read()
    one.announce(second, 1)
    other = directory(tmp_path)
    other.read()
    assert other.retired(1) == ["one", "one_partial"]
    other.announce(third, 2)
    other.claim(third, 2)
    found = directory(tmp_path)
    found.read()
    assert found.retired(2) == ["one", "one_partial", "two", "two_partial"]


def test_tables_that_a_graph_no_longer_writes_are_known_until_they_come_back(tmp_path):
    def writing(*names: str) -> CompiledJob:
        job = clonos.Job("tables")
        rows = job.source(clonos.sources.from_batches([], "n long"))
        for name in names:
            rows.sink(clonos.sinks.table(f"/data/{name}"), name=name)
        return job.compile()

    directory(tmp_path).claim(writing("a", "b", "c"))
    graphs = [("a",), ("d",), ("d", "a")]
    lefts = [["b", "c"], ["a", "b", "c"], ["b", "c"]]
    for version, (names, left) in enumerate(zip(graphs, lefts, strict=True), 1):
        one = directory(tmp_path)
        one.read()
        one.announce(writing(*names), version)
        if version != 2:  # else its driver dies before it has claimed it
            one.claim(writing(*names), version)
        found = directory(tmp_path)
        found.read()
        assert sorted(found.left(version)) == [[name, f"/data/{name}"] for name in left]


def test_a_table_that_cannot_be_ended_is_told_of(tmp_path):
    said: list[str] = []
    mine, other = Table(str(tmp_path / "mine")), Table(str(tmp_path / "other"))
    mine.create(pa.schema([("n", pa.int64())]), "job out")
    other.create(pa.schema([("n", pa.int64())]), "another out")
    places = [str(tmp_path / name) for name in ("mine", "other", "gone")]
    left = [["out", place] for place in [*places, "s3://***@bucket/x"]]
    end_left(left, "process", "job", said.append)
    assert (mine.ended, other.ended) == (True, False)
    (text,) = said
    assert "the table of out, a sink that the job no longer has" in text
    assert "s3://***@bucket/x: its keys are not known any more" in text
