"""Calls that take a while (asynchronous I/O): asked in one step, answered in another.

*Which* call is made, and *what comes of it*, is a function of state and log: a step asks, a step
takes the outcome, and both are logged. *When* it is made (limits, retries, timeouts) is decided
outside. So no marker, fence or recovery waits for a call, and an outcome is in the log one step
after it came, even while a receiver is too slow for new input.

A call is asked by a program, which keeps it in its state until it is answered. This module is the
automaton's side: which calls are open, which of them this life has made, and which outcomes have
come.

*Effects* are calls that must not be made twice, nor for a history that a recovery then forgets. An
effect is made only when the log entries that led to it can no longer be lost (output commit), so
every later life that asks for it uses the same name. An effect that an earlier life may have made
is *in doubt*: it is handed out as such, and the adapter finds out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from clonos.errors import Divergence

OUTCOMES_MAX: Final = 4096
"""Outcomes that one step takes, at most: it must not hold up fences."""
OUTCOMES_BYTES_MAX: Final = 4 << 20
"""The same in bytes of answers."""
SHOWN_MAX: Final = 300
"""How many characters of a question are shown."""


class CallId(NamedTuple):
    """Name of a call within its task: the operator that asks, and which of its calls it is."""

    operator: int
    number: int


class Request(NamedTuple):
    """What is asked. The core looks only at `digest` (of the arguments) and at whether there is a
    `key`, the name of an effect; the rest it can show.

    ``in_doubt``: this effect may have been made before: by an earlier life (set when it is handed
    out), or in a past that the job has rewound (set by the program). ``asked_ms``: when a step has
    asked for this effect, if the program has logged it.
    """

    service: Any
    arguments: Any
    digest: int
    key: str = ""
    in_doubt: bool = False
    asked_ms: int = 0

    @property
    def shown(self) -> str:
        """What is asked, for people, not too long."""
        asked = f"{getattr(self.service, 'name', '')}{self.arguments}"
        return asked if len(asked) <= SHOWN_MAX else f"{asked[:SHOWN_MAX]}..."


class Outcome(NamedTuple):
    """What came of a call after all its attempts, as it is logged.

    ``answer`` is the encoded answer, or the encoded error if not `ok`; ``attempts``: 0 if it was
    remembered, or is that of another call with the same question; ``ms``: how long it took, with
    all attempts and pauses. ``trace``: the lines of user code behind an error that ends the job, so
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
        self._born_ms: dict[CallId, int] = {}  # for display; only of calls that this life has asked
        self._held: dict[CallId, tuple[int, Request]] = {}  # effects, and the step that asked each
        self.came: dict[CallId, Outcome] = {}

    def __len__(self) -> int:
        return len(self._open)

    def asked(self, requests: Iterable[tuple[CallId, Request]], born_ms: int) -> None:
        """A step has asked these; `born_ms`: when the oldest row of it was read."""
        self._open.update(requests)
        self._born_ms.update((call, born_ms) for call, _ in requests)

    def begun(self, position: int) -> tuple[tuple[CallId, Request], ...]:
        """The task is live at `position`: the calls to be made at once.

        All open effects are in doubt, whether they were made or not: the adapter finds out.
        """
        doubtful = [(call, r._replace(in_doubt=True)) for call, r in self._open.items() if r.key]
        self._hold(doubtful, position)
        return tuple((call, request) for call, request in self._open.items() if not request.key)

    def to_make(
        self, requests: Sequence[tuple[CallId, Request]], position: int
    ) -> tuple[tuple[CallId, Request], ...]:
        """Of the calls that the live step `position` has asked, those to be made at once."""
        self._hold([asked for asked in requests if asked[1].key], position)
        return tuple(asked for asked in requests if not asked[1].key)

    def _hold(self, effects: Iterable[tuple[CallId, Request]], position: int) -> None:
        self._held.update((call, (position, request)) for call, request in effects)

    @property
    def holds(self) -> bool:
        """Whether effects wait until the log entries that led to them are safe."""
        return bool(self._held)

    def released(self, stable: int) -> tuple[tuple[CallId, Request], ...]:
        """The effects to be made now that the log is safe up to the entry `stable`."""
        due = {call: request for call, (at, request) in self._held.items() if at <= stable}
        for call in due:
            del self._held[call]
        return tuple(due.items())

    def heard(self, outcomes: Iterable[Outcome]) -> None:
        """Calls that this life has made are over. The first outcome counts."""
        for outcome in outcomes:
            if (call := outcome.id) in self._open:
                self.came.setdefault(call, outcome)

    def choose(self, most: int) -> tuple[Outcome, ...]:
        """The outcomes that the next step takes, in the order in which they came.

        An effect that failed goes last, in a step of its own: it may end the job, and the outcomes
        of the other calls must be logged before that.
        """
        chosen: list[Outcome] = []
        failed: list[Outcome] = []
        nbytes = 0
        for outcome in self.came.values():
            if not outcome.ok and self._open[outcome.id].key:
                failed.append(outcome)
                continue
            nbytes += len(outcome.answer)
            if chosen and (nbytes > OUTCOMES_BYTES_MAX or len(chosen) == most):
                break
            chosen.append(outcome)
        return tuple(chosen or failed[:1])

    def take(self, outcomes: Iterable[Outcome], task: str) -> int:
        """A step takes these outcomes; in a replay they come from the log.

        Returns
        -------
        int
            When the oldest row behind them was read; 0 if an earlier life has read it.

        Raises
        ------
        Divergence
            The log answers another question than the one that is asked.
        """
        born_ms: list[int] = []
        for outcome in outcomes:
            call = outcome.id
            self.came.pop(call, None)
            born_ms.append(self._born_ms.pop(call, 0))
            request = self._open.pop(call, None)
            is_other = request is not None and outcome.digest and request.digest != outcome.digest
            if request is None or is_other:  # digest 0: unknown
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
        assert self._held.keys() <= self._open.keys() - self.came.keys()
