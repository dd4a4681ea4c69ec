"""Calls that take a while (asynchronous I/O): asked in one step, answered in another.

What decides *which* call is made and *what comes of it* is a function of state and log: a step
asks, and a step takes the outcome, both logged. What decides *when* it is made (limits, retries,
timeouts) is outside. So no marker, fence or recovery waits for a call, and an outcome is in the log
one step after it came, also while a receiver is too slow for new input.

A call is asked by a program, which keeps it in its state until it is answered. This is the
automaton's side of it: which calls are open, which of them this life has made, what has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from clonos.errors import Divergence

OUTCOMES_MAX: Final = 4096
"""Outcomes that one step takes, at most: it must not hold up fences."""
OUTCOMES_BYTES_MAX: Final = 4 << 20
"""The same in bytes of answers."""


class CallId(NamedTuple):
    """Name of a call within its task: the operator that asks, and which of its calls it is."""

    operator: int
    number: int


class Request(NamedTuple):
    """What is asked. Only `digest`, of the arguments, means anything to the core."""

    service: Any
    arguments: Any
    digest: int


class Outcome(NamedTuple):
    """What has come of a call, with all attempts: as it is logged.

    ``answer`` is the encoded answer, or the encoded error if not `ok`; ``ms``: how long it took,
    with all attempts and pauses. ``trace``: the user's lines behind an error that ends the job; so
    it is never in a log.
    """

    operator: int
    number: int
    digest: int
    ok: bool
    answer: bytes
    attempts: int = 1
    ms: int = 0
    trace: str = ""

    @property
    def id(self) -> CallId:
        return CallId(self.operator, self.number)


class OpenCalls:
    """The calls of a task that were asked and whose outcome is not in the log.

    Parameters
    ----------
    requests
        Those that were open when the state was sealed.

    Attributes
    ----------
    came
        Outcomes that no step has taken yet, in the order in which they came.
    """

    def __init__(self, requests: Mapping[CallId, Request]) -> None:
        self._open = dict(requests)
        self._born_ms: dict[CallId, int] = {}  # for display: those that this life has asked
        self.came: dict[CallId, Outcome] = {}

    def __len__(self) -> int:
        return len(self._open)

    def requests(self) -> tuple[tuple[CallId, Request], ...]:
        """All that are open, in the order in which they were asked."""
        return tuple(self._open.items())

    def asked(self, requests: Iterable[tuple[CallId, Request]], born_ms: int) -> None:
        """A step has asked these; `born_ms`: when the oldest row of it was read."""
        self._open.update(requests)
        self._born_ms.update((call, born_ms) for call, _ in requests)

    def heard(self, outcomes: Iterable[Outcome]) -> None:
        """Calls that this life has made are over. The first outcome counts."""
        for outcome in outcomes:
            if outcome.id in self._open:
                self.came.setdefault(outcome.id, outcome)

    def choose(self, most: int) -> tuple[Outcome, ...]:
        """The outcomes that the next step takes, in the order in which they came."""
        chosen: list[Outcome] = []
        nbytes = 0
        for outcome in self.came.values():
            nbytes += len(outcome.answer)
            if chosen and (nbytes > OUTCOMES_BYTES_MAX or len(chosen) == most):
                break
            chosen.append(outcome)
        return tuple(chosen)

    def take(self, outcomes: Iterable[Outcome], task: str) -> int:
        """A step takes these, which may come from the log.

        Returns
        -------
        int
            When the oldest row behind them was read; 0: in an earlier life.

        Raises
        ------
        Divergence
            The log has the answer to another question than the one that is asked.
        """
        born_ms: list[int] = []
        for outcome in outcomes:
            self.came.pop(outcome.id, None)
            born_ms.append(self._born_ms.pop(outcome.id, 0))
            request = self._open.pop(outcome.id, None)
            if request is None or request.digest != outcome.digest:
                asked = "nothing" if request is None else "something else"
                raise Divergence(
                    f"the log has an answer to call {outcome.number} of operator "
                    f"{outcome.operator}, which asks {asked} in a replay",
                    where=task,
                    remedy="what is asked must depend on the row, state and ctx only",
                )
        return min(born_ms, default=0)

    def check(self) -> None:
        """Assertions over the whole state."""
        assert self.came.keys() <= self._open.keys()
