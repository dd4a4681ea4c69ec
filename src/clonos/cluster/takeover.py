"""How a driver gets the job: it takes the lock of the journal, which another driver may hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from clonos.cluster.durable import JournalFile
from clonos.cluster.patience import Patience
from clonos.errors import BadDirectory, JournalInUse
from clonos.nodes.waiting import Waiting
from clonos.transport.plane import Plane

LOGGER: Final = logging.getLogger("clonos")

STANDBY_S: Final = 0.1
"""How often a standby driver tries to take the lock of the journal."""
LOOK_S: Final = 0.01
"""How often it checks whether there is a reason to try at once."""

Look = Callable[[Waiting | None], bool]
"""Whether a driver that waits, perhaps with slots, tries at once; may raise."""


class Takeover:
    """Waits until no other driver runs the job, while slots come and go.

    Parameters
    ----------
    waiting, plane
        Slots that wait, too, and where they are heard; None: there are none.
    look
        None: there is nothing to look at, as nobody in this process has run the job.
    stands_by
        Whether it waits for another driver to end.
    goes_on
        Nobody else can run the job, so what is away is waited for.

    Attributes
    ----------
    has_waited
        Whether another driver may have changed the job since this one began to wait.
    """

    def __init__(
        self,
        name: str,
        waiting: Waiting | None = None,
        plane: Plane | None = None,
        look: Look | None = None,
        *,
        stands_by: bool = False,
        goes_on: bool = False,
    ) -> None:
        self.has_waited = False
        self._name, self._waiting, self._plane, self._look = name, waiting, plane, look
        self._is_patient, self._goes_on = stands_by or goes_on, goes_on

    def take(
        self, opens: Callable[[], JournalFile], where: str, warm_up: Callable[[], object]
    ) -> JournalFile:
        """Take the lock. A standby driver first does everything that is slow, then waits."""
        while True:
            waits = self.has_waited or self._goes_on
            try:
                return opens()
            except JournalInUse as error:
                if not self._is_patient:
                    raise
                why = error.what
            except OSError as error:
                # A database may be away for a while; one that was never reached is a mistake.
                if not waits:
                    raise BadDirectory(
                        f"the journal cannot be opened: {error}",
                        where=where,
                        remedy="check that the driver reaches the place and may write to it",
                    ) from error
            if not waits:
                self._begin_to_wait(warm_up)
                LOGGER.info("%s stands by: %s", self._name, why)
            self.pause()
            self.has_waited = True

    def _begin_to_wait(self, warm_up: Callable[[], object]) -> None:
        if self._waiting is not None:
            self._waiting.start()
        else:
            warm_up()

    def patience(self, warn: Callable[[str], object]) -> Patience:
        """How long stores are waited for. Who follows a driver of this process can be given up,
        unless there is nobody else."""
        is_alone = self._goes_on or (self.has_waited and self._look is None)
        return Patience(self._name, self.pause, warn, is_needed=is_alone)

    def pause(self, seconds: float = STANDBY_S) -> None:
        """Wait until another try is worth it; meanwhile slots come and go."""
        until_s = time.monotonic() + seconds
        while not self._is_worth_it() and (left_s := until_s - time.monotonic()) > 0:
            if self._waiting is None or self._plane is None:
                time.sleep(left_s)
            else:
                self._waiting.turn(self._plane.poll(min(left_s, LOOK_S)), time.monotonic())

    def _is_worth_it(self) -> bool:
        return self._look is not None and self._look(self._waiting)
