"""States of a `Process` that have other names in the next graph: their values go with them.

The address of a value begins with the name of its state. So values get other addresses, and other
places in their runs. Only a range of a run is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.core.content import Part
from clonos.errors import CannotUpgrade
from clonos.operators.process.declared import IN_USE
from clonos.operators.process.process import prefix_of
from clonos.state.deltas import Opened, decode_delta
from clonos.state.kept import Kept
from clonos.state.runs import Rows, Run, RunWriter, hashes_of, in_order, merge_runs, ranges
from clonos.state.stores import Facts
from clonos.state.timers import place_of
from clonos.storage.opened import ScratchFile
from clonos.upgrade.shape import Shape

HAS_STATES: Final = "ProcessRows"
"""The kind of operator whose states have names."""

Mask = npt.NDArray[np.bool_]


class _Renamed(NamedTuple):
    """Addresses under the present names; which of them are others now, and which count."""

    keys: pa.Array
    is_other: Mask
    counts: Mask


class StateNames:
    """The states of one operator that have other names now.

    Parameters
    ----------
    operator
        Its name, for errors.
    names
        The present names, by former name.

    Attributes
    ----------
    missing
        Former names that no layer says to be in use, and of which no value has been seen.
    """

    def __init__(self, operator: str, names: Mapping[str, str]) -> None:
        self._operator, self._names = operator, names
        self._taken = set(names.values()) - names.keys()
        self.missing = set(names)

    def run(self, run: Run, scratch: ScratchFile) -> Run:
        """The same values under the present names."""
        parts = [
            _written(self._rows(in_order(rows)), scratch)
            for low, high in ranges([run])
            if (rows := list(run.parts(low, high)))
        ]
        return parts[0] if len(parts) == 1 else _merged(parts, scratch)

    def _rows(self, rows: Rows) -> Rows:
        renamed = self._renamed(rows.keys, rows.values)
        hashes, others = rows.hashes.copy(), renamed.keys.filter(pa.array(renamed.is_other))
        hashes[renamed.is_other] = hashes_of(others.to_pylist(), place_of)
        found = Rows(hashes, rows.groups, renamed.keys, rows.values).chosen(renamed.counts)
        return found.chosen(np.argsort(found.hashes, kind="stable"))

    def kept(self, kept: Kept, scratch: ScratchFile) -> Kept:
        """The same for what an operator has kept in a task; runs were not read."""
        renamed = self._renamed(kept.keys, kept.values)
        runs = tuple(self.run(run, scratch) for run in kept.runs)
        found = kept._replace(keys=renamed.keys, runs=runs, facts=self.facts(kept.facts))
        return found.chosen(renamed.counts)

    def facts(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The facts of the operator, which name states, too."""
        in_use = facts.get(IN_USE)
        if in_use is None:
            return facts
        return {**facts, IN_USE: sorted(self.called(in_use))}

    def called(self, states: Sequence[str]) -> list[str]:
        """What these states, which are in use, are called now."""
        self.missing.difference_update(states)
        return [self._names.get(name, name) for name in states]

    def _renamed(self, keys: pa.Array, values: pa.Array) -> _Renamed:
        found, is_valid = keys, _mask(values.is_valid())
        is_other, counts = np.zeros(len(keys), np.bool_), np.ones(len(keys), np.bool_)
        for former, name in self._names.items():
            old, new = prefix_of(former), prefix_of(name)
            is_mine = pc.starts_with(keys, old)
            found = pc.if_else(is_mine, pc.binary_replace_slice(keys, 0, len(old), new), found)
            is_other |= _mask(is_mine)
            if (_mask(is_mine) & is_valid).any():
                self.missing.discard(former)
        for name in self._taken:
            # What was forgotten under this name must not make the values forgotten that have it now
            is_taken = _mask(pc.starts_with(keys, prefix_of(name)))
            if (is_taken & is_valid).any():
                raise CannotUpgrade(
                    f"renamed= gives a state the name {name!r}, and another state has values of "
                    "that name",
                    where=self._operator,
                    remedy=f"say what {name!r} is now, too; or give the state a name that has no "
                    "values",
                )
            counts &= ~is_taken
        return _Renamed(found, is_other, counts)

    def require_found(self) -> None:
        """Raise `CannotUpgrade` if there was no value of a former name."""
        for name in sorted(self.missing):
            raise CannotUpgrade(
                f"renamed= names its state {name!r}, and no key has a value of that name",
                where=self._operator,
                remedy="check the name; if nothing was kept under it, leave it out",
            )


def state_names(before: Shape) -> dict[str, StateNames]:
    """By present name of the operator, its states that have other names now."""
    return {operator: StateNames(operator, names) for operator, names in before.states.items()}


def states_in_use(delta: Opened) -> Iterator[tuple[int, list[str]]]:
    """By number of the operator, the states that a delta says to be in use."""
    for operator, is_fact, keys, values in decode_delta(delta.names, delta):
        if is_fact:
            facts = Facts()
            facts.restore(keys.to_pylist(), values.to_pylist())
            yield operator, facts.get(IN_USE, [])


def _mask(array: pa.Array) -> Mask:
    found: Mask = array.to_numpy(zero_copy_only=False).astype(np.bool_)
    return found


class _Writer:
    """Writes a run."""

    def __init__(self, rows: int, scratch: ScratchFile) -> None:
        self._scratch, self._start = scratch, len(scratch)
        writer = RunWriter(rows, scratch.write)
        self.add, self._index = writer.add, writer.index

    def run(self) -> Run:
        return Run(self._index(), Part(self._scratch, self._start, len(self._scratch)))


def _written(rows: Rows, scratch: ScratchFile) -> Run:
    writer = _Writer(len(rows.hashes), scratch)
    writer.add(rows)
    return writer.run()


def _merged(runs: list[Run], scratch: ScratchFile) -> Run:
    writer = _Writer(sum(map(len, runs)), scratch)
    merge_runs(runs, writer, is_base=False)
    return writer.run()
