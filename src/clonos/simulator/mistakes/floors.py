"""Deliberate mistakes in floors without markers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clonos.core.messages import LayerAck, Restored
from clonos.core.roster import ACTIVE
from clonos.core.seals import Seals


def whatever_it_rests_on(original: Any) -> Any:
    def fitting(plan: Any, sealed: Any, positions: Any, needs: Any, stable: Any) -> Any:
        return original(plan, sealed, positions, needs, dict.fromkeys(stable, 1 << 40))

    return fitting


def whatever_receivers_have(original: Any) -> Any:
    def fitting(plan: Any, sealed: Any, *rest: Any) -> Any:
        lighter = {t: [replace(layer, outs={}) for layer in of_t] for t, of_t in sealed.items()}
        whole = {(t, layer.ref): layer for t, of_t in sealed.items() for layer in of_t}
        return {t: whole[t, a.ref] for t, a in original(plan, lighter, *rest).items()}

    return fitting


def of_any_generation(original: Any) -> Any:
    def fit(self: Any) -> None:
        keeper = self._keeper
        keeper.floor_generation = keeper.generation
        for layers in self.sealed.values():
            layers[:] = [replace(layer, generation=keeper.generation) for layer in layers]
        original(self)

    return fit


def while_starting_over(original: Any) -> Any:
    def may_seal(self: Seals) -> bool:
        before = [(end, end.reset_at) for end in self._task.inputs.values()]
        for end, _ in before:
            end.reset_at = None
        result: bool = original(self)
        for end, reset_at in before:
            end.reset_at = reset_at
        return result

    return may_seal


def needs_of_the_newest(original: Any) -> Any:
    """Items that a receiver has sealed count as taken for good, although its floor is lower."""

    def acknowledged(self: Any, slot: int, report: LayerAck) -> None:
        original(self, slot, report)
        if self.markers is None and self._roster.tasks[report.task].phase in ACTIVE:
            for channel, taken in report.ins.items():
                self._keeper.needs[channel] = max(taken, self._keeper.needs[channel])

    return acknowledged


def all_in_memory(original: Any) -> Any:
    """State that came from the store is reported as held by the standby."""

    def init(self: Restored, *args: Any, **told: Any) -> None:
        original(self, *args, **{**told, "store_bytes": 0})

    return init
