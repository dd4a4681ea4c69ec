"""Which level the next layers go to."""

from __future__ import annotations

import pytest

from clonos.core.dial import Dial, ladder


def dial() -> Dial:
    return Dial(ladder(1), late_s=1.0, quiet_s=5.0)


def behind(it: Dial, level: str, now_s: float) -> None:
    """A layer has waited at a level until now, for longer than it may."""
    it.asked(level, now_s, now_s - 1.5)
    it.look(now_s)


def test_what_keeps_up_is_used_for_ever():
    it = dial()
    for second in range(100):
        it.asked("store", second, float(second))
        it.answered("store", second, second + 0.9)
        assert not it.look(second + 0.95)
    assert (it.level, it.why) == ("store", "")


def test_a_level_that_answers_late_is_behind_though_nothing_waits_any_more():
    it = dial()
    it.asked("store", 1, 0.0)
    it.answered("store", 1, 2.0)
    assert it.look(2.0)
    assert it.level == "local"


def test_one_that_is_behind_is_not_asked_again_before_it_was_quiet_for_a_while():
    it = dial()
    behind(it, "store", 10.0)
    it.look(14.0)  # it still waits
    it.answered("store", 10.0, 14.0)
    assert not it.look(18.9)
    assert it.look(19.0)
    assert it.level == "store"
    assert it.why == ""


def test_each_level_has_a_pace_of_its_own():
    it = dial()
    behind(it, "store", 10.0)
    behind(it, "local", 12.0)
    assert it.level == "memory"
    assert it.why == (
        "a layer has waited 1.5 s for the checkpoint store; "
        "a layer has waited 1.5 s for the local disk"
    )
    it.answered("local", 12.0, 12.0)
    assert it.look(17.0)
    assert it.level == "local", "the store still does not answer"


def test_the_weakest_takes_what_comes_also_if_it_is_behind():
    it = Dial(("store", "local"), late_s=1.0, quiet_s=5.0)
    behind(it, "store", 10.0)
    behind(it, "local", 10.0)
    assert it.level == "local"


def test_it_is_looked_at_as_soon_as_something_may_change():
    it = dial()
    assert it.due_s() is None
    it.asked("store", 1, 3.0)
    assert it.due_s() == 4.0
    it.look(4.1)
    assert it.due_s() == pytest.approx(9.1)
    it.answered("store", 1, 4.1)
    it.look(9.1)
    assert it.due_s() is None


def test_a_layer_that_waits_goes_to_weaker_levels_only():
    it = dial()
    behind(it, "store", 10.0)
    assert it.is_weaker(["store"])
    assert not it.is_weaker(["store", "local"])
