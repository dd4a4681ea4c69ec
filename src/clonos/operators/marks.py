"""Watermarks that wait until all rows before them have gone on."""

from __future__ import annotations

from clonos.state.stores import Facts


class Marks:
    """Of one operator whose rows wait for calls; its calls are numbered 1, 2, ....

    Parameters
    ----------
    facts
        Where they are kept.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._passed: int | None = None

    def hold(self, number: int, watermark_ms: int) -> None:
        """A watermark came behind the call of this number."""
        marks = [mark for mark in self._facts.get("marks", []) if mark[0] < number]
        self._facts.set("marks", [*marks, [number, watermark_ms]])

    def release(self, first: int) -> None:
        """No call before this one is open any more: what came before it may go on."""
        marks = self._facts.get("marks", [])
        passed = [mark for number, mark in marks if number < first]
        if passed:
            self._passed = passed[-1]
            self._facts.set("marks", marks[len(passed) :])

    def take(self) -> int | None:
        """The newest watermark that may go on, once."""
        passed, self._passed = self._passed, None
        return passed
