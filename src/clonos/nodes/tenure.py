"""How sure a driver is that it still drives.

Another driver may have begun a later term: from a copy of the journal, made while this process was
frozen, say. So the driver looks for later terms now and then. If it has not looked for a while,
because it was asleep or the look hangs, it is *unsure*: it hears nothing, and so lets nothing out,
until it has looked. If the place cannot be reached, the journal's lock has to do as a proof: then
the job goes on, *blind*, and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from clonos.core.machine import Table

ECHO_S: Final = 10.0
"""How long a driver may go on without having looked for a later term."""
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
    AGED = "not looked for a while"
    ANOTHERS = "another's"


TENURE: Final = Table(
    "tenure of a driver",
    Tenure.HELD,
    {
        (Tenure.HELD, Sight.OURS): Tenure.HELD,
        (Tenure.HELD, Sight.HIDDEN): Tenure.HELD,
        (Tenure.HELD, Sight.AGED): Tenure.UNSURE,
        (Tenure.UNSURE, Sight.OURS): Tenure.HELD,
        (Tenure.UNSURE, Sight.HIDDEN): Tenure.BLIND,
        (Tenure.BLIND, Sight.OURS): Tenure.HELD,
        (Tenure.BLIND, Sight.HIDDEN): Tenure.BLIND,
        (Tenure.BLIND, Sight.AGED): Tenure.UNSURE,
        (Tenure.HELD, Sight.ANOTHERS): Tenure.LOST,
        (Tenure.UNSURE, Sight.ANOTHERS): Tenure.LOST,
        (Tenure.BLIND, Sight.ANOTHERS): Tenure.LOST,
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
        self._sure_s = 0.0  # until when nothing was amiss
        self._unsure_s = 0.0  # since when it is
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
        self._now_s += max(ticks_s - self._ticks_s, wall_s - self._wall_s, 0.0)
        self._ticks_s, self._wall_s = ticks_s, wall_s
        is_old = self._now_s - self._sure_s > self._echo_s
        if is_old and self._machine.may(Sight.AGED):
            self._machine.on(Sight.AGED)
            self._next_s = self._unsure_s = self._now_s
        if self._began_s is None:
            if self._now_s >= self._next_s:
                self._began_s = self._now_s
                self._next_s = self._now_s + self._echo_s / LOOKS
                self._look()
        elif self.is_unsure and self._now_s - self._unsure_s > self._echo_s:  # it hangs
            self._sure_s = self._now_s
            self._machine.on(Sight.HIDDEN)

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
        is_old = self._now_s - began_s > self._echo_s
        if sight is Sight.ANOTHERS:
            self._machine.on(sight)
        elif is_old:  # it was frozen with us
            self._next_s = self._now_s
        else:
            was_held = self.may_delete
            self._machine.on(sight)
            if sight is Sight.OURS or not was_held:
                self._sure_s = began_s
