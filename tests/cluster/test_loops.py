"""Loops on Spark: what goes round survives the tasks that it goes through."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos
from clonos.errors import NothingToReplay, NotInSpark
from examples.loops import reachability, retries

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(reachability)
cloudpickle.register_pickle_by_value(retries)
ROWS = 2_000
NODES = 150
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


def edge(at: Any) -> reachability.Edge:
    """The edge of a row, by its number."""
    number = int(at.timestamp() * 100)
    return number * 7919 % NODES, "edge", number * number * 31 % NODES


@pytest.mark.parametrize("checkpoints", ["marked", "uncoordinated"])
def test_tasks_of_a_loop_are_killed(kit, spark, tmp_path, checkpoints):
    """One, the other, and both at once, each with all that shares its slot; again in a replay."""
    settings = {"parallelism": 2, "checkpoint_interval": "300 ms", "checkpoints": checkpoints}
    job = clonos.Job("reachability", **settings)
    events = job.source(
        kit.gated(tmp_path, ROWS), name="events", parallelism=1, rows_per_second=400.0
    )
    reachability.closure(job, events.map(lambda row: edge(row.at), reachability.EDGES, name="edge"))
    running = job.start(spark)
    for victims in (["node[0]"], ["node[1]"], ["node[0]", "node[1]"]):
        kit.wait_quiet(running)
        before = len(running.observer.recoveries)
        lost = {name for slot in running.slots() for name in slot.runs if {*victims} & {*slot.runs}}
        kit.kill(running, *victims)
        kit.wait_recovered(running, before + len(lost))
        assert {r.name for r in running.observer.recoveries[before:]} >= set(victims)
    kit.open_tap(tmp_path)
    result = running.wait(kit.WAIT_S)
    assert result.is_complete
    edges = [edge(kit.row(i)[0]) for i in range(ROWS)]
    found = reachability.pairs(result.table())
    assert len(found) == len(set(found))
    assert set(found) == reachability.recomputed(edges)


def test_it_stops_and_goes_on(kit, spark, tmp_path):
    """`stop(settle=)` waits for floors with all that goes round; the next start goes on there."""
    job = clonos.Job(
        "reachability", parallelism=2, checkpoint_dir=str(tmp_path / "job"),
        checkpoint_interval="200 ms",
    )  # fmt: skip
    events = job.source(kit.gated(tmp_path, 600), name="events", parallelism=1)
    reachability.closure(job, events.map(lambda row: edge(row.at), reachability.EDGES, name="edge"))
    running = job.start(spark)
    kit.wait_quiet(running)
    assert running.stop(settle="60 seconds")
    kit.open_tap(tmp_path)
    with pytest.raises(NothingToReplay, match="a job with a loop"):
        clonos.Replay(job)
    result = job.run(spark)
    found = reachability.pairs(result.table())
    assert len(found) == len(set(found))
    assert set(found) == reachability.recomputed(edge(kit.row(i)[0]) for i in range(600))


def test_retries_that_still_wait_when_input_has_ended(spark):
    """A timer within a loop holds it open."""
    batches = [[(n, 1) for n in range(first, first + 20)] for first in range(0, 100, 20)]
    source = clonos.sources.from_batches(batches, retries.ORDERS)
    result = retries.build(source, parallelism=2).run(spark)
    assert retries.done(result.table()) == retries.expected(100)


def test_spark_itself_runs_no_loops(spark):
    job = reachability.build(clonos.sources.from_batches([], reachability.EDGES))
    with pytest.raises(NotInSpark, match="only tasks run loops"):
        job.run(spark, execution="spark")
