"""Looks for a later driver of the same job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from clonos.errors import ClonosError
from clonos.nodes.events import OutsideFailed
from clonos.nodes.tenure import Sight, TermSeen
from clonos.storage.terms import Term, superseded

_LOG: Final = logging.getLogger("clonos")


class Succession(Protocol):
    """Knows the current driver of a job: a :class:`~clonos.cluster.directory.JobDirectory`."""

    @property
    def terms_uri(self) -> str: ...
    def rival(self) -> Term | None: ...


def require_office(directory: Succession) -> None:
    """Raise `Superseded` if there is a later driver; `OSError`: that is not known."""
    if (rival := directory.rival()) is not None:
        raise superseded(rival, directory.terms_uri)


class Lookout:
    """A :class:`~clonos.nodes.ports.Lookout`: a thread that asks the checkpoint's file system.

    A folder that cannot be reached for a while does not end the job: it is unknown then whether
    there is a later driver.

    Parameters
    ----------
    tell
        Called with the outcome of each look.
    warn
        Called when the folder cannot be reached.
    """

    def __init__(
        self,
        directory: Succession,
        tell: Callable[[TermSeen | OutsideFailed], object],
        warn: Callable[[str], object] = _LOG.warning,
    ) -> None:
        self._directory, self._tell, self._warn = directory, tell, warn
        self._asked = threading.Event()
        self._is_closed = self._is_blind = False
        self._thread = threading.Thread(target=self._run, name="clonos-lookout", daemon=True)

    def look(self) -> None:
        self._asked.set()
        if not self._thread.ident:
            self._thread.start()

    def close(self) -> None:
        """Stop looking. A look under way may hang: nobody waits for it."""
        self._is_closed = True
        self._asked.set()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._is_closed:
                return
            for event in self.see():
                self._tell(event)

    def see(self) -> list[TermSeen | OutsideFailed]:
        """Return the outcome of a look and, if the job must end, the error."""
        try:
            rival = self._directory.rival()
        except ClonosError as error:
            return [TermSeen(Sight.ANOTHERS), OutsideFailed(error)]
        except Exception as error:  # noqa: BLE001 - any error of a file system
            if not self._is_blind:
                self._warn(
                    f"it is not known whether another driver has taken the job over: {error}"
                )
            self._is_blind = True
            return [TermSeen(Sight.HIDDEN)]
        self._is_blind = False
        if rival is None:
            return [TermSeen(Sight.OURS)]
        over = superseded(rival, self._directory.terms_uri)
        return [TermSeen(Sight.ANOTHERS), OutsideFailed(over)]
