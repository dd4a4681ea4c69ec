"""How a slot's copies follow the layers of their tasks, and begin again when these were merged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core import messages as msg
from clonos.core.levels import LOCAL, STORE, LayerRef
from clonos.core.plan import Incarnation
from clonos.errors import UnreadableLayer
from clonos.nodes.standby import Copies

LIFE = Incarnation(1, 0)


@pytest.fixture(autouse=True)
def _small_layers_are_used_where_they_lie(monkeypatch):
    monkeypatch.setattr("clonos.nodes.standby.IN_PLACE_BYTES", 1000)


class Program:
    """Notes what was applied to it."""

    def __init__(self, *, has_left_memory: bool) -> None:
        self.has_left_memory = has_left_memory
        self.applied: list[Any] = []
        self.has_let_go = False

    def let_go(self) -> None:
        self.has_let_go = True

    def apply(self, delta: Any) -> None:
        if delta == "damaged":
            raise UnreadableLayer("it is damaged")
        self.applied.append(delta)


class World:
    """The copies of a slot, and what they ask for."""

    def __init__(self, *, has_left_memory: bool = True, reads_in_place: bool = True) -> None:
        self.asked: list[tuple[int, list[int]]] = []
        self.told: list[Any] = []
        make = lambda _: Program(has_left_memory=has_left_memory)  # noqa: E731
        plan: Any = SimpleNamespace(tasks=[SimpleNamespace(is_source=False)])
        store = SimpleNamespace(reads_in_place=reads_in_place)
        ports: Any = SimpleNamespace(programs=make, store=store)
        self.copies = Copies(plan, ports, count(1), self.told.append, self._fetch)

    def _fetch(self, ticket: int, _: Sequence[LayerRef], wanted: Sequence[LayerRef]) -> None:
        self.asked.append((ticket, [ref.epoch for ref in wanted]))

    def follow(self, *refs: LayerRef) -> list[int]:
        """Which layers it asks for."""
        known = len(self.asked)
        self.copies.follow(msg.Follow(0, refs))
        return self.asked[known][1] if len(self.asked) > known else []

    def come(self, what: str = "layer") -> None:
        """The layers that were asked for last."""
        ticket, epochs = self.asked[-1]
        layers: Any = [SimpleNamespace(epoch=e, delta=f"{what} {e}") for e in epochs]
        if what == "damaged":
            layers[-1].delta = what
        self.copies.fetched(ticket, layers)

    @property
    def applied(self) -> list[Any]:
        program: Any = self.copies.standbys[0].program
        return list(program.applied)


def ref(epoch: int, path: str = "", nbytes: int = 10, level: str = STORE) -> LayerRef:
    return LayerRef(0, epoch, LIFE, epoch, path or f"0/{epoch}", nbytes, 0, level)


@pytest.fixture
def world() -> World:
    found = World()
    assert found.follow(ref(1), ref(2)) == [1, 2]
    found.come()
    assert found.follow(ref(1), ref(2), ref(3)) == [3]
    found.come()
    return found


MERGED = (ref(2, "0/merged", 1000), ref(3), ref(4))


def test_a_copy_begins_again_with_a_large_layer_that_was_merged(world):
    assert world.follow(*MERGED) == [2, 3, 4]
    old = world.copies.standbys[0]
    before: Any = old.program
    assert world.applied == ["layer 1", "layer 2", "layer 3"], "it may be needed meanwhile"
    assert not before.has_let_go
    world.come()
    assert world.copies.standbys[0] is not old
    assert before.has_let_go
    assert world.applied == ["layer 2", "layer 3", "layer 4"]
    assert world.told[-1] == msg.Followed(0, 4)
    assert world.follow(*MERGED, ref(5)) == [5], "once"


def test_it_goes_on_if_it_gains_nothing():
    for chain, has_left_memory in (
        ((ref(2, "0/merged", 999), ref(3), ref(4)), True),
        (MERGED, False),
        ((ref(1), ref(3, "0/merged", 1000), ref(4)), True),
    ):
        world = World(has_left_memory=has_left_memory)
        world.follow(ref(1), ref(2), ref(3))
        world.come()
        assert world.follow(*chain) == [4], chain


@pytest.mark.parametrize(("level", "asked"), [(STORE, [4]), (LOCAL, [2, 3, 4])])
def test_a_copy_does_not_copy_all_state_once_more(level, asked):
    """The checkpoint store is not read in parts. So a copy has files of its own anyway."""
    world = World(reads_in_place=False)
    world.follow(ref(1), ref(2), ref(3))
    world.come()
    merged = ref(2, "0/merged", 1000, level)
    assert world.follow(merged, ref(3), ref(4)) == asked


def test_who_is_needed_meanwhile_is_the_copy_that_there_was(world):
    old = world.copies.standbys[0]
    world.follow(*MERGED)
    assert world.copies.take(0)[0] is old
    world.come()
    assert 0 not in world.copies.standbys


@pytest.mark.parametrize("how", ["away", "damaged"])
def test_a_copy_that_cannot_begin_again_goes_on(world, how):
    old = world.copies.standbys[0]
    world.follow(*MERGED)
    if how == "away":
        world.copies.fetch_failed(world.asked[-1][0])
    else:
        world.come("damaged")
    assert world.copies.standbys[0] is old
    assert world.asked[-1][1] == [4], "it follows what it was to follow"
    world.come()
    assert world.told[-1] == msg.Followed(0, 4)
    assert world.applied == ["layer 1", "layer 2", "layer 3", "layer 4"]
    assert world.follow(*MERGED, ref(5)) == [5]
    world.come()
    other = (ref(4, "0/other", 2000), ref(5))
    assert world.follow(*other) == [4, 5], "it tries again after the next merge"


@pytest.mark.parametrize("epoch", [2, 3, 4])
def test_a_copy_starts_over_with_a_layer_that_was_merged_of_some_that_it_has(epoch):
    """With rows that it has twice a join would find twice as many."""
    world = World()
    world.follow(*(ref(n) for n in range(1, epoch + 1)))
    world.come()
    chain = ref(1), ref(4, "0/merged"), ref(5)
    assert world.follow(*chain) == ([1, 4, 5] if epoch < 4 else [5])
    world.come()
    assert world.told[-1] == msg.Followed(0, 5)
    again = ["layer 1"] if epoch < 4 else ["layer 1", "layer 2", "layer 3"]
    assert world.applied == [*again, "layer 4", "layer 5"]


def test_a_life_starts_over_with_it_too(world):
    standby, _ = world.copies.take(0)
    assert [r.epoch for r in standby.missing((ref(1), ref(3), ref(4)))] == [4]
    assert [r.epoch for r in standby.missing((ref(2), ref(4, "0/merged")))] == [2, 4]


def test_layers_that_were_merged_while_others_came_are_not_applied():
    """The first one takes long. With the others, the copy would have to start over."""
    world = World()
    assert world.follow(ref(1), ref(2), ref(3)) == [1, 2, 3]
    world.follow(ref(1), ref(5, "0/merged"), ref(6))
    world.come()
    assert world.applied == ["layer 1"]
    assert world.asked[-1][1] == [5, 6]
    world.come()
    assert world.applied == ["layer 1", "layer 5", "layer 6"]


def test_a_copy_that_cannot_follow_starts_over(world):
    world.follow(ref(1), ref(2), ref(3), ref(4))
    world.copies.fetch_failed(world.asked[-1][0])
    assert 0 not in world.copies.standbys
    assert world.told[-1] == msg.Followed(0, -1)
