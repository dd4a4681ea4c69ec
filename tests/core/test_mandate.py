"""A slot may begin effects only for a while after its driver was sure of its term."""

from __future__ import annotations

from math import inf

from clonos.core.mandate import MANDATE_S, Mandate, MandateAsked, MandateGiven
from clonos.runtime.effects import CUT_OFF_S


def test_it_lasts_from_when_the_driver_was_sure_and_not_from_when_it_is_heard():
    mandate = Mandate(4.0)
    asked = mandate.question(100.0)
    assert asked == MandateAsked(100_000)
    assert mandate.until_s == -inf, "nobody has answered"
    mandate.given(MandateGiven(asked.asked_ms, 700))  # whenever that comes
    assert mandate.until_s == 103.3


def test_an_old_answer_does_not_shorten_it():
    mandate = Mandate(4.0)
    for asked_ms, age_ms in ((100_000, 100), (99_000, 0), (100_500, 3_000)):
        mandate.given(MandateGiven(asked_ms, age_ms))
    assert mandate.until_s == 103.9


def test_it_is_asked_for_again_and_again():
    mandate, now_s, asked = Mandate(4.0), 100.0, 0
    while now_s < 104.0:
        assert mandate.wait_s(now_s) == 0.0
        mandate.question(now_s)
        asked += 1
        now_s += mandate.wait_s(now_s)
    assert asked == 8


def test_it_is_over_before_a_successor_asks_a_check():
    """A check waits for the timeout and :data:`CUT_OFF_S`, and an attempt may take the timeout."""
    assert MANDATE_S < CUT_OFF_S
