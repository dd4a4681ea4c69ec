"""What a live task does next, where several things could be next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from clonos.core.choice import choose
from clonos.core.determinants import Source, Timer
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
