"""Each failed task recovers by itself, and waits only for answers that may matter."""

from __future__ import annotations

import pytest

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.recovery import Recoveries
from clonos.core.roster import ACTIVE, TaskPhase
from clonos.nodes.driver import TICK_S
from clonos.nodes.pulses import HUSH, SLACK
from clonos.simulator.checks.violations import Violation

from .play import CHAIN, SEEDS, Play, sink, source

APART = (source("one"), sink(0, name="one's sink"), source("other"), sink(2, name="other's sink"))
"""Tasks 0 -> 1, and 2 -> 3."""
FOR_LONG = 100_000.0
SILENCE_MS = 2_000.0


def silence(play, task):
    """Its process stands still; the driver does not find out by itself."""
    slot = play.slot(task)
    slot.stalled_until = play.cluster.scheduler.now + FOR_LONG
    return slot


def wake(play, slot):
    slot.stalled_until = 0.0
    slot.post(())  # nothing, but it looks


def is_given_up(play, task):
    return bool(play.noted(notes.Detected, task))


def recovered(play, task, times=1):
    return len(play.noted(notes.Live, task)) > times


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_recovers_though_another_pipeline_is_silent(seed):
    play = Play(APART, seed)
    play.all_live()
    play.at(1, 4)
    silence(play, 3)
    play.kill(0)
    play.until(lambda: recovered(play, 0))
    assert not is_given_up(play, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_recovers_though_another_waits_for_who_is_silent(seed):
    play = Play(APART, seed)
    play.all_live()
    play.at(1, 4)
    silence(play, 3)
    play.kill(2)
    play.until(lambda: play.coordinator.tasks[2].phase is TaskPhase.FENCING)
    play.kill(0)
    play.until(lambda: recovered(play, 0))
    assert not is_given_up(play, 3)
    play.until(lambda: is_given_up(play, 3))
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_recovers_though_who_sends_to_it_is_silent(seed):
    play = Play(CHAIN, seed)
    play.at(2, 8)
    silence(play, 0)
    play.kill(2)
    play.until(lambda: play.coordinator.tasks[2].phase is TaskPhase.REPLAYING)
    assert not is_given_up(play, 0)


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_silent_is_given_up_sooner_if_a_recovery_waits_for_it(seed, is_awaited):
    play = Play(CHAIN, seed, patience_ms=int(FOR_LONG), silence_ms=SILENCE_MS)
    play.all_live()
    play.at(2, 8)
    silence(play, 2)
    since = play.cluster.scheduler.now
    if is_awaited:
        play.kill(0)
    play.until(lambda: is_given_up(play, 2))
    took_ms = play.cluster.scheduler.now - since
    beat_ms = SILENCE_MS / 15 + 1000 * TICK_S  # as the driver hears it
    limit_ms = max(SILENCE_MS * HUSH, SLACK * beat_ms) if is_awaited else SILENCE_MS
    assert limit_ms - 2 * beat_ms <= took_ms <= limit_ms + beat_ms
    play.finish()


def behind(play, holder, task):
    """Until a holder has more of a log than the house-keeper, which does not hear of it."""
    play.cluster.network.cut(play.slot(holder), play.cluster.driver)
    play.until(lambda: play.machine(holder).book.length(task) > play.keeper.length(task) + 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_fails_downstream_does_not_begin_a_recovery_anew(seed):
    play = Play(CHAIN, seed, detect_ms=0.1)
    play.at(2, 8)
    behind(play, 2, 1)
    fenced = len(play.noted(notes.Fenced, 1))
    play.kill(1)
    play.until(lambda: play.coordinator.tasks[1].phase is TaskPhase.READING)
    play.slot(2).slowness = 30.0
    play.kill(3)
    play.until(lambda: recovered(play, 1))
    assert len(play.noted(notes.Fenced, 1)) == fenced + 1
    play.cluster.network.cuts.clear()
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_if_who_is_read_falls_silent_the_next_longest_is_taken(seed):
    play = Play(CHAIN, seed, depth=2, epoch_ms=10_000, floors_at_end=0)
    play.at(3, 4)
    for task in (1, 2, 3):
        play.cluster.network.cut(play.slot(task), play.cluster.driver)
    held = play.keeper.length(0)
    play.until(lambda: play.machine(2).book.length(0) > held + 4)
    play.kill(0)
    failed = play.coordinator.tasks[0]
    play.until(lambda: failed.phase is TaskPhase.READING)
    play.cluster.network.cuts.clear()
    first, second = (1, 2) if failed.read_from == 1 else (2, 1)
    surviving = failed.answers[second].length
    assert surviving > play.keeper.length(0)
    silence(play, first)
    play.until(lambda: play.noted(notes.Fetched, 0)[1:])
    assert is_given_up(play, first)
    assert not is_given_up(play, second)
    assert play.noted(notes.Fetched, 0)[1].length == surviving
    play.finish()


def fenced_holder_of_void_entries(seed):
    """Task 1 is cut, because the log of 0 is lost. Task 2 has more of it, is fenced, and waits for
    3. Meanwhile 1 lives again, dies again, and 2 is asked once more."""
    waiting = {"patience_ms": 2_000, "gather_ms": 1_000_000, "epoch_ms": 10_000.0}
    play = Play(CHAIN, seed, floors_at_end=0, detect_ms=0.0, rows=600, **waiting)
    play.all_live()
    play.at(3, 4)
    for task in range(4):
        play.cluster.network.cut(play.slot(task), play.cluster.driver)
    play.until(lambda: play.machine(2).book.length(1) > play.keeper.length(1) + 6)
    play.kill(0, 1)
    play.until(lambda: play.noted(notes.Orphan, 2))
    silence(play, 3)
    play.until(lambda: recovered(play, 1))
    play.at(1, play.noted(notes.Fetched, 1)[1].length + 1)
    play.kill(1)
    assert play.coordinator.tasks[2].phase is TaskPhase.FENCING
    play.cluster.network.cuts.clear()
    return play


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_fenced_forgets_what_is_lost_all_the_same(seed):
    fenced_holder_of_void_entries(seed).finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_else_it_would_offer_what_is_lost(seed, monkeypatch):
    def tell_the_living(recoveries, command):
        for task in recoveries._tasks.values():
            if isinstance(command, msg.Fence) or task.phase in ACTIVE:
                recoveries._roster.command(task.id, command)

    monkeypatch.setattr(Recoveries, "_tell_all", tell_the_living)
    play = fenced_holder_of_void_entries(seed)
    with pytest.raises(Violation, match="log before effect"):
        play.finish()
