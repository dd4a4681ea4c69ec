"""Tasks of real operators that share no log, in a cluster that fails."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

import clonos
from clonos.testing import SimulationFailed, simulate

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ROWS = [(f"user {n * n % 4}", n, START + timedelta(seconds=n - n % 3)) for n in range(14)]
SCHEMA = "user string, cents long, at timestamp"


def source(**settings):
    job = clonos.Job("implied", log="needed", **settings)
    return job, job.source(clonos.sources.kafka("broker:9092", "rows", schema=SCHEMA), name="rows")


def many(**settings):
    """All operators that are known to be deterministic, and declared functions, each in a task of
    its own; two streams leave one of them."""
    job, rows = source(**settings)
    names = pa.table({"user": ["user 0", "user 1"], "name": ["Ada", "Bo"]})
    timed = rows.start_new_chain().with_watermark("at", "2 s", name="timed")
    known = timed.start_new_chain().look_up(names, on="user", how="left", name="known")
    once = known.key_by("user", "cents").deduplicate("1 minute", "at", name="once")
    ordered = once.key_by("user").in_order("at", name="ordered")
    doubled = ordered.start_new_chain().map(
        lambda row: (row.user, row.cents * 2, row.at),
        SCHEMA,
        deterministic=True,
        name="doubled",
    )
    recent = doubled.key_by("user").last(3, name="recent", sum=clonos.sum("cents"))
    recent.start_new_chain().sink(clonos.sinks.collect(), name="out")
    fixed = doubled.key_by("user").window(clonos.tumbling("4 s", on="at"))
    fixed.agg(name="sums", n=clonos.count()).sink(clonos.sinks.collect(), name="sums out")
    visits = doubled.key_by("user").window(clonos.session("3 s", on="at"))
    visits.agg(name="visits", n=clonos.count()).sink(clonos.sinks.collect(), name="visits out")
    best = doubled.window(clonos.tumbling("4 s", on="at")).top(1, "cents", name="best")
    best.sink(clonos.sinks.collect(), name="best out")
    return job


def test_most_of_its_tasks_are_implied():
    plan = many().compile().plan
    assert {task.operator for task in plan.tasks if not task.is_implied} == {"rows"}
    assert len(plan.tasks) > 10


@pytest.mark.parametrize("checkpoints", ["marked", "uncoordinated"])
def test_real_operators_compute_again_whatever_dies(checkpoints):
    done = simulate(many(checkpoints=checkpoints), ROWS, seeds=5, same_rows=True)
    assert done.deaths
    assert done.outputs["out"].num_rows == len(ROWS)


def test_a_process_dies_after_each_step():
    job = declared(lambda row: row.cents)
    done = simulate(job, ROWS[:3], seeds=1, every_step=True, same_rows=True)
    assert done.deaths >= done.runs - 1, "the last step may end the job"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("checkpoints", ["marked", "uncoordinated"])
def test_real_operators_compute_again_whatever_dies_many_more_times(checkpoints):
    job = many(checkpoints=checkpoints)
    simulate(job, ROWS, seeds=200, same_rows=True)
    simulate(job, ROWS, seeds=2, every_step=True, same_rows=True)


def declared(fn):
    job, rows = source()
    made = rows.start_new_chain().map(fn, "cents long", deterministic=True, name="declared")
    made.start_new_chain().sink(clonos.sinks.collect(), name="out")
    return job


WRONG = {
    "draws": (lambda row: row.cents + random.randrange(1000), "declared"),
    "asks": (lambda row, ctx: ctx.clock.now_ms(), "reads the clock"),
}


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_declaration_is_found(which):
    fn, said = WRONG[which]
    with pytest.raises(SimulationFailed, match=said):
        simulate(declared(fn), ROWS, seeds=20)
