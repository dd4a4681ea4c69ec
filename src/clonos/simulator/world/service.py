"""The service that simulated jobs call: every answer is new, and it keeps a journal of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from clonos.core.calls import CallId, Request
from clonos.core.canonical import decode
from clonos.core.determinants import Call, Determinant, Outcomes, decode_record
from clonos.core.plan import Incarnation, TaskSpec
from clonos.simulator.checks.violations import require

_ABOUT: Final = "about"
MARK_BIT: Final = 48
"""From this bit on, an answer has the ``mark`` of the function that was asked, or 0."""
Entries = Sequence[tuple[Incarnation, bytes]]
"""The log of a task, with the life that wrote each entry."""


class Asked(NamedTuple):
    """One call as the external service saw it."""

    task: int
    incarnation: Incarnation
    arguments: tuple[Any, ...]
    answer: int | None


class Effect(NamedTuple):
    """One effect that was made, and the life of the task that asked for it."""

    incarnation: Incarnation
    digest: int
    answer: int


class LethalCall(NamedTuple):
    """One call that has ended the process of the life that made it.

    ``neighbours``: how many other processes of the executor it takes along; None: it is not of this
    kind.
    """

    task: int
    incarnation: Incarnation
    digest: int
    neighbours: int | None = None


class Service:
    """Answers calls, and checks the invariants of its answers.

    Attributes
    ----------
    effects
        The effects that were made, by task and idempotency key (or by their identity).
    """

    def __init__(self, random: Random) -> None:
        self._random, self._slow_random = random, Random(0)
        self.answer_bits = 48
        self.lethal: list[LethalCall] = []
        self.journal: list[Asked] = []
        self.by_arguments: dict[tuple[Any, ...], list[Asked]] = defaultdict(list)
        self.effects: dict[tuple[int, str], Effect] = {}
        self._names: dict[tuple[int, str], int] = {}
        self._earlier: set[tuple[int, str]] = set()  # effects from before a rewind

    def call(
        self,
        task: int,
        incarnation: Incarnation,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Answer a call that a step waits for."""
        return self._ask(self._random, task, incarnation, tuple(args))

    def answer(self, task: int, incarnation: Incarnation, call: CallId, request: Request) -> Any:
        """Answer a call that no step waits for, or make an effect; drawn separately, so that the
        rest of a seed stays as it was."""
        if request.key:
            return self._make(task, incarnation, request)
        named = (task, *call, request.digest)  # equal rows make different calls
        mark = getattr(getattr(request.service, "fn", None), "mark", 0)
        answer = self._ask(self._slow_random, task, incarnation, named, mark)
        if getattr(request.service, "batch", None) is None:
            return answer
        return [answer + i for i in range(len(request.arguments[0]))]

    def _make(self, task: int, incarnation: Incarnation, request: Request) -> int:
        """Make an effect, unless it is in doubt and a check finds it. It may be refused.

        The service does not deduplicate: an effect that is asked for twice is made twice. Effects
        of streams are found by their identity.
        """
        named = self._names.setdefault((task, request.key), request.digest)
        said = f"{request.key} of task {task} names {named}, and now {request.digest}"
        require(named == request.digest, "effects", said)
        key = request.key if request.service is None else f"{_ABOUT} {request.digest}"
        known = self.effects.get((task, key))
        if request.in_doubt and known is not None:
            return known.answer
        if self._slow_random.random() < 0.1:
            raise ValueError("refused")
        require(known is None, "effects", f"{key} of task {task} was made: {known}; and is again")
        made = Effect(incarnation, request.digest, self._slow_random.getrandbits(48))
        self.effects[task, key] = made
        return made.answer

    def _ask(
        self,
        random: Random,
        task: int,
        incarnation: Incarnation,
        arguments: tuple[Any, ...],
        mark: int = 0,
    ) -> int:
        failed = random.random() < 0.1
        answer = None if failed else random.getrandbits(self.answer_bits) | mark << MARK_BIT
        asked = Asked(task, incarnation, arguments, answer)
        self.journal.append(asked)
        self.by_arguments[arguments].append(asked)
        if answer is None:
            raise ValueError("try later")
        return answer

    def remember(self, earlier: Service) -> None:
        """Effects from before a rewind remain made in the outside world."""
        self.effects |= earlier.effects
        self._earlier = set(earlier.effects)
        self._names |= earlier._names

    # --- the end ----------------------------------------------------------------------------------

    def calls_once(self, task: TaskSpec, entries: Entries) -> None:
        """Invariant 6: every answer used was given for those arguments, and no call whose answer
        is used was made again by a later life."""
        answers = [
            (writer, encoded)
            for writer, determinant in determinants(entries)
            if not (task.has_effects and isinstance(determinant, Outcomes))
            for encoded in _answers(determinant)
        ]
        asked = {a.answer: a for a in self.journal if a.task == task.id}
        for writer, encoded in answers:
            answer = decode(encoded)
            answer = answer[0] if isinstance(answer, list) else answer  # one answer to several rows
            require(answer in asked, "calls", f"answer {answer} was never given to {task.name}")
            known = asked[answer]
            require(known.incarnation == writer, "calls", f"answer of {known}, used by {writer}")
            later = [a for a in self.by_arguments[known.arguments] if a.incarnation > writer]
            require(not later, "calls", f"{known} was asked again: {later}")

    def effects_once(self, task: TaskSpec, entries: Entries) -> None:
        """Every effect that was made was asked for in the log, and the log has its answer."""
        if not task.has_effects:
            return
        known = {
            str(outcome.number): (outcome.digest, decode(outcome.answer))
            for _, determinant in determinants(entries)
            if isinstance(determinant, Outcomes)
            for outcome in determinant.outcomes
            if outcome.ok
        }
        made = {
            key: (effect.digest, effect.answer)
            for (owner, key), effect in self.effects.items()
            if owner == task.id
        }
        is_known = known == made
        if any(key.startswith(_ABOUT) for key in made):  # named by their identity
            new = {v for key, v in made.items() if (task.id, key) not in self._earlier}
            is_known = new <= set(known.values()) <= set(made.values())
        require(is_known, "effects", f"{task.name} knows {known}, what was made is {made}")


def determinants(entries: Entries) -> Iterator[tuple[Incarnation, Determinant]]:
    """All determinants of a log in order, with the life that wrote each."""
    for writer, record in entries:
        for determinant in decode_record(record):
            yield writer, determinant


def _answers(determinant: Determinant) -> list[bytes]:
    if isinstance(determinant, Call):
        return [determinant.answer] if determinant.ok else []
    if isinstance(determinant, Outcomes):
        return [outcome.answer for outcome in determinant.outcomes if outcome.ok]
    return []
