"""What a layer has kept of each operator, for those who put it together anew."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.core.canonical import encode
from clonos.state.deltas import FACTS, Changes, column_of, table_of
from clonos.state.stores import Facts


class Kept(NamedTuple):
    """Facts, and rows of state by key, of one operator or (without rows) the chain."""

    facts: dict[str, Any]
    groups: npt.NDArray[np.int64]
    keys: pa.Array
    values: pa.Array

    def chosen(self, is_chosen: npt.NDArray[np.bool_]) -> Kept:
        """The same facts, and some of the rows."""
        mask = pa.array(is_chosen)
        groups = self.groups[is_chosen]
        return Kept(self.facts, groups, self.keys.filter(mask), self.values.filter(mask))

    def changes(self) -> list[Changes]:
        """All of it, as a layer has it."""
        return [fact_changes(self.facts), Changes(self.groups, self.keys, self.values)]


def nothing_kept() -> Kept:
    """Of an operator that has no state."""
    none = pa.array([], pa.large_binary())
    return Kept({}, np.empty(0, np.int64), none, none)


def fact_changes(facts: dict[str, Any]) -> Changes:
    """Facts, as a layer has them."""
    values = [encode(value) for value in facts.values()]
    return Changes([FACTS] * len(facts), [name.encode() for name in facts], values)


def kept_of(base: bytes) -> dict[int, Kept]:
    """What a task's layers, merged, have kept; by the number of the operator."""
    found: dict[int, Kept] = {}
    if not base:
        return found
    table = table_of(base)
    numbers = table["operator"].to_numpy()
    for number in sorted(set(numbers.tolist())):
        part = table.filter(pa.array(numbers == number))
        groups = part["key_group"].to_numpy().astype(np.int64)
        is_fact = groups == FACTS
        facts, said = Facts(), part.filter(pa.array(is_fact))
        facts.restore(said["key"].to_pylist(), said["value"].to_pylist())
        rows = part.filter(pa.array(~is_fact))
        columns = column_of(rows, "key"), column_of(rows, "value")
        found[number] = Kept(dict(facts.as_dict()), groups[~is_fact], *columns)
    return found
