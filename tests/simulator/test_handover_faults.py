"""What must not happen while a cell hands over: processes hear of it late, or die."""

from __future__ import annotations

import pytest

from clonos.core import decisions as co
from clonos.core import messages as msg
from clonos.core import moves, notes
from clonos.core.moves import MovePhase

from .play import CHAIN, Play

SOURCE, FIRST, SECOND, SINK = range(4)


def at_work(seed, **options):
    """A chain whose logs travel all the way down."""
    play = Play(CHAIN, seed, depth=9, rows=2000, marked=False, epoch_ms=20.0, **options)
    play.all_live()
    play.at(SINK, 5)
    return play


def until(play, *phases):
    play.until(lambda: play.coordinator.moves.machine.state in phases)


def hands_over(play):
    return [note.hands_over for note in play.noted(notes.Moving)]


@pytest.mark.parametrize("moved", [SOURCE, FIRST])
@pytest.mark.parametrize("seed", range(3))
def test_a_process_downstream_that_hears_of_the_move_late(seed, moved):
    """It may have log entries of the new life by then if that begins before all have answered."""
    play = at_work(seed)
    play.cluster.driver.post(co.MoveAsked(moved))
    until(play, MovePhase.YIELDING)
    slot = play.slot(SINK)
    until(play, MovePhase.HANDING)
    orders = play.cluster._controls[slot]
    orders.order_at = max(orders.order_at, play.cluster.scheduler.now + 15.0)
    play.finish()
    assert hands_over(play) == [True]
    assert not play.noted(notes.Detected)


@pytest.mark.parametrize("seed", range(3))
def test_all_tasks_of_a_cell_hand_over(seed):
    """A sender's last layer is a floor only when the receiver has sealed after it."""
    play = at_work(seed, cells=(0, 1, 1, 2))
    for moved in range(1, 5):
        asked = play.cluster.scheduler.now
        play.cluster.driver.post(co.MoveAsked(FIRST))
        play.until(lambda moved=moved: len(play.noted(notes.Moved)) == moved)
        assert play.cluster.scheduler.now - asked < moves.FRESH_MS, "it waits for floors that move"
    assert hands_over(play).count(True) >= 6
    play.finish()
    assert not play.noted(notes.Detected)


@pytest.mark.parametrize("seed", range(3))
def test_the_old_slot_dies_before_its_fences_are_answered(seed):
    """What is handed over may depend on log entries that only this slot had."""
    play = at_work(seed, cells=(0, 1, 1, 2))
    play.cluster.driver.post(co.MoveAsked(FIRST))
    until(play, MovePhase.YIELDING)
    old = play.slot(FIRST)
    play.cluster.network.delay_from(old, play.cluster.driver, 40)
    play.cluster.network.delay_from(old, play.slot(SINK), 40)
    until(play, MovePhase.HANDING)
    assert play.coordinator.recoveries._handed
    play.cluster.kill(old, "script")
    play.until(lambda: old not in play.cluster.alive() and not play.coordinator.recoveries._handed)
    play.finish()


def test_the_answer_to_an_earlier_order_to_yield_is_void():
    """Since then the task has gone on."""
    play = at_work(0)
    play.cluster.driver.post(co.MoveAsked(FIRST))
    until(play, MovePhase.YIELDING)
    life = play.coordinator.tasks[FIRST].incarnation
    move = play.coordinator.moves
    move.yielded(0, msg.Yielded(FIRST, life, move._number - 1, msg.Handed(3, b"", ())))
    assert (move.machine.state, move._handed) == (MovePhase.YIELDING, {})
    play.finish()


def test_who_rests_too_late_hands_nothing_over_the_next_time(monkeypatch):
    """What it hands over may take too long to encode and to send."""
    play = at_work(0)
    monkeypatch.setattr(moves, "YIELD_MS", 0)
    play.cluster.driver.post(co.MoveAsked(FIRST))
    play.until(lambda: play.noted(notes.Stayed))
    monkeypatch.undo()
    for _ in range(2):
        count = len(play.noted(notes.Moved))
        play.cluster.driver.post(co.MoveAsked(FIRST))
        play.until(lambda count=count: len(play.noted(notes.Moved)) > count)
    assert hands_over(play)[0] is False
    play.finish()


def test_a_copy_that_begins_again_does_not_hold_up_floors(monkeypatch):
    play = at_work(0)
    play.cluster.driver.post(co.MoveAsked(FIRST))
    until(play, MovePhase.SEALING)
    move = play.coordinator.moves
    monkeypatch.setattr(move, "_is_filled", lambda: False)
    until(play, MovePhase.COPYING)
    machine = play.machine(FIRST)
    play.until(lambda: not machine.seals.is_closed)
    floor = play.keeper.positions[FIRST]
    play.until(lambda: play.keeper.positions[FIRST] > floor)
    monkeypatch.undo()
    play.until(lambda: play.noted(notes.Moved))
    play.finish()
