"""Which slot has which layers: when floors may move, when state is lost, who gives up what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clonos.core.coordinator import Coordinator
from clonos.core.decisions import Command, Fail, Reported, SlotLost, SlotReady
from clonos.core.holdings import AGAIN_MS, TIDY_EACH
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import (
    LOCAL,
    MEMORY,
    Discard,
    Held,
    Hold,
    Lacks,
    LayerRef,
    LayersMerged,
    MergeLayers,
    strictest,
)
from clonos.core.messages import (
    Activate,
    FenceAnswer,
    Followed,
    LayerAck,
    Live,
    Restored,
    Unreadable,
)
from clonos.core.plan import Plan, TaskSpec


class World:
    """A task at some level, and what the coordinator says."""

    def __init__(
        self,
        level: str,
        standbys: int = 1,
        keeper: HouseKeeper | None = None,
        tasks: int = 1,
    ) -> None:
        specs = tuple(
            TaskSpec(n, f"count[{n}]", "count", n, (), (), is_source=True, level=level)
            for n in range(tasks)
        )
        plan = Plan(specs, (), has_markers=False)
        self.level = level
        self.keeper = keeper or HouseKeeper(plan, lambda batch: b"", lambda data: data)
        self.coordinator = Coordinator(
            plan, self.keeper, address="keeper", standbys=standbys, lost_ms=1000
        )
        self.now_ms, self._epochs = 0, dict.fromkeys(range(tasks), 0)
        self.said: list[Any] = []
        self.journal: list[bytes] = []
        self.take(self.coordinator.start())

    def take(self, actions: Any) -> None:
        self.said += actions

    def hear(self, event: Any) -> None:
        self.take(self.coordinator.handle(event, self.now_ms))

    def tick(self, ms: int = 20) -> None:
        self.now_ms += ms
        self.take(self.coordinator.tick(self.now_ms))

    def joins(self, *slots: int, disk: str = "") -> None:
        for slot in slots:
            self.hear(SlotReady(slot, f"slot{slot}", f"group{slot}", disk=disk or f"disk{slot}"))

    @property
    def epoch(self) -> int:
        """Of task 0."""
        return self._epochs[0]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epochs[0] = epoch

    def lives(self, slot: int, task: int = 0) -> None:
        life = self.coordinator.tasks[task].incarnation
        self.hear(Reported(slot, Restored(task, life)))
        self.hear(Reported(slot, Live(task, life, self._epochs[task])))

    def seals(self, slot: int, task: int = 0) -> LayerRef:
        self._epochs[task] += 1
        life, epoch = self.coordinator.tasks[task].incarnation, self._epochs[task]
        ref = LayerRef(task, epoch, life, epoch, f"{task}/{epoch}", 100, 7, self.level)
        self.hear(Reported(slot, LayerAck(task, life, ref, {}, {}, {})))
        self.tick()
        return ref

    def has(self, slot: int, *refs: LayerRef) -> None:
        self.hear(Reported(slot, Held(0, refs)))
        self.hear(Reported(slot, Followed(0, self.epoch)))
        self.tick()

    def dies(self, slot: int) -> None:
        self.hear(SlotLost(slot))

    def told(self, slot: int, kind: type[Any]) -> list[Any]:
        found = [a.command for a in self.said if isinstance(a, Command) and a.slot == slot]
        return [command for command in found if isinstance(command, kind)]

    @property
    def failure(self) -> str:
        """With what the job has ended, if it has."""
        ends = (f"{a.error}: {a.message}" for a in self.said if isinstance(a, Fail))
        return next(ends, "")

    def records(self) -> list[bytes]:
        """All that the journal has."""
        self.journal += self.keeper.take_records()
        return self.journal

    @property
    def floor(self) -> int:
        return self.keeper.positions[0]


def world(level: str, standbys: int = 1, slots: int = 3) -> World:
    """The task lives in slot 0; slots 1, ... have its copies, the others none."""
    made = World(level, standbys)
    made.joins(*range(slots))
    made.lives(0)
    return made


def test_the_strictest_level_of_a_chain_counts():
    assert strictest(["memory", "store", "local"]) == "store"
    assert strictest([]) == "store"


@pytest.mark.parametrize("level", [MEMORY, LOCAL])
def test_a_floor_moves_when_the_standby_has_the_layer(level):
    job = world(level)
    ref = job.seals(0)
    (asked,) = [h for h in job.told(1, Hold) if ref in h.layers]
    assert asked.sources == ("slot0",)
    assert job.floor == 0
    job.has(1, ref)
    assert job.floor == 1
    assert not job.failure


def test_in_memory_all_standbys_must_have_it_and_on_disk_one():
    memory, local = world(MEMORY, 2), world(LOCAL, 2)
    ref, other = memory.seals(0), local.seals(0)
    memory.has(1, ref)
    local.has(1, other)
    assert (memory.floor, local.floor) == (0, 1)
    memory.has(2, ref)
    assert memory.floor == 1


@pytest.mark.parametrize("standbys", [1, 2])
def test_a_copy_on_the_disk_of_the_task_counts_only_if_no_other_disk_is_there(standbys):
    """Two executors share a machine. If it is lost, the third one has the state."""
    job = World(LOCAL, standbys)
    job.joins(0, 1, disk="shared")
    job.lives(0)
    first = job.seals(0)
    assert job.floor == 1
    job.joins(2)
    second = job.seals(0)
    assert job.floor == 1
    job.has(2, first, second)
    assert job.floor == 2
    job.dies(0)
    job.dies(1)
    job.lives(2)
    job.tick(2000)
    assert not job.failure


def test_a_layer_is_of_no_use_without_those_below_it():
    job = world(MEMORY)
    first, second = job.seals(0), job.seals(0)
    job.has(1, second)
    assert job.floor == 0
    job.has(1, first)
    assert job.floor == 2


def test_without_standbys_a_local_layer_needs_no_copy():
    job = world(LOCAL, standbys=0)
    job.seals(0)
    assert job.floor == 1


def test_floors_stand_still_until_a_lost_copy_is_made_again():
    job = world(MEMORY)
    job.has(1, job.seals(0))
    job.dies(1)
    ref = job.seals(0)
    assert job.floor == 1
    assert job.told(2, Hold)[-1].layers == (*job.keeper.layers[0], ref)
    job.has(2, ref)
    assert job.floor == 1, "the chain below it is not there"
    job.has(2, *job.keeper.layers[0])
    assert job.floor == 2


def test_a_task_goes_on_with_its_standby_which_gives_the_state_to_the_next_one():
    job = world(MEMORY)
    ref = job.seals(0)
    job.has(1, ref)
    job.dies(0)
    assert job.told(1, Activate)[-1].layers == (ref,)
    job.lives(1)
    assert job.told(2, Hold)[-1].sources == ("slot1",)
    assert not job.failure


def test_state_in_memory_is_lost_with_the_last_process_that_has_it():
    job = world(MEMORY)
    job.has(1, job.seals(0))
    job.dies(1)
    assert not job.failure
    job.dies(0)
    job.tick(900)
    assert not job.failure, "a slot may be about to say that it has got it"
    job.tick(200)
    assert job.failure.startswith("StateLost: ")
    assert "step 1 (100 bytes in 1 layers, persistence='memory') is lost" in job.failure


def test_state_that_is_in_no_floor_cannot_be_lost():
    job = world(MEMORY)
    job.seals(0)
    job.dies(1)
    job.dies(0)
    job.tick(5000)
    assert not job.failure
    assert job.told(2, Activate)[-1].layers == ()


def test_a_slot_that_comes_to_the_disk_brings_the_state_back():
    job = world(LOCAL)
    ref = job.seals(0)
    job.has(1, ref)
    job.dies(0)
    job.dies(1)
    job.tick(900)
    assert not job.told(2, Activate), "nobody has it who lives"
    job.joins(5, disk="disk1")
    assert job.told(2, Activate), "the disk was known to have it"
    assert job.told(2, Hold)[-1].sources == ("slot5",)
    assert not job.failure


def test_a_disk_is_waited_for_but_not_for_ever():
    job = world(LOCAL)
    job.has(1, job.seals(0))
    job.dies(0)
    job.dies(1)
    job.tick(900)
    assert not job.failure
    job.tick(200)
    assert "local disks" in job.failure


def test_the_next_driver_asks_slots_what_is_on_their_disks():
    job = world(LOCAL)
    ref = job.seals(0)
    job.has(1, ref)
    again = World(LOCAL, keeper=job.keeper)
    again.epoch = 1
    again.joins(0)
    life = again.coordinator.tasks[0].incarnation
    assert again.told(0, Hold) == [Hold(0, life, (ref,), (), tidies=True)]
    assert not again.told(0, Activate)
    again.has(0, ref)
    assert again.told(0, Activate)


def test_what_was_in_memory_the_next_driver_does_not_look_for():
    job = world(MEMORY)
    job.has(1, job.seals(0))
    again = World(MEMORY, keeper=job.keeper)
    again.tick(900)
    again.tick(200)
    assert again.failure.startswith("StateLost: ")


def test_a_slot_gives_up_only_what_others_have():
    job = world(MEMORY, slots=2)
    ref = job.seals(0)
    job.has(1, ref)
    job.coordinator.slots[1].leaves = True  # its copy is to be elsewhere
    job.coordinator.slots[1].standbys.clear()
    job.joins(2)
    assert job.told(2, Hold)[-1].layers == (ref,)
    assert not job.told(1, Discard), "nobody but the task itself has it as well"
    job.has(2, ref)
    assert [command.layers for command in job.told(1, Discard)] == [(ref,)]


def with_layers_to_merge(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[World, list[LayerRef], MergeLayers]:
    """Of layers that two slots have, and the command to merge them."""
    monkeypatch.setattr("clonos.core.merges.CHAIN_MAX", 2)
    job = world(level)
    refs = [job.seals(0) for _ in range(3)]
    job.has(1, *refs)
    (command,) = job.told(0, MergeLayers)
    return job, refs, command


def test_layers_are_merged_where_the_task_is_and_count_when_copies_have_them(monkeypatch):
    job, refs, command = with_layers_to_merge(MEMORY, monkeypatch)
    assert command.layers == tuple(refs)
    merged = LayerRef(0, 3, refs[-1].incarnation, 3, command.path, 250, 8, MEMORY)
    job.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    assert job.keeper.layers[0] == tuple(refs)
    assert not job.told(0, Discard)
    job.has(1, merged)
    assert job.keeper.layers[0] == (merged,)
    for slot in 0, 1:
        assert {r for d in job.told(slot, Discard) for r in d.layers} == set(refs)
    job.seals(0)
    assert not job.failure


def test_a_merged_layer_counts_though_newer_layers_are_not_everywhere_yet(monkeypatch):
    """In a busy job some always are on their way, and nothing would ever be merged."""
    job, refs, command = with_layers_to_merge(MEMORY, monkeypatch)
    newer = job.seals(0)
    merged = replace(refs[-1], path=command.path)
    job.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    job.has(1, merged)
    assert list(job.keeper.layers[0]) == [merged]
    job.has(1, newer)
    assert list(job.keeper.layers[0]) == [merged, newer]


def test_a_merged_layer_that_is_lost_before_it_counts_is_made_again_under_another_path(monkeypatch):
    job, refs, first = with_layers_to_merge(LOCAL, monkeypatch)
    lost = replace(refs[-1], path=first.path)
    job.hear(Reported(0, LayersMerged(0, first.layers, lost)))
    job.hear(Reported(0, Lacks(0, (lost.path,))))
    assert lost not in job.told(1, Hold)[-1].layers
    job.tick(AGAIN_MS)
    assert job.told(0, MergeLayers) == [first], "another layer would get the same path"
    refs.append(job.seals(0))
    job.has(1, refs[-1])
    command = job.told(0, MergeLayers)[-1]
    assert command.layers == tuple(refs)
    merged = replace(refs[-1], path=command.path)
    job.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    job.has(1, merged)
    assert job.keeper.layers[0] == (merged,)
    assert not job.failure


def test_layers_are_not_merged_while_one_of_them_is_not_there(monkeypatch):
    """The slot would read all of them again every second."""
    job, refs, first = with_layers_to_merge(LOCAL, monkeypatch)
    job.hear(Reported(0, LayersMerged(0, first.layers, None)))
    job.hear(Reported(0, Lacks(0, (refs[0].path,))))
    for _ in range(10):
        job.tick(AGAIN_MS)
    assert job.told(0, MergeLayers) == [first]
    job.has(0, refs[0])
    assert job.told(0, MergeLayers) == [first, first], "it has been fetched from the copy"


def test_what_an_earlier_life_has_merged_is_not_taken_for_what_this_one_merges(monkeypatch):
    """Its file may be gone: disks are tidied when a life begins."""
    monkeypatch.setattr("clonos.core.merges.CHAIN_MAX", 2)
    job = world(LOCAL, standbys=0, slots=1)
    for _ in range(3):
        job.seals(0)
    (old,) = job.told(0, MergeLayers)
    life = job.coordinator.tasks[0].incarnation
    job.hear(Reported(0, Unreadable(0, life, 0)))
    life = job.coordinator.tasks[0].incarnation
    job.hear(Reported(0, FenceAnswer(0, 0, life, 3, None)))
    job.lives(0)
    job.joins(1)  # something changes: merges are looked for
    new = job.told(0, MergeLayers)[-1]
    assert new.layers == old.layers
    late, merged = (replace(one.layers[-1], path=one.path) for one in (old, new))
    job.hear(Reported(0, LayersMerged(0, old.layers, late)))
    assert job.keeper.layers[0] == old.layers
    assert [command.layers for command in job.told(0, Discard)] == [(late,)]
    job.hear(Reported(0, LayersMerged(0, new.layers, merged)))
    assert job.keeper.layers[0] == (merged,)


def test_what_cannot_be_read_any_more_is_had_no_more_and_fetched_again():
    job = world(LOCAL)
    ref = job.seals(0)
    job.has(1, ref)
    job.hear(Reported(0, Lacks(0, (ref.path,))))
    assert job.told(0, Hold)[-1] == Hold(0, ref.incarnation, (ref,), ("slot1",), asks=True)
    second = job.seals(0)
    job.has(1, second)
    assert job.floor == 1, "what lies below it is not safe"
    job.coordinator.check()
    job.has(0, ref)
    assert job.floor == 2
    job.coordinator.check()


def test_who_has_the_same_disk_is_asked_again_when_another_slot_does_not_find_it():
    """What that one looked for may have been written meanwhile."""
    job = world(LOCAL, slots=2)
    ref = job.seals(0)
    job.has(1, ref)
    job.joins(2, disk="disk1")
    job.hear(Reported(2, Lacks(0, (ref.path,))))
    assert [hold.asks for hold in job.told(1, Hold)[-2:]] == [False, True]
    job.has(1, ref)
    job.has(1, job.seals(0))
    assert job.floor == 2


def test_a_slot_that_was_too_early_to_find_what_another_has_written_is_asked_again():
    """That one has died since, and its disk has the only copy."""
    job = world(LOCAL, slots=1)
    job.joins(1, 2, disk="shared")
    ref = job.seals(0)
    job.has(1, ref)
    job.dies(0)
    job.dies(1)
    for _ in range(2):
        job.hear(Reported(2, Lacks(0, (ref.path,))))
        assert [hold.asks for hold in job.told(2, Hold)].count(True) == 1, "once is enough"


def test_a_slot_without_the_task_is_asked_again_for_what_its_disk_should_have():
    job = world(LOCAL, standbys=0, slots=1)
    ref = job.seals(0)
    job.joins(1, disk="disk0")
    job.hear(Reported(0, Lacks(0, (ref.path,))))
    (hold,) = job.told(1, Hold)
    assert (hold.layers, hold.sources, hold.asks) == ((ref,), (), True)


def test_a_slot_that_has_given_up_layers_is_asked_for_those_that_it_still_has(monkeypatch):
    """It knows that they are there, and would not look if it was only told to keep them."""
    job, refs, command = with_layers_to_merge(LOCAL, monkeypatch)
    newer = job.seals(0)
    job.has(1, newer)
    job.coordinator.slots[1].leaves = True  # its copy is to be elsewhere
    job.coordinator.slots[1].standbys.clear()
    job.joins(3, disk="disk1")
    merged = replace(refs[-1], path=command.path)
    job.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    job.has(2, *refs, newer, merged)
    assert [command.layers for command in job.told(1, Discard)] == [tuple(refs)]
    job.hear(Reported(3, Lacks(0, (newer.path,))))
    assert job.told(1, Hold)[-1].asks


def test_who_has_the_same_disk_is_asked_again_though_it_has_sealed_more_since():
    """If it did not say so, and the one that was too early to find the layer has died, no floor
    would ever move."""
    job = world(LOCAL, slots=2)
    ref = job.seals(0)
    job.has(1, ref)
    job.joins(2, disk="disk0")
    job.hear(Reported(0, Lacks(0, (ref.path,))))
    job.has(0, ref)
    job.has(1, job.seals(0))
    job.hear(Reported(2, Lacks(0, (ref.path,))))
    assert job.told(0, Hold)[-1].asks
    job.dies(2)
    job.has(0, ref)
    job.has(1, job.seals(0))
    assert job.floor == 3


def test_a_slot_that_gets_the_last_copy_is_heard_though_all_others_have_died():
    job = world(MEMORY)
    ref = job.seals(0)
    job.has(1, ref)
    job.dies(1)
    job.dies(0)
    job.has(2, ref)
    assert job.told(2, Activate)[-1].layers == (ref,)
    job.tick(5000)
    assert not job.failure


def test_what_nobody_can_read_is_lost_after_a_while():
    job = world(LOCAL, standbys=0, slots=1)
    ref = job.seals(0)
    job.hear(Reported(0, Lacks(0, (ref.path,))))
    assert not job.failure
    job.tick(900)
    job.tick(200)
    assert job.failure.startswith("StateLost: ")


def test_what_counts_stays_on_a_disk_that_another_slot_may_be_told_to_use():
    """A slot that is slow to hear would delete it when others rely on it again."""
    job = world(LOCAL, slots=2)
    ref = job.seals(0)
    job.has(1, ref)
    job.coordinator.slots[1].leaves = True  # its copy is to be elsewhere
    job.coordinator.slots[1].standbys.clear()
    job.joins(2)
    job.has(2, ref)
    assert job.floor == 1
    assert not job.told(1, Discard)


def test_disks_are_tidied_when_a_life_begins_and_now_and_then():
    job = world(LOCAL)
    job.seals(0)
    for _ in range(TIDY_EACH):
        job.has(1, job.seals(0))
    first, *others = [hold.tidies for hold in job.told(1, Hold)]
    assert first
    assert sum(others) == len(others) // TIDY_EACH >= 1


def test_who_has_no_copy_any_more_is_told_to_fetch_no_more():
    job = world(LOCAL, slots=2)
    first = job.seals(0)
    job.has(1, first)
    second = job.seals(0)
    assert job.told(1, Hold)[-1].layers == (first, second)
    job.coordinator.slots[1].leaves = True  # its copy is to be elsewhere
    job.coordinator.slots[1].standbys.clear()
    job.joins(2)
    assert job.told(1, Hold)[-1] == Hold(0, first.incarnation, (first,), ())


def test_a_task_seals_again_what_nobody_can_read_and_is_in_no_floor():
    """Deltas build on each other: no floor would ever move."""
    job = world(LOCAL)
    job.has(1, job.seals(0))
    life = job.coordinator.tasks[0].incarnation
    ref = job.seals(0)
    job.hear(Reported(0, Lacks(0, (ref.path,))))
    assert job.coordinator.tasks[0].incarnation.n == life.n + 1
    assert not job.coordinator.checkpoints.sealed[0]
    assert job.floor == 1
    assert not job.failure


def test_a_disk_that_comes_back_is_told_what_does_not_count_any_more():
    job = world(LOCAL)
    job.has(1, job.seals(0))
    ref = job.seals(0)
    job.dies(0)
    job.lives(1)
    assert not job.told(7, Discard)
    job.joins(7, disk="disk0")
    assert [command.layers for command in job.told(7, Discard)] == [(ref,)]


def test_all_slots_with_a_disk_delete_from_it_what_counts_no_more(monkeypatch):
    """Each of them may have died, and nobody has noticed yet."""
    monkeypatch.setattr("clonos.core.merges.CHAIN_MAX", 2)
    job = World(LOCAL)
    job.joins(0)
    job.joins(7, 1, disk="shared")
    job.lives(0)
    refs = [job.seals(0) for _ in range(3)]
    job.has(1, *refs)
    (command,) = job.told(0, MergeLayers)
    merged = replace(refs[-1], path=command.path)
    job.hear(Reported(0, LayersMerged(0, command.layers, merged)))
    job.has(1, merged)
    assert [slot for slot in (7, 1) if job.told(slot, Discard)] == [7, 1]
