"""A job that settles: its sources take no more rows, and its logs come to end at its floors."""

from __future__ import annotations

import pytest

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
    return any(note.value == play.keeper.epoch for note in play.noted("floor"))


def restored(play):
    """By task, how far the second driver's first life of it had come when it had replayed all."""
    lives = [note for note in play.noted("live") if note.incarnation.term == 2]
    return {note.task: note.value for note in reversed(lives)}


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.soak) for s in SEEDS[1:])])
@pytest.mark.parametrize("stages", [CHAIN, SHUFFLED], ids=["chain", "shuffled"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["", "killed"])
def test_a_job_settles_and_goes_on(has_markers, stages, seed, is_killed):
    play = Play(stages, seed, rows=ROWS)
    play.all_live()
    play.at(2, 6)
    play.coordinator.settle()
    if is_killed:
        play.kill(2)
    play.until(lambda: play.coordinator.has_settled and is_durable(play))
    if has_markers:  # without, the house-keeper may not have heard of the newest steps yet
        assert is_at_rest(play)
    assert any(play.keeper.positions.values()), "there was something to settle"
    floors = dict(play.keeper.positions)
    play.cluster.kill_driver()
    play.until(lambda: restored(play).keys() == floors.keys())
    assert restored(play) == floors, "nothing is replayed"
    play.finish()
