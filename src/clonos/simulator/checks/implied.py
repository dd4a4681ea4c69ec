"""Invariants of implied tasks, which share no log."""

from __future__ import annotations

from clonos.core.task import TaskMachine
from clonos.simulator.checks.violations import require


def same_again(machine: TaskMachine, before: bytes, record: bytes) -> None:
    """A later life does with the same items what an earlier one did: it cuts them into the same
    steps, at the same positions."""
    require(
        record == before,
        "same again",
        f"step {machine.position} of {machine.spec.name} was {before!r}, and is {record!r} now",
    )
