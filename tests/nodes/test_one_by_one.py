"""Calls of a slot in which one life looks for a call that kills."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core.calls import CallId, Outcome, Request
from clonos.core.life import Phase
from clonos.nodes.one_by_one import ELSEWHERE_S, OneByOne


def asked(*numbers: int) -> list[tuple[CallId, Request]]:
    return [(CallId(0, n), Request(None, (), n)) for n in numbers]


def machine_of(
    name: str, events: list[Any], *, finds_calls: bool, hold_ms: int = 0, suspect: int = 0
) -> Any:
    def calls(call: CallId, request: Request, *, is_over: bool = False) -> None:
        events.append((name, "over" if is_over else "announced", call.number))

    def suspects(call: CallId, request: Request) -> bool:
        return call.number == suspect

    watch = SimpleNamespace(
        finds_calls=finds_calls, calls=calls, hold_ms=hold_ms, suspects=suspects
    )
    return SimpleNamespace(watch=watch, phase=Phase.LIVE)


class Slot:
    """Life 1 looks for a call that kills, life 2 does not."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.now_s = 100.0
        self.calls = OneByOne(self, self)
        self.searching = machine_of("1", self.events, finds_calls=True)
        self.other = machine_of("2", self.events, finds_calls=False)
        self.other.watch = None

    def make(self, life: int, calls: Any) -> None:
        self.events += [(life, call.number) for call, _ in calls]

    def may_begin(self, until_s: float) -> None:
        raise AssertionError("the slot says so itself")

    def away(self, life: int) -> dict[str, Any]:
        raise AssertionError("the task asks itself")

    def ticks_s(self) -> float:
        return self.now_s

    def withdraw(self, life: int) -> None:
        self.events.append(("withdrawn", life))

    def over(self, life: int, *numbers: int) -> None:
        self.calls.over(life, [Outcome(0, n, n, True, b"") for n in numbers])

    def news(self, after_s: float = ELSEWHERE_S) -> list[Any]:
        self.now_s += after_s
        self.calls.go_on()
        news = self.events.copy()
        self.events.clear()
        return news


@pytest.fixture
def slot() -> Slot:
    return Slot()


def test_usually_all_are_made_at_once(slot):
    slot.calls.make(2, slot.other, asked(1, 2))
    slot.over(2, 2)
    assert slot.news() == [(2, 1), (2, 2)]


def test_one_is_made_at_a_time_whoever_asks(slot):
    slot.calls.make(1, slot.searching, asked(1, 2))
    slot.calls.make(2, slot.other, asked(7))
    assert slot.news() == [("1", "announced", 1), (1, 1)]
    slot.over(2, 1)
    slot.over(1, 2)
    assert not slot.news(), "not what is under way"
    slot.over(1, 1)
    assert slot.events == [("1", "over", 1)], "the step that takes the answer comes first"
    assert slot.news() == [("1", "over", 1), ("1", "announced", 2), (1, 2)]
    slot.over(1, 2)
    assert slot.news() == [("1", "over", 2), (2, 7)]
    slot.calls.make(1, slot.searching, asked(3))
    assert not slot.news(), "it would have killed, too"
    slot.over(2, 7)
    assert slot.news() == [("1", "announced", 3), (1, 3)]


def test_when_nobody_looks_any_more_the_others_are_made(slot):
    slot.calls.make(1, slot.searching, asked(1, 2, 3))
    slot.calls.make(2, slot.other, asked(7))
    slot.news()
    slot.searching.watch = None
    slot.over(1, 1)
    assert slot.news() == [(1, 2), (1, 3), (2, 7)]
    slot.calls.make(1, slot.searching, asked(4, 5))
    assert slot.news() == [(1, 4), (1, 5)]


def test_a_life_that_has_finished_holds_up_nobody(slot):
    """It takes no more steps, so its watch would never end."""
    slot.calls.make(1, slot.searching, asked(1))
    slot.calls.make(2, slot.other, asked(7, 8))
    slot.news()
    slot.over(1, 1)
    slot.searching.phase = Phase.FINISHED
    assert [event for event in slot.news() if event[0] == 2] == [(2, 7), (2, 8)]


@pytest.mark.parametrize("life", [1, 2])
def test_calls_of_a_life_that_is_over_are_not_made(slot, life):
    slot.calls.make(1, slot.searching, asked(1, 2))
    slot.calls.make(2, slot.other, asked(7, 8))
    slot.news()
    slot.calls.withdraw(life)
    after = [("withdrawn", 1), (2, 7), (2, 8)] if life == 1 else [("withdrawn", 2)]
    assert slot.news() == after
    slot.over(1, 1)
    again = [] if life == 1 else [("1", "over", 1), ("1", "announced", 2), (1, 2)]
    assert slot.news() == again


def test_where_a_call_is_suspect_none_is_made_for_a_while_and_then_this_one(slot):
    held = machine_of("1", slot.events, finds_calls=True, hold_ms=2000, suspect=2)
    slot.calls.make(1, held, asked(1, 2))
    slot.calls.make(2, slot.other, asked(7))
    assert not slot.news(0), "another one would have killed, too"
    slot.now_s += 1.5
    assert slot.calls.wait_s == 0.5
    assert not slot.news(0)
    slot.now_s += 0.5
    assert slot.news(0) == [("1", "announced", 2), (1, 2)]
    slot.over(1, 2)
    slot.calls.make(1, held, asked(3))
    assert slot.news(0) == [("1", "over", 2), ("1", "announced", 1), (1, 1)], "it waits once"
    assert slot.calls.wait_s == 0


def test_a_call_waits_until_what_led_to_it_is_not_only_here(slot):
    slot.calls.make(1, slot.searching, asked(1))
    assert not slot.news(0), "the next life might ask something else"
    assert slot.calls.wait_s == pytest.approx(ELSEWHERE_S)
    slot.now_s += ELSEWHERE_S
    slot.calls.make(1, slot.searching, asked(2))
    assert slot.calls.wait_s == 0
    assert slot.news(0) == [("1", "announced", 1), (1, 1)]
    slot.over(1, 1)
    assert slot.news(0) == [("1", "over", 1)]
    assert slot.news() == [("1", "announced", 2), (1, 2)]


def test_a_life_that_ends_holds_nobody_up(slot):
    held = machine_of("1", slot.events, finds_calls=True, hold_ms=2000)
    slot.calls.make(1, held, asked(1))
    slot.calls.make(2, slot.other, asked(7))
    slot.calls.withdraw(1)
    assert slot.calls.wait_s == 0
    assert slot.news() == [("withdrawn", 1), (2, 7)]


def test_a_call_of_a_life_that_is_over_holds_up_nobody_who_looks_later(slot):
    slot.calls.make(1, slot.searching, asked(1))
    slot.calls.make(2, slot.other, asked(7))
    slot.news()
    slot.over(1, 1)
    slot.news()  # call 7 of life 2 is under way
    slot.calls.withdraw(1)
    slot.calls.withdraw(2)
    slot.news()
    slot.calls.make(3, machine_of("3", slot.events, finds_calls=True), asked(1))
    assert slot.news() == [("3", "announced", 1), (3, 1)]
