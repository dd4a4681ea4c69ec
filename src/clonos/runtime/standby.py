"""A passive standby: a program that follows a task's floors, layer by layer, without running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from clonos.core.layer import decode_layer
from clonos.core.messages import Layer, LayerRef
from clonos.core.program import Program
from clonos.storage.layers import LayerStore


class Standby:
    """The state of one task up to some epoch."""

    def __init__(self, make: Callable[[], Program]) -> None:
        self._make = make
        self.program = make()
        self.epoch = 0
        self.floor: Layer | None = None

    def feed(self, store: LayerStore, refs: Sequence[LayerRef]) -> None:
        """Apply the layers that are newer than what is there."""
        for layer in self.missing(store, refs):
            self.program.apply(layer.delta)
            self.epoch = layer.epoch
            self.floor = layer

    def missing(self, store: LayerStore, refs: Sequence[LayerRef]) -> Iterator[Layer]:
        """The layers still to apply, in order."""
        if refs and 0 < self.epoch < refs[0].epoch:
            # The bottom layers were merged past us: what was deleted meanwhile is not in them.
            self.program = self._make()
            self.epoch = 0
            self.floor = None
        for ref in refs:
            if ref.epoch > self.epoch:
                yield decode_layer(store.get(ref.path))


class Standbys:
    """All standbys that one slot keeps."""

    def __init__(self, store: LayerStore, programs: Callable[[int], Program]) -> None:
        self._store = store
        self._programs = programs
        self._kept: dict[int, Standby] = {}

    def _new(self, task: int) -> Standby:
        return Standby(lambda: self._programs(task))

    def feed(self, task: int, refs: Sequence[LayerRef]) -> Standby:
        """Bring a standby (new, if need be) up to date."""
        standby = self._kept.get(task)
        if standby is None:
            standby = self._kept[task] = self._new(task)
        standby.feed(self._store, refs)
        return standby

    def drop(self, task: int) -> None:
        self._kept.pop(task, None)

    def promote(self, task: int) -> Standby:
        """Take a standby out for activation; all others are given up, the slot runs a task now."""
        standby = self._kept.pop(task, None) or self._new(task)
        self._kept.clear()
        return standby
