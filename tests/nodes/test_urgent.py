"""What leaves a slot before its tasks' turn is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.nodes.resident import Resident


class Machine:
    """Does three steps, of which one is urgent."""

    def __init__(self, urgent: int, did: list[str]) -> None:
        self._urgent, self._did = urgent, did
        self.steps = self.born_ms = self.rows = 0
        self.inbounds = SimpleNamespace()
        self.is_urgent = False
        self.spec = SimpleNamespace(is_source=False)
        self.world: Any = None

    def begin(self) -> Any:
        self.steps += 1
        return self.steps if self.steps <= 3 else None

    def stepped(self) -> None:
        self._did.append(f"step {self.steps}")
        self.is_urgent = self.steps == self._urgent

    def flush(self) -> list[Any]:
        self._did.append("shares")
        self.is_urgent = False
        return []


class Task(Resident):
    """A resident whose clock stands."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.number, self._yields, self.is_over = 1, False, False
        self._began_at, self._busy_s, self._flush_at = 0.0, 0.0, 1.0
        self._ports: Any = SimpleNamespace(
            clock=SimpleNamespace(ticks_s=lambda: 0.0),
            track=SimpleNamespace(run=lambda *_: True),
            network=SimpleNamespace(flush=lambda: self.did.append("flush")),
        )

    def ran(self, error: Exception | None) -> None:
        assert error is None
        self.doing.stepped()

    def turn(self, machine: Any) -> None:
        self.doing = machine
        self._steps(machine, 1.0, 9)


@pytest.mark.parametrize("urgent", [1, 2])
def test_what_nobody_else_knows_leaves_before_the_next_step(urgent):
    task = Task()
    task.turn(Machine(urgent, task.did))
    steps = ["step 1", "step 2", "step 3"]
    assert task.did == [*steps[:urgent], "shares", "flush", *steps[urgent:]]


def test_all_else_leaves_at_the_end_of_the_turn():
    task = Task()
    task.turn(Machine(0, task.did))
    assert task.did == ["step 1", "step 2", "step 3"]
