"""Watermarks that wait until all rows before them have gone on."""

from __future__ import annotations

from typing import Final

from clonos.operators.shares import Join, everybody, lowest, nothing
from clonos.operators.watermark import IDLE
from clonos.state.stores import Facts

LOWEST: Final = IDLE + 1
"""Says nothing about event time, but that its sender counts again."""
AT_ONCE: Final = 0
"""A time that has passed, whatever the clock says."""


JOINS: Final[dict[str, Join]] = {
    "marks": nothing,
    "idle waits": everybody,
    "is idle": everybody,
    "passed": lowest,
}
"""What becomes of the facts if there are more or fewer tasks. No call is open then, so no mark
waits."""


class Marks:
    """Of one operator whose rows wait for calls, which are numbered 1, 2, ....

    Whoever is behind it must not take it for idle while a row waits here: event time would go on
    without that row.

    Parameters
    ----------
    facts
        Where they are kept.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._passed: int | None = None

    def rows_came(self) -> None:
        """Rows begin to wait: the input is idle no more."""
        self._facts.set("idle waits", value=False)
        if self._facts.get("is idle"):
            self._pass(self._facts.get("passed", LOWEST))

    def came(self, watermark_ms: int, number: int, newest: int | None) -> int | None:
        """A watermark came.

        Parameters
        ----------
        number
            Of the newest call so far.
        newest
            Of those that wait; None: nothing waits.

        Returns
        -------
        int or None
            The same if it may go on.
        """
        if newest is None:
            self._pass(watermark_ms)
            return self.take()
        self._facts.set("idle waits", watermark_ms == IDLE)
        if watermark_ms != IDLE:
            marks = [list(mark) for mark in self._facts.get("marks", [])]
            if marks and newest <= marks[-1][0]:  # no row waits between the two
                marks[-1][1] = watermark_ms
            else:
                marks.append([number, watermark_ms])
            self._facts.set("marks", marks)
        return self.take()  # if a timer has just begun to wait

    def release(self, first: int) -> None:
        """No call before this one is open any more: what came before it may go on."""
        marks = self._facts.get("marks", [])
        passed = [mark for number, mark in marks if number < first]
        if passed:
            self._facts.set("marks", marks[len(passed) :])
            self._pass(passed[-1])

    def due(self, *, waits: bool) -> int | None:
        """When :meth:`on_timer` is wanted: a step passes on one watermark, and IDLE comes last.

        `waits`: some row does.
        """
        return AT_ONCE if self._facts.get("idle waits") and not waits else None

    def on_timer(self, *, waits: bool) -> None:
        """The input is idle, and nothing waits any more."""
        if self.due(waits=waits) is not None:
            self._pass(IDLE)

    def take(self) -> int | None:
        """The newest watermark that may go on, once."""
        passed, self._passed = self._passed, None
        return passed

    def _pass(self, watermark_ms: int) -> None:
        self._passed = watermark_ms
        self._facts.set("is idle", watermark_ms == IDLE)
        if watermark_ms == IDLE:
            self._facts.set("idle waits", value=False)
        else:
            self._facts.set("passed", watermark_ms)
