"""Time in the driver's process."""

from __future__ import annotations

import time


class SystemClock:
    """The clock of this machine: a :class:`~clonos.nodes.ports.WallClock`."""

    def ticks_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()
