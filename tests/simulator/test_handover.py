"""A task that moves hands over what its floor lacks, and its next life replays nothing."""

from __future__ import annotations

import pytest

from clonos.core import decisions as co
from clonos.core import moves, notes, seals
from clonos.core.messages import Yielded

from .play import Play, sink, source, stage

SOURCE, MIDDLE = 0, 1


def at_work(seed=1, **options):
    """A chain, the middle of which is asked to move."""
    stages = (source(), stage("middle", 0), sink(1))
    kept = {"slots": 5, "groups": 5, "epoch_ms": 20.0, **options}
    play = Play(stages, seed, rows=400, marked=False, **kept)
    play.all_live()
    play.at(MIDDLE, 6)
    play.cluster.driver.post(co.MoveAsked(MIDDLE))
    return play


def until(play, phase):
    play.until(lambda: play.coordinator.moves.machine.state is phase)


def until_moved(play):
    """Go on until it has moved; return whether each life that has ended handed over."""
    play.until(lambda: play.noted(notes.Moved) or play.noted(notes.Stayed))
    return [note.hands_over for note in play.noted(notes.Moving)]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_replayed(seed):
    play = at_work(seed)
    until(play, moves.MovePhase.HANDING)
    rests_at = play.keeper.length(MIDDLE)
    assert play.keeper.positions[MIDDLE] < rests_at, "its floor lacks something"
    assert until_moved(play) == [True]
    play.until(
        lambda: play.machine(MIDDLE).incarnation == play.coordinator.tasks[MIDDLE].incarnation
    )
    assert play.machine(MIDDLE).replay_to == rests_at
    play.finish()


def test_its_next_life_has_all_log_entries_that_it_held():
    """Also those of its sender: so it may be the only process that has them."""
    play = at_work(epoch_ms=50.0)
    until(play, moves.MovePhase.YIELDING)
    old = play.machine(MIDDLE)
    play.until(lambda: old.seals.beyond_floor)
    held = old.book.lengths()
    assert held[SOURCE] > old.book.base(SOURCE)
    play.until(lambda: play.machine(MIDDLE) not in (None, old))
    assert play.machine(MIDDLE).book.lengths() == held
    play.finish()


def test_what_is_too_much_is_replayed(monkeypatch):
    monkeypatch.setattr(seals, "HANDED_BYTES", 10)
    play = at_work()
    assert until_moved(play) == [False]
    play.finish()


def test_items_on_a_disk_are_not_handed_over():
    """They would have to be read first."""
    play = at_work(memory_bytes=0)
    assert until_moved(play) == [False]
    play.finish()


def test_what_was_handed_over_is_void_if_some_life_has_ended_since():
    """It may depend on what that one has lost."""
    play = at_work()
    until(play, moves.MovePhase.YIELDING)
    play.coordinator.recoveries.failures += 1
    assert until_moved(play) == [False]
    play.finish()


def test_whoever_stays_stores_what_it_would_have_handed_over(monkeypatch):
    monkeypatch.setattr(moves, "YIELD_MS", 30)
    play = at_work()
    monkeypatch.setitem(play.coordinator._reports, Yielded, lambda *_: None)
    assert until_moved(play) == []
    life = play.machine(MIDDLE)
    position = life.position
    play.until(lambda: play.keeper.positions[MIDDLE] >= position)
    assert play.machine(MIDDLE) is life
    play.finish()
