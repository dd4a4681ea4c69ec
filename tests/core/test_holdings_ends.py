"""Slots end on purpose when others have what they have; until then, those that leave may count."""

from __future__ import annotations

import pytest

from clonos.core.decisions import Expel, Leaving, SlotLost
from clonos.core.levels import LOCAL, MEMORY, Hold
from clonos.core.moves import COPIED_MS
from tests.core.test_holdings import World, world


def ended(job: World) -> list[int]:
    return [action.slot for action in job.said if isinstance(action, Expel)]


def test_slots_start_anew_when_all_others_have_their_copies():
    job = world(MEMORY, 2)
    ref = job.seals(0)
    job.has(1, ref)
    job.has(2, ref)
    moves = job.coordinator.moves
    assert [slot for slot in (0, 1, 2) if moves.may_renew(slot)] == [1, 2]
    job.hear(SlotLost(1, is_death=False))
    assert not moves.may_renew(2), "one is missing"
    job.joins(3)
    assert not moves.may_renew(2), "its copy is still empty"
    assert moves.may_renew(3), "it has nothing"
    job.has(3, ref)
    assert moves.may_renew(2)


def test_no_slot_starts_anew_while_its_copy_may_be_needed():
    job = World(MEMORY, tasks=2)
    job.joins(0, 1, 2, 3)
    for task in 0, 1:
        job.lives(task, task)
    ref = job.seals(0)
    job.has(2, ref)
    assert job.coordinator.moves.may_renew(2)
    job.dies(1)
    assert not job.coordinator.moves.may_renew(2)


@pytest.mark.parametrize("comes", [True, False])
def test_an_executor_that_ends_waits_for_copies_of_what_it_has_but_not_for_ever(comes):
    job = world(MEMORY)
    ref = job.seals(0)
    job.has(1, ref)
    job.hear(Leaving("group1", ends=True))
    assert job.told(2, Hold)[-1].layers == (ref,), "at once"
    job.tick()
    assert not ended(job)
    if comes:
        job.has(2, ref)
    else:
        job.tick(COPIED_MS)
    assert ended(job) == [1]


def test_a_copy_that_leaves_counts_only_until_there_is_one_that_stays():
    """The standby's executor is drained, and may be gone when the other copy is there."""
    job = world(MEMORY, slots=2)
    job.hear(Leaving("group1"))
    first = job.seals(0)
    job.has(1, first)
    assert job.floor == 1, "no other slot is free"
    job.joins(2)
    second = job.seals(0)
    job.has(1, second)
    assert job.floor == 1, "the copy that stays is still empty"
    job.has(2, first, second)
    assert job.floor == 2


def test_a_copy_on_another_disk_counts_though_it_leaves():
    job = World(LOCAL)
    job.joins(0, 1, disk="shared")
    job.lives(0)
    job.joins(2)
    job.hear(Leaving("group2"))
    ref = job.seals(0)
    assert job.floor == 0, "slot 2 has no copy yet"
    job.has(2, ref)
    assert job.floor == 1
