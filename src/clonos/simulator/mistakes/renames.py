"""Deliberate mistakes in what is renamed, and in what is shared out before a switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clonos.nodes.layers import LayerCare
from clonos.simulator.mistakes.mutation import UPGRADE, Mutation, mutation
from clonos.upgrade import shape as shape_module
from clonos.upgrade.names import Renamed
from clonos.upgrade.states import StateNames


def all_of_them(original: Any) -> Any:
    """Layers that were shared out are merged with others."""
    del original
    return lambda _self, _task, chain: chain


def whatever_is_read(original: Any) -> Any:
    """What is not needed goes, even while it is read."""

    def is_due(self: LayerCare, now_s: float) -> bool:
        shared_out, self._shared_out = self._shared_out, None
        try:
            return bool(original(self, now_s))
        finally:
            self._shared_out = shared_out

    return is_due


def under_the_former_name(original: Any) -> Any:
    """Values stay under the former name."""

    def renamed(self: StateNames, keys: Any, values: Any) -> Any:
        found = original(self, keys, values)
        return found._replace(keys=keys)

    return renamed


def into_one(original: Any) -> Any:
    """Of names that are swapped, both become the first."""

    def init(self: StateNames, operator: str, names: Mapping[str, str]) -> None:
        swapped = [name for name in names if names.get(names[name]) == name]
        original(self, operator, {**names, **dict.fromkeys(swapped, *swapped[:1])})

    return init


def without_swaps(original: Any) -> Any:
    """Operators that swap their names would have to go on with each other's state."""

    def operators(renamed: Renamed) -> dict[str, str]:
        names: dict[str, str] = original(renamed)
        return {name: now for name, now in names.items() if names.get(now) != name}

    return operators


WRONG_RENAMES: dict[str, Mutation] = {
    "a layer is merged across what was shared out": mutation(
        "rounds", (LayerCare, "mergeable", all_of_them), kind=UPGRADE
    ),
    "layers go while they are shared out": mutation(
        "no early truncation", (LayerCare, "is_due", whatever_is_read), kind=UPGRADE
    ),
    "a state with another name keeps its former one": mutation(
        "kept state", (StateNames, "_renamed", under_the_former_name), kind=UPGRADE
    ),
    "of two states that swap their names one is left": mutation(
        "kept state", (StateNames, "__init__", into_one), kind=UPGRADE
    ),
    "operators that swap their names are taken for each other": mutation(
        "liveness", (shape_module, "operators_in", without_swaps), kind=UPGRADE
    ),
}
