"""The clock of a slot's process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", None)

ticks_s: Callable[[], float] = (
    time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT)
)
"""Seconds by a monotonic clock that goes on while the machine sleeps, if there is one."""
