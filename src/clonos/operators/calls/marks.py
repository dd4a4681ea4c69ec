"""Watermarks that wait until all rows before them have left."""

from __future__ import annotations

from typing import Final

from clonos.operators.shares import Join, everybody, lowest, nothing
from clonos.operators.watermark import IDLE
from clonos.state.stores import Facts

LOWEST: Final = IDLE + 1
"""A watermark that says only that its sender is no longer idle."""
AT_ONCE: Final = 0
"""A time that has passed, whatever the clock says."""


JOINS: Final[dict[str, Join]] = {
    "marks": nothing,
    "idle waits": everybody,
    "is idle": everybody,
    "passed": lowest,
}
"""How facts are combined when the number of tasks changes. No call is open then, so no watermark
waits."""


class Marks:
    """The waiting watermarks of an operator whose rows wait for calls numbered 1, 2, ....

    While a row waits, tasks downstream must not treat this one as idle: event time would advance
    past that row.

    Parameters
    ----------
    facts
        Where the watermarks are kept.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._passed: int | None = None

    def rows_came(self) -> None:
        """Rows have come: the input is no longer idle."""
        self._facts.set("idle waits", value=False)
        if self._facts.get("is idle"):
            self._pass(self._facts.get("passed", LOWEST))

    def came(self, watermark_ms: int, number: int, newest: int | None) -> int | None:
        """A watermark came.

        Parameters
        ----------
        number
            The number of the newest call so far.
        newest
            The number of the newest waiting call; None: nothing waits.

        Returns
        -------
        int or None
            A watermark that may go on now.
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
        return self.take()  # the one that ends idleness, if it has just been set

    def release(self, first: int) -> None:
        """All calls before this one are over, so watermarks before it may go on."""
        marks = self._facts.get("marks", [])
        passed = [mark for number, mark in marks if number < first]
        if passed:
            self._facts.set("marks", marks[len(passed) :])
            self._pass(passed[-1])

    def due(self, *, waits: bool) -> int | None:
        """When :meth:`on_timer` must be called: IDLE goes last, in a step of its own, because a
        step passes on only one watermark.

        `waits`: whether some row waits.
        """
        return AT_ONCE if self._facts.get("idle waits") and not waits else None

    def on_timer(self, *, waits: bool) -> None:
        """The input is idle, and nothing waits any more."""
        if self.due(waits=waits) is not None:
            self._pass(IDLE)

    def take(self) -> int | None:
        """Return the newest watermark that may go on, and forget it."""
        passed, self._passed = self._passed, None
        return passed

    def _pass(self, watermark_ms: int) -> None:
        self._passed = watermark_ms
        self._facts.set("is idle", watermark_ms == IDLE)
        if watermark_ms == IDLE:
            self._facts.set("idle waits", value=False)
        else:
            self._facts.set("passed", watermark_ms)
