"""What a step costs: Python calls, messages and steps, none of which depends on the machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.plan import HOUSE_KEEPER, Incarnation
from clonos_bench import bare
from clonos_bench.bare import BareJob

ROWS = 500
BATCHES = 60
CALLS_MAX = {"source[0]": 75, "window_partial[0]": 205, "window[0]": 215, "sink[0]": 95}
"""Python calls per step, operators included, of a batch of 500 rows with the watermark behind it.
What comes in with a step costs, too; that is not counted."""


def run(depth: Any = "full", *, batches_per_turn: int = 1) -> tuple[BareJob, Counter[str]]:
    """A source with watermarks, windows by key, a sink; so many batches, then a turn of each."""
    job = bare.windows(depth)
    return bare.run(job, batches=BATCHES, rows=ROWS, batches_per_turn=batches_per_turn)


@pytest.fixture(scope="module")
def costs() -> dict[Any, tuple[BareJob, Counter[str]]]:
    return {depth: run(depth) for depth in ("full", 1, 0)}


@pytest.mark.parametrize("depth", ["full", 1, 0])
def test_a_watermark_takes_no_step_of_its_own(costs, depth):
    _, steps = costs[depth]
    assert set(steps.values()) == {BATCHES}


@pytest.mark.parametrize("depth", ["full", 1, 0])
@pytest.mark.parametrize("task", CALLS_MAX)
def test_a_step_makes_no_more_python_calls_than_it_did(costs, task, depth):
    ran, steps = costs[depth]
    assert ran.cost[task] / steps[task] <= CALLS_MAX[task]


def test_with_full_depth_nothing_is_sent_but_items(costs):
    ran, _ = costs["full"]
    (sink,) = [c for c in ran.plan.channels if c.receiver == HOUSE_KEEPER]
    assert ran.sent[sink.id] == ran.machines[sink.sender].outputs[sink.id].log.last


def test_logs_that_only_the_house_keeper_gets_are_sent_once_a_turn():
    ran, steps = run(1, batches_per_turn=10)
    logs = [c for c in ran.plan.channels if c.receiver == HOUSE_KEEPER][:-1]
    assert logs
    for channel in logs:
        name = ran.plan.tasks[channel.sender].name
        assert steps[name] > 3 * ran.sent[channel.id], name
    held = ran.keeper
    for machine in ran.machines.values():
        assert held.length(machine.id) <= machine.position
        assert held.length(machine.id) == machine.position or machine.spec.is_sink


def test_a_gated_source_puts_down_what_it_has_read_at_the_end_of_the_turn():
    job = clonos.Job(parallelism=1)
    lines = job.source(clonos.sources.socket_lines("localhost", 1), name="source")
    lines.start_new_chain().sink(clonos.sinks.collect(), name="sink")
    compiled = job.compile()
    assert compiled.codes[0].source is not None
    ran, schema = BareJob(compiled), compiled.codes[0].source.schema
    source = ran.machines[0]
    assert source.spec.is_gated
    for number in range(BATCHES):
        columns = [pa.array([str(number)]).cast(field.type) for field in schema]
        batch = seal(pa.RecordBatch.from_arrays(columns, schema=schema))
        source.handle(ev.SourceRows(batch, str(number).encode(), 1))
    (to_keeper,) = [c for c, end in source.outputs.items() if end.to_world]
    (to_sink,) = [end for end in source.outputs.values() if not end.to_world]
    assert ran.steps(0) == BATCHES
    assert ran.keeper.length(0) == BATCHES
    assert ran.sent[to_keeper] == 1
    assert to_sink.log.cursor == BATCHES + 1  # all let out by the one acknowledgement


def test_a_fenced_task_sends_no_logs():
    ran, _ = run(0, batches_per_turn=BATCHES + 1)
    task = ran.machines[0]
    assert task.step() is not None
    task.handle(msg.Fence(0, Incarnation(1, 1)))
    assert task.flush() == []
