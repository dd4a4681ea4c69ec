"""How long a slot may begin effects: never once another driver may have been in charge for a while.

A driver that is frozen or cut off does not know that it was replaced, and neither do its slots. Its
successor's tasks ask their checks about effects after a *quarantine*. So by then, no slot of the
earlier driver may begin an effect. A slot begins effects only within its *mandate* (in the field: a
leader lease), which its driver renews for as long as it is sure of its own term.

::

    slot                                   driver
    at 100.0 s: may I?  ---------------->  has been sure of its term until 0.7 s ago
    until 100.0 - 0.7 + 4 s  <-----------

No clocks are compared. The slot counts from when it asked, so an answer that was held up anywhere
is valid for less time, or not at all. A driver that is frozen does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

MANDATE_S: Final = 4.0
"""How long a mandate lasts from when the driver was sure. It must be shorter than what the
quarantine adds to the timeout (:data:`clonos.runtime.effects.CUT_OFF_S`)."""
ASKS: Final = 8
"""How many times a slot asks within it."""


@dataclass(frozen=True, slots=True)
class MandateAsked:
    """A slot would like to begin effects. ``asked_ms``: when, by its own clock."""

    asked_ms: int


@dataclass(frozen=True, slots=True)
class MandateGiven:
    """The driver was sure of its term `age_ms` before it answered the question of `asked_ms`."""

    asked_ms: int
    age_ms: int


class Mandate:
    """A slot's mandate.

    Parameters
    ----------
    lasts_s
        See :data:`MANDATE_S`.

    Attributes
    ----------
    until_s
        Until when effects may be begun, by the slot's clock.

    Examples
    --------
    >>> mandate = Mandate(4.0)
    >>> mandate.question(100.0)
    MandateAsked(asked_ms=100000)
    >>> round(mandate.wait_s(100.1), 1)
    0.4
    >>> mandate.given(MandateGiven(100000, 700))
    >>> mandate.until_s
    103.3
    """

    def __init__(self, lasts_s: float = MANDATE_S) -> None:
        self._lasts_s = lasts_s
        self._due_s = -inf
        self.until_s = -inf

    def question(self, now_s: float) -> MandateAsked:
        """Ask the driver now."""
        self._due_s = now_s + self._lasts_s / ASKS
        return MandateAsked(int(now_s * 1000))

    def wait_s(self, now_s: float) -> float:
        """How long until it is time to ask."""
        return max(self._due_s - now_s, 0.0)

    def given(self, answer: MandateGiven) -> None:
        """The driver has answered."""
        sure_s = (answer.asked_ms - answer.age_ms) / 1000
        self.until_s = max(self.until_s, sure_s + self._lasts_s)
