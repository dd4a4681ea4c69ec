"""A task that moves hands over what its floor lacks, and its next life replays nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from clonos.core import decisions as co
from clonos.core import moves, notes, seals
from clonos.core.messages import Yielded
from clonos.core.plan import Incarnation
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options

CHAIN = (
    Stage("source", 1, (), Behaviour()),
    Stage("middle", 1, (0,), Behaviour()),
    Stage("sink", 1, (1,), Behaviour(), is_sink=True),
)
SOURCE, MIDDLE = 0, 1


class Play:
    """A chain at work, one task of which is to move."""

    def __init__(self, seed: int = 1, **options: Any) -> None:
        job = build_job(CHAIN, sharing_depth=1, rows=400)
        job = replace(job, plan=replace(job.plan, has_markers=False))
        kept: dict[str, Any] = {"slots": 5, "groups": 5, "standbys": 1, "epoch_ms": 20.0}
        self.notes: list[notes.Note] = []
        self.cluster = Cluster(job, Options(**kept | options), Random(seed))
        self.cluster.on_note.append(self.notes.append)
        self.cluster.start()
        self.until(lambda: self.machine() is not None and self.machine().position > 5)

    @property
    def moves(self) -> moves.Moves:
        return self.cluster.driver.coordinator.moves

    def until(self, condition: Any) -> None:
        self.cluster.run_until(condition)

    def machine(self) -> Any:
        slot = self.cluster.slot_of(MIDDLE)
        return slot.machine_of(MIDDLE) if slot is not None else None

    @property
    def life(self) -> Incarnation:
        return self.cluster.driver.coordinator.tasks[MIDDLE].incarnation

    def move(self) -> None:
        self.cluster.driver.post(co.MoveAsked(MIDDLE))

    def until_moved(self) -> list[bool]:
        """Go on until it has moved; return whether each life that has ended handed over."""
        self.until(lambda: any(isinstance(n, notes.Moved | notes.Stayed) for n in self.notes))
        return [note.hands_over for note in self.notes if isinstance(note, notes.Moving)]

    def end(self) -> None:
        assert self.cluster.run(60_000.0).state == "done"
        self.cluster.recorder.check_end(self.cluster.service)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_replayed(seed):
    play = Play(seed)
    play.move()
    play.until(lambda: play.moves.machine.state is moves.MovePhase.HANDING)
    rests_at = play.cluster.driver.keeper.length(MIDDLE)
    assert play.cluster.driver.keeper.positions[MIDDLE] < rests_at, "its floor lacks something"
    assert play.until_moved() == [True]
    play.until(lambda: play.machine().incarnation == play.life)
    assert play.machine().replay_to == rests_at
    play.end()


def test_its_next_life_has_all_log_entries_that_it_held():
    """Also those of its sender: so it may be the only process that has them."""
    play = Play(epoch_ms=50.0)
    play.move()
    play.until(lambda: play.moves.machine.state is moves.MovePhase.YIELDING)
    old = play.machine()
    play.until(lambda: old.seals.beyond_floor)
    held = old.book.lengths()
    assert held[SOURCE] > old.book.base(SOURCE)
    play.until(lambda: play.machine() not in (None, old))
    assert play.machine().book.lengths() == held
    play.end()


def test_what_is_too_much_is_replayed(monkeypatch):
    monkeypatch.setattr(seals, "HANDED_BYTES", 10)
    play = Play()
    play.move()
    assert play.until_moved() == [False]
    play.end()


def test_items_on_a_disk_are_not_handed_over():
    """They would have to be read first."""
    play = Play(memory_bytes=0)
    play.move()
    assert play.until_moved() == [False]
    play.end()


def test_what_was_handed_over_is_void_if_some_life_has_ended_since():
    """It may depend on what that one has lost."""
    play = Play()
    play.move()
    play.until(lambda: play.moves.machine.state is moves.MovePhase.YIELDING)
    play.cluster.driver.coordinator.recoveries.failures += 1
    assert play.until_moved() == [False]
    play.end()


def test_whoever_stays_stores_what_it_would_have_handed_over(monkeypatch):
    monkeypatch.setattr(moves, "YIELD_MS", 30)
    play = Play()
    monkeypatch.setitem(play.cluster.driver.coordinator._reports, Yielded, lambda *_: None)
    play.move()
    assert play.until_moved() == []
    life = play.machine()
    position = life.position
    play.until(lambda: play.cluster.driver.keeper.positions[MIDDLE] >= position)
    assert play.machine() is life
    play.end()
