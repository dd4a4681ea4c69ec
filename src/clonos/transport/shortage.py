"""What a process that accepts connections does when it can open no more files."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Final

PAUSE_S: Final = 0.5
"""Time until connections are accepted again. They wait in the system's queue. As long as one waits
there, the listening socket is ready, so without a pause the process would try again and again."""
AGAIN_S: Final = 60.0
"""Time between two warnings."""

_NUMBERS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_LOG: Final = logging.getLogger("clonos")


class Shortage:
    """Recognizes the errors of ``accept()`` that mean a shortage, and warns now and then.

    Parameters
    ----------
    place
        Who listens, for messages.
    warn
        Called with a text.

    Examples
    --------
    >>> shortage = Shortage("webhook", print)
    >>> shortage.is_one(OSError(errno.EMFILE, "Too many open files"))
    webhook: no connection can be accepted: Too many open files. It is tried again until it works. \
See what keeps so many files open, or allow more (ulimit -n).
    True
    >>> shortage.is_one(OSError(errno.EMFILE, "Too many open files"))
    True
    >>> shortage.is_one(BlockingIOError(errno.EAGAIN, "nobody is there"))
    False
    """

    def __init__(self, place: str, warn: Callable[[str], object] = _LOG.warning) -> None:
        self._place, self._warn = place, warn
        self._said_at: float | None = None

    def is_one(self, error: OSError) -> bool:
        """Whether the caller is to wait a little before it accepts again."""
        if error.errno not in _NUMBERS:
            return False
        now = time.monotonic()
        if self._said_at is None or now - self._said_at >= AGAIN_S:
            self._said_at = now
            self._warn(
                f"{self._place}: no connection can be accepted: {error.strerror}. It is tried "
                "again until it works. See what keeps so many files open, or allow more "
                "(ulimit -n)."
            )
        return True
