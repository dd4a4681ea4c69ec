"""Feedback: what a loop gives, and what is refused where it is defined."""

from __future__ import annotations

from typing import Any

import pytest

import clonos
from clonos.columns.schema import parse_schema
from clonos.errors import BadGraph, WrongType
from clonos.graph.description import describe
from clonos.testing import InMemoryRun
from examples.loops import reachability, retries


def numbers(**settings: Any) -> tuple[clonos.Job, Any, Any]:
    """A job, a stream and a feedback of the same rows."""
    job = clonos.Job("loop", **settings)
    rows = job.source(clonos.sources.from_batches([[(3,), (1,)]], "n long"), name="numbers")
    return job, rows, job.feedback("n long", name="again")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("parallelism", [1, 3])
def test_reachability(seed, parallelism):
    edges = reachability.random_edges(60, 40, seed)
    source = clonos.sources.from_batches(
        [edges[i : i + 7] for i in range(0, 60, 7)], reachability.EDGES
    )
    job = reachability.build(source, parallelism=parallelism)
    found = InMemoryRun(job.compile(), seed=seed, batch_rows=5, restore=0.2).run()["pairs"]
    assert reachability.pairs(found) == sorted(reachability.recomputed(edges))


@pytest.mark.parametrize("seed", range(4))
def test_retries_wait_for_their_timers(seed):
    source = clonos.sources.from_batches([[(n, 1) for n in range(40)]], retries.ORDERS)
    run = InMemoryRun(retries.build(source, parallelism=2).compile(), seed=seed, restore=0.2)
    assert retries.done(run.run()["orders done"]) == retries.expected(40)


def test_event_time_does_not_wait_for_feedback():
    """Watermarks are those of what comes from outside: a window behind a loop is over in time."""
    job = clonos.Job("times")
    schema = "at timestamp, n long"
    rows = job.source(clonos.sources.from_batches([], schema)).with_watermark("at", "0 seconds")
    again = job.feedback(schema)
    less = rows.union(again, name="enter").filter(lambda row: row.n >= 0, name="all")
    again.feed(less.filter(lambda row: False, name="none"))
    less.sink(clonos.sinks.collect())
    codes = {code.task.operator: code for code in job.compile().codes}
    (code,) = [code for code in codes.values() if code.feedback]
    harness = clonos.testing.StepHarness(code.program())
    (outside,) = set(code.task.inputs) - set(code.feedback)
    output = harness.feed(clonos.testing.Watermark(outside, 1000))
    assert set(output.watermarks.values()) == {1000}


def test_rows_that_enter_behind_the_head_share_its_loop():
    """A task that reads nothing but feedback is in the loop, too."""
    job, rows, again = numbers()
    halved = again.map(lambda row: row.n // 2, "n long", name="head")
    seen = rows.union(halved, name="enter")
    again.feed(seen.filter(lambda row: row.n > 0, name="positive"))
    seen.sink(clonos.sinks.collect())
    compiled = job.compile()
    (head,) = [task for task in compiled.plan.tasks if task.operator == "head"]
    assert all(compiled.plan.channels[c].is_feedback for c in head.inputs)
    assert sorted(InMemoryRun(compiled).run()["collect"].column("n").to_pylist()) == [0, 0, 1, 1, 3]


def test_never_fed():
    job, rows, again = numbers()
    rows.union(again).sink(clonos.sinks.collect())
    with pytest.raises(BadGraph, match="again: nothing is fed back"):
        job.compile()


def test_fed_twice():
    _, rows, again = numbers()
    stream = rows.union(again)
    again.feed(stream)
    with pytest.raises(BadGraph, match="already fed"):
        again.feed(stream)


def test_other_columns():
    _, rows, again = numbers()
    with pytest.raises(WrongType, match=r"\(m\) are fed back"):
        again.feed(rows.union(again).map(lambda row: row.n, "m long"))


@pytest.mark.parametrize("seed", range(4))
def test_what_may_not_be_null_is_fed_back_where_it_may(seed):
    """What keeps rows in the loop gets them all with the declared columns."""
    job = clonos.Job("loop", parallelism=2)
    rows = job.source(clonos.sources.from_batches([[(3,), (6,)]], "n long not null"), name="rows")
    again = job.feedback("n long", name="again")
    new = rows.union(again).key_by("n").deduplicate()
    less = new.map(lambda row: row.n - 1, "n long not null", name="less")
    again.feed(less.filter(lambda row: row.n >= 0).key_by("n"))
    new.sink(clonos.sinks.collect(), name="out")
    found = InMemoryRun(job.compile(), seed=seed, restore=0.3).run()["out"]
    assert found.schema.equals(parse_schema("n long"))
    assert sorted(found.column("n").to_pylist()) == [0, 1, 2, 3, 4, 5, 6]


def test_what_may_be_null_is_not_fed_back_where_it_may_not():
    job = clonos.Job("loop")
    rows = job.source(clonos.sources.from_batches([[(3,)]], "n long not null"), name="rows")
    again = job.feedback("n long not null", name="again")
    with pytest.raises(WrongType, match=r"null is fed back.*leave NOT NULL out"):
        again.feed(rows.union(again).map(lambda row: row.n, "n long"))


def test_a_stream_of_another_job():
    _, _, again = numbers()
    _, other, _ = numbers()
    with pytest.raises(BadGraph, match="another job"):
        again.feed(other)


def test_it_closes_no_loop():
    job, rows, again = numbers()
    again.map(lambda row: row.n, "n long", name="behind").sink(clonos.sinks.collect())
    again.feed(rows.filter(lambda row: row.n > 0, name="before"))
    with pytest.raises(BadGraph, match="between 'numbers', 'behind' closes no loop"):
        job.compile()


def test_nothing_comes_in():
    job, _, again = numbers()
    less = again.map(lambda row: row.n - 1, "n long", name="less")
    again.feed(less.filter(lambda row: row.n > 0, name="positive"))
    less.sink(clonos.sinks.collect())
    with pytest.raises(BadGraph, match=r"no rows come into the loop of .*'less'"):
        job.compile()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"guarantee": "at_least_once"}, "exactly_once"),
        ({"on_orphan": "availability"}, "consistency"),
        ({"history": "1 hour"}, "history"),
    ],
)
def test_settings_that_do_not_go_with_loops(settings, said):
    job, rows, again = numbers(**settings)
    less = rows.union(again).map(lambda row: row.n - 1, "n long")
    again.feed(less.filter(lambda row: row.n > 0))
    less.sink(clonos.sinks.collect())
    with pytest.raises(BadGraph, match=said):
        job.compile()


def test_no_windows_within_a_loop():
    job, rows, again = numbers()
    counted = (
        rows.union(again)
        .key_by("n")
        .window(clonos.tumbling("1 second"))
        .agg(name="counted", rows=clonos.count())
    )
    again.feed(counted.map(lambda row: row.n, "n long"))
    counted.sink(clonos.sinks.collect())
    with pytest.raises(BadGraph, match="counted: windows, joins"):
        job.compile()


def test_the_checkpoint_knows_the_edge():
    job, rows, again = numbers()
    less = rows.union(again, name="enter").map(lambda row: row.n - 1, "n long", name="less")
    again.feed(less.filter(lambda row: row.n > 0, name="positive"))
    less.sink(clonos.sinks.collect())
    channels = describe(job.compile())["channels"]
    assert [c for c in channels if "feedback" in c] == [["positive[0]", "enter[0]", 1, "feedback"]]
    assert "what comes round" in job.explain()
