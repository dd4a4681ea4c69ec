"""Planned moves: whoever moves asks nothing again, and whoever dies meanwhile is recovered."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from clonos.core import decisions as co
from clonos.core import messages as msg
from clonos.core import moves, notes
from clonos.core.plan import Cell
from clonos.simulator.checks.endings import nothing_asked_again
from clonos.simulator.command import main
from clonos.simulator.jobs.calls import with_calls
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.simulator.runs.kinds import Kind

CHAIN = (
    Stage("source", 1, (), Behaviour()),
    Stage("middle", 1, (0,), Behaviour()),
    Stage("sink", 1, (1,), Behaviour(), is_sink=True),
)
MIDDLE = 1
_N = TypeVar("_N", bound=notes.Note)


class Play:
    """A chain at work, one task of which is to move."""

    def __init__(
        self,
        *,
        slots: int = 4,
        has_calls: bool = False,
        standbys: int = 1,
        seed: int = 1,
        has_markers: bool = True,
    ) -> None:
        job = build_job(CHAIN, sharing_depth=1, rows=400)
        job = replace(job, plan=replace(job.plan, has_markers=has_markers))
        if has_calls:
            job = with_calls(job, Random(0))
        options = Options(slots=slots, groups=4, standbys=standbys, epoch_ms=20.0)
        self.notes: list[notes.Note] = []
        self.cluster = Cluster(job, options, Random(seed))
        self.cluster.on_note.append(self.notes.append)
        self.cluster.start()
        self.until(lambda: self.machine() is not None and self.machine().position > 5)

    def until(self, condition: Any) -> None:
        self.cluster.run_until(condition)

    def machine(self) -> Any:
        slot = self.cluster.slot_of(MIDDLE)
        return slot.machine_of(MIDDLE) if slot is not None else None

    def home(self) -> int | None:
        return self.cluster.driver.coordinator.tasks[MIDDLE].slot

    def says(self, *kinds: type[notes.Note]) -> bool:
        return any(isinstance(note, kinds) for note in self.notes)

    def noted(self, kind: type[_N]) -> list[_N]:
        return [note for note in self.notes if isinstance(note, kind)]

    def post(self, event: co.MoveAsked | co.Leaving) -> None:
        self.cluster.driver.post(event)

    def end(self) -> None:
        assert self.cluster.run(60_000.0).state == "done"
        self.cluster.recorder.check_end(self.cluster.service)


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_task_goes_on_elsewhere(standbys):
    play = Play(standbys=standbys)
    before = play.home()
    play.post(co.MoveAsked(MIDDLE))
    play.until(lambda: play.says(notes.Moved))
    assert play.home() not in (before, None)
    play.end()
    nothing_asked_again(play.cluster.service)
    assert not play.says(notes.Detected)
    assert [n.task for n in play.noted(notes.Moving)] == [MIDDLE]


def test_who_is_overtaken_is_not_asked():
    """It never rests, as it takes for ever to answer; the fence is answered meanwhile."""
    play = Play()
    before = play.home()
    assert before is not None
    play.cluster.slow[before] = 30.0
    heard = list[Cell]()
    rivals: Any = SimpleNamespace(overtaken=heard.append)
    play.cluster.driver.coordinator.moves.rivals = rivals
    play.post(co.MoveAsked(MIDDLE, overtakes=True))
    assert not heard, "not before it happens"
    play.until(lambda: play.says(notes.Moved))
    assert heard == [(MIDDLE,)]
    assert play.home() not in (before, None)
    assert [(n.task, n.target) for n in play.noted(notes.Rival)] == [(MIDDLE, play.home())]
    assert not play.says(notes.Moving)
    assert [n.task for n in play.noted(notes.Detected)] == [MIDDLE]
    play.notes.clear()
    play.post(co.MoveAsked(MIDDLE, overtakes=True))  # but for where it was slow, no slot is free
    free = {slot.number for slot in play.cluster.alive()} - {before, play.home()}
    for slot in play.cluster.alive():
        if slot.number in free and not any(t.slot == slot.number for t in tasks(play)):
            play.cluster.kill(slot, "no slot is left")
    play.until(lambda: play.says(notes.Stayed, notes.Moved))
    assert play.home() != before
    play.end()


def test_who_has_nowhere_to_go_says_so_soon(monkeypatch):
    """The job has as many slots as tasks; a slot that comes meanwhile would have been taken."""
    monkeypatch.setattr(moves, "FULL_MS", 30)
    play = Play(slots=3, standbys=0)
    before, asked_ms = play.home(), play.cluster.scheduler.now
    play.post(co.MoveAsked(MIDDLE))
    play.until(lambda: play.says(notes.Stayed))
    assert 30 <= play.cluster.scheduler.now - asked_ms < 60
    assert [note.why for note in play.noted(notes.Stayed)] == [moves.FULL]
    assert play.home() == before
    play.end()


@pytest.mark.parametrize("standbys", [0, 1])
def test_who_does_not_move_leaves_no_copy(monkeypatch, standbys):
    monkeypatch.setattr(moves, "YIELD_MS", 0)
    play = Play(slots=5, standbys=standbys)
    play.post(co.MoveAsked(MIDDLE))
    play.until(lambda: play.says(notes.Stayed))
    assert [note.why for note in play.noted(notes.Stayed)] == [moves.BUSY]
    slots = play.cluster.driver.coordinator.slots
    assert sum(slot.keeps((MIDDLE,)) for slot in slots.values()) == standbys
    play.until(lambda: sum(MIDDLE in slot.standbys for slot in play.cluster.alive()) == standbys)
    play.end()


def tasks(play):
    return play.cluster.driver.coordinator.tasks.values()


def test_there_and_back_again():
    """Its old slot has forgotten it, and takes it again."""
    play = Play()
    first = play.home()
    for _ in range(2):
        play.notes.clear()
        play.post(co.MoveAsked(MIDDLE))
        play.until(lambda: play.says(notes.Moved))
    assert play.home() == first
    play.end()
    nothing_asked_again(play.cluster.service)


def test_open_calls_are_awaited_or_nothing_moves():
    play = Play(has_calls=True)
    play.post(co.MoveAsked(MIDDLE))
    play.until(lambda: play.says(notes.Moved, notes.Stayed))
    play.end()
    nothing_asked_again(play.cluster.service)


def test_an_executor_that_leaves_gets_no_task_back():
    play = Play(slots=6)
    slot = play.cluster.slot_of(MIDDLE)
    assert slot is not None
    play.post(co.Leaving(slot.group))
    coordinator = play.cluster.driver.coordinator
    play.until(lambda: play.home() not in (None, slot.number))
    play.until(
        lambda: (
            not any(
                coordinator.slots[t.slot].leaves
                for t in coordinator.tasks.values()
                if t.slot is not None
            )
        )
    )
    assert not play.says(notes.Detected)
    for gone in [s for s in play.cluster.alive() if s.group == slot.group]:
        play.cluster.kill(gone, "its executor has left")
    play.end()
    nothing_asked_again(play.cluster.service)


def test_an_executor_that_ends_is_left_by_empty_slots_too():
    """Nobody has to kill them, and none of them runs or recovers anything when it goes."""
    play = Play(slots=6)
    slot = play.cluster.slot_of(MIDDLE)
    assert slot is not None
    old = {s for s in play.cluster.alive() if s.group == slot.group}
    play.post(co.Leaving(slot.group, ends=True))
    play.until(lambda: not any(one.alive for one in old))
    assert play.says(notes.Moved)
    assert not play.says(notes.Detected)
    play.end()
    nothing_asked_again(play.cluster.service)


def test_where_it_moves_to_dies_while_it_rests():
    """It resumes, and stays."""
    play = Play()
    before = play.home()
    play.post(co.MoveAsked(MIDDLE))
    move = play.cluster.driver.coordinator.moves
    play.until(lambda: move.machine.state.value == "yielding")
    target = play.cluster.driver.slots[move.target]
    play.cluster.kill(target, "killed")
    play.until(lambda: play.says(notes.Stayed))
    assert [note.why for note in play.noted(notes.Stayed)] == [moves.FAILED]
    assert play.home() == before
    play.end()
    nothing_asked_again(play.cluster.service)


@pytest.mark.parametrize("who", ["old", "new"])
def test_who_hands_over_or_takes_over_dies(who):
    play = Play()
    play.post(co.MoveAsked(MIDDLE))
    move = play.cluster.driver.coordinator.moves
    old = play.cluster.slot_of(MIDDLE)
    play.until(lambda: play.says(notes.Moving))
    victim = old if who == "old" else play.cluster.driver.slots[move.target]
    assert victim is not None
    play.cluster.kill(victim, "killed")
    play.end()


def test_a_yield_of_an_earlier_life_is_void():
    play = Play()
    coordinator = play.cluster.driver.coordinator
    life = coordinator.tasks[MIDDLE].incarnation
    coordinator.moves.yielded(0, msg.Yielded(MIDDLE, life, 0))
    assert coordinator.moves.machine.state.value == "idle"
    play.end()


def test_seeds():
    assert main(12, kind=Kind(moves=True)) == 0
    assert main(6, kind=Kind(rivals=True)) == 0


@pytest.mark.parametrize("has_markers", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_move_waits_for_a_floor_of_the_task_that_moves(seed, has_markers):
    """Without markers each task has its own, and those of others do not make its replay shorter."""
    play = Play(seed=seed, has_markers=has_markers)
    keeper = play.cluster.driver.keeper
    play.until(lambda: keeper.length(MIDDLE) > keeper.positions[MIDDLE])
    play.post(co.MoveAsked(MIDDLE))
    machine = play.cluster.driver.coordinator.moves.machine
    play.until(lambda: machine.state is moves.MovePhase.SEALING)
    floor = keeper.positions[MIDDLE]
    play.until(lambda: machine.state is moves.MovePhase.YIELDING)
    assert keeper.positions[MIDDLE] > floor
    play.end()
