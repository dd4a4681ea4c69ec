"""Slots that wait for the next driver copy state in advance, and get the tasks that they copied."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.core import messages as msg
from clonos.core.coordinator import Coordinator
from clonos.core.decisions import Command
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import LayerRef
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec
from clonos.errors import CannotUpgrade
from clonos.nodes.settings import DriverSettings
from clonos.nodes.versions import HASH_SEED
from clonos.nodes.waiting import Waiting
from clonos.transport.events import ControlLost, ControlOpened, Register
from tests.link import Link

PLAN = Plan(
    (
        TaskSpec(0, "rows[0]", "rows", 0, (), (0,), is_source=True, cell=0),
        TaskSpec(1, "sums[0]", "sums", 0, (0,), (2,), sink="out", cell=0),
        TaskSpec(2, "rows[1]", "rows", 1, (), (1,), is_source=True, cell=1),
        TaskSpec(3, "sums[1]", "sums", 1, (1,), (3,), sink="out", cell=1),
    ),
    (
        ChannelSpec(0, 0, 1, 0),
        ChannelSpec(1, 2, 3, 0),
        ChannelSpec(2, 1, HOUSE_KEEPER, 0),
        ChannelSpec(3, 3, HOUSE_KEEPER, 1),
    ),
    0,
)


def chain(task: int, *epochs: int, level: str = "store") -> tuple[LayerRef, ...]:
    life = Incarnation(1, 1)
    return tuple(LayerRef(task, e, life, e, f"{task}/{e}", 9, 0, level) for e in epochs)


class World:
    """A driver that waits, and Spark."""

    retries = True

    def __init__(self) -> None:
        settings = DriverSettings(
            name="job",
            run_id="job-1",
            address="here",
            places=(None, None, None),
            operators={task.id: (task.name,) for task in PLAN.tasks},
        )
        spark: Any = self
        self.waiting = Waiting(PLAN, spark, settings, self.warned)
        self.waiting.start()

    def launch(self, place: int, attempt: int) -> None:
        pass

    def cancel(self, attempt: int) -> None:
        pass

    def warned(self, text: str) -> None:
        raise AssertionError(text)

    def turn(self, *heard: Any) -> None:
        self.waiting.turn(heard, 0.0)

    def registers(self, place: int, conn: int) -> Link:
        link, versions = Link(conn), {HASH_SEED: "0"}
        register = Register(place, 1, "nonce", "node", "1", 10, conn, f"there:{conn}", versions)
        self.turn(ControlOpened(conn, register, link))
        return link

    def commands(self) -> list[Command]:
        """What the next driver's coordinator has its slots do."""
        keeper = HouseKeeper(PLAN, lambda batch: batch.payload, lambda content: content)
        coordinator = Coordinator(PLAN, keeper, term=2, address="here")
        actions = coordinator.start()
        for ready in self.waiting.ready.values():
            actions += coordinator.handle(ready, 0)
        return [action for action in actions if isinstance(action, Command)]

    def activated(self) -> list[tuple[int, int]]:
        """Which slots are to run which tasks."""
        told = ((order.slot, order.command) for order in self.commands())
        return [(slot, order.task) for slot, order in told if isinstance(order, msg.Activate)]


@pytest.fixture
def world() -> World:
    return World()


def test_each_slot_copies_the_tasks_that_it_will_run(world):
    first, second, spare = (world.registers(place, 7 - place) for place in (1, 0, 2))
    layers = {task: chain(task, 1, 2) for task in range(4)}
    world.waiting.follow(layers)
    assert first.sent == [msg.Follow(1, layers[1])], "a source would begin to read"
    assert second.sent == [msg.Follow(3, layers[3])]
    assert spare.sent == []
    assert world.activated() == [(6, 0), (6, 1), (7, 2), (7, 3)]


def test_who_gets_no_task_drops_its_copies(world):
    for place in range(3):
        world.registers(place, place)
    world.waiting.follow({1: chain(1, 1), 3: chain(3, 1)})
    late = world.waiting.ready.pop(1)  # its place in the line is another now
    world.waiting.ready[1] = late
    assert world.activated() == [(0, 0), (0, 1), (2, 2), (2, 3)]
    drops = [order for order in world.commands() if isinstance(order.command, msg.Drop)]
    assert drops == [Command(1, msg.Drop(3))]


def test_it_is_ready_when_no_copy_is_empty_any_more(world):
    links = [world.registers(place, place) for place in range(3)]
    assert world.waiting.is_ready
    layers = {1: chain(1, 1), 3: chain(3, 1, 4)}
    world.waiting.follow(layers)
    world.turn((0, msg.Followed(1, 1)), (1, msg.Followed(3, 1)), (2, msg.Followed(3, 4)))
    assert not world.waiting.is_ready, "one has not all, another was not asked"
    world.turn((1, msg.Followed(3, 4)))
    assert world.waiting.is_ready
    assert [dict(ready.copies) for ready in world.waiting.ready.values()] == [{1: 1}, {3: 4}, {}]
    world.waiting.follow(layers)
    assert len(links[0].sent) == 1, "it knows"
    world.waiting.follow({**layers, 1: chain(1, 1, 5)})
    assert links[0].sent[1:] == [msg.Follow(1, chain(1, 1, 5))]
    assert world.waiting.is_ready, "the last layers come with the task"
    assert dict(world.waiting.ready[0].copies) == {1: 1}, "it has what it had"


def test_a_copy_that_fails_is_not_waited_for(world):
    for place in range(3):
        world.registers(place, place)
    world.waiting.follow({1: chain(1, 1)})
    world.turn((0, msg.Followed(1, -1)))
    assert world.waiting.is_ready


def test_a_slot_that_goes_takes_its_copies_along(world):
    for place in range(3):
        world.registers(place, place)
    world.waiting.follow({1: chain(1, 1)})
    world.turn(ControlLost(0, 0))
    new = world.registers(0, 9)
    assert world.waiting.is_ready
    assert not any(ready.copies for ready in world.waiting.ready.values())
    world.waiting.follow({1: chain(1, 1)})
    assert new.sent == [], "the first cell is for the slot that has been there longest"
    assert dict(world.waiting.ready[1].copies) == {1: -1}


def test_what_is_in_no_store_cannot_be_copied(world):
    link = world.registers(0, 0)
    world.waiting.follow({1: chain(1, 1) + chain(1, 2, level="memory")})
    assert link.sent == []


def test_a_copy_that_would_lose_state_is_the_end_of_it(world):
    for place in range(3):
        world.registers(place, place)
    lost = msg.TaskError(1, Incarnation(0, 0), "CannotUpgrade", "what", 0, "sums", "remedy")
    world.turn((0, lost))
    world.waiting.follow({1: chain(1, 1)})
    with pytest.raises(CannotUpgrade, match="what") as told:
        world.turn((0, lost))
    assert (told.value.where, told.value.remedy) == ("sums", "remedy")
