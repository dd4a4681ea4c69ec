"""What a reader says while it waits for a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from clonos.errors import masked

PAUSE_S: Final = 0.1
"""Time between two attempts."""
RARELY_S: Final = 60.0
SILENT_S: Final = 5.0
"""A restart of a server that takes no longer causes no warning."""

_LOG: Final = logging.getLogger("clonos")


class Rarely:
    """Passes on what is said again and again at most once a minute; the log has the rest.

    Parameters
    ----------
    warn
        Called with a text.

    Examples
    --------
    >>> times = iter([0.0, 30.0, 60.0])
    >>> rarely = Rarely(print, lambda: next(times))
    >>> for _ in range(3):
    ...     rarely("the connection has ended")
    the connection has ended
    the connection has ended
    """

    def __init__(
        self, warn: Callable[[str], object], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._warn, self._now = warn, now
        self._said_at: float | None = None

    def __call__(self, text: str) -> None:
        """Say this, to the user or to the log."""
        now = self._now()
        if self._said_at is not None and now - self._said_at < RARELY_S:
            _LOG.warning("%s", masked(text))
            return
        self._said_at = now
        self._warn(text)


class Outage:
    """Waits a little after each failure; warns once if they go on, and says when they are over.

    This is :class:`~clonos.storage.retry.Retry` for readers, which must return between attempts.

    Parameters
    ----------
    place
        The server, for messages.
    warn
        Called with a text.

    Examples
    --------
    >>> times = iter([0.0, 4.0, 6.0, 20.0])
    >>> outage = Outage("Redis", print, lambda seconds: None, lambda: next(times))
    >>> for _ in range(4):
    ...     outage.wait("connection refused")
    Redis: for 6 s it cannot be read: connection refused. It is tried again until it works.
    >>> outage.over()
    Redis: it works again
    >>> outage.over()
    """

    def __init__(
        self,
        place: str,
        warn: Callable[[str], object] = _LOG.warning,
        sleep: Callable[[float], object] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._warn, self._sleep, self._now = place, warn, sleep, now
        self._since: float | None = None
        self._is_said = False

    def wait(self, told: str) -> None:
        """Call this after a failure."""
        now = self._now()
        self._since = now if self._since is None else self._since
        if now - self._since >= SILENT_S and not self._is_said:
            self._is_said = True
            self._warn(
                f"{self._place}: for {now - self._since:.0f} s it cannot be read: "
                f"{masked(told).rstrip('.')}. It is tried again until it works."
            )
        self._sleep(PAUSE_S)

    @property
    def away_s(self) -> float:
        """For how long nothing has been answered. Other threads may ask, too."""
        since = self._since
        return 0.0 if since is None else self._now() - since

    def over(self) -> None:
        """Call this when the server has answered."""
        if self._is_said:
            self._warn(f"{self._place}: it works again")
        self._since, self._is_said = None, False
