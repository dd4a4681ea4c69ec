"""Services that answer nothing, for some time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Final

from clonos.blame import in_short
from clonos.errors import masked
from clonos.transport.events import Away

ATTEMPTS: Final = 2
"""So many attempts have failed, at least: one shows nothing."""
TOLD_S: Final = 10.0
"""An outage of at least so long is in the log."""

_LOG: Final = logging.getLogger("clonos")


class ServiceOutage:
    """Whether a service has answered any attempt of one life of a task.

    An error is no answer: nobody but the user knows which errors of a service are answers. So a
    service is away only if nothing else has come from it.

    Parameters
    ----------
    name, function
        Of the service, to be told.
    clock
        Returns seconds.
    """

    def __init__(self, name: str, function: str, clock: Callable[[], float]) -> None:
        self._name, self._function, self._clock = name, function, clock
        self._heard_s = -inf  # when it has answered, or could not be heard, for the last time
        self._since_s = self._until_s = 0.0
        self._failed, self._error = 0, ""
        self._is_told = False

    @property
    def away(self) -> Away | None:
        """From when the first attempt began until the last one failed; None: it is not away."""
        seconds = int(self._until_s - self._since_s)
        if self._failed < ATTEMPTS or not seconds:
            return None
        return Away(seconds, self._function, self._error)

    def failed(self, began_s: float, error: Exception) -> None:
        """An attempt that began then has had no answer."""
        if not self._failed:
            self._since_s = max(began_s, self._heard_s)
        self._failed += 1
        self._until_s = self._clock()
        self._error = masked(in_short(error)).partition("\n")[0]
        away = self.away
        if away is not None and away.seconds >= TOLD_S and not self._is_told:
            self._is_told = True
            said = "%s: %s has answered nothing for %d s: %s"
            _LOG.warning(said, self._name, away.function, away.seconds, away.error)

    def answered(self) -> None:
        """An attempt was answered."""
        self.stood_still()
        if self._is_told:
            self._is_told = False
            _LOG.warning("%s: %s answers again", self._name, self._function)

    def stood_still(self) -> None:
        """Until now, nobody could have been heard: the event loop was blocked, or the process
        stopped."""
        self._failed, self._heard_s = 0, self._clock()
