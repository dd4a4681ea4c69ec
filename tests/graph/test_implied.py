"""Which tasks share no log: inferred, declared, and what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.api.streams import Stream
from clonos.columns.formula import Apply, Called, Column
from clonos.errors import OtherJob, WrongType
from clonos.graph.description import describe, require_same
from clonos.operators import operations as op
from clonos.operators.stateless.columns import Projection
from clonos.upgrade.shape import Shape

SCHEMA = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])


def job_of(build: Any, log: Any = "needed", parallelism: int = 1, **settings: Any) -> clonos.Job:
    job = clonos.Job("implied", log=log, parallelism=parallelism, **settings)
    rows = job.source(clonos.sources.from_batches([], SCHEMA), name="rows")
    build(rows).start_new_chain().sink(clonos.sinks.collect(), name="out")
    return job


def implied(job: clonos.Job) -> set[str]:
    return {task.operator for task in job.compile().plan.tasks if task.is_implied}


def apart(build: Any) -> Any:
    return lambda rows: build(rows.start_new_chain())


def last(rows: Any) -> Any:
    return rows.key_by("n").last(3, mean=clonos.avg("n"), name="it")


def window(rows: Any, **on: Any) -> Any:
    windowed = rows.with_watermark("t", "1 s").key_by("n").window(clonos.tumbling("1 s", **on))
    return windowed.agg(name="it", count=clonos.count())


def _projected(rows: Any) -> Any:
    """As a UDF is read: Spark says that it is deterministic, the user has not."""
    made = Called("half", lambda n: n // 2, 101, (Column("n", pa.int64()),), pa.int64())
    projection = Projection(
        ((pa.field("half", pa.int64()), Apply("Abs", (made,), pa.int64(), "", False)),)
    )
    vertex = rows._add("select", "it", projection.schema, None, op.Project(projection))
    return Stream(rows._job, vertex)


DETERMINISTIC = {
    "map": apart(lambda rows: rows.map(lambda r: r.n, "n long", deterministic=True, name="it")),
    "filter": apart(lambda rows: rows.filter(lambda r: r.n, deterministic=True, name="it")),
    "batches": apart(lambda rows: rows.map_batches(lambda b: b, deterministic=True, name="it")),
    "flat": apart(lambda r: r.flat_map(lambda r: [r.n], "n long", deterministic=True, name="it")),
    "column": apart(
        lambda rows: rows.with_column("m long", lambda n: n, "n", deterministic=True, name="it")
    ),
    "last": last,
    "window": lambda rows: window(rows, on="t"),
}
ASKING = {
    "map": apart(lambda rows: rows.map(lambda r: r.n, "n long", name="it")),
    "window in processing time": window,
    "udf in an expression": lambda rows: _projected(rows.start_new_chain()),
    "idle": apart(lambda rows: rows.with_watermark("t", "1 s", idle_after="1 s", name="it")),
    "union": lambda rows: rows.start_new_chain().union(rows, name="it"),
}


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_what_follows_from_one_input_needs_no_log(name):
    assert "it" in implied(job_of(DETERMINISTIC[name]))
    assert not implied(job_of(DETERMINISTIC[name], "everything"))


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_for_more_keeps_its_log(name):
    assert "it" not in implied(job_of(ASKING[name]))


def test_the_order_of_several_inputs_is_logged():
    assert "it" not in implied(job_of(last, parallelism=2))


def test_sources_and_chains_with_one_operator_that_asks_keep_theirs():
    def build(rows: Any) -> Any:
        declared = rows.map(lambda r: r.n, "n long", deterministic=True, name="first")
        apart = declared.start_new_chain().map(lambda r: r.n, "n long", deterministic=True)
        return apart.map(lambda r: r.n, "n long", name="it")

    assert implied(job_of(build)) == {"out"}


def test_when_bad_records_are_found_is_logged():
    job = job_of(DETERMINISTIC["map"], on_bad_record="keep")
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    assert implied(job) == set()


def test_explain_says_it():
    lines = job_of(DETERMINISTIC["map"]).explain().splitlines()
    assert "none: it follows from the input" in next(line for line in lines if "it " in line)
    assert "cuts of input" in next(line for line in lines if line.startswith("rows"))


@pytest.mark.parametrize(
    "settings",
    [{"guarantee": "at_least_once"}, {"on_orphan": "availability"}, {"history": "1 hour"}],
)
def test_settings_that_need_all_logs_are_refused(settings):
    with pytest.raises(WrongType, match="log='needed' with"):
        clonos.Job(log="needed", **settings)
    with pytest.raises(WrongType, match="log='some'"):
        clonos.Job(log="some")  # type: ignore[arg-type]


def test_a_checkpoint_knows_it():
    build = DETERMINISTIC["map"]
    before, now = (job_of(build, log).compile() for log in ("everything", "needed"))
    with pytest.raises(OtherJob, match=r"it\[0\].implied was nothing, is true"):
        require_same(describe(before), describe(now), "here")
    for compiled in (before, now):
        tasks = Shape(describe(compiled)).plan.tasks
        assert [t.is_implied for t in tasks] == [t.is_implied for t in compiled.plan.tasks]
