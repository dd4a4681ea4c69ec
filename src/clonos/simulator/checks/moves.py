"""Invariants of lives that have handed over, and rest."""

from __future__ import annotations

from collections.abc import Sequence

from clonos.core.fences import Cut
from clonos.core.plan import Incarnation
from clonos.core.task import TaskMachine
from clonos.simulator.checks.violations import require


class Rested:
    """The lives that have handed over, the newest of each task."""

    def __init__(self) -> None:
        self._lives: dict[int, Incarnation] = {}

    def hands_over(self, task: int, life: Incarnation) -> None:
        """A life has handed over."""
        self._lives[task] = life

    def goes_on_where_it_rests(self, machine: TaskMachine, cuts: Sequence[Cut]) -> None:
        """A life that takes over is where the log of its task ends."""
        life, length = max(cuts)
        require(
            (machine.incarnation, machine.position) == (life, length),
            "planned moves",
            f"{machine.spec.name} takes over at {machine.position}, its log was cut at {length}",
        )

    def takes_no_step(self, machine: TaskMachine) -> None:
        """The next life goes on from where this one rests."""
        require(
            self._lives.get(machine.id) != machine.incarnation,
            "planned moves",
            f"{machine.spec.name} takes step {machine.position}, and has handed over before",
        )
