"""A job that settles: its sources take no more rows, and its logs come to end at its floors."""

from __future__ import annotations

import pytest

from clonos.core import notes
from clonos.simulator.jobs.programs import Behaviour

from .play import CHAIN, SEEDS, Play, sink, source, stage

ROWS = 120
SHUFFLED = (
    source(parallelism=2),
    stage("first", 0, parallelism=2, behaviour=Behaviour(call_every=3)),
    stage("second", 1, parallelism=2),
    sink(2, parallelism=2),
)


def is_at_rest(play):
    """No task has done a step that its floor does not have, and nothing is on its way."""
    plan, keeper = play.job.plan, play.keeper
    machines = {task.id: play.machine(task.id) for task in plan.tasks}
    return all(
        machine is not None and machine.position == keeper.positions[task]
        for task, machine in machines.items()
    ) and all(
        machines[c.sender].outputs[c.id].log.last == keeper.needs[c.id] for c in plan.channels
    )


def is_durable(play):
    """What a driver does before it ends."""
    return any(note.epoch == play.keeper.epoch for note in play.noted(notes.Floor))


def restored(play):
    """By task, how far the second driver's first life of it had come when it had replayed all."""
    lives = [note for note in play.noted(notes.Live) if note.incarnation.term == 2]
    return {note.task: note.position for note in reversed(lives)}


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.soak) for s in SEEDS[1:])])
@pytest.mark.parametrize("stages", [CHAIN, SHUFFLED], ids=["chain", "shuffled"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
def test_a_job_settles_and_goes_on(has_markers, stages, seed, is_killed):
    play = Play(stages, seed, rows=ROWS)
    play.all_live()
    play.at(2, 6)
    play.checkpoints.settle()
    if is_killed:
        play.kill(2)
    play.until(lambda: play.checkpoints.have_settled and is_durable(play))
    assert is_at_rest(play)
    assert any(play.keeper.positions.values()), "there was something to settle"
    floors = dict(play.keeper.positions)
    play.cluster.kill_driver()
    play.until(lambda: restored(play).keys() == floors.keys())
    assert restored(play) == floors, "nothing is replayed"
    play.finish()


def test_it_has_not_settled_before_sources_say_what_they_have_taken():
    """The house-keeper has not heard of the newest steps yet: nothing is in a log or on its way,
    as far as it knows."""
    play = Play(CHAIN, 0, rows=ROWS, marked=False)
    play.all_live()
    play.until(lambda: play.keeper.is_settled and play.machine(0).position > play.keeper.length(0))
    play.checkpoints.settle()
    play.until(lambda: play.checkpoints.have_settled)
    assert is_at_rest(play)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_new_life_of_a_source_waits_like_the_others_from_its_beginning(seed):
    """Not only from when it hears so: until then it would take rows, however long logs are."""
    play = Play(CHAIN, seed, rows=ROWS)
    play.all_live()
    play.at(2, 6)
    play.checkpoints.settle()
    first = play.machine(0).incarnation
    play.until(lambda: play.machine(0).intake.is_closed)
    play.kill(0)
    play.until(lambda: (m := play.machine(0)) and m.incarnation > first and m.is_live)
    assert play.machine(0).intake.is_closed
