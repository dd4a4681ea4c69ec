"""How sure a driver is that it still drives.

Another driver may have begun a later term: from a copy of the journal, made while this process was
frozen, say. So the driver looks for later terms now and then. When it has been asleep, it is
*unsure*: it hears nothing, and so lets nothing out, until it has looked. If the place cannot be
reached, or does not answer for a while, the journal's lock has to do as a proof: then the job goes
on, *blind*, and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from clonos.core.machine import Table

ECHO_S: Final = 10.0
"""How old the last look for a later term may be. A look that takes longer than this proves
nothing."""
LOOKS: Final = 3.0
"""How many looks there are in that time. Each is a request to the checkpoint's file system."""


class Tenure(Enum):
    """Of a driver."""

    HELD = "held"
    UNSURE = "unsure"
    BLIND = "blind"
    LOST = "lost"


class Sight(Enum):
    """What is seen of later terms."""

    OURS = "looked, ours"
    HIDDEN = "cannot be looked for"
    AGED = "no answer for a while"
    ASLEEP = "it was asleep"
    ANOTHERS = "another's"


TENURE: Final = Table(
    "tenure of a driver",
    Tenure.HELD,
    {
        (Tenure.HELD, Sight.OURS): Tenure.HELD,
        (Tenure.HELD, Sight.HIDDEN): Tenure.HELD,
        (Tenure.HELD, Sight.AGED): Tenure.BLIND,
        (Tenure.UNSURE, Sight.OURS): Tenure.HELD,
        (Tenure.UNSURE, Sight.HIDDEN): Tenure.BLIND,
        (Tenure.UNSURE, Sight.AGED): Tenure.BLIND,
        (Tenure.BLIND, Sight.OURS): Tenure.HELD,
        (Tenure.BLIND, Sight.HIDDEN): Tenure.BLIND,
        **{(state, Sight.ASLEEP): Tenure.UNSURE for state in Tenure},
        **{(state, Sight.ANOTHERS): Tenure.LOST for state in Tenure},
        **{(Tenure.LOST, sight): Tenure.LOST for sight in Sight},
    },
)


@dataclass(frozen=True, slots=True)
class TermSeen:
    """What a look for later terms has come to. Another's is the end: an error follows."""

    sight: Sight


class Term:
    """A driver's term.

    Parameters
    ----------
    look
        Asks whether there is a later term; what is seen is told later.
    echo_s
        See :data:`ECHO_S`.
    """

    def __init__(self, name: str, look: Callable[[], None], echo_s: float = ECHO_S) -> None:
        self._machine = TENURE.machine(f"the term of {name}")
        self._look, self._echo_s = look, echo_s
        self._ticks_s = self._wall_s = 0.0
        self._now_s = 0.0  # as the faster of two clocks has it: one stands still while we sleep
        self._sure_s = 0.0  # until when nothing was amiss, or since when we wait for an answer
        self._awake_s = 0.0  # since when we are
        self._began_s: float | None = None  # the look that is under way
        self._next_s = echo_s / LOOKS
        self._is_new = True
        self._unheard: list[Any] = []

    @property
    def is_unsure(self) -> bool:
        return self._machine.state is Tenure.UNSURE

    @property
    def is_lost(self) -> bool:
        return self._machine.state is Tenure.LOST

    @property
    def may_delete(self) -> bool:
        """Whether what this driver refers to is what counts."""
        return self._machine.state is Tenure.HELD

    def tick(self, ticks_s: float, wall_s: float) -> None:
        """Time has passed: grow unsure, or look again."""
        if self._is_new:  # it has been claimed just now
            self._ticks_s, self._wall_s, self._is_new = ticks_s, wall_s, False
        passed_s = max(ticks_s - self._ticks_s, wall_s - self._wall_s, 0.0)
        self._ticks_s, self._wall_s = ticks_s, wall_s
        self._now_s += passed_s
        if passed_s > self._echo_s * (1 - 1 / LOOKS):
            self._machine.on(Sight.ASLEEP)
            self._awake_s = self._sure_s = self._next_s = self._now_s
        elif self._now_s - self._sure_s > self._echo_s and self._machine.may(Sight.AGED):
            self._machine.on(Sight.AGED)
        if self._began_s is None and self._now_s >= self._next_s:
            self._began_s = self._now_s
            self._next_s = self._now_s + self._echo_s / LOOKS
            self._look()

    def admit(self, heard: Sequence[Any]) -> Sequence[Any]:
        """What is to be handled now of what has come: nothing, while nobody knows who drives."""
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
        """A look has come to something. It says how things were when it began."""
        began_s, self._began_s = self._began_s, None
        assert began_s is not None
        is_old = began_s < self._awake_s or self._now_s - began_s > self._echo_s
        if sight is Sight.ANOTHERS:
            self._machine.on(sight)
        elif is_old:
            self._next_s = self._now_s
        else:
            self._machine.on(sight)
            if sight is Sight.OURS:
                self._sure_s = began_s
