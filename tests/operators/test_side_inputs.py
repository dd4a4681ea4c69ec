"""Looking up in a table that changes: every row sees one version, in a replay the same one."""

from __future__ import annotations

import pickle
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.columns.batches import to_bytes
from clonos.errors import BadGraph, ProtocolError, UnknownColumn, WrongType
from clonos.operators.by_key.look_up import VERSIONS, SideTable
from clonos.testing import Batches, End, Source, StepHarness, Watermark, check_restore, rows
from clonos.testing.harness import Event
from tests.simulated import delivered

TABLE = pa.schema([("id", pa.int64()), ("label", pa.string())])
IDS = range(3)


def table(version):
    """Keys come and go from version to version."""
    there = [i for i in IDS if (i + version) % 4]
    return pa.RecordBatch.from_pydict(
        {"id": there, "label": [f"{i} in version {version}" for i in there]}, schema=TABLE
    )


def version_row(version):
    return pa.RecordBatch.from_pydict(
        {"version": [version], "table": [to_bytes(table(version))]}, schema=VERSIONS
    )


def looked_up(how="left", **settings):
    """A job, and the code of its look-up with the first version shipped, as the driver does it."""
    job = clonos.Job(**settings)
    stream = job.source(clonos.sources.from_batches([], "k long"), name="in")
    stream.look_up(lambda: table(0), {"k": "id"}, how=how, refresh="1 second", name="op").sink(
        clonos.sinks.collect()
    )
    compiled = job.compile()
    code = next(code for code in compiled.codes if code.task.operator == "op")
    return compiled, replace(code, operators=(("op", shipped(code.operators[0][1])),))


def shipped(operation: Any) -> Any:
    return operation.showing(table(0))


def expected(keys, version, how):
    labels = dict(rows(table(version)))
    found = [(key, labels.get(key)) for key in keys]
    return found if how == "left" else [pair for pair in found if pair[1] is not None]


scripts = st.lists(
    st.one_of(
        st.lists(st.sampled_from([*IDS, 9]), min_size=1, max_size=4),
        st.integers(1, 9),
        st.just("mark"),
    ),
    max_size=12,
)


@settings(max_examples=80)
@given(scripts, st.sampled_from(["inner", "left"]))
def test_rows_see_the_version_that_came_before_them(script, how):
    _, code = looked_up(how)
    main, side = code.task.inputs
    version, wanted = 0, []
    events: list[Event] = []
    for number, item in enumerate(script):
        if isinstance(item, list):
            batch = pa.RecordBatch.from_pydict({"k": item}, schema=pa.schema([("k", pa.int64())]))
            events.append(Batches(main, (batch,)))
            wanted += expected(item, version, how)
        elif item == "mark":
            events.append(Watermark(main, 100 + number))
        else:
            version = item
            events.append(Batches(side, (version_row(version),)))
    events += [End(side), End(main)]
    outputs = check_restore(code.program, events)
    found = [row for step in outputs for batch in step.batches.values() for row in rows(batch)]
    assert found == wanted


def test_event_time_does_not_wait_for_versions():
    compiled, code = looked_up()
    source = next(c for c in compiled.codes if c.task.operator == "op.table")
    step = StepHarness(source.program()).feed(Source(version_row(0)))
    (idle,) = step.watermarks.values()
    main, side = code.task.inputs
    harness = StepHarness(code.program())
    assert not harness.watermark(main, 50).watermarks  # not a word from the other side yet
    assert set(harness.watermark(side, idle).watermarks.values()) == {50}
    assert set(harness.watermark(main, 70).watermarks.values()) == {70}


def test_every_task_gets_every_version():
    compiled, _ = looked_up(parallelism=3)
    tasks = [code for code in compiled.codes if code.task.operator == "op"]
    (versions,) = (code for code in compiled.codes if code.task.operator == "op.table")
    assert len(tasks) == len(versions.task.outputs) - _to_house_keeper(compiled, versions) == 3
    assert versions.source is not None
    assert versions.source.refresh_ms == 1000


def _to_house_keeper(compiled, code):
    receivers = [compiled.plan.channels[c].receiver for c in code.task.outputs]
    return sum(receiver < 0 for receiver in receivers)


def test_without_the_driver_there_is_no_table():
    compiled, _ = looked_up()
    code = next(code for code in compiled.codes if code.task.operator == "op")
    with pytest.raises(ProtocolError, match="has not been read"):
        StepHarness(code.program()).input(code.task.inputs[0], [(1,)], "k long")


def killed(seed):
    random = Random(seed)
    depth: Any = random.choice((0, 1, 2, "full"))
    job = clonos.Job("side", parallelism=2, sharing_depth=depth)
    batches = [[(i % 4,)] for i in range(60)]
    stream = job.source(clonos.sources.from_batches(batches, "k long"), name="in")
    stream.key_by("k").look_up(
        lambda: table(0), {"k": "id"}, how="left", refresh="1 second", name="op"
    ).sink(clonos.sinks.collect(), name="out")
    # The versions come from a reader that replays, as they do from the spool.
    vertices = {vertex.name: vertex for vertex in job._graph.vertices}
    given_versions = clonos.sources.from_batches([version_row(v) for v in range(1, 8)], VERSIONS)
    vertices["op.table"].source.__dict__["factory"] = given_versions.factory
    vertices["op"].__dict__["operation"] = shipped(vertices["op"].operation)
    return delivered(job, seed, random, rows_at_once=3)


def test_under_kills_the_versions_are_those_of_the_log():
    """That replays see the same ones is the invariant of equivalence; here, that they change."""
    deaths, versions = 0, set()
    for seed in range(12):
        table, died = killed(seed)
        deaths += died
        found = rows(table)
        assert sorted(key for key, _ in found) == sorted(i % 4 for i in range(60))
        for key, label in found:
            assert label is None or label.startswith(f"{key} in version ")
            versions.add(label and label.rpartition(" ")[2])
    assert deaths
    assert len(versions) > 2


def test_a_side_table_stays_in_the_driver():
    side = SideTable(lambda: table(3), TABLE)
    assert side.read().equals(table(3))
    shipped = pickle.loads(pickle.dumps(side))
    assert shipped.schema == TABLE
    with pytest.raises(ValueError, match="columns"):
        SideTable(lambda: pa.table({"other": [1]}), TABLE).read()


@pytest.mark.parametrize(
    ("given_table", "options", "error", "match"),
    [
        (table(0), {"refresh": "1 second"}, WrongType, "does not change"),
        (lambda: [1], {}, WrongType, "list is not a table"),
        (lambda: table(0), {"refresh": "soon"}, clonos.errors.BadDuration, "soon"),
        (lambda: pa.table({"id": [1], "k": [2]}), {}, BadGraph, "both sides"),
        (lambda: pa.table({"x": [1]}), {}, UnknownColumn, "id"),
    ],
)
def test_what_is_refused(given_table, options, error, match):
    stream = clonos.Job().source(clonos.sources.from_batches([], "k long"))
    with pytest.raises(error, match=match):
        stream.look_up(given_table, {"k": "id"}, **options)
