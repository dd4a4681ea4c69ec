"""Which rows one call is about: of each row by itself, or of up to so many that wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from clonos.core.program import Step
from clonos.operators.service import Policy
from clonos.state.deltas import WHOLE_TASK
from clonos.state.stores import Facts, KeyedStore

_KEY: Final = Struct(">cq").pack
_SINCE: Final = "waits since"
_OVER: Final = "rows over"

Int64 = npt.NDArray[np.int64]


class Cuts:
    """Of one operator. A call is about rows with consecutive numbers, and has that of the first.

    Where a batch ends is part of the state: the log has one answer to all its rows.

    Parameters
    ----------
    policy
        How many rows a call is about, at most, and how long the first waits for the others.
    facts, store
        Where it is kept.
    """

    def __init__(self, policy: Policy, facts: Facts, store: KeyedStore) -> None:
        self._most, self._within_ms = policy.batch or 1, policy.batch_within_ms
        self._is_single = policy.batch is None
        self._facts, self._store = facts, store

    def last(self, call: int) -> int:
        """The last row that a call is about."""
        return call if self._is_single else call + (self._store.get(_KEY(b"b", call)) or 1) - 1

    def rows(self, calls: Sequence[int]) -> Int64:
        """All rows that these calls are about."""
        if self._is_single:
            return np.array(calls, np.int64)
        spans = [np.arange(call, self.last(call) + 1) for call in calls]
        return np.concatenate(spans) if spans else np.empty(0, np.int64)

    def calls(self, rows: Int64) -> list[int]:
        """The calls that ask for these rows, of which none is missing."""
        found: list[int] = []
        for row in rows.tolist():
            if not found or row > self.last(found[-1]):
                found.append(row)
        return found

    def forget(self, calls: Iterable[int]) -> None:
        """They are over."""
        if not self._is_single:
            for call in calls:
                if _KEY(b"b", call) in self._store:
                    self._store.put(_KEY(b"b", call), WHOLE_TASK, None)

    # --- cutting ----------------------------------------------------------------------------------

    def is_enough(self, waiting: int) -> bool:
        """Whether so many rows wait for no others, but for a call to be over."""
        return waiting >= self._most

    def rows_came(self, waited: int, step: Step) -> None:
        """Rows came; so many had waited for others before."""
        if self._within_ms and not waited:
            self._facts.set(_SINCE, step.clock_ms())

    def rows_are_over(self) -> None:
        """No others come: nobody waits for them."""
        if self._within_ms:
            self._facts.set(_OVER, value=True)

    def due_ms(self) -> int:
        """When the rows that wait for others are asked for without them."""
        since: int = self._facts.get(_SINCE, 0)
        return since + self._within_ms

    def cut(self, asked: int, came: int, most: int, step: Step) -> Int64:
        """The next calls, at most so many, and the row behind them; none: that row alone.

        Parameters
        ----------
        asked, came
            The last row that is asked for, and the last one there is.
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
                    self._store.put(_KEY(b"b", call), WHOLE_TASK, size)
        return bounds

    def _is_due(self, step: Step) -> bool:
        if not self._within_ms or self._facts.get(_OVER):
            return True
        return step.clock_ms() >= self.due_ms()
