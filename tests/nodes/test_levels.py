"""Layers of a task that chooses its levels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clonos.core.dial import Dial
from clonos.core.levels import LayerRef, MergeLayers
from clonos.core.plan import Incarnation
from clonos.nodes.levels import Levels

LIFE = Incarnation(1, 0)


class World:
    def __init__(self) -> None:
        self.kept: list[tuple[int, str]] = []
        self.told: list[tuple[str, str]] = []
        dial = Dial(("store", "local", "memory"), late_s=1.0, quiet_s=5.0)
        self.levels = Levels(
            dial,
            lambda sealed, level: self.kept.append((sealed.layer.epoch, level)),
            lambda *said: self.told.append(said),
        )

    def put(self, epoch: int, now_s: float) -> None:
        sealed: Any = SimpleNamespace(layer=SimpleNamespace(epoch=epoch))
        self.levels.put(sealed, now_s)

    def stored(self, epoch: int, level: str, now_s: float) -> bool:
        ref = LayerRef(0, epoch, LIFE, epoch, str(epoch), 1, 1, level)
        return self.levels.stored(ref, now_s)


def test_what_waits_too_long_is_kept_at_a_weaker_level_as_well():
    world = World()
    world.put(1, 0.0)
    world.put(2, 0.5)
    world.levels.look(1.1)
    assert world.kept == [(1, "store"), (2, "store"), (1, "local"), (2, "local")]
    assert world.stored(1, "local", 1.2)
    assert world.stored(2, "store", 1.3)
    assert not world.stored(1, "store", 9.0), "it is there already"
    assert not world.stored(2, "local", 9.0)


def test_it_is_told_when_another_level_is_in_use():
    world = World()
    world.put(1, 0.0)
    world.levels.look(0.9)
    assert not world.told
    world.levels.look(1.5)
    world.stored(1, "store", 1.5)
    world.levels.look(6.6)
    assert world.told == [
        ("local", "a layer has waited 1.5 s for the checkpoint store"),
        ("store", ""),
    ]


def test_what_is_merged_into_the_store_says_how_it_does():
    world = World()
    merge = MergeLayers(0, (), is_base=True, level="store", path="merged")
    world.levels.merges(merge, 0.0, is_over=False)
    world.levels.look(2.0)
    world.put(1, 2.0)
    assert world.kept == [(1, "local")]
    world.levels.merges(merge, 3.0, is_over=True)
    world.levels.look(8.1)
    assert world.told[-1] == ("store", "")
