"""Says when something takes too long, although the thread that does it is stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 1.0
"""Time from one look to the next, at most."""


class Watchdog:
    """Watches what one thread does, act by act.

    Parameters
    ----------
    bark
        Called once for each act that takes too long, in a thread of the watchdog's own.
    hangs_s
        How long an act may take; it may be changed at any time.

    Examples
    --------
    >>> too_long = threading.Event()
    >>> dog = Watchdog(too_long.set, hangs_s=0.01)
    >>> dog.begin()
    >>> too_long.wait(60)
    True
    >>> dog.end()
    >>> dog.close()
    """

    def __init__(self, bark: Callable[[], object], hangs_s: float) -> None:
        self._bark, self.hangs_s = bark, hangs_s
        self._began_s: float | None = None
        self._more_s = 0.0
        self._over: threading.Event | None = None

    def begin(self, more_s: float = 0.0) -> None:
        """An act begins, which may take this much longer than others."""
        self._more_s, self._began_s = more_s, time.monotonic()
        if self._over is None:
            self._over = threading.Event()
            run = threading.Thread(
                target=self._run, args=(self._over,), name="clonos-watchdog", daemon=True
            )
            run.start()

    def end(self) -> None:
        """It has ended."""
        self._began_s = None

    def close(self) -> None:
        """Watch nothing, until something begins again."""
        if self._over is not None:
            self._over.set()
            self._over = None

    def _run(self, over: threading.Event) -> None:
        told_s: float | None = None
        while not over.wait(min(self.hangs_s / 10, LOOK_S)):
            began_s = self._began_s
            if began_s in (None, told_s):
                continue
            if time.monotonic() >= began_s + self.hangs_s + self._more_s:
                told_s = began_s
                self._bark()
