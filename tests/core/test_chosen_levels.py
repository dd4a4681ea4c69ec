"""Levels that are chosen under load: floors in use, and those that are hard."""

from __future__ import annotations

from dataclasses import replace

from clonos.core.decisions import Reported
from clonos.core.determinants import Marker, encode_record
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import (
    AUTO,
    LOCAL,
    MEMORY,
    STORE,
    Discard,
    Lacks,
    LayerRef,
    LayersMerged,
    MergeLayers,
)
from clonos.core.messages import (
    Activate,
    Drop,
    FenceAnswer,
    Run,
)
from clonos.core.plan import Plan
from tests.core.test_holdings import World, world


def logged(job: World, task: int = 0) -> None:
    """The journal has one log entry more."""
    life, record = job.coordinator.tasks[task].incarnation, encode_record([Marker(1)])
    job.keeper.append([Run(task, life, job.keeper.length(task) + 1, (record,))])
    job.keeper.committed()


def seals_at(job: World, level: str, slot: int = 0, task: int = 0) -> LayerRef:
    """The next layer, at this level, and all log entries up to it in the journal."""
    logged(job, task)
    chosen, job.level = job.level, level
    ref = job.seals(slot, task)
    job.level = chosen
    return ref


def journaled(job: World) -> tuple[int, tuple[str, ...]]:
    """What another driver would find."""
    again = HouseKeeper(job.keeper.plan, lambda batch: b"", lambda data: data)
    again.recover(job.records())
    return again.positions[0], tuple(ref.path for ref in again.layers[0])


def test_floors_are_hard_at_once_if_all_layers_are_stored():
    job = world(AUTO)
    ref = seals_at(job, STORE)
    assert job.floor == job.keeper.hard.positions[0] == 1
    assert journaled(job) == (1, (ref.path,))


def test_a_floor_in_use_becomes_hard_when_its_layers_are_in_the_store():
    job = world(AUTO)
    first = seals_at(job, STORE)
    kept = [seals_at(job, LOCAL)]
    job.has(1, *kept)
    kept.append(seals_at(job, LOCAL))
    job.has(1, *kept)
    assert (job.floor, job.keeper.hard.positions[0]) == (3, 1)
    assert journaled(job) == (1, (first.path,))
    (command,) = job.told(0, MergeLayers)
    assert (command.layers, command.level) == ((kept[0],), STORE), "as much as was in use then"
    merged = LayerRef(0, 2, kept[0].incarnation, 2, command.path, 100, 9, STORE)
    job.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    assert journaled(job) == (2, (first.path, merged.path))
    command = job.told(0, MergeLayers)[-1]
    assert command.layers == (kept[1],)
    assert job.coordinator.holdings.expected == {command.path}
    last = LayerRef(0, 3, kept[1].incarnation, 3, command.path, 100, 9, STORE)
    job.hear(Reported(0, LayersMerged(0, command.layers, last)))
    assert job.keeper.hard.positions[0] == 3
    assert {r for d in job.told(1, Discard) for r in d.layers} == set(kept)
    job.coordinator.check()


def test_who_lives_again_merges_even_if_it_has_nothing_more_to_seal():
    """Otherwise no floor of the whole job would become hard any more."""
    job = world(AUTO, slots=2)
    ref = seals_at(job, LOCAL)
    job.has(1, ref)
    job.dies(0)
    job.lives(1)
    job.tick()
    assert [command.layers for command in job.told(1, MergeLayers)] == [(ref,)]


def test_a_copy_that_nobody_wants_when_it_is_reported_is_deleted():
    """The report has crossed with the news that all layers are in the store."""
    job = world(AUTO, 2)
    ref = seals_at(job, LOCAL)
    job.has(1, ref)
    (command,) = job.told(0, MergeLayers)
    merged = LayerRef(0, 1, ref.incarnation, 1, command.path, 100, 9, STORE)
    job.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    assert not job.told(2, Discard)
    job.has(2, ref)
    assert [command.layers for command in job.told(2, Discard)] == [(ref,)]


def test_a_job_has_not_settled_before_its_floors_are_hard():
    """Who goes on from the journal would find log entries beyond them."""
    job = world(AUTO)
    ref = seals_at(job, LOCAL)
    job.has(1, ref)
    assert job.floor == job.keeper.length(0) == 1
    assert not job.keeper.is_settled
    (command,) = job.told(0, MergeLayers)
    merged = LayerRef(0, 1, ref.incarnation, 1, command.path, 100, 9, STORE)
    job.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    assert job.keeper.is_settled


def test_as_soon_as_floors_are_hard_all_tasks_merge_towards_the_next():
    """Nothing else need happen: the job may be idle."""
    job = World(AUTO, standbys=0, tasks=2)
    job.joins(0, 1)
    tasks = job.coordinator.tasks.values()
    homes = {task.id: task.slot for task in tasks if task.slot is not None}
    for task, slot in homes.items():
        job.lives(slot, task)
    for _ in range(2):
        for task, slot in homes.items():
            seals_at(job, LOCAL, slot, task)
    assert {**job.keeper.positions} == {0: 2, 1: 2}
    done = list[MergeLayers]()
    for _ in range(4):
        for slot in {*homes.values()}:
            for command in job.told(slot, MergeLayers):
                if command not in done:
                    done.append(command)
                    merged = replace(command.layers[-1], path=command.path, level=STORE)
                    job.hear(Reported(slot, LayersMerged(merged.task, command.layers, merged)))
    assert {**job.keeper.hard.positions} == {0: 2, 1: 2}
    job.coordinator.check()


def test_a_floor_in_use_has_all_log_entries_below_it_in_the_journal():
    job = world(AUTO)
    ref = job.seals(0)
    job.has(1, ref)
    assert job.floor == 0
    logged(job)
    job.tick()
    assert job.floor == 1


def test_all_go_back_to_the_hard_floor_if_nobody_has_a_layer_any_more():
    job = world(AUTO)
    first = seals_at(job, STORE)
    ref = seals_at(job, MEMORY)
    job.has(1, ref)
    assert job.floor == 2
    job.dies(1)
    job.dies(0)
    job.tick(1000)
    assert job.floor == 2, "somebody may yet say that it has it"
    job.tick(1500)
    assert job.floor == 1
    assert not job.failure
    assert job.told(2, Activate)[-1].layers == (first,)
    job.coordinator.check()


def test_who_lives_goes_back_too_and_copies_are_dropped():
    job = world(AUTO, slots=4)
    seals_at(job, STORE)
    ref = seals_at(job, LOCAL)
    job.has(1, ref)
    before = job.coordinator.tasks[0].incarnation
    job.dies(1)
    job.hear(Reported(0, Lacks(0, (ref.path,))))
    job.tick(3000)
    life = job.coordinator.tasks[0].incarnation
    assert life > before
    job.hear(Reported(0, FenceAnswer(0, 0, life, 2, None)))
    assert [command.task for command in job.told(2, Drop)] == [0]
    assert job.told(0, Activate)[-1].layers == job.keeper.hard.layers[0]


def test_without_any_slot_for_a_copy_floors_move():
    job = world(AUTO, slots=1)
    seals_at(job, LOCAL)
    assert job.floor == 1


def test_a_job_that_is_now_to_be_stored_has_its_layers_merged_into_the_store():
    job = world(LOCAL)
    ref = job.seals(0)
    job.has(1, ref)
    (spec,) = job.keeper.plan.tasks
    plan = Plan((replace(spec, level=STORE),), (), has_markers=False)
    keeper = HouseKeeper(plan, lambda batch: b"", lambda data: data)
    keeper.recover(job.records())
    again = World(STORE, keeper=keeper)
    again.joins(0, 1)
    again.has(0, ref)
    again.lives(0)
    (command,) = again.told(0, MergeLayers)
    assert (command.layers, command.level) == ((ref,), STORE)
    merged = LayerRef(0, 1, ref.incarnation, 1, command.path, 100, 9, STORE)
    again.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    assert again.keeper.hard.layers[0] == (merged,)
