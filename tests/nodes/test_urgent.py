"""What leaves a slot before its tasks' turn is over, and how many rows a step takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.nodes.resident import FLUSH_S, STEP_ROWS, Resident


class Machine:
    """Does three steps, of which one is urgent."""

    def __init__(self, task: Task, urgent: int = 0, **step: Any) -> None:
        self._urgent, self._task = urgent, task
        self.steps = self.born_ms = self.rows = 0
        self.inbounds = SimpleNamespace(rows_max=STEP_ROWS)
        self.outbounds = SimpleNamespace(share_soon=lambda: task.did.append("soon"))
        self.is_urgent = False
        self.spec = SimpleNamespace(is_source=False)
        self.world: Any = None
        usual = {"rows": 10, "is_live": True, "has_called": False, "takes_s": 0.0}
        self.under_way = SimpleNamespace(**{**usual, **step})

    def begin(self) -> Any:
        self.steps += 1
        return self.steps if self.steps <= 3 else None

    def stepped(self) -> None:
        self._task.did.append(f"step {self.steps}")
        self._task.now_s += self.under_way.takes_s
        self.is_urgent = self.steps == self._urgent

    def flush(self) -> list[Any]:
        self._task.did.append("shares")
        self.is_urgent = False
        return []


class Task(Resident):
    """A resident whose clock stands, except while it takes a step."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.now_s = 0.0
        self.number, self._yields, self.is_over = 1, False, False
        self._began_at, self._busy_s, self._flush_at = 0.0, 0.0, 1.0
        self._paced, self._has_called = (0, 0.0), False
        self._ports: Any = SimpleNamespace(
            clock=SimpleNamespace(ticks_s=lambda: self.now_s),
            track=SimpleNamespace(run=lambda *_: True),
            network=SimpleNamespace(flush=lambda: self.did.append("flush")),
        )

    def ran(self, error: Exception | None) -> None:
        assert error is None
        self._has_called |= self.doing.under_way.has_called
        self.doing.stepped()

    def turn(self, machine: Any) -> int:
        """Returns how many rows the next step may take."""
        self.doing = machine
        self._steps(machine, 10.0, 9)
        found: int = machine.inbounds.rows_max
        return found


@pytest.mark.parametrize("urgent", [1, 2])
def test_what_nobody_else_knows_leaves_before_the_next_step(urgent):
    task = Task()
    task.turn(Machine(task, urgent))
    steps = ["step 1", "step 2", "step 3"]
    assert task.did == [*steps[:urgent], "shares", "flush", *steps[urgent:]]


def test_all_else_leaves_at_the_end_of_the_turn():
    task = Task()
    task.turn(Machine(task))
    assert task.did == ["step 1", "step 2", "step 3"]


def test_what_services_have_taken_long_to_answer_leaves_when_the_step_has_ended():
    task = Task()
    task.turn(Machine(task, has_called=True, takes_s=1.0))
    each = [["soon", "shares", "flush"] for _ in range(3)]
    assert task.did == [
        *["step 1", *each[0]], *["step 2", *each[1]], *["step 3", *each[2]],
    ]  # fmt: skip
    quick = Task()
    quick.turn(Machine(quick, has_called=True, takes_s=FLUSH_S / 4))
    assert quick.did == ["step 1", "step 2", "step 3"]


def test_the_slower_the_calls_of_a_step_the_fewer_rows_the_next_one_takes():
    """Until it has ended, a death loses all that it was answered."""
    task = Task()
    assert task.turn(Machine(task, has_called=True, takes_s=1.0)) == 1
    task = Task()
    assert task.turn(Machine(task, has_called=True, takes_s=0.01)) == 10
    task = Task()
    assert task.turn(Machine(task, takes_s=1.0)) == STEP_ROWS, "a step costs time itself"


def test_a_replay_does_not_make_the_first_live_step_large():
    task = Task()
    assert task.turn(Machine(task, is_live=False, rows=100_000)) == STEP_ROWS
