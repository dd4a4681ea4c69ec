"""Sources wait while some task keeps too much for its receivers."""

from __future__ import annotations

from clonos.core import messages as msg
from clonos.core.roster import Roster, TaskState

INFLIGHT_BYTES_HIGH = 512 << 20
"""A task that keeps so much for its receivers (one is away, or replays) makes the sources wait."""
INFLIGHT_BYTES_LOW = 256 << 20
"""... until it is down to this again: floors have passed its items."""


class Throttle:
    """Whether sources wait, and who makes them."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._pressed: dict[int, int] = {}  # bytes in flight, by task
        self._is_closed = False

    def pressure(self, task: int, inflight_bytes: int) -> None:
        """A task says how much it keeps for its receivers."""
        self._pressed[task] = inflight_bytes
        most = max(self._pressed.values())
        closed = most > (INFLIGHT_BYTES_LOW if self._is_closed else INFLIGHT_BYTES_HIGH)
        if closed is not self._is_closed:
            self._is_closed = closed
            for source in self._roster.plan.tasks:
                if source.is_source:
                    self._roster.command(source.id, msg.Throttle(closed))

    def live(self, task: TaskState) -> None:
        """A source that was away hears it, too."""
        if self._is_closed and self._roster.plan.tasks[task.id].is_source:
            self._roster.command(task.id, msg.Throttle(closed=True))
