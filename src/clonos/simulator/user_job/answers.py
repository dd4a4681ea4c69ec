"""Answers to the calls of a user's job in the simulator: from a stand-in or the real function.

A real function is called only if the user says so, once for each question. A test that asks a paid
model, or charges a card, because a line was forgotten would be worse than no test.
"""

from __future__ import annotations

import inspect
import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from clonos.core.calls import CallId, Request
from clonos.core.canonical import decode, decode_error, outcome_of
from clonos.core.determinants import Call, Outcomes
from clonos.core.plan import Incarnation, TaskSpec
from clonos.core.step import arguments_digest
from clonos.errors import CannotSimulate, EffectUnknown
from clonos.operators.calls.effects import Effect, EffectCall
from clonos.operators.calls.service import Declared, Policy, ask_once
from clonos.operators.calls.service import Service as UserService
from clonos.simulator.checks.violations import require
from clonos.simulator.user_job.errors import Unanswered
from clonos.simulator.world.service import Entries, Service, determinants

RECORD: Final = "record"
"""Given instead of a stand-in: call the real function once for each question."""


class Answer(NamedTuple):
    """The answer or error of a call, as it is logged."""

    ok: bool
    encoded: bytes

    def get(self) -> Any:
        """Return it, or raise it."""
        if self.ok:
            return decode(self.encoded)
        raise decode_error(self.encoded)


class Recording:
    """Recorded answers of real functions, perhaps kept in a file.

    Parameters
    ----------
    path
        A file of JSON lines; new answers are appended.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._known: dict[tuple[str, int], Answer] = {}
        if self._path is None:
            return
        try:
            self._path.touch()  # so that a file that cannot be written is found before the calls
            for line in self._path.read_text("utf-8").splitlines():
                known = json.loads(line)
                answer = Answer(known["ok"], b64decode(known["answer"]))
                self._known[known["function"], known["question"]] = answer
        except OSError as error:
            raise CannotSimulate(
                f"recorded answers cannot be kept in {path} ({error.strerror})",
                remedy="name a file in a folder that exists and can be written",
            ) from None
        except (ValueError, KeyError, TypeError):
            raise CannotSimulate(
                f"{path} is not a file of recorded answers", remedy="name another file"
            ) from None

    def ask(self, function: str, question: int, ask: Callable[[], Answer]) -> Answer:
        """The recorded answer to a question; if there is none, ask."""
        if (function, question) not in self._known:
            answer = self._known[function, question] = ask()
            if self._path is not None:
                said = {
                    "function": function,
                    "question": question,
                    "ok": answer.ok,
                    "answer": b64encode(answer.encoded).decode(),
                }
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(said) + "\n")
        return self._known[function, question]


class StandIns:
    """The stand-ins for functions.

    Parameters
    ----------
    services
        A dict from functions, ``clonos.Service`` objects or names (``"judge"``, ``"fraud:judge"``,
        or that of the operator) to a function, to a mapping from the argument (or the tuple of
        several arguments) to the answer, or to ``"record"``.
    """

    def __init__(self, services: Mapping[Any, Any], recording: Recording) -> None:
        self._of: dict[str, Any] = {}
        self.recording = recording
        for key, answers in services.items():
            if answers != RECORD and not callable(answers) and not isinstance(answers, Mapping):
                raise CannotSimulate(
                    f"{answers!r} answers for {key!r}",
                    remedy=f"give a function, a mapping from arguments to answers, or {RECORD!r}",
                )
            self._of[key if isinstance(key, str) else names_of(key)[0]] = answers

    def find(self, fn: Any, operator: str = "") -> tuple[str, Any]:
        """The name of a function, and its stand-in.

        Raises
        ------
        Unanswered
            There is no stand-in.
        """
        names = [*names_of(fn), *([operator] if operator else [])]
        for name in names:
            if name in self._of:
                return names[0], self._of[name]
        raise Unanswered(names[0])


def names_of(fn: Any) -> list[str]:
    """The names under which a function may be given, the longest first."""
    if isinstance(fn, Effect):
        fn = fn.fn
    if isinstance(declared := getattr(fn, "__self__", None), Declared):
        fn = declared.asked
    while hasattr(fn, "func"):  # a partial
        fn = fn.func
    if isinstance(fn, UserService) or not hasattr(fn, "__qualname__"):
        fn = type(fn)
    return [f"{fn.__module__}:{fn.__qualname__}", fn.__qualname__, fn.__name__]


class Made(NamedTuple):
    """An effect that was made."""

    task: int
    call: CallId
    digest: int
    answer: Answer


class Answers(Service):
    """The services of one simulation; it keeps a journal, and checks it.

    A service that deduplicates by key does so here, and a check function reports what was made.
    """

    def __init__(self, stand_ins: StandIns) -> None:
        super().__init__(Random(0))
        self._stand_ins = stand_ins
        self._given: defaultdict[tuple[int, Incarnation], list[Answer]] = defaultdict(list)
        self._asked: defaultdict[tuple[int, CallId, int], list[tuple[Incarnation, Answer]]]
        self._asked = defaultdict(list)
        self._made: dict[str, Made] = {}

    def call(
        self,
        task: int,
        incarnation: Incarnation,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        name, stand_in = self._stand_ins.find(fn)
        real = stand_in == RECORD

        def ask() -> Answer:
            return _outcome(lambda: (fn if real else as_function(stand_in))(*args, **kwargs))

        question = arguments_digest(args, dict(kwargs))
        answer = self._stand_ins.recording.ask(name, question, ask) if real else ask()
        self._given[task, incarnation].append(answer)
        return answer.get()

    def answer(self, task: int, incarnation: Incarnation, call: CallId, request: Request) -> Any:
        policy: Policy = request.service
        if policy.instead_of is not None:  # the budget is used up: no call is made
            return self._given_to(task, incarnation, call, request, _attempts(policy, request))
        name, stand_in = self._stand_ins.find(policy.fn, policy.name)
        if stand_in == RECORD:
            if policy.effect is not None:
                raise Unanswered(f"{name}, an effect, which would be made for real,")
            asked = self._stand_ins.recording.ask(
                name, request.digest, lambda: _attempts(policy, request)
            )
        else:
            fake = replace(policy, fn=as_function(stand_in))
            if policy.effect is not None:
                return self._make_effect(task, call, fake, request).get()
            asked = _attempts(fake, request)
        return self._given_to(task, incarnation, call, request, asked)

    def _given_to(
        self, task: int, life: Incarnation, call: CallId, request: Request, answer: Answer
    ) -> Any:
        self._asked[task, call, request.digest].append((life, answer))
        return answer.get()

    def _make_effect(self, task: int, call: CallId, fake: Policy, request: Request) -> Answer:
        effect = fake.effect
        assert effect is not None
        known = self._made.get(request.key)
        is_another = fake.shares and known is not None and (known.task, known.call) != (task, call)
        if request.in_doubt and not effect.idempotent and effect.check is None:
            if effect.on_unknown != "retry":
                what = "an earlier life of the task may have made it, and nobody can find out"
                raise EffectUnknown(f"the effect {request.key}: {what}", where=fake.name)
            known = None
        elif known is not None and (request.in_doubt or is_another):
            return known.answer
        require(known is None, "effects", f"{request.key} was made: {known}; and is again")
        fn = fake.fn.call if isinstance(fake.fn, UserService) else fake.fn
        wants_call = "call" in inspect.signature(fn).parameters
        named = {"call": EffectCall(request.key, 1)} if wants_call else {}
        answer = _attempts(fake, request, named)
        if answer.ok:
            self._made[request.key] = Made(task, call, request.digest, answer)
        return answer

    # --- the end ----------------------------------------------------------------------------------

    def calls_once(self, task: TaskSpec, entries: Entries) -> None:
        """Each life has logged the first answers that it was given, in order, and has repeated no
        call whose answer an earlier life had logged."""
        logged: defaultdict[Incarnation, list[Answer]] = defaultdict(list)
        for writer, determinant in determinants(entries):
            if isinstance(determinant, Call):
                logged[writer].append(Answer(determinant.ok, determinant.answer))
            elif isinstance(determinant, Outcomes) and not task.has_effects:
                for outcome in determinant.outcomes:
                    asked = self._asked[task.id, outcome.id, outcome.digest]
                    answer = Answer(outcome.ok, outcome.answer)
                    known = (writer, answer) in asked
                    require(known, "calls", f"{task.name} was never given {answer}")
                    later = [life for life, _ in asked if life > writer]
                    require(not later, "calls", f"{task.name} asks {outcome.id} again in {later}")
        for writer, answers in logged.items():
            given = self._given[task.id, writer][: len(answers)]
            said = f"{task.name} logs {answers}, and was given {given}"
            require(answers == given, "calls", said)

    def effects_once(self, task: TaskSpec, entries: Entries) -> None:
        """Every effect made was asked for in the log, and the log has its answer."""
        known = {
            outcome.id: (outcome.digest, outcome.answer)
            for _, determinant in determinants(entries)
            if isinstance(determinant, Outcomes)
            for outcome in determinant.outcomes
            if outcome.ok
        }
        for key, made in self._made.items():
            if made.task == task.id:
                is_known = known.get(made.call) == (made.digest, made.answer.encoded)
                require(is_known, "effects", f"{key} was made, and {task.name} does not know it")


def as_function(stand_in: Any) -> Callable[..., Any]:
    """A stand-in as a function; a mapping gives one answer for each argument."""
    if not isinstance(stand_in, Mapping):
        function: Callable[..., Any] = stand_in
        return function

    def answer(*arguments: Any) -> Any:
        return stand_in[arguments[0] if len(arguments) == 1 else arguments]

    return answer


def _attempts(policy: Policy, request: Request, named: Mapping[str, Any] | None = None) -> Answer:
    """Make as many attempts as the policy allows, without the pauses between them."""
    for _ in range(policy.attempts):
        answer = _outcome(lambda: ask_once(policy, request.arguments, named or {}))
        if answer.ok:
            break
    return answer


def _outcome(ask: Callable[[], Any]) -> Answer:
    return Answer(*outcome_of(ask))
