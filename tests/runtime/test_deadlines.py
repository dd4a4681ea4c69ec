"""Timeouts that share a timer."""

from __future__ import annotations

import asyncio

import pytest

from clonos.runtime.deadlines import CAN_UNCANCEL, Deadlines, Task

pytestmark = pytest.mark.skipif(not CAN_UNCANCEL, reason="tasks do not count cancellations")

LONG_S = 30.0


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


def test_each_has_its_own_time_and_all_have_one_timer(monkeypatch):
    async def main():
        deadlines = Deadlines(0.2)
        timers = []
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def at(when_s, callback, *arguments, **how):
            if callback == deadlines._ring:
                timers.append(when_s)
            return call_at(when_s, callback, *arguments, **how)

        monkeypatch.setattr(loop, "call_at", at)
        early = [asyncio.create_task(waiting(deadlines, LONG_S)) for _ in range(50)]
        quick = [asyncio.create_task(waiting(deadlines, 0)) for _ in range(50)]
        await asyncio.sleep(0)
        assert len(timers) == 1
        monkeypatch.undo()
        await asyncio.sleep(0.1)
        late = asyncio.create_task(waiting(deadlines, LONG_S))
        assert set(await asyncio.gather(*early)) == {"late"}
        assert set(await asyncio.gather(*quick)) == {"done"}
        assert not late.done()
        assert await late == "late"
        assert await waiting(deadlines, LONG_S) == "late", "it rings again after it was quiet"

    asyncio.run(main())


def test_who_is_cancelled_by_others_is_not_late():
    async def main():
        deadlines = Deadlines(0.05)
        task = asyncio.create_task(waiting(deadlines, LONG_S))
        await asyncio.sleep(0)
        task.cancel()
        assert await task == "cancelled"
        both: Task = asyncio.create_task(waiting(deadlines, LONG_S))
        await asyncio.sleep(0)
        deadlines._ring()  # too early: nothing is due
        assert not both.cancelling()
        await asyncio.sleep(0.06)
        assert both.cancelling() or both.done()
        assert await both == "late"

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
