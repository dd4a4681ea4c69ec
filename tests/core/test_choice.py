"""What a live task does next, where several things could be next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from clonos.core.calls import CallId, OpenCalls, Outcome, Request
from clonos.core.choice import choose, must_rest
from clonos.core.determinants import Source, Timer
from clonos.core.fences import Fences
from clonos.core.plan import Incarnation
from clonos.core.seals import Seals
from clonos.core.step import TaskTime

DUE_MS = 100


class World:
    """A clock that stands."""

    def clock_ms(self) -> int:
        return DUE_MS

    def ticks_ms(self) -> int:
        return 0


class Rows:
    """A source that has rows."""

    def __init__(self, *, has_any: bool = True) -> None:
        self.has_any = has_any

    def choose(self) -> Source | None:
        return Source(7, 1, None) if self.has_any else None


def task(rows: Rows, wake_ms: int | None = DUE_MS) -> Any:
    return SimpleNamespace(
        spec=SimpleNamespace(is_source=True),
        inbounds=None,
        outbounds=SimpleNamespace(blocked=lambda: False),
        intake=rows,
        calls=SimpleNamespace(came=False),
        rounds=None,
        time=TaskTime(cast("Any", World())),
        injected=0,
        epoch=0,
        wake_ms=wake_ms,
        ended=False,
        watch=None,
    )


def causes(of: Any, count: int, *, is_full: bool = False) -> list[str]:
    chosen = [choose(of, is_full=is_full)[0] for _ in range(count)]
    return [type(cause).__name__ for cause in chosen]


def test_timers_that_are_always_due_and_rows_take_turns() -> None:
    """A function may set its timer again for a time that is past when its step is over."""
    assert causes(task(Rows()), 4) == [Timer.__name__, Source.__name__] * 2


@pytest.mark.parametrize(("rows", "is_full"), [(Rows(has_any=False), False), (Rows(), True)])
def test_timers_wait_for_no_row_that_is_not_taken(rows: Rows, is_full: bool) -> None:
    assert causes(task(rows), 3, is_full=is_full) == [Timer.__name__] * 3


def test_without_a_timer_rows_are_taken() -> None:
    assert causes(task(Rows(), DUE_MS + 1), 2) == [Source.__name__] * 2
    assert causes(task(Rows(), None), 2) == [Source.__name__] * 2


def test_a_task_whose_effects_wait_for_floors_takes_what_is_on_its_way() -> None:
    """... after a loss was forgiven, and until its floor has passed that."""
    effect, read = CallId(0, 1), CallId(0, 2)
    of: Any = SimpleNamespace(
        calls=OpenCalls({effect: Request(None, (), 1, key="a"), read: Request(None, (), 2)}),
        fences=Fences(),
        seals=Seals(None),
        life=SimpleNamespace(generation=1),
    )
    of.calls.begun(position=9)
    of.fences.resolve(7, Incarnation(1, 1), 13)
    of.calls.take([Outcome(*read, 2, True, b"")], "task")
    assert not must_rest(of), "nothing was forgiven: the log is safe soon"
    of.fences.resolve(7, Incarnation(1, 2), 13, forgive=True)
    assert must_rest(of)
    of.seals._seals[4] = SimpleNamespace(layer=SimpleNamespace(position=20, generation=1))
    of.seals.floor(19)
    assert must_rest(of)
    of.seals.floor(20)
    assert not must_rest(of), "its floor is of the new generation"


def test_a_task_of_which_a_call_is_under_way_waits_for_that() -> None:
    """It is not full any more when the answer comes."""
    of: Any = SimpleNamespace(
        calls=OpenCalls({CallId(0, 1): Request(None, (), 1, key="a")}),
        fences=Fences(),
        seals=Seals(None),
        life=SimpleNamespace(generation=1),
    )
    of.fences.resolve(7, Incarnation(1, 2), 13, forgive=True)
    of.calls.begun(position=9)
    assert must_rest(of)
    of.calls.released(9)  # it is being made
    assert not must_rest(of)
