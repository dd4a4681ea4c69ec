"""Timeouts that share a timer."""

from __future__ import annotations

import asyncio

import pytest

from clonos.runtime.deadlines import CAN_UNCANCEL, Deadlines, Task

pytestmark = pytest.mark.skipif(not CAN_UNCANCEL, reason="tasks do not count cancellations")

LONG_S = 30.0


class Clock:
    """The time of a loop, by hand."""

    def __init__(self):
        self.now_s, self.timers = 0.0, []

    def time(self):
        return self.now_s

    def call_at(self, when_s, ring):
        self.timers.append((when_s, ring))

    async def goes_to(self, now_s):
        """Ring what is due, and let tasks go on."""
        self.now_s = now_s
        due = [one for one in self.timers if one[0] <= now_s]
        self.timers = [one for one in self.timers if one[0] > now_s]
        for _, ring in due:
            ring()
        for _ in range(3):
            await asyncio.sleep(0)


def by_hand(timeout_s):
    """Deadlines, and their clock."""
    deadlines, clock = Deadlines(timeout_s), Clock()
    deadlines._loop = clock  # type: ignore[assignment]
    return deadlines, clock


async def waiting(deadlines, seconds):
    """How a wait of this many seconds ends."""
    task = asyncio.current_task()
    deadlines.begin(task)
    is_late = False
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        is_late = deadlines.end(task)
        return "late" if is_late else "cancelled"
    assert not deadlines.end(task)
    return "done"


def test_each_has_its_own_time_and_all_have_one_timer():
    async def main():
        deadlines, clock = by_hand(20)
        early = [asyncio.create_task(waiting(deadlines, LONG_S)) for _ in range(50)]
        quick = [asyncio.create_task(waiting(deadlines, 0)) for _ in range(50)]
        await clock.goes_to(0)
        assert len(clock.timers) == 1
        late = asyncio.create_task(waiting(deadlines, LONG_S))
        await clock.goes_to(10)
        await clock.goes_to(19)
        assert not any(task.done() for task in early)
        await clock.goes_to(20)
        assert {task.result() for task in early} == {"late"}
        assert {task.result() for task in quick} == {"done"}
        assert not late.done()
        assert [when_s for when_s, _ in clock.timers] == [30]
        await clock.goes_to(30)
        assert late.result() == "late"
        again = asyncio.create_task(waiting(deadlines, LONG_S))
        await clock.goes_to(31)
        await clock.goes_to(51)
        assert again.result() == "late", "it rings again after it was quiet"

    asyncio.run(main())


def test_who_is_cancelled_by_others_is_not_late():
    async def main():
        deadlines, clock = by_hand(20)
        task = asyncio.create_task(waiting(deadlines, LONG_S))
        await clock.goes_to(0)
        task.cancel()
        await clock.goes_to(1)
        assert task.result() == "cancelled"
        other: Task = asyncio.create_task(waiting(deadlines, LONG_S))
        await clock.goes_to(2)
        await clock.goes_to(20)  # the first one's time: nothing of the other is due
        assert not other.cancelling()
        await clock.goes_to(22)
        assert other.result() == "late"

    asyncio.run(main())


def test_a_cancellation_that_was_caught_before_does_not_count():
    async def main():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await waiting(Deadlines(0.01), LONG_S)

    assert asyncio.run(main()) == "late"


def test_who_goes_on_is_known():
    async def main():
        deadlines = Deadlines(0.01)
        clock = asyncio.get_running_loop().time
        task = asyncio.current_task()
        deadlines.begin(task)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(LONG_S)
        assert deadlines.over_before(clock()) == [task]
        assert not deadlines.over_before(clock() - LONG_S)
        assert deadlines.end(task)
        assert not deadlines.over_before(clock())

    asyncio.run(main())
