"""Without markers: what the coordinator and a task do about layers and floors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.coordinator import Coordinator
from clonos.core.decisions import Command, Compacted, Reported, SlotLost, SlotReady
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import LayerRef
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec
from clonos.core.standbys import AGAIN_MS
from clonos.core.task import TaskMachine
from tests.core.test_release import World, compiled

LIFE = Incarnation(1, 0)


def plan(count: int = 3) -> Plan:
    """A chain of tasks."""
    channels = [ChannelSpec(n, n, n + 1) for n in range(count - 1)]
    channels.append(ChannelSpec(count - 1, count - 1, HOUSE_KEEPER))
    tasks = tuple(
        TaskSpec(
            id=n, name=f"t{n}", operator="t", index=0,
            inputs=(n - 1,) if n else (), outputs=(n,), is_source=n == 0,
            sink="out" if n == count - 1 else None,
        )
        for n in range(count)
    )  # fmt: skip
    return Plan(tasks, tuple(channels), has_markers=False)


class Driver:
    """A coordinator whose tasks live in slots 0, 1, ...; the last slot keeps copies."""

    def __init__(self, count: int = 3) -> None:
        self.keeper = HouseKeeper(plan(count), lambda _: b"", lambda _: None)
        self.coordinator = Coordinator(self.keeper.plan, self.keeper, address="here", standbys=1)
        self.sent: list[Command] = []
        self.now_ms = 0
        self.coordinator.start()
        for slot in range(count + 1):
            self.take(self.coordinator.handle(SlotReady(slot, f"slot{slot}", f"g{slot}"), 0))
        for task in self.coordinator.tasks.values():
            self.say(task.id, msg.Restored(task.id, task.incarnation))
            self.say(task.id, msg.Live(task.id, task.incarnation, 0))

    def take(self, actions: Any) -> None:
        self.sent += [action for action in actions if isinstance(action, Command)]

    def say(self, task: int, report: Any) -> None:
        slot = self.coordinator.tasks[task].slot
        assert slot is not None
        self.take(self.coordinator.handle(Reported(slot, report), self.now_ms))

    def sealed(self, task: int, number: int, position: int, taken: int, sent: int) -> None:
        life = self.coordinator.tasks[task].incarnation
        ref = LayerRef(task, number, life, position, f"{task}/{number}", 1, 0)
        spec = self.keeper.plan.tasks[task]
        ins, outs = dict.fromkeys(spec.inputs, taken), dict.fromkeys(spec.outputs, sent)
        generation = self.keeper.generation
        self.say(task, msg.LayerAck(task, life, ref, ins, outs, {}, generation))

    def passes(self, ms: int) -> list[Command]:
        self.sent.clear()
        self.now_ms += ms
        self.take(self.coordinator.tick(self.now_ms))
        return self.sent

    def told(self, kind: type[Any]) -> dict[int, Any]:
        """By task, the newest command of this kind."""
        commands = [c.command for c in self.sent if isinstance(c.command, msg.ToTask)]
        return {c.task: c.command for c in commands if isinstance(c.command, kind)}


def test_floors_move_one_by_one_and_senders_hear_what_is_needed():
    driver = Driver()
    driver.sealed(2, 1, position=5, taken=4, sent=0)
    driver.passes(100)
    assert driver.keeper.positions == {0: 0, 1: 0, 2: 5}
    assert {task: floor.needs for task, floor in driver.told(msg.Floor).items()} == {
        0: {}, 1: {1: 4}, 2: {2: 0},
    }  # fmt: skip
    driver.sealed(1, 1, position=6, taken=3, sent=5)  # two has not taken its fifth item
    driver.sealed(0, 1, position=3, taken=0, sent=3)
    driver.passes(100)
    assert driver.keeper.positions == {0: 0, 1: 0, 2: 5}
    driver.sealed(2, 2, position=7, taken=5, sent=0)
    driver.passes(100)
    assert driver.keeper.positions == {0: 3, 1: 6, 2: 7}


def test_who_keeps_layers_of_its_senders_from_being_floors_is_told_to_seal():
    driver = Driver()
    driver.sealed(0, 1, position=3, taken=0, sent=3)
    driver.passes(100)
    wanted = msg.SealLayer(when_cheap=True)
    assert driver.told(msg.SealLayer) == {1: wanted}
    driver.sealed(0, 2, position=4, taken=0, sent=4)
    assert not driver.passes(100), "once is enough"
    driver.sealed(1, 1, position=4, taken=3, sent=3)
    driver.passes(100)
    assert driver.told(msg.SealLayer) == {2: wanted}, "one's layer would do for the first of zero"
    driver.sealed(2, 1, position=4, taken=3, sent=0)
    driver.passes(100)
    assert driver.keeper.positions == {0: 3, 1: 4, 2: 4}
    assert driver.told(msg.SealLayer) == {1: wanted}, "now for the second"


def test_who_recovers_is_not_told_to_seal():
    driver = Driver()
    slot = driver.coordinator.tasks[1].slot
    assert slot is not None
    driver.take(driver.coordinator.handle(SlotLost(slot), driver.now_ms))
    driver.sealed(0, 1, position=3, taken=0, sent=3)
    driver.passes(100)
    assert not driver.told(msg.SealLayer)


def test_nothing_is_looked_for_unless_something_has_come(monkeypatch):
    looks: list[int] = []
    driver = Driver()
    monkeypatch.setattr(driver.coordinator.checkpoints, "_fit", lambda: looks.append(1))
    driver.sealed(0, 1, position=3, taken=0, sent=3)
    for _ in range(10):
        driver.passes(100)
    assert len(looks) == 1


def test_who_has_sealed_is_not_hurried(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(type(driver.coordinator), "wants_floor", True)
    driver.sealed(0, 1, position=3, taken=0, sent=3)
    driver.take(driver.coordinator.begin_epoch())
    assert driver.told(msg.SealLayer).keys() == {1, 2}
    driver.sent.clear()
    driver.take(driver.coordinator.begin_epoch())
    assert not driver.sent, "once is enough"


def test_after_a_forgiven_loss_sources_wait_until_all_floors_have_moved():
    """While rows flow there may be no moment at which all fit."""
    driver = Driver()
    driver.keeper.generation = 1
    driver.passes(100)
    assert driver.told(msg.Throttle) == {0: msg.Throttle(closed=True)}
    assert driver.told(msg.SealLayer).keys() == {0, 1, 2}, "whatever the checkpoint interval"
    driver.sealed(2, 1, position=5, taken=3, sent=0)
    driver.sealed(1, 1, position=5, taken=3, sent=3)
    driver.passes(100)
    assert set(driver.keeper.positions.values()) == {0}, "not one by one"
    driver.sealed(0, 1, position=3, taken=0, sent=3)
    driver.passes(100)
    assert driver.keeper.positions == {0: 3, 1: 5, 2: 5}
    assert driver.told(msg.Throttle) == {0: msg.Throttle(closed=False)}


def test_what_a_task_said_before_it_was_asked_again_does_not_count():
    """Sources have taken rows since, and the answer was on its way."""
    driver = Driver(1)
    checkpoints = driver.coordinator.checkpoints

    def asked() -> int:
        checkpoints.settle()
        driver.passes(100)
        number: int = driver.told(msg.SealLayer)[0].number
        return number

    def answers(number: int) -> None:
        life = driver.coordinator.tasks[0].incarnation
        driver.say(0, msg.Resting(0, life, 0, open_calls=0, number=number))

    earlier = asked()
    checkpoints.go_on()
    now = asked()
    answers(earlier)
    assert not checkpoints.have_settled
    answers(now)
    assert checkpoints.have_settled


def test_a_merge_moves_no_floor():
    """Else floors of two generations would be taken for those of one."""
    driver = Driver()
    driver.sealed(2, 1, position=5, taken=4, sent=0)
    driver.passes(100)
    driver.sealed(2, 2, position=6, taken=4, sent=0)
    driver.passes(100)
    driver.keeper.generation = 1
    first, second = driver.keeper.layers[2]
    merged = replace(second, path="merged")
    driver.coordinator.handle(Compacted(merged, (first, second)), 0)
    assert driver.keeper.layers[2] == (merged,)
    assert driver.keeper.floor_generation == 0
    again = HouseKeeper(driver.keeper.plan, lambda _: b"", lambda _: None)
    again.recover(driver.keeper.take_records())
    assert (again.floor_generation, again.positions) == (0, {0: 0, 1: 0, 2: 6})
    assert (again.layers, again.needs) == (driver.keeper.layers, driver.keeper.needs)


def test_a_copy_that_could_not_be_filled_is_tried_again():
    """No floor of its task need come that would."""
    driver = Driver()
    slot = next(s.id for s in driver.coordinator.slots.values() if s.standbys)
    driver.take(driver.coordinator.handle(Reported(slot, msg.Followed(1, -1)), driver.now_ms))
    assert not [c for c in driver.passes(AGAIN_MS // 2) if isinstance(c.command, msg.Follow)]
    again = [c for c in driver.passes(AGAIN_MS) if isinstance(c.command, msg.Follow)]
    assert [(c.slot, c.command) for c in again] == [(slot, msg.Follow(1, ()))]
    assert not driver.passes(AGAIN_MS)


class Task:
    """A source task of the second generation, which has done nothing yet."""

    def __init__(self) -> None:
        job = compiled(lambda row: row.a)
        activate = msg.Activate(0, Incarnation(1, 1), (), (), (), (), 1)
        self.machine = TaskMachine(
            replace(job.plan, has_markers=False), activate, job.codes[0].program(), (), World(seal)
        )
        self.machine.start()

    def seal(self) -> ev.StoreLayer | None:
        stored = [a for a in self.machine.handle(msg.SealLayer()) if isinstance(a, ev.StoreLayer)]
        return stored[0] if stored else None

    def stored(self, sealed: ev.StoreLayer) -> list[ev.Action]:
        layer = sealed.layer
        ref = LayerRef(0, layer.epoch, layer.incarnation, layer.position, "path", 1, 0)
        return self.machine.handle(ev.LayerStored(ref))


@pytest.fixture
def task() -> Task:
    return Task()


def test_floors_of_others_forget_no_layer(task):
    """One that was sealed before the first step counts, too: all wait for it after a reset."""
    sealed = task.seal()
    assert sealed is not None
    assert (sealed.layer.position, sealed.layer.generation) == (0, 1)
    task.machine.handle(msg.Floor({}, dict.fromkeys(task.machine.outputs, 0)))
    (told,) = [a for a in task.stored(sealed) if isinstance(a, ev.Tell)]
    assert isinstance(told.report, msg.LayerAck)


def test_a_position_may_be_sealed_once_more(task):
    """In another generation: a floor there is that of the layer before."""
    sealed = task.seal()
    assert sealed is not None
    task.machine.handle(msg.Floor({0: 0}, {}))
    assert [a for a in task.stored(sealed) if isinstance(a, ev.Tell)]


def test_one_layer_after_the_other_and_none_without_news(task):
    first = task.seal()
    assert first is not None
    assert task.seal() is None
    task.stored(first)
    assert task.seal() is None
    assert not task.machine.seals.has_news
    assert task.machine.seals.beyond_floor == 1
