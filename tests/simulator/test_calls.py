"""Scenarios of calls that take a while: nobody waits for them, and no answer is asked for twice."""

from __future__ import annotations

import pytest

from clonos.core import notes
from clonos.core.determinants import Outcomes, decode_record
from clonos.core.roster import TaskPhase
from clonos.core.task import TaskMachine
from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.programs import Behaviour
from clonos.simulator.runs.limits import limits

from .play import SEEDS, Play, sink, source, stage

PROMPT_MS = 150
"""Far less than any call takes that hangs, and much more than a recovery needs here."""


def asking(seed, *, in_flight=3, ordered=False, hanging=0.0, **options):
    """Tasks 0 -> 1 -> 2 -> 3, of which 2 asks."""
    calls = Behaviour(in_flight=in_flight, ordered=ordered)
    stages = (source(), stage("first", 0), stage("ask", 1, behaviour=calls), sink(2))
    return Play(stages, seed, hanging_calls=hanging, **options)


def causes(play, task):
    return [decode_record(record)[0] for record in play.cluster.recorder.history(task)]


def full(play):
    play.all_live()
    play.until(lambda: (m := play.machine(2)) and m.program.is_full and len(m.calls) == 3)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_with_calls_open(seed, ordered):
    play = asking(seed, ordered=ordered, hanging=0.3)
    for _ in range(3):
        play.all_live()
        play.until(lambda: (m := play.machine(2)) and m.is_live and m.calls)
        play.kill(2)
    play.finish()
    assert any(isinstance(cause, Outcomes) for cause in causes(play, 2))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_calls_hang_and_a_neighbour_dies(seed):
    play = asking(seed, hanging=1.0)
    full(play)
    for victim in (1, 3, 0):
        lives = len(play.noted(notes.Live, victim))
        play.kill(victim)
        before = play.cluster.scheduler.now
        play.until(lambda: len(play.noted(notes.Live, victim)) > lives)  # noqa: B023
        assert play.cluster.scheduler.now < before + PROMPT_MS
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_marker_behind_rows_of_a_full_task(seed, monkeypatch):
    play = asking(seed, hanging=1.0)
    full(play)
    epoch = play.keeper.epoch
    play.until(lambda: play.keeper.epoch > epoch + 3)
    play.finish()
    # ... which is what lets the marker through:
    monkeypatch.setattr(TaskMachine, "_is_full", property(lambda self: self.program.is_full))
    stuck = asking(seed, hanging=1.0)
    full(stuck)
    epoch = stuck.keeper.epoch
    with pytest.raises(Violation, match="liveness"):
        stuck.until(lambda: stuck.keeper.epoch > epoch + 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_end_waits_for_calls_while_markers_come(seed):
    play = asking(seed, in_flight=100, hanging=1.0, rows=12, floors_at_end=0)
    play.all_live()
    play.until(lambda: (m := play.machine(2)) and all(end.ended for end in m.inputs.values()))
    epoch = play.keeper.epoch
    play.until(lambda: play.keeper.epoch > epoch + 3)
    assert len(play.machine(2).calls) == 12
    assert not play.machine(2).ended
    play.kill(2)
    play.until(lambda: play.noted(notes.Live, 2)[1:])
    assert len(play.machine(2).calls) == 12
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_while_the_receiver_is_blocked(seed):
    with limits(2, 1, 1):
        play = asking(seed, in_flight=10, standbys=0)
        play.all_live()
        play.cluster.slow[play.slot(3).number] = 50.0
        taken = []

        def answered_behind_a_blocked_receiver():
            machine = play.machine(2)
            if machine is not None and machine.is_live and machine.outbounds.blocked():
                taken.append(machine.position)
                last = decode_record(machine.book.record(2, machine.position))[0]
                return taken[0] < machine.position and isinstance(last, Outcomes)
            taken.clear()
            return False

        play.until(answered_behind_a_blocked_receiver)
        play.kill(2)
        play.cluster.slow.clear()
        play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_is_complete_when_all_tasks_have_told_what_they_have_counted(seed):
    """Not before, although all sinks have: the state in which calls are counted goes with it."""
    play = asking(seed)
    play.cluster.heals_at = play.cluster.scheduler.now
    play.until(lambda: (m := play.machine(3)) and m.ended)
    play.kill(2)
    play.finish()
    assert {task.phase for task in play.coordinator.tasks.values()} == {TaskPhase.FINISHED}
