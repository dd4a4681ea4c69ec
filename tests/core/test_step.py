"""A step, live and replayed: the world is asked once."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.core import step as step_module
from clonos.core.determinants import (
    Call,
    Clock,
    Marker,
    Order,
    Source,
    SourceEnd,
    Timer,
    decode_record,
    encode_record,
)
from clonos.core.program import Batch
from clonos.core.step import RunningStep, TaskTime
from clonos.errors import Divergence, ProtocolError, StepTooLarge

HOUR_MS = 3_600_000


class World:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def clock_ms(self) -> int:
        self.asked += 1
        return 1000 + self.asked

    def ticks_ms(self) -> int:
        return self.asked

    def call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        self.asked += 1
        return fn(*args, **kwargs)

    def decode_rows(self, content: bytes) -> Any:
        raise AssertionError(content)

    def attempt(self, program: Any, do: Any) -> Any:
        raise AssertionError(do)

    def pick(self, batch: Any, rows: Any) -> Any:
        raise AssertionError(batch)

    def show(self, batch: Any) -> str:
        raise AssertionError(batch)


def step(world: World, logged=None, clock_ms=0) -> RunningStep:
    cause = Order(0, 1, 1, 1, 0)
    time = TaskTime(world)
    time.begin(clock_ms)
    return RunningStep(1, cause, world, time, clock_ms=clock_ms, wake_ms=None, logged=logged)


def use(live: RunningStep) -> list[Any]:
    answers: list[Any] = [live.clock_ms(), live.clock_ms(), live.call(len, ["abc"], {})]
    try:
        live.call(int, ["x"], {})
    except ValueError as error:
        answers.append(str(error))
    return answers


def test_a_replay_gives_the_same_answers_and_asks_nobody():
    world, nobody = World(), World()
    live = step(world)
    answers = use(live)
    logged = decode_record(encode_record(live.record))[1:]
    again = step(nobody, logged)
    assert use(again) == answers
    again.finish()
    assert (world.asked, nobody.asked) == (3, 0)


def test_the_clock_never_goes_back():
    assert step(World(), clock_ms=9_999).clock_ms() == 9_999


class SetClock(World):
    """A wall clock that somebody sets; ticks go on."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_ms, self.passed_ms = 50_000, 7

    def clock_ms(self) -> int:
        return self.wall_ms

    def ticks_ms(self) -> int:
        return self.passed_ms

    def wait(self, ms: int) -> None:
        self.wall_ms += ms
        self.passed_ms += ms


def test_time_goes_on_after_a_clock_was_set_back():
    world = SetClock()
    time = TaskTime(world)
    time.begin(0)
    assert time.now_ms() == 50_000
    world.wait(10)
    assert time.now_ms() == 50_010
    world.wall_ms += HOUR_MS
    assert time.now_ms() == 50_010 + HOUR_MS
    world.wall_ms -= HOUR_MS
    world.wait(10)
    assert time.now_ms() == 50_020 + HOUR_MS
    world.wall_ms -= HOUR_MS
    world.wait(10)
    assert time.now_ms() == 50_030 + HOUR_MS
    world.wait(3 * HOUR_MS)  # as long as two clocks take that were set by the same
    assert time.now_ms() == 50_030 + 4 * HOUR_MS


def test_time_goes_on_behind_what_another_life_has_read():
    world = SetClock()
    time = TaskTime(world)
    time.begin(50_000 + HOUR_MS)
    assert time.now_ms() == 50_000 + HOUR_MS
    world.wait(10)
    assert time.now_ms() == 50_010 + HOUR_MS


@pytest.mark.parametrize(
    "do",
    [
        lambda s: s.call(len, ["abc"], {}),  # the log has a clock reading first
        lambda s: (s.clock_ms(), s.call(len, ["abcd"], {})),  # other arguments
        lambda s: s.finish(),  # something is left
        lambda s: (use(s), s.call(len, ["abc"], {})),  # one call too many
    ],
)
def test_another_use_of_the_services_is_a_divergence(do):
    live = step(World())
    use(live)
    with pytest.raises(Divergence):
        do(step(World(), live.record[1:]))


def test_two_batches_for_a_channel_are_refused():
    live = step(World())
    live.emit(1, Batch(None, 1, 1, 0))
    with pytest.raises(ProtocolError):
        live.emit(1, Batch(None, 1, 1, 0))


CAUSES = st.one_of(
    st.builds(Order, *[st.integers(0, 2**40)] * 5),
    st.builds(Source, st.integers(0, 2**31), st.integers(0, 2**63), st.none() | st.binary()),
    st.just(SourceEnd()),
    st.builds(Timer, st.integers(0, 2**45)),
    st.builds(Marker, st.integers(0, 2**31)),
)
INNER = st.one_of(
    st.builds(Clock, st.integers(0, 2**45)),
    st.builds(Call, st.integers(0, 2**64 - 1), st.booleans(), st.binary()),
)


@given(CAUSES, st.lists(INNER))
def test_records_are_read_as_they_were_written(cause, inner):
    assert decode_record(encode_record([cause, *inner])) == [cause, *inner]


@given(st.binary(max_size=40))
def test_garbage_is_read_or_refused(data):
    with contextlib.suppress(ProtocolError):
        decode_record(data)


def test_what_cannot_travel_is_refused_before_it_is_logged(monkeypatch):
    monkeypatch.setattr(step_module, "RECORD_BYTES_MAX", 10)
    monkeypatch.setattr(step_module, "BATCH_BYTES_MAX", 100)
    assert step_module.checked(bytes(10), 7, "ask[0]") == bytes(10)
    with pytest.raises(StepTooLarge, match=r"step 7 .* 11 bytes") as caught:
        step_module.checked(bytes(11), 7, "ask[0]")
    assert caught.value.where == "ask[0]"
    running = step(World())
    running.emit(1, Batch(None, 3, 100, 0))
    with pytest.raises(StepTooLarge, match="a batch of 3 rows has 101 bytes"):
        running.emit(2, Batch(None, 3, 101, 0))


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_a_replay_reads_the_clock_if_the_log_has_a_reading(read, reads):
    """... whatever the code would read now."""
    live = step(World())
    time = live.clock_ms_if(reads=read)
    assert time == (1001 if read else None)
    live.call(len, ["abc"], {})
    logged = decode_record(encode_record(live.record))[1:]
    again = step(World(), logged)
    assert again.clock_ms_if(reads=reads) == time
    again.call(len, ["abc"], {})
    again.finish()
