"""Places of sinks that are claimed for a change of the graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import clonos
from clonos.cluster.sink_places import claimed, claims_of
from clonos.errors import CannotUpgrade
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe
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
