"""Where standbys live: apart from their tasks, evenly, whatever order slots come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clonos.core.placement import Slot, best_slot, misplaced_standby, place_standbys
from clonos.core.plan import Cell


def settle(slots, homes, copies, pressing=()):
    """What the coordinator does when a slot registers; must come to rest."""
    for slot, cell in place_standbys(slots, homes, copies, (), pressing):
        slot.standbys.update(dict.fromkeys(cell, 0))
    for _ in range(1000):
        move = misplaced_standby(slots, homes, ())
        if move is None:
            return
        keeper, better, cell = move
        for task in cell:
            del keeper.standbys[task]
            better.standbys[task] = 0
    raise AssertionError("copies move for ever")


def test_the_first_spare_slot_gives_away_what_the_next_can_keep_better():
    slots = {i: Slot(i, "", group="ab"[i % 2]) for i in range(5)}
    homes = {(i,): i for i in range(4)}
    settle(slots, homes, 1)  # only slot 4, on executor "a", is spare
    assert sorted(slots[4].standbys) == [0, 1, 2, 3]
    slots[5] = Slot(5, "", group="b")
    settle(slots, homes, 1)
    assert sorted(slots[4].standbys) == [1, 3]
    assert sorted(slots[5].standbys) == [0, 2]


def test_a_copy_avoids_the_disk_of_its_task_if_there_is_another():
    """Executors a and b are on one machine, and keep layers on its disk."""
    slots = {
        i: Slot(i, "", group=group, disk=disk)
        for i, (group, disk) in enumerate([("a", "x"), ("b", "x")])
    }
    settle(slots, {(0,): 0}, 1)
    assert slots[1].keeps((0,))
    slots[2] = Slot(2, "", group="c", disk="y")
    settle(slots, {(0,): 0}, 1)
    assert [slot.keeps((0,)) for slot in slots.values()] == [False, False, True]


def test_a_copy_without_which_floors_stand_still_is_in_a_slot_that_leaves_until_there_is_another():
    """Executor "a" is drained, and the only slot that stays runs the tasks. Executor "c" ends as
    soon as nothing runs there. The state of cell (1,) is in the store, too."""
    slots = {i: Slot(i, "", group=group) for i, group in enumerate("baac")}
    for slot in (1, 2, 3):
        slots[slot].leaves = True
    slots[3].ends = True
    homes = {(0,): 0, (1,): 0}
    settle(slots, homes, 2, [(0,)])
    settle(slots, homes, 3, [(0,)])  # no more slots are left
    assert [slot.keeps((0,)) for slot in slots.values()] == [False, True, True, False]
    assert not any(slot.keeps((1,)) for slot in slots.values())
    slots[4] = Slot(4, "", group="d")
    settle(slots, homes, 1, [(0,)])
    assert [slots[4].keeps(cell) for cell in homes] == [True, True]


@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=9),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(1, 3),
)
def test_placement_comes_to_rest_with_every_copy_in_a_slot_of_its_own(groups, tasks, copies, size):
    slots: dict[int, Slot] = {}
    cells = [tuple(range(i * size, (i + 1) * size)) for i in range(tasks)]
    homes: dict[Cell, int | None] = dict.fromkeys(cells)
    for i, group in enumerate(groups):
        slots[i] = Slot(i, "", group=str(group), disk=f"disk{group % 2}")
        if i < tasks:
            homes[cells[i]] = i
        if all(home is not None for home in homes.values()):
            settle(slots, homes, copies)
    spare = [s for s in slots.values() if s.id >= tasks]
    for cell in cells:
        kept = [s for s in spare if s.keeps(cell)]
        assert len(kept) == min(copies, len(spare))
        assert all(task in s.standbys for s in kept for task in cell)


def test_the_most_advanced_standby_is_activated():
    slots = [Slot(0, ""), Slot(1, "", standbys={7: 3}), Slot(2, "", standbys={7: 4, 8: 4})]
    best = best_slot((7,), slots, taken=(), bound=())
    assert best is slots[2]
    assert best_slot((7,), slots, taken=(2, 1), bound=()) is slots[0]
    assert best_slot((7,), slots, taken=(), bound=(7,)) is None


def test_a_copy_of_a_cell_is_worth_as_much_as_the_least_of_its_tasks():
    slots = [Slot(0, "", standbys={7: 9}), Slot(1, "", standbys={7: 3, 8: 3})]
    assert best_slot((7, 8), slots, taken=(), bound=()) is slots[1]


def test_a_cell_with_a_bound_task_needs_the_slot_of_that_task():
    slots = [Slot(0, ""), Slot(1, "", bound=7), Slot(2, "", bound=5)]
    assert best_slot((7, 8), slots, taken=(), bound=(5, 7)) is slots[1]
    assert best_slot((8, 9), slots, taken=(), bound=(5, 7)) is slots[0]
