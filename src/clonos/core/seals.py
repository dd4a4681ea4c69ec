"""The layers that a task has sealed, until their epoch is a global floor."""

from __future__ import annotations

from enum import Enum

from clonos.core.machine import Machine, Table
from clonos.core.messages import Layer, LayerRef


class SealState(Enum):
    """Of one sealed layer."""

    STORING = "storing"
    STORED = "stored"
    ACKNOWLEDGED = "acknowledged"


class SealEvent(Enum):
    """What happens to it."""

    STORED = "stored"
    SETTLED = "outputs settled"


SEAL = Table(
    "a sealed layer",
    SealState.STORING,
    {
        (SealState.STORING, SealEvent.STORED): SealState.STORED,
        (SealState.STORED, SealEvent.SETTLED): SealState.ACKNOWLEDGED,
    },
)


class Seal:
    """A layer on its way into the store and from there into a floor."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self._ref: LayerRef | None = None
        self.machine = SEAL.machine(f"seal of epoch {layer.epoch}")

    def stored(self, ref: LayerRef) -> None:
        """It is in the checkpoint store."""
        self.machine.on(SealEvent.STORED)
        self._ref = ref

    def acknowledge(self) -> LayerRef:
        """What the task delivered before it is durable: it counts."""
        self.machine.on(SealEvent.SETTLED)
        assert self._ref is not None
        return self._ref


class Seals:
    """The seals of one task, by epoch."""

    def __init__(self) -> None:
        self._seals: dict[int, Seal] = {}

    def add(self, layer: Layer) -> None:
        """A layer was sealed."""
        self._seals[layer.epoch] = Seal(layer)

    def stored(self, ref: LayerRef) -> None:
        """A layer is in the store; one that a floor has overtaken is nothing to us."""
        seal = self._seals.get(ref.epoch)
        if seal is not None:
            seal.stored(ref)

    def unacknowledged(self) -> list[Seal]:
        """Seals that are stored, and wait for what was delivered before them."""
        return [s for s in self._seals.values() if s.machine.state is SealState.STORED]

    def floor(self, epoch: int) -> Seal | None:
        """`epoch` is complete: forget it and all before; return its seal."""
        seal = self._seals.pop(epoch, None)
        for passed in [e for e in self._seals if e < epoch]:
            del self._seals[passed]
        return seal

    def get(self, epoch: int) -> Seal | None:
        """The seal of an epoch, if no floor has passed it."""
        return self._seals.get(epoch)

    def machines(self) -> list[Machine[SealState, SealEvent]]:
        """For their stories."""
        return [seal.machine for seal in self._seals.values()]
