"""A driver that waits until another one has ended, with its slots in place already.

The slots register as with any driver, and have nothing to do yet. So a driver that takes a job
over, or continues it with another graph, only has to tell these processes what to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from clonos.core.coordinator import SlotReady
from clonos.core.plan import Plan
from clonos.nodes.events import Ended
from clonos.nodes.places import Places
from clonos.nodes.ports import Launcher
from clonos.nodes.settings import DriverSettings
from clonos.transport.events import ControlLost, ControlOpened

PAUSE_MAX_S: Final = 1.0
"""A longer pause between two turns counts as this: the process did not run."""


def places_of(plan: Plan, launcher: Launcher, settings: DriverSettings) -> Places:
    """The places of a job, none of them launched yet."""
    return Places(
        settings.name,
        settings.places,
        launcher,
        spare=len(settings.places) > len(plan.cells),
        versions=settings.versions,
        fatal=settings.interruptions,
        pace=settings.pace,
    )


class Waiting:
    """Slots that are ready before there is a job for them.

    Parameters
    ----------
    warn
        Called with warnings.

    Attributes
    ----------
    ready
        Slots that have registered and have not gone, by number.
    now_s
        How long it has waited: the clock of its places.
    """

    def __init__(
        self,
        plan: Plan,
        launcher: Launcher,
        settings: DriverSettings,
        warn: Callable[[str], object],
    ) -> None:
        self.places, self._warn = places_of(plan, launcher, settings), warn
        self.ready: dict[int, SlotReady] = {}
        self.now_s = 0.0
        self._looked_s: float | None = None
        self._hear: dict[type[Any], Callable[[Any], None]] = {
            ControlOpened: self._on_control_opened,
            ControlLost: self._on_control_lost,
            Ended: self._on_ended,
        }

    @property
    def is_ready(self) -> bool:
        """Whether all slots are there."""
        return len(self.ready) == len(self.places.places)

    def start(self) -> None:
        """Ask for the slots."""
        self.places.launch_all(self.now_s)

    def turn(self, heard: Sequence[Any], ticks_s: float) -> None:
        """Handle events. Heartbeats are ignored: silent slots are found when there is something to
        do.

        Raises
        ------
        ClonosError
            Slots end again and again, or have another environment.
        """
        self._look_at_clock(ticks_s)
        for thing in heard:
            if (hear := self._hear.get(type(thing))) is not None:
                hear(thing)
        for warning in self.places.tick(self.now_s):
            self._warn(warning)

    def _look_at_clock(self, ticks_s: float) -> None:
        if self._looked_s is not None:
            self.now_s += min(ticks_s - self._looked_s, PAUSE_MAX_S)
        self._looked_s = ticks_s

    def _on_control_opened(self, event: ControlOpened) -> None:
        for slot in self.places.replaced(event):
            self.ready.pop(slot, None)
            self.places.expel(slot, self.now_s)
        self.ready[event.conn_id] = self.places.registered(event)

    def _on_control_lost(self, event: ControlLost) -> None:
        self.ready.pop(event.conn_id, None)
        self.places.lost(event.conn_id, self.now_s)

    def _on_ended(self, event: Ended) -> None:
        error = self.places.ended(event, self.now_s)
        if error is not None:
            raise error

    def dismiss(self) -> None:
        """The slots are not needed after all: end them."""
        self.places.close()
        self.places.cancel_all()
