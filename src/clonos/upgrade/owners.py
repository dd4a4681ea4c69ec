"""Shares out the runs of former tasks to those that own their key groups.

Only a range of hashes is in memory at a time; what comes of it is on the local disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clonos.columns.keys import owner_of_group
from clonos.core.content import Part
from clonos.operators.shares import Heir
from clonos.state.runs import Rows, Run, RunWriter, merge_runs
from clonos.storage.opened import ScratchFile

Owns = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""Makes a mask of the key groups that a task owns."""


def owned(groups: npt.NDArray[np.int64], heir: Heir) -> npt.NDArray[np.bool_]:
    """A mask of the key groups that a new task owns."""
    is_owned: npt.NDArray[np.bool_] = owner_of_group(groups, heir.parallelism) == heir.index
    return is_owned


def all_of_them(groups: Any) -> npt.NDArray[np.bool_]:
    """The same for a task that owns all."""
    return np.ones(len(groups), np.bool_)


def share_out(
    runs: Sequence[Run], heirs: Sequence[tuple[ScratchFile, Owns]], *, is_base: bool
) -> list[Run]:
    """For each heir a run with its part of all these, given oldest first, in its file.

    ``is_base``: nothing lies below, so deletions need not be kept.
    """
    rows = sum(map(len, runs))
    # More than its share of the rows would only make an heir's filter less exact.
    owners = [_Owner(min(rows, 2 * rows // len(heirs) + 1), *heir) for heir in heirs]
    merge_runs(runs, _Owners(owners), is_base=is_base)
    return [owner.run() for owner in owners]


class _Owner:
    """Takes rows, and writes those in one task's key groups."""

    def __init__(self, rows: int, scratch: ScratchFile, owns: Owns) -> None:
        self._scratch, self._owns, self._start = scratch, owns, len(scratch)
        self._writer = RunWriter(rows, scratch.write)

    def add(self, rows: Rows) -> None:
        self._writer.add(rows.chosen(self._owns(rows.groups)))

    def run(self) -> Run:
        return Run(self._writer.index(), Part(self._scratch, self._start, len(self._scratch)))


class _Owners:
    """A writer that distributes rows to their owners."""

    def __init__(self, owners: Sequence[_Owner]) -> None:
        self._owners = owners

    def add(self, rows: Rows) -> None:
        for owner in self._owners:
            owner.add(rows)
