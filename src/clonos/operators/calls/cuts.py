"""Which rows a call is about: a single row, or a batch of waiting rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from clonos.core.program import Step
from clonos.operators.calls.service import Policy
from clonos.state.deltas import WHOLE_TASK
from clonos.state.stores import ADDRESS, Facts, KeyedStore

_SIZE: Final = b"b"
_SINCE: Final = "waits since"
_OVER: Final = "rows over"

Int64 = npt.NDArray[np.int64]


class Cuts:
    """How an operator's rows form calls. A call has consecutive rows, and the number of the first.

    Where a batch ends is part of the state, because the log has one answer for all its rows.

    Parameters
    ----------
    policy
        The largest number of rows of a call, and how long the first row waits for others.
    facts, store
        Where the cuts are kept.
    """

    def __init__(self, policy: Policy, facts: Facts, store: KeyedStore) -> None:
        self._most, self._within_ms = policy.batch or 1, policy.batch_within_ms
        self._is_single = policy.batch is None
        self._facts, self._store = facts, store

    def last(self, call: int) -> int:
        """The last row of a call."""
        if self._is_single:
            return call
        size: int = self._store.get(ADDRESS.pack(_SIZE, call)) or 1
        return call + size - 1

    def rows(self, calls: Sequence[int]) -> Int64:
        """All rows of these calls."""
        if self._is_single:
            return np.array(calls, np.int64)
        spans = [np.arange(call, self.last(call) + 1) for call in calls]
        return np.concatenate(spans) if spans else np.empty(0, np.int64)

    def calls(self, rows: Int64) -> list[int]:
        """The calls of these rows; the rows of each call are complete."""
        found: list[int] = []
        for row in rows.tolist():
            if not found or row > self.last(found[-1]):
                found.append(row)
        return found

    def forget(self, calls: Iterable[int]) -> None:
        """These calls are over."""
        if not self._is_single:
            for call in calls:
                if ADDRESS.pack(_SIZE, call) in self._store:
                    self._store.put(ADDRESS.pack(_SIZE, call), WHOLE_TASK, None)

    # --- cutting ----------------------------------------------------------------------------------

    def is_enough(self, waiting: int) -> bool:
        """Whether this many rows fill a batch, so that they wait only for a call to end."""
        return waiting >= self._most

    def rows_came(self, waited: int, step: Step) -> None:
        """Rows came; `waited` rows had been waiting for a full batch before."""
        if self._within_ms and not waited:
            self._facts.set(_SINCE, step.clock_ms())

    def rows_are_over(self) -> None:
        """No more rows come, so none waits for others any more."""
        if self._within_ms:
            self._facts.set(_OVER, value=True)

    def due_ms(self) -> int:
        """When the call of an incomplete batch is made."""
        since: int = self._facts.get(_SINCE, 0)
        return since + self._within_ms

    def cut(self, asked: int, came: int, most: int, step: Step) -> Int64:
        """The first rows of the next calls, at most `most`, and the row after the last call.

        Parameters
        ----------
        asked, came
            The last row that has asked, and the last row that has come.
        """
        whole = min((came - asked) // self._most, most)
        ends = asked + self._most * np.arange(1, whole + 1)
        last = asked + whole * self._most
        if last < came and whole < most and self._is_due(step):
            ends = np.append(ends, came)
        bounds: Int64 = np.append(asked, ends) + 1
        if not self._is_single:
            for call, size in zip(bounds.tolist(), np.diff(bounds).tolist(), strict=False):
                if size > 1:
                    self._store.put(ADDRESS.pack(_SIZE, call), WHOLE_TASK, size)
        return bounds

    def _is_due(self, step: Step) -> bool:
        if not self._within_ms or self._facts.get(_OVER):
            return True
        return step.clock_ms() >= self.due_ms()
