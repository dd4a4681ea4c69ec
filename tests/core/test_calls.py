"""Which calls are open, and what has come of them."""

from __future__ import annotations

import msgpack
import pytest

from clonos.core import calls as calls_module
from clonos.core.calls import CallId, OpenCalls, Outcome, Request
from clonos.core.determinants import NUMBER, Call, Outcomes, decode_record, encode_record
from clonos.errors import Divergence, ProtocolError

FIRST, SECOND, THIRD = (CallId(0, number) for number in (1, 2, 3))


def request(digest):
    return Request(None, (), digest)


def outcome(call, digest=7, answer=b"x"):
    return Outcome(call.operator, call.number, digest, True, answer)


@pytest.fixture
def calls():
    calls = OpenCalls({FIRST: request(7)})
    calls.asked([(SECOND, request(7))], born_ms=20)
    calls.asked([(THIRD, request(7))], born_ms=10)
    return calls


def test_what_is_asked_is_open_until_its_outcome_is_taken(calls):
    assert list(calls._open) == [FIRST, SECOND, THIRD]
    calls.heard([outcome(SECOND), outcome(FIRST)])
    assert len(calls) == 3
    chosen = calls.choose(9)
    assert [o.id for o in chosen] == [SECOND, FIRST]
    calls.take(chosen, "task")
    assert list(calls._open) == [THIRD]
    assert not calls.came
    calls.check()


def test_the_first_outcome_counts_and_what_is_not_open_is_not_heard(calls):
    calls.heard([outcome(FIRST, answer=b"first"), outcome(FIRST, answer=b"second")])
    calls.heard([outcome(CallId(1, 1))])
    (chosen,) = calls.choose(9)
    assert chosen.answer == b"first"
    calls.take([chosen], "task")
    calls.heard([outcome(FIRST)])
    assert not calls.came


def test_so_many_outcomes_make_a_step(calls, monkeypatch):
    calls.heard([outcome(FIRST, answer=b"12345"), outcome(SECOND), outcome(THIRD)])
    assert len(calls.choose(1)) == 1
    monkeypatch.setattr(calls_module, "OUTCOMES_BYTES_MAX", 3)
    assert [o.id for o in calls.choose(9)] == [FIRST]  # one at least


def test_the_age_of_what_goes_on_is_that_of_its_oldest_row(calls):
    assert calls.take([outcome(SECOND), outcome(THIRD)], "task") == 10
    assert calls.take([outcome(FIRST)], "task") == 0, "asked in an earlier life"


@pytest.mark.parametrize("wrong", [outcome(FIRST, digest=8), outcome(CallId(3, 1))])
def test_an_answer_to_another_question_is_a_divergence(calls, wrong):
    with pytest.raises(Divergence, match=r"task: the log has an answer to call 1 of operator"):
        calls.take([wrong], "task")


def named(calls):
    return [call for call, _ in calls]


def test_an_effect_waits_until_its_log_is_safe(calls):
    pay, send = CallId(0, 4), CallId(0, 5)
    asked = [(pay, request(7)._replace(key="a")), (CallId(0, 6), request(7))]
    calls.asked([*asked, (send, request(7)._replace(key="b"))], born_ms=30)
    assert named(calls.to_make(asked, 11)) == [CallId(0, 6)], "a read waits for nothing"
    calls.to_make([(send, request(7)._replace(key="b"))], 12)
    calls.check()
    assert calls.holds
    assert not calls.released(10)
    assert calls.released(11) == ((pay, request(7)._replace(key="a")),)
    assert not calls.released(11), "once"
    assert named(calls.released(99)) == [send]
    assert not calls.holds


def test_an_effect_of_an_earlier_life_is_in_doubt():
    effect = request(7)._replace(key="a")
    calls = OpenCalls({FIRST: request(7), SECOND: effect})
    assert calls.begun(8) == ((FIRST, request(7)),)
    calls.take([Outcome(*FIRST, request(7).digest, True, b"")], "task")
    assert not calls.released(7)
    assert calls.released(8) == ((SECOND, effect._replace(in_doubt=True)),)


def test_an_effect_that_failed_does_not_take_others_with_it():
    """It may end the job before its step is logged."""
    effect = request(7)._replace(key="a")
    calls = OpenCalls({FIRST: effect, SECOND: effect, THIRD: effect})
    failed = [outcome(n)._replace(ok=False) for n in (FIRST, THIRD)]
    calls.heard([failed[0], outcome(SECOND), failed[1]])
    for step in ([SECOND], [FIRST], [THIRD]):
        chosen = calls.choose(9)
        assert [o.id for o in chosen] == step
        calls.take(chosen, "task")


def test_outcomes_in_the_log():
    given = (outcome(FIRST), Outcome(2, 3, 2**63, False, b"error", 4, 250))
    (cause,) = decode_record(encode_record([Outcomes(given)]))
    assert isinstance(cause, Outcomes)
    assert cause.outcomes == given
    with pytest.raises(ProtocolError, match="unreadable log entry"):
        decode_record(msgpack.packb([NUMBER[Outcomes], [[1]]]))
    with pytest.raises(ProtocolError, match="does not begin with the cause"):
        decode_record(encode_record([Call(1, True, b"")]))
