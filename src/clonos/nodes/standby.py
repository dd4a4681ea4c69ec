"""A passive standby: a program that follows a task's floors, layer by layer, without running."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from clonos.core.messages import Layer, LayerRef
from clonos.core.program import Program


class Standby:
    """The state of one task up to some epoch.

    Parameters
    ----------
    make
        The task's program, fresh.
    """

    def __init__(self, make: Callable[[], Program]) -> None:
        self._make = make
        self.program = make()
        self.floor: Layer | None = None

    @property
    def epoch(self) -> int:
        """Of the newest layer that was applied; 0: none was."""
        return self.floor.epoch if self.floor is not None else 0

    def missing(self, refs: Sequence[LayerRef]) -> tuple[LayerRef, ...]:
        """Return those of a task's layers that remain to be applied, in order."""
        if refs and 0 < self.epoch < refs[0].epoch:
            # The bottom layers were merged past us: what was deleted meanwhile is not in them.
            self.program = self._make()
            self.floor = None
        return tuple(ref for ref in refs if ref.epoch > self.epoch)

    def apply(self, layers: Iterable[Layer]) -> None:
        """Apply the layers that were missing."""
        for layer in layers:
            self.program.apply(layer.delta)
            self.floor = layer
