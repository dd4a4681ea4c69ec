"""The simulated world neither forgets to tell a process what has come, nor what is on its disk."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from clonos.core.levels import LOCAL, LayerRef
from clonos.core.placement import Slot
from clonos.core.plan import Incarnation
from clonos.simulator.checks.levels import Kept
from clonos.simulator.world.sockets import Pipe, SimSocket, World
from clonos.simulator.world.virtual import Scheduler


class Paths:
    """A network without delays."""

    def __init__(self) -> None:
        self.roused: list[Any] = []

    def delay_between(self, *_: Any) -> float:
        return 0.0

    def opens_at(self, *_: Any) -> float:
        return 0.0

    def is_refused(self, *_: Any) -> bool:
        return False

    def rouse(self, machine: Any) -> None:
        self.roused.append(machine)


class Halves(Random):
    """A kernel hands over a part of what it has, whenever it may."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return (a + b) // 2


def test_a_process_that_has_read_a_part_is_roused_for_the_rest():
    scheduler, paths = Scheduler(), Paths()
    world = World(scheduler, Halves(), paths)
    machines = [SimpleNamespace(alive=True, address=name) for name in ("one", "other")]
    one, other = (SimSocket(world, machine) for machine in machines)
    one.out = other.into = Pipe(one, other, 1000)
    other.out = one.into = Pipe(other, one, 1000)
    one.out.send(b"all of it")
    came = b""
    while scheduler.run_next():
        if machines[1] in paths.roused:
            paths.roused.clear()
            came += other.recv(100)
    assert came == b"all of it"


def test_a_layer_that_was_found_on_a_disk_is_there_whoever_has_put_it_there():
    """That process may have died in between."""
    kept, layer = Kept(), LayerRef(0, 1, Incarnation(1, 0), 1, "0/1", 10, 7, LOCAL)
    slot: Any = Slot(1, "slot1", "group1", disk="disk1")
    kept.rots("disk1", layer.path)
    assert not kept.can_read(slot, layer)
    kept.finds("slot1", "disk1", layer)
    assert kept.can_read(slot, layer)
