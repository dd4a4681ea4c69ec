"""Where standbys live: apart from their tasks, evenly, whatever order slots come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clonos.core.placement import Slot, best_slot, misplaced_standby, place_standbys


def settle(slots, homes, copies):
    """What the coordinator does when a slot registers; must come to rest."""
    for slot, task in place_standbys(slots, homes, copies, ()):
        slot.standbys[task] = 0
    for _ in range(1000):
        move = misplaced_standby(slots, homes, ())
        if move is None:
            return
        keeper, better, task = move
        del keeper.standbys[task]
        better.standbys[task] = 0
    raise AssertionError("copies move for ever")


def test_the_first_spare_slot_gives_away_what_the_next_can_keep_better():
    slots = {i: Slot(i, "", group="ab"[i % 2]) for i in range(5)}
    homes = dict(enumerate(range(4)))
    settle(slots, homes, 1)  # only slot 4, on executor "a", is spare
    assert sorted(slots[4].standbys) == [0, 1, 2, 3]
    slots[5] = Slot(5, "", group="b")
    settle(slots, homes, 1)
    assert sorted(slots[4].standbys) == [1, 3]
    assert sorted(slots[5].standbys) == [0, 2]


@given(st.lists(st.integers(0, 2), min_size=2, max_size=9), st.integers(1, 4), st.integers(0, 2))
def test_placement_comes_to_rest_with_every_copy_in_a_slot_of_its_own(groups, tasks, copies):
    slots: dict[int, Slot] = {}
    homes: dict[int, int | None] = dict.fromkeys(range(tasks))
    for i, group in enumerate(groups):
        slots[i] = Slot(i, "", group=str(group))
        if i < tasks:
            homes[i] = i
        if all(home is not None for home in homes.values()):
            settle(slots, homes, copies)
    spare = [s for s in slots.values() if s.id >= tasks]
    for task in range(tasks):
        kept = [s for s in spare if task in s.standbys]
        assert len(kept) == min(copies, len(spare))


def test_the_most_advanced_standby_is_activated():
    slots = [Slot(0, ""), Slot(1, "", standbys={7: 3}), Slot(2, "", standbys={7: 4, 8: 4})]
    best = best_slot(7, slots, running=(), bound=())
    assert best is slots[2]
    assert best_slot(7, slots, running=(2, 1), bound=()) is slots[0]
    assert best_slot(7, slots, running=(), bound=(7,)) is None
