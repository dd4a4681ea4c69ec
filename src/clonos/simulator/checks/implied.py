"""What must hold of tasks that share no log."""

from __future__ import annotations

from clonos.core.task import TaskMachine
from clonos.simulator.checks.violations import require


def same_again(machine: TaskMachine, before: bytes, record: bytes) -> None:
    """What an earlier life has done of the same items, a later one does: it cuts them the same way,
    at the same positions."""
    require(
        record == before,
        "same again",
        f"step {machine.position} of {machine.spec.name} was {before!r}, and is {record!r} now",
    )
