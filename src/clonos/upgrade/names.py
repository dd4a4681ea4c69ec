"""What becomes of state in the next graph, by name: of operators, and of states of a `Process`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

Renamed = Mapping[Any, str]
"""Present names, by former name of an operator, or by (operator, former name of its state)."""
NOTHING_RENAMED: Final[Renamed] = MappingProxyType({})


@dataclass(frozen=True)
class StateChanges:
    """Which state goes (``drop_state=``), and which goes elsewhere (``renamed=``)."""

    drop_state: Collection[Any] = ()
    renamed: Renamed = field(default_factory=dict)


ALL_STAYS: Final = StateChanges()


def operators_in(renamed: Renamed) -> dict[str, str]:
    """The operators among what has another name.

    Examples
    --------
    >>> operators_in({"score": "scoring", ("score", "total"): "sum"})
    {'score': 'scoring'}
    """
    return {name: now for name, now in renamed.items() if isinstance(name, str)}


def states_in(renamed: Renamed) -> dict[str, dict[str, str]]:
    """The states among what has another name, by former name of their operator.

    Examples
    --------
    >>> states_in({"score": "scoring", ("score", "total"): "sum"})
    {'score': {'total': 'sum'}}
    """
    found = dict[str, dict[str, str]]()
    for name, now in renamed.items():
        if not isinstance(name, str):
            found.setdefault(name[0], {})[name[1]] = now
    return found
