"""Looking for a driver that goes on with the same job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from clonos.cluster.directory import JobDirectory
from clonos.errors import ClonosError
from clonos.storage.terms import superseded

LOOK_S: Final = 3.0
"""How often to look for a later term. Each look is a request to the checkpoint's file system."""

_LOG: Final = logging.getLogger("clonos")


class Lookout:
    """Checks periodically whether another driver has begun a later term.

    A folder that is out of reach for a while ends nothing: nobody knows then, and it is looked
    again.

    Parameters
    ----------
    tell
        Called, once, with the error that ends this driver's work.
    """

    def __init__(self, directory: JobDirectory, tell: Callable[[ClonosError], object]) -> None:
        self._directory, self._tell = directory, tell
        self._closed = threading.Event()
        self._is_blind = False
        self._thread = threading.Thread(target=self._run, name="clonos-lookout", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop looking. A look under way may hang: nobody waits for it."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            if (error := self.look()) is not None:
                self._tell(error)
                return

    def look(self) -> ClonosError | None:
        """Return what is wrong, if anything is."""
        try:
            rival = self._directory.rival()
        except ClonosError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever a file system says; a thread tells nobody
            if not self._is_blind:
                _LOG.warning("it is not known whether another driver goes on with this: %s", error)
            self._is_blind = True
            return None
        self._is_blind = False
        return None if rival is None else superseded(rival, self._directory.terms_uri)
