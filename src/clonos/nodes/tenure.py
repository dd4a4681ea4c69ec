"""How sure a driver is that no later term has begun.

Another driver may have begun a later term, for example from a copy of the journal made while this
process was frozen. So the driver looks for later terms now and then. When it has just begun, or has
been asleep, it is *unsure*: it takes no events, and so releases nothing, until it has looked. If
the checkpoint's folder cannot be reached, or does not answer for a while, the journal's lock has to
suffice: the job goes on, *blind*, and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, inf
from typing import Any, Final

from clonos.core.machine import Table
from clonos.core.mandate import MandateAsked, MandateGiven

ECHO_S: Final = 10.0
"""How old the last look for a later term may be. A look that takes longer than this proves
nothing."""
LOOKS: Final = 3.0
"""How many looks there are in that time. Each is a request to the checkpoint's file system."""
LOOKS_FOR_EFFECTS: Final = 10.0
"""The same if effects need mandates (:mod:`clonos.core.mandate`), which last for less time."""
LATE: Final = 0.4
"""If the newest good look is older than this share of that time, the journal's lock has to suffice
for mandates."""


class Certainty(Enum):
    """How sure a driver is that no later term has begun."""

    HELD = "held"
    UNSURE = "unsure"
    BLIND = "blind"
    LOST = "lost"


class Sight(Enum):
    """The outcome of a look for later terms."""

    OURS = "looked, ours"
    HIDDEN = "cannot be looked for"
    AGED = "no answer for a while"
    ASLEEP = "it was asleep"
    ANOTHERS = "another's"


TENURE: Final = Table(
    "tenure of a driver",
    Certainty.UNSURE,
    {
        (Certainty.HELD, Sight.OURS): Certainty.HELD,
        (Certainty.HELD, Sight.HIDDEN): Certainty.HELD,
        (Certainty.HELD, Sight.AGED): Certainty.BLIND,
        (Certainty.UNSURE, Sight.OURS): Certainty.HELD,
        (Certainty.UNSURE, Sight.HIDDEN): Certainty.BLIND,
        (Certainty.UNSURE, Sight.AGED): Certainty.BLIND,
        (Certainty.BLIND, Sight.OURS): Certainty.HELD,
        (Certainty.BLIND, Sight.HIDDEN): Certainty.BLIND,
        **{(state, Sight.ASLEEP): Certainty.UNSURE for state in Certainty},
        **{(state, Sight.ANOTHERS): Certainty.LOST for state in Certainty},
        **{(Certainty.LOST, sight): Certainty.LOST for sight in Sight},
    },
)


@dataclass(frozen=True, slots=True)
class TermSeen:
    """A look for later terms has an outcome. If the newest term is another's, an error follows."""

    sight: Sight


class Tenure:
    """How sure a driver is of its term, and what follows.

    Parameters
    ----------
    look
        Starts a look for a later term; the outcome comes later.
    echo_s, looks
        See :data:`ECHO_S` and :data:`LOOKS`.

    Attributes
    ----------
    now_s
        The time by the faster of two clocks: one stands still while the machine sleeps.
    """

    def __init__(
        self, name: str, look: Callable[[], None], echo_s: float = ECHO_S, looks: float = LOOKS
    ) -> None:
        self._machine = TENURE.machine(f"the term of {name}")
        self._look, self._echo_s, self._every_s = look, echo_s, echo_s / looks
        self._ticks_s = self._wall_s = 0.0
        self.now_s = 0.0
        self._sure_s = 0.0  # when the newest good look began, or since when we wait for one
        self._awake_s = 0.0  # since when we are awake
        self._began_s: float | None = None  # the look under way
        self._next_s = 0.0
        self._unheard: list[Any] = []

    @property
    def is_unsure(self) -> bool:
        return self._machine.state is Certainty.UNSURE

    @property
    def is_lost(self) -> bool:
        return self._machine.state is Certainty.LOST

    @property
    def may_delete(self) -> bool:
        """Whether this driver's journal is certain to be the one that counts."""
        return self._machine.state is Certainty.HELD

    def tick(self, ticks_s: float, wall_s: float) -> None:
        """Time has passed: grow unsure, or look again."""
        passed_s = max(ticks_s - self._ticks_s, wall_s - self._wall_s, 0.0)
        self._ticks_s, self._wall_s = ticks_s, wall_s
        self.now_s += passed_s
        if passed_s > self._echo_s * (1 - 1 / LOOKS):
            self._machine.on(Sight.ASLEEP)
            self._awake_s = self._sure_s = self._next_s = self.now_s
        elif self.now_s - self._sure_s > self._echo_s and self._machine.may(Sight.AGED):
            self._machine.on(Sight.AGED)
        if self._began_s is None and self.now_s >= self._next_s:
            self._began_s = self.now_s
            self._next_s = self.now_s + self._every_s
            self._look()

    @property
    def relies_on_lock(self) -> bool:
        """Whether the folder with the terms does not answer in time. Then the journal's lock has to
        suffice, although somebody may go on with a copy of the journal."""
        is_late = self.now_s - self._sure_s > LATE * self._echo_s
        state = self._machine.state
        return state is Certainty.BLIND or (state is Certainty.HELD and is_late)

    def mandate(self, asked: MandateAsked, locked_s: float) -> MandateGiven | None:
        """Tell a slot how long ago this driver was last sure of its term; None: it never was, or is
        not now.

        `locked_s`: when the journal's lock was ours for certain (see :attr:`relies_on_lock`).
        """
        sure_s = self._sure_s if self._machine.state is Certainty.HELD else -inf
        if self.relies_on_lock:
            sure_s = max(sure_s, locked_s)
        age_ms = 1000 * (self.now_s - sure_s)
        return MandateGiven(asked.asked_ms, ceil(age_ms)) if age_ms < inf else None

    def admit(self, heard: Sequence[Any]) -> Sequence[Any]:
        """The events to handle now, of those that have come: none while we are unsure."""
        if not self.is_unsure and not self._unheard:
            return heard
        for thing in heard:
            if isinstance(thing, TermSeen):
                self.seen(thing.sight)
            else:
                self._unheard.append(thing)
        if self.is_unsure:
            return ()
        now, self._unheard = self._unheard, []
        return now

    def seen(self, sight: Sight) -> None:
        """A look has an outcome, which says how things were when the look began."""
        began_s, self._began_s = self._began_s, None
        assert began_s is not None
        is_old = began_s < self._awake_s or self.now_s - began_s > self._echo_s
        if sight is Sight.ANOTHERS:
            self._machine.on(sight)
        elif is_old:
            self._next_s = self.now_s
        else:
            self._machine.on(sight)
            if sight is Sight.OURS:
                self._sure_s = began_s
