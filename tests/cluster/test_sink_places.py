"""Places of sinks that are claimed for a change of the graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.cluster.sink_places import claimed, claims_of
from clonos.errors import CannotUpgrade, OutputExists
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe
from clonos.sinks.lanes import Output, OutputKey
from clonos.sinks.writers import folder_of
from clonos.upgrade.shape import Shape

OWNER = "the checkpoint"


def job(out: str, *more: Path) -> CompiledJob:
    made = clonos.Job("job")
    rows = made.source(clonos.sources.from_batches([], "n long"), name="rows")
    rows.sink(clonos.sinks.parquet(out), name="out")
    for number, path in enumerate(more):
        rows.sink(clonos.sinks.parquet(str(path)), name=f"more {number}")
    return made.compile()


def begin(compiled: CompiledJob, *, is_new: bool) -> None:
    schemas = {name: schema for name, (_, schema) in compiled.sinks.items()}
    claims_of(compiled, "process", OWNER).begin(schemas, is_new=is_new)


def test_a_change_that_is_refused_gives_up_what_it_has_claimed_and_nothing_else(tmp_path):
    """A place with another spelling is still the place of the job as it was."""
    before, now = job(f"{tmp_path}/out"), job(f"{tmp_path}/./out", tmp_path / "more")
    begin(before, is_new=True)
    graph = json.loads(json.dumps(describe(before)))

    def is_refused() -> None:
        with claimed(Shape(graph), graph, now, "process", OWNER):
            assert (tmp_path / "more" / "_owner").exists()
            raise CannotUpgrade("its state does not fit")

    with pytest.raises(CannotUpgrade):
        is_refused()
    assert not (tmp_path / "more" / "_owner").exists()
    begin(before, is_new=False)


def changed(before: CompiledJob, now: CompiledJob) -> None:
    graph = json.loads(json.dumps(describe(before)))
    with claimed(Shape(graph), graph, now, "process", OWNER):
        pass


def test_a_table_keeps_its_columns(tmp_path):
    """Its readers know no others."""

    def job(columns: str, folder: str = "out") -> CompiledJob:
        made = clonos.Job("job")
        rows = made.source(clonos.sources.from_batches([], columns), name="rows")
        rows.sink(clonos.sinks.table(str(tmp_path / folder)), name="out")
        rows.sink(clonos.sinks.parquet(str(tmp_path / "files")), name="files")
        return made.compile()

    before = job("n long")
    begin(before, is_new=True)
    changed(before, job("n long"))
    for columns in ("n string", "m long", "n long, m long", "n long not null"):
        with pytest.raises(CannotUpgrade, match="has the columns n long, and rows would have"):
            changed(before, job(columns))
        changed(before, job(columns, columns))


@pytest.mark.parametrize("made", [clonos.sinks.parquet, clonos.sinks.table])
def test_a_sink_that_was_removed_comes_back_to_its_place(tmp_path, made):
    """Under its own name. What it had put out stays, and has an earlier generation."""
    sink = made(str(tmp_path / "out"))

    def graph(*names: str) -> CompiledJob:
        job = clonos.Job("job")
        rows = job.source(clonos.sources.from_batches([], "n long"), name="rows")
        rows.sink(clonos.sinks.collect(), name="all")
        for name in names:
            rows.sink(sink, name=name)
        return job.compile()

    def put(generation: int) -> None:
        batch = pa.RecordBatch.from_pydict({"n": [generation]}, graph("out").sinks["out"][1])
        writer: Any = folder_of(sink, "process")
        writer.write([Output(OutputKey(generation, 1), batch)])

    def change(now: CompiledJob) -> None:
        before = json.loads(json.dumps(describe(graph())))
        with claimed(Shape(before), before, now, "process", OWNER):
            pass
        schemas = {name: schema for name, (_, schema) in now.sinks.items()}
        claims = claims_of(now, "process", OWNER)  # after the switch
        claims.begin(schemas, is_new=False, added=[*now.sinks])

    begin(graph("out"), is_new=True)
    put(0)
    with pytest.raises(OutputExists, match="belongs to 'out', another sink that this job has or"):
        change(graph("other"))
    change(graph("out"))
    put(2)
    assert len([*(tmp_path / "out").rglob("*0002*")]) == 1
    with pytest.raises(OutputExists, match="another job's"):
        claims_of(graph("out"), "process", "another").begin(
            {"out": pa.schema([])}, is_new=False, added=["out"]
        )
