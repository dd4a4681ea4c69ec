"""Which slots are given up for their silence."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from clonos.nodes.places import Seat
from clonos.nodes.pulses import (
    CALM_S,
    FORGIVE_S,
    HUSH,
    LIMIT_MAX_S,
    LOOK_MAX_S,
    REMEMBER_S,
    Pulses,
    _Doubt,
    frozen,
    stuck,
)
from clonos.transport.events import Heartbeat
from tests.link import Link

SILENCE_S = 1.5
BEAT = Heartbeat("nonce", 0)
STEP_S = 0.02


class Ward:
    """Some slots, and a clock."""

    def __init__(self, slots: Collection[int]) -> None:
        self.now_s = 0.0
        self.pulses = Pulses(SILENCE_S)
        self.asked: set[int] = set()
        self.places: dict[int, int] = {}
        self.pulses.look(0.0)
        for slot in slots:
            self.begins(slot, slot)

    def begins(self, slot: int, place: int) -> None:
        """A slot has registered, and its task is live."""
        self.places[slot] = place
        self.pulses.began(slot)
        self.pulses.goes_on(f"slot {place}")

    def known_by(self, slot: int) -> list[str]:
        return [f"slot {self.places[slot]}"]

    def passes(self, seconds: float, *beating: int, every_s: float = 0.1) -> list[int]:
        """Who is given up meanwhile."""
        given_up: list[int] = []
        for n in range(1, round(seconds / STEP_S) + 1):
            self.now_s += STEP_S
            self.pulses.look(self.now_s)
            if n % round(every_s / STEP_S) == 0:
                for slot in beating:
                    self.pulses.came(slot, BEAT)
            for slot in self.pulses.silent(lambda: self.asked, self.known_by):
                given_up.append(slot)
                self.pulses.ended(slot)
        return given_up


def test_a_silent_slot_is_given_up_and_sooner_if_it_owes_an_answer() -> None:
    ward = Ward([1, 2, 3])
    assert ward.passes(SILENCE_S - 0.1, 2, 3) == []
    assert ward.passes(0.3, 2, 3) == [1]
    ward.asked = {2}
    assert ward.passes(HUSH * SILENCE_S - 0.1, 3) == []
    assert ward.passes(0.3, 3) == [2]


def test_processes_that_fall_silent_one_after_the_other_are_told_once() -> None:
    ward = Ward([1, 2, 3])
    told = []
    for life in range(4, 8):
        (silent,) = ward.passes(2 * LIMIT_MAX_S, 2, 3)
        told.append(ward.pulses.is_silent_again(ward.known_by(silent)))
        ward.begins(life, 1)
    assert told == [False, True, False, False]


def test_the_warning_says_what_may_be_the_matter() -> None:
    seat = Seat(3, 4711, "2", 4700, Link(1))
    said = frozen(["slot 3", "count[0]", "out[0]", "b[0]"], seat)
    assert said.startswith("slot 3, which runs count[0] and 2 more tasks, was given up again")
    assert "process 4711 (executor 2) is silent" in said
    assert "silence_s=" in said
    assert "which runs count[0], was" in frozen(["slot 3", "count[0]"], seat)
    assert frozen(["slot 3"], seat).startswith("slot 3, which runs no task, was given up again")
    beat = Heartbeat("nonce", 0, 31_000, "", "model.py:3, in open")
    assert stuck(beat, seat) == (
        "slot 3 has been making what its tasks run, or restoring their state, for 31 s (process "
        "4711, executor 2); everything behind it waits, in these lines of your code:\n"
        "model.py:3, in open"
    )


@pytest.mark.parametrize("every_s", [0.2, 0.5])
def test_where_all_beats_are_late_nobody_is_given_up_for_that(every_s: float) -> None:
    ward = Ward([1, 2, 3])
    ward.passes(20 * every_s, 1, 2, 3, every_s=every_s)
    ward.asked = {1, 2, 3}
    assert ward.passes(60.0, 1, 2, 3, every_s=every_s) == []
    assert ward.passes(2.5 * every_s, 2, 3, every_s=every_s) == []
    assert ward.passes(max(SILENCE_S, 3 * every_s), 2, 3, every_s=every_s) == [1]


def test_two_processes_that_were_frozen_teach_nothing() -> None:
    ward = Ward([1, 2, 3, 4])
    ward.passes(5.0, 1, 2, 3, 4)
    assert ward.passes(1.0, 3, 4) == []
    assert ward.passes(5.0, 1, 2, 3, 4) == []
    ward.asked = {1}
    assert ward.passes(0.5, 2, 3, 4) == [1]


def test_what_many_slots_have_taught_is_not_forgotten_within_a_second() -> None:
    slots = range(1, 101)
    ward = Ward(slots)
    for _ in range(5):  # all pause now and then
        assert ward.passes(0.6) == []
        assert ward.passes(0.4, *slots) == []
    ward.asked = {1}
    assert ward.passes(1.0, *slots[1:]) == []


def test_what_was_is_forgotten_in_the_end() -> None:
    ward = Ward([1, 2, 3])
    ward.passes(20.0, 1, 2, 3, every_s=0.5)
    ward.passes(REMEMBER_S + 1.0, 1, 2, 3)
    ward.asked = {1}
    assert ward.passes(0.5, 2, 3) == [1]


def test_if_most_are_silent_it_is_rather_the_driver_that_is_cut_off() -> None:
    ward = Ward([1, 2, 3, 4])
    ward.asked = {1, 2, 3, 4}
    assert ward.passes(LIMIT_MAX_S - 0.2, 4) == []
    assert ward.passes(0.2, 1, 2, 3, 4) == []
    assert ward.passes(LIMIT_MAX_S + 0.2, 4) == [1, 2, 3], "but not for ever"


def test_a_drivers_absence_is_no_silence_of_the_slots() -> None:
    ward = Ward([1])
    for _ in range(int(SILENCE_S / LOOK_MAX_S) - 1):
        ward.now_s += 60.0
        ward.pulses.look(ward.now_s)
        assert ward.pulses.silent(lambda: {1}, ward.known_by) == {} or ward.now_s > 180.0


def test_who_was_given_up_has_twice_the_time_from_then_on() -> None:
    """Code that keeps all threads from running gets on in the end."""
    ward = Ward([0, 1])
    for slot in range(2, 6):
        assert ward.passes(LIMIT_MAX_S + 1, 0) == [slot - 1]
        ward.begins(slot, 1)
        ward.passes(0.1, 0, slot)
    ward.passes(5.0, 0, 5)
    assert ward.passes(LIMIT_MAX_S - 0.5, 0) == []
    assert ward.passes(1.0, 0) == [5]
    ward.begins(6, 1)
    ward.passes(FORGIVE_S + 1, 0, 6)
    assert ward.passes(SILENCE_S + 0.1, 0) == [6], "forgiven"


def test_a_process_that_is_silent_for_hours_in_each_life_has_the_longest_time() -> None:
    ward = Ward([1, 2, 3])
    ward.pulses._doubts["slot 1"] = _Doubt(1100)  # 2.0**1024 is beyond what a float has
    assert ward.passes(LIMIT_MAX_S - 0.5, 2, 3) == []
    assert ward.passes(1.0, 2, 3) == [1]


def test_who_is_frozen_now_and_then_has_twice_the_time_and_no_more() -> None:
    """Each time it is waited for in vain, so this must not grow."""
    ward = Ward([0, 1])
    for slot in range(2, 8):
        assert ward.passes(2 * SILENCE_S + 0.5, 0) == [slot - 1]
        ward.begins(slot, 1)
        ward.passes(1.1 * CALM_S, 0, slot)


def test_a_long_replay_is_no_calm() -> None:
    """Only after it, the step is repeated that kept all threads from running."""
    ward = Ward([0, 1])
    for slot in range(2, 5):
        assert ward.passes(LIMIT_MAX_S + 1, 0) == [slot - 1]
        ward.places[slot] = 1
        ward.pulses.began(slot)
        assert ward.passes(3 * CALM_S, 0, slot) == []
        ward.pulses.goes_on("slot 1")
        ward.passes(0.1, 0, slot)
    assert ward.passes(4 * SILENCE_S, 0) == []
    assert ward.passes(LIMIT_MAX_S, 0) == [4]


def test_a_silence_is_no_calm() -> None:
    """It began before the time was over."""
    ward = Ward([0, 1])
    for slot in range(2, 4):
        assert ward.passes(2 * SILENCE_S + 0.5, 0) == [slot - 1]
        ward.begins(slot, 1)
        ward.passes(0.8 * CALM_S, 0, slot)
    assert ward.passes(4 * SILENCE_S - 0.5, 0) == []
    assert ward.passes(1.0, 0) == [3]


def test_a_step_that_takes_long_is_told_of_once() -> None:
    ward = Ward([1])
    told = [ward.pulses.came(1, Heartbeat("nonce", 0, ms)) for ms in (0, 29_000, 30_000, 31_000)]
    assert told == [False, False, True, False]
    assert not ward.pulses.came(1, BEAT)
    assert ward.pulses.came(1, Heartbeat("nonce", 1, 40_000))
