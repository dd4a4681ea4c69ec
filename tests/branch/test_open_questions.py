"""A question that the job had asked and that was not answered when its past ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.branch.answers import Answers
from clonos.branch.original import Asked, Question
from clonos.branch.tasks import BranchedTask
from clonos.core.calls import CallId, Request
from clonos.core.canonical import decode_error, encode
from clonos.core.step import arguments_digest
from clonos.errors import OtherArguments, Unanswered
from clonos.operators.calls.service import policy_of


def judge(number: int) -> int:
    return number


async def pay(number: int, *, call: clonos.EffectCall) -> str:
    return f"{number} {call.key}"


QUESTION = Question("judged", "judge", b"", arguments_digest([7], {}))


def asked_by(answers: Answers) -> tuple[bool, bytes]:
    """The answer to `ctx.call(judge, 7)`."""
    program = SimpleNamespace(caller=SimpleNamespace(info=SimpleNamespace(operator="judged")))
    task: Any = SimpleNamespace(_program=program, _answers=answers, id=1, position=5)
    return BranchedTask._asked_now(task, judge, [7], {})


def test_who_cannot_wait_for_it_has_no_answer_in_the_log():
    """The job asked it for a row that waits; changed code asks it in a step."""
    answers = Answers([Asked(QUESTION, 1, 4)], "stub", None, [], [], None)
    with pytest.raises(Unanswered, match=r"no answer to judge\(7\)"):
        asked_by(answers)


def test_somebody_else_may_answer_it():
    answers = Answers([Asked(QUESTION, 1, 4)], "live", None, [judge], [], None)
    assert asked_by(answers) == (True, encode(7))
    (line,) = answers.bill().to_pylist()
    assert (line["matched"], line["live"]) == (0, 1)


def test_an_answer_that_came_later_is_one():
    known = Asked(QUESTION, 1, 4, came=9, answer=encode(70))
    assert asked_by(Answers([known], "stub", None, [], [], None)) == (True, encode(70))


def test_a_call_that_is_refused_needs_no_stand_in():
    """An effect with other arguments than another one of its identity, or beyond the budget."""
    asked: list[Any] = []
    answers = Answers([], "stub", asked.append, [], [], None)
    policy = policy_of(clonos.effect(idempotent=True)(pay), "paid", in_flight=10)
    request = Request(policy.refusing(OtherArguments("other")), (7,), 1, "key")
    (outcome,) = answers.ask(1, [(CallId(2, 3), request, QUESTION)])
    assert isinstance(decode_error(outcome.answer), OtherArguments)
    assert not asked
