"""The time for which the holder of a lease has shown no sign of life."""

from __future__ import annotations

import time


class Stopwatch:
    """For one who looks at a lease now and then.

    If a store has not answered for a while, it has not heard the holder either. So the time from
    one look to the next counts as `step_s` at most.

    Examples
    --------
    >>> watch = Stopwatch(0.5)
    >>> watch.since_last_look()
    0.0
    >>> 0.0 <= watch.since_last_look() <= 0.5
    True
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._looked_s: float | None = None

    def since_last_look(self) -> float:
        """Look; return the seconds that count since the last look, none at the first."""
        last_s, self._looked_s = self._looked_s, time.monotonic()
        return 0.0 if last_s is None else min(self._looked_s - last_s, self._step_s)
