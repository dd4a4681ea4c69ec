"""Invariants of lives that have handed over, and rest."""

from __future__ import annotations

from clonos.core.plan import Incarnation
from clonos.core.task import TaskMachine
from clonos.simulator.checks.invariants import fencing
from clonos.simulator.checks.violations import require


class Rested:
    """The lives that have handed over, the newest of each task."""

    def __init__(self) -> None:
        self._lives: dict[int, Incarnation] = {}

    def hands_over(self, task: int, life: Incarnation) -> None:
        """A life has handed over."""
        self._lives[task] = life

    def takes_no_step(self, machine: TaskMachine) -> None:
        """The next life goes on from where this one rests."""
        require(
            self._lives.get(machine.id) != machine.incarnation,
            "planned moves",
            f"{machine.spec.name} takes step {machine.position}, and has handed over before",
        )

    def fencing(
        self, sender: int, life: Incarnation, fenced: dict[int, Incarnation], receiver: str
    ) -> None:
        """Invariant 4. But who has handed over may still send what it has made: its next life sends
        the same."""
        if self._lives.get(sender) != life:
            fencing(sender, life, fenced, receiver)
