"""The rows of a step. They are suspect if a task has died within the step."""

from __future__ import annotations

from typing import Final, NamedTuple


class Rows(NamedTuple):
    """The rows of a step: items `first` to `last` of a channel. Negative channels stand for other
    things that a step takes."""

    channel: int
    first: int
    last: int

    @property
    def is_call(self) -> bool:
        """Whether these are no rows, but a call that is made."""
        return ANY < self.channel <= MADE

    def common(self, other: Rows) -> Rows | None:
        """The rows that are in both."""
        if self.channel == ANY:
            return other
        first, last = max(self.first, other.first), min(self.last, other.last)
        do_meet = self.channel == other.channel and first <= last
        return Rows(self.channel, first, last) if do_meet else None

    def after(self, done: Rows) -> Rows | None:
        """What is left of these rows when `done` and all rows before it have been taken."""
        if done.channel != self.channel or done.last < self.first:
            return self
        if self.channel <= CALLS:  # outcomes come in any order
            return None if done.first <= self.first and self.last <= done.last else self
        return Rows(self.channel, done.last + 1, self.last) if done.last < self.last else None


SOURCE_ROWS: Final = -1
"""Not items of a channel but rows of the task's own source."""
TIMER: Final = -2
"""... the task's wake-up, by the time at which it was due."""
MARKER: Final = -3
"""... a marker that the coordinator has injected, by its epoch."""
CALLS: Final = -4
"""... outcomes of calls of the task's operator 0, by number; -5 those of operator 1, and so on."""

MADE: Final = -(1 << 20)
"""... a call that the task's operator 0 has made, by the digest of what is asked; one less for
operator 1, and so on."""


ANY: Final = -(1 << 30)
"""... any rows."""


class Suspect(NamedTuple):
    """Rows within which a task has died.

    ``deaths``: how many of these deaths count when a trial is inconclusive: none from before a
    copy has survived these rows; ``lives``: how many there were in all, including those with a
    whole executor and those after a trial had survived. Of those with a whole executor while a call
    was made, only proofs count: nothing else was made there. ``hold_ms``: of :data:`ONE_BY_ONE`,
    how long the life makes no call at first.
    """

    rows: Rows
    deaths: int
    lives: int
    hold_ms: int = 0


ONE_BY_ONE: Final = Suspect(Rows(MADE + 1, 0, 0), 0, 0)
"""All calls that the next life makes: it makes them one at a time."""
ALL: Final = Suspect(Rows(ANY, 0, 0), 0, 0)
"""All rows that the next life takes: they are tried, and only the result of a trial counts against
them."""
