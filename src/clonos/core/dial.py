"""At which level the next layers of a task are kept, if the job leaves the choice to us.

Every layer goes to the strongest level that keeps up. A level at which a layer has waited too long
is *behind*: the next layers go to the next weaker level, and so do those that wait. The level is
used again when no layer has waited there too long for a while. ::

    KEEPS_UP --a layer has waited too long--> BEHIND
    BEHIND   --quiet for a while------------> KEEPS_UP

The weakest level takes all layers, even if it is behind.

This changes how fast a lost task recovers, but not the guarantee: input is given up only for layers
in the checkpoint store (:mod:`clonos.core.standing`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Final

from clonos.core.levels import LOCAL, MEMORY, STORE
from clonos.core.machine import Machine, Table

LATE_S: Final = 1.0
"""A layer that waits longer than this waits too long: the usual interval of checkpoints."""
QUIET_S: Final = 5.0
"""A level is used again after this time, if no layer has waited there too long meanwhile."""

PLACES: Final = {
    STORE: "the checkpoint store",
    LOCAL: "the local disk",
    MEMORY: "the memory of processes",
}


class Pace(Enum):
    """Whether one level keeps up."""

    KEEPS_UP = "keeps up"
    BEHIND = "behind"


class PaceEvent(Enum):
    """What changes the pace of a level."""

    LATE = "a layer has waited too long"
    QUIET = "quiet for a while"


PACE: Final = Table(
    "a level, as one task sees it",
    Pace.KEEPS_UP,
    {
        (Pace.KEEPS_UP, PaceEvent.LATE): Pace.BEHIND,
        (Pace.BEHIND, PaceEvent.QUIET): Pace.KEEPS_UP,
    },
)


def ladder(standbys: int) -> tuple[str, ...]:
    """The levels that a task may be kept at, the strongest first.

    Examples
    --------
    >>> ladder(1), ladder(0)
    (('store', 'local', 'memory'), ('store', 'local'))
    """
    return (STORE, LOCAL, MEMORY) if standbys else (STORE, LOCAL)


class Dial:
    """The levels of one task.

    Parameters
    ----------
    levels
        Those it may be kept at, the strongest first.
    late_s, quiet_s
        See :data:`LATE_S` and :data:`QUIET_S`.

    Attributes
    ----------
    level
        Where the next layer goes.
    why
        Why it is not the strongest; empty if it is.

    Examples
    --------
    >>> dial = Dial(("store", "local"))
    >>> dial.asked("store", 17, 0.0)
    >>> dial.look(0.9), dial.look(1.5), dial.level
    (False, True, 'local')
    >>> dial.why
    'a layer has waited 1.5 s for the checkpoint store'
    >>> dial.answered("store", 17, 2.0)
    >>> dial.look(6.9), dial.look(7.0), dial.level
    (False, True, 'store')
    """

    def __init__(
        self, levels: Sequence[str], late_s: float = LATE_S, quiet_s: float = QUIET_S
    ) -> None:
        self._late_s, self._quiet_s = late_s, quiet_s
        self._pace: dict[str, Machine[Pace, PaceEvent]] = {
            level: PACE.machine(level) for level in levels
        }
        self._asked_s: dict[tuple[str, Hashable], float] = {}  # by level and layer: since when
        self._late_at_s: dict[str, float] = {}  # when each level behind was last late
        self._waited: dict[str, float] = {}  # how long its late layer had waited
        self.level = levels[0]
        self.why = ""

    def asked(self, level: str, layer: Hashable, now_s: float) -> None:
        """A layer is to be kept at this level; `layer` tells it from others."""
        self._asked_s[level, layer] = now_s

    def answered(self, level: str, layer: Hashable, now_s: float) -> None:
        """The layer is kept there now, or cannot be."""
        since_s = self._asked_s.pop((level, layer), now_s)
        if now_s - since_s > self._late_s:
            self._late(level, now_s, now_s - since_s)

    def _late(self, level: str, now_s: float, waited_s: float) -> None:
        self._late_at_s[level] = now_s
        if self._pace[level].may(PaceEvent.LATE):
            self._pace[level].on(PaceEvent.LATE)
            self._waited[level] = waited_s

    def look(self, now_s: float) -> bool:
        """Time passes. Return whether the level has changed."""
        for (level, _), since_s in self._asked_s.items():
            if now_s - since_s > self._late_s:
                self._late(level, now_s, now_s - since_s)
        for level, late_at_s in list(self._late_at_s.items()):
            if now_s - late_at_s >= self._quiet_s:
                self._pace[level].on(PaceEvent.QUIET)
                del self._late_at_s[level]
        before, levels = self.level, list(self._pace)
        able = [level for level in levels if self._pace[level].state is Pace.KEEPS_UP]
        self.level = able[0] if able else levels[-1]
        if self.level == before:
            return False
        behind = levels[: levels.index(self.level)]
        self.why = "; ".join(
            f"a layer has waited {self._waited[level]:.1f} s for {PLACES[level]}"
            for level in behind
        )
        return True

    def is_weaker(self, levels: Sequence[str]) -> bool:
        """Whether the level in use is weaker than all of these."""
        order = list(self._pace)
        return all(order.index(self.level) > order.index(level) for level in levels)

    def due_s(self) -> float | None:
        """When to look again, if nothing happens before; None: never."""
        due = [
            since_s + self._late_s
            for (level, _), since_s in self._asked_s.items()
            if level not in self._late_at_s
        ]
        due += [late_at_s + self._quiet_s for late_at_s in self._late_at_s.values()]
        return min(due, default=None)
