"""Retries what fails for a while, for ever, with growing pauses."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from clonos.errors import StoreAway

FIRST_PAUSE_S: Final = 0.1
"""Time between the first two attempts; doubled each time ..."""
PAUSE_MAX_S: Final = 10.0
"""... up to this, which is how long the return of a store may go unnoticed."""

_LOG: Final = logging.getLogger("clonos")
_T = TypeVar("_T")


_WRONG: Final = (
    PermissionError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)


def may_pass(error: Exception) -> bool:
    """Whether waiting may help. It does not if something is wrong with the place.

    Examples
    --------
    >>> may_pass(OSError(28, "No space left on device")), may_pass(OSError("timed out"))
    (True, True)
    >>> may_pass(OSError(13, "Permission denied"))
    False
    """
    return not (isinstance(error, _WRONG) or getattr(error, "errno", 0) == errno.ENAMETOOLONG)


class Retry:
    """Tries something that may raise :class:`StoreAway` until it does not.

    An outage causes one warning, however long it lasts, and a message when it is over.

    Parameters
    ----------
    what
        The name for the warning of what waits meanwhile.
    wait
        Waits a number of seconds; True: give up, because nobody needs the result any more. For
        example :meth:`threading.Event.wait`.
    warn
        Called with a text.

    Examples
    --------
    >>> waited, said = [], []
    >>> def put():
    ...     if len(waited) < 3:
    ...         raise StoreAway("the disk is full")
    ...     return "stored"
    >>> Retry("layers", waited.append, said.append)(put)
    'stored'
    >>> waited
    [0.1, 0.2, 0.4]
    >>> said
    ['layers: the disk is full. It is tried again until it works.', 'layers: it works again']
    """

    def __init__(
        self,
        what: str,
        wait: Callable[[float], object] = time.sleep,
        warn: Callable[[str], object] = _LOG.warning,
    ) -> None:
        self._what, self._wait, self._warn = what, wait, warn
        self._since: float | None = None

    @property
    def away_s(self) -> float:
        """For how long what is being tried has failed. Other threads may ask, but not try."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def __call__(self, attempt: Callable[[], _T]) -> _T:
        """What `attempt` returns in the end."""
        try:
            return self._tried(attempt)
        finally:
            self._since = None

    def _tried(self, attempt: Callable[[], _T]) -> _T:
        pause_s = 0.0
        while True:
            try:
                result = attempt()
            except StoreAway as error:
                if not pause_s:
                    self._since = time.monotonic()
                    self._warn(f"{self._what}: {error.sentence} It is tried again until it works.")
                pause_s = min(2 * pause_s, PAUSE_MAX_S) if pause_s else FIRST_PAUSE_S
                if self._wait(max(pause_s, error.after_s)):
                    raise
            else:
                if pause_s:
                    self._warn(f"{self._what}: it works again")
                return result
