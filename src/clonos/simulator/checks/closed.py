"""What the house-keeper knew when a group of records was closed: what the journal must restore."""

from __future__ import annotations

from typing import Any

from clonos.core.housekeeper import HouseKeeper
from clonos.simulator.checks.past import KeptPast


class ClosedKeeper:
    """The house-keeper as it was when a group was closed: what is durable once the group is."""

    def __init__(self, keeper: HouseKeeper) -> None:
        self.plan, self.generation, self.epoch = keeper.plan, keeper.generation, keeper.hard.epoch
        # The house-keeper replaces these and never mutates them, so no copy is needed.
        self.positions, self.layers = keeper.hard.positions, keeper.hard.layers
        self.in_use = keeper.floors
        self.stable, self.resolved = dict(keeper.stable), tuple(keeper.resolved)
        self.past = KeptPast.of(keeper.history)
        self._lengths = {task: keeper.length(task) for task in keeper.positions}
        self._bases = {task: keeper.book.base(task) for task in keeper.positions}
        self._taken = {
            channel: (end.consumed, end.consumed_chain, end.ended)
            for channel, end in keeper.inputs.items()
            if not keeper.generation  # after a reset, numbers begin anew with a welcome
        }

    def length(self, task: int) -> int:
        """How many entries of a task's log it held."""
        return self._lengths[task]

    def base(self, task: int) -> int:
        """The position from which it held them."""
        return self._bases[task]

    def _state(self) -> tuple[Any, ...]:
        return (
            self.generation,
            self.epoch,
            self.positions,
            self.layers,
            self.resolved,
            self._lengths,
            self._taken,
            self.past,
        )

    def says_what(self, other: ClosedKeeper) -> bool:
        """Whether both agree in everything that the journal records."""
        return self._state() == other._state()

    def __str__(self) -> str:
        return str(self._state())
