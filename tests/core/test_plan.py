"""How far logs travel: as far as the sharing depth says, counted in cells."""

from __future__ import annotations

import pytest

from clonos.core.plan import FULL_DEPTH, HOUSE_KEEPER, ChannelSpec, Plan, TaskSpec
from clonos.errors import BadGraph


def chain(*cells: int | None, depth: int, edges: tuple[tuple[int, int], ...] = ()) -> Plan:
    """Tasks 0, 1, ..., each in the cell that is given, in a row (or with these edges)."""
    last = len(cells) - 1
    edges = edges or tuple((n, n + 1) for n in range(last))
    channels = [ChannelSpec(n, *edge) for n, edge in enumerate(edges)]
    channels += [ChannelSpec(len(edges) + task, task, HOUSE_KEEPER) for task in range(last + 1)]
    tasks = tuple(
        TaskSpec(
            task,
            f"task{task}",
            f"task{task}",
            0,
            tuple(c.id for c in channels if c.receiver == task),
            tuple(c.id for c in channels if c.sender == task),
            sink="sink" if task == last else None,
            cell=cell,
        )
        for task, cell in enumerate(cells)
    )
    return Plan(tasks, tuple(channels), depth)


def travelling(plan: Plan) -> list[tuple[int, ...]]:
    return [plan.forwarded_logs(c) for c in plan.channels if c.receiver != HOUSE_KEEPER]


def kept(plan: Plan) -> list[tuple[int, ...]]:
    return [plan.forwarded_logs(c) for c in plan.channels if c.receiver == HOUSE_KEEPER]


def test_without_cells_every_task_is_one_hop_further() -> None:
    plan = chain(None, None, None, None, depth=1)
    assert plan.cells == ((0,), (1,), (2,), (3,))
    assert travelling(plan) == [(0,), (1,), (2,)]
    assert kept(plan) == [(), (0,), (1,), (2, 3)]


def test_a_hop_inside_a_cell_is_none() -> None:
    plan = chain(0, 0, 1, 2, depth=1)
    assert plan.cells == ((0, 1), (2,), (3,))
    assert plan.distances[2] == {0: 1, 1: 1, 2: 0}
    assert travelling(plan) == [(0,), (0, 1), (2,)]
    assert kept(plan) == [(), (), (0, 1), (2, 3)]


def test_a_log_that_stops_at_a_cell_goes_to_the_house_keeper_once() -> None:
    plan = chain(0, 1, 1, 2, depth=1)
    assert travelling(plan) == [(0,), (1,), (1, 2)]
    assert kept(plan) == [(), (0,), (), (1, 2, 3)]


def test_with_depth_0_each_task_sends_its_own_log_only() -> None:
    plan = chain(0, 0, 1, depth=0)
    assert travelling(plan) == [(), ()]
    assert kept(plan) == [(0,), (1,), (2,)]


def test_the_way_back_into_its_own_cell_leads_no_further_away() -> None:
    """Cell 0 dies with both: its log must be in two others."""
    plan = chain(0, 1, 0, 2, 3, depth=2)
    assert plan.distances[2][0] == 0
    assert plan.distances[3][0] == 1
    assert 0 in plan.forwarded_logs(plan.channels[2])
    assert 0 in plan.forwarded_logs(plan.channels[3])


def test_one_cell_for_all_leaves_all_logs_to_the_house_keeper() -> None:
    plan = chain(0, 0, 0, depth=FULL_DEPTH)
    assert kept(plan) == [(), (), (0, 1, 2)]


def test_a_cycle_without_feedback_is_refused():
    tasks = (
        TaskSpec(0, "in[0]", "in", 0, (), (0,), is_source=True),
        TaskSpec(1, "round[0]", "round", 0, (0, 1), (1,)),
    )
    channels = (ChannelSpec(0, 0, 1), ChannelSpec(1, 1, 1))
    with pytest.raises(BadGraph, match="'round' are in a cycle that has no feedback"):
        Plan(tasks, channels)
    plan = Plan(tasks, (channels[0], ChannelSpec(1, 1, 1, is_feedback=True)))
    assert plan.loops == {1: {1}}
