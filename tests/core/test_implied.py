"""Tasks whose logs are left out: the plan, their steps, and who is named in others' logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clonos.core.cuts import dependencies_of, valid_length
from clonos.core.determinants import Order, encode_record
from clonos.core.inflight import InFlightLog
from clonos.core.messages import Dependency, Kind, Run
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec
from clonos.core.step import ImpliedStep, RunningStep, kind_of_step
from clonos.errors import BadGraph, Divergence

FIRST, SECOND = Incarnation(1, 0), Incarnation(1, 1)


def chain(*implied: int, depth: int = 9, **settings) -> Plan:
    """Source -> a -> b -> sink, in a row."""
    tasks = [
        TaskSpec(0, "source[0]", "source", 0, (), (0,), is_source=True),
        TaskSpec(1, "a[0]", "a", 0, (0,), (1,)),
        TaskSpec(2, "b[0]", "b", 0, (1,), (2,)),
        TaskSpec(3, "sink[0]", "sink", 0, (2,), (3,), sink="sink"),
    ]
    channels = [*(ChannelSpec(n, n, n + 1) for n in range(3)), ChannelSpec(3, 3, HOUSE_KEEPER)]
    of_plan = tuple(replace(t, is_implied=t.id in implied) for t in tasks)
    return Plan(of_plan, tuple(channels), depth, **settings)


def test_what_comes_on_a_channel_is_said_by_the_nearest_log_above():
    assert chain().makers == (0, 1, 2, 3)
    assert chain(1).makers == (0, 0, 2, 3)
    assert chain(1, 2, 3).makers == (0, 0, 0, 0)


def test_a_log_that_is_left_out_travels_nowhere_and_those_of_others_pass_through():
    plan = chain(1, 2)
    assert [plan.forwarded_logs(channel) for channel in plan.channels] == [(0,), (0,), (0,), (0, 3)]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_implied_task_counts_as_a_holder_of_others_logs(depth):
    logged, plan = chain(depth=depth), chain(1, depth=depth)
    for channel in plan.channels:
        kept = [task for task in logged.forwarded_logs(channel) if task != 1]
        assert list(plan.forwarded_logs(channel)) == kept


@pytest.mark.parametrize(
    ("task", "settings"), [(0, {}), (2, {"has_effects": True}), (2, {"inputs": (0, 1)})]
)
def test_a_plan_in_which_steps_do_not_follow_from_one_input_is_refused(task, settings):
    plan = chain(1)
    tasks = list(plan.tasks)
    tasks[task] = replace(tasks[task], is_implied=True, **settings)
    with pytest.raises(BadGraph, match="does not follow from one input"):
        replace(plan, tasks=tuple(tasks))


def test_without_logs_none_is_left_out():
    with pytest.raises(BadGraph, match="its log is left out"):
        chain(1, causal_log=False)


def log(*positions: int) -> list[Run]:
    """Of the sink: it has taken items that came of these steps of the maker."""
    records = (encode_record([Order(2, 1, position, *FIRST)]) for position in positions)
    return [Run(3, FIRST, 1, tuple(records))]


def test_a_cut_far_above_voids_what_came_of_it():
    plan = chain(1, 2)
    assert valid_length(plan, log(4, 4, 6), 3, {0: [(SECOND, 4)]}) == 2
    assert valid_length(plan, log(4, 4, 6), 3, {2: [(SECOND, 0)], 1: [(SECOND, 0)]}) == 3
    assert dependencies_of(plan, log(4, 6)) == {0: Dependency(FIRST, 6)}


ASKS = {
    "reads the clock": lambda step: step.clock_ms(),
    "calls len": lambda step: step.call(len, ([],), {}),
    "asks a service": lambda step: step.ask(None, None),
    "sets a timer": lambda step: step.wake_at(5),
}


@pytest.mark.parametrize("what", ASKS)
def test_a_step_that_asks_the_world_is_found_out(what):
    plan = chain(1)
    kind = kind_of_step(plan.tasks[1])
    assert (kind, kind_of_step(plan.tasks[2])) == (ImpliedStep, RunningStep)
    step = kind(7, Order(0, 1, 3, *FIRST), None, None, clock_ms=0, wake_ms=None)  # type: ignore[arg-type]
    step.wake_at(None)
    with pytest.raises(Divergence, match=f"step 7 {what}, but its task is taken to be"):
        ASKS[what](step)


def test_what_may_be_void_is_not_compared():
    output = InFlightLog()
    output.resume(2, known_chain=1)
    output.expect_nothing()
    output.append(Kind.WATERMARK, 0, 5, None, {})
    assert output.is_verified
    with pytest.raises(Divergence):
        output.resume(2, known_chain=1)
