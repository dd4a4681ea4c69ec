"""When a simulated process takes its next turn."""

from __future__ import annotations

from collections.abc import Callable

from clonos.simulator.world.virtual import Scheduler


class Turns:
    """At most one turn is scheduled, and none takes place while the process is frozen.

    Parameters
    ----------
    take
        Takes a turn at the given time.
    frozen_until
        Returns until when the process is frozen.
    is_alive
        A dead process takes no turn.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        take: Callable[[float], None],
        frozen_until: Callable[[], float],
        is_alive: Callable[[], bool],
    ) -> None:
        self._scheduler, self._take = scheduler, take
        self._frozen_until, self._is_alive = frozen_until, is_alive
        self._at: float | None = None

    def by(self, time: float) -> None:
        """Schedule a turn at this time or before."""
        at = max(time, self._frozen_until())
        if self._at is None or at < self._at:
            self._at = at
            self._scheduler.at(at, self._begin, at)

    def _begin(self, at: float) -> None:
        if not self._is_alive() or at != self._at:
            return
        self._at = None
        now = self._scheduler.now
        if self._frozen_until() > now:
            self.by(now)
        else:
            self._take(now)
