"""Rows that go round, while all kinds of things fail."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from clonos.core.messages import Kind
from clonos.errors import LoopIsOver
from clonos.simulator.checks.violations import Violation
from clonos.simulator.command import main
from clonos.simulator.jobs.loops import deliveries, loop_job
from clonos.simulator.jobs.programs import Behaviour, Toy, build_job
from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.runs.kinds import Kind as KindOfSeed

from .play import SEEDS, Play, sink, source, stage

LOOPS = KindOfSeed(loops=True)
LOOP = (
    source(),
    stage("head", 0, parallelism=2),
    replace(stage("tail", 1, parallelism=2), back_to=1),
    sink(2),
)
ITSELF = (source(), replace(stage("tail", 0, parallelism=2), back_to=1), sink(1))
BEHIND = (
    source(),
    source(),
    stage("head", 0),
    stage("middle", 1, 2),
    replace(stage("tail", 3), back_to=2),
    sink(4),
)
SHAPES = {"two stages": LOOP, "a stage and itself": ITSELF, "rows enter behind the head": BEHIND}


@pytest.mark.parametrize("kind", [LOOPS, *(LOOPS._replace(**{k: True}) for k in ("harsh", "disk"))])
def test_no_invariant_is_violated(kind):
    assert main(6, kind=kind) == 0


def test_a_row_that_asks_a_deadly_question_in_each_round() -> None:
    """Each question is another one, and must be proven deadly anew: the job needs 37 seconds of
    virtual time, but it ends."""
    assert main(1, 71_700_043, kind=LOOPS) == 0


def test_an_orphan_above_what_it_depends_on() -> None:
    """The cut of a loop makes an orphan of a task that lives in it, whose own cut voids entries of
    the logs that were cut: they used to be cut twice."""
    assert main(1, 154, kind=LOOPS._replace(harsh=True)) == 0


@pytest.mark.soak
@pytest.mark.parametrize("more", ["", "harsh", "disk", "history", "spill"])
def test_many_seeds(more):
    assert main(500, kind=LOOPS._replace(**{more: True} if more else {})) == 0


def test_random_jobs_have_loops_of_all_kinds():
    plans = [loop_job(Random(seed)).plan for seed in range(60)]
    sizes = {len(loop) for plan in plans for loop in plan.loops.values()}
    assert {1, 2, 3, 4} <= sizes
    assert any(len(set(plan.loops.values())) > 1 for plan in plans)


def test_in_some_jobs_rows_are_copied_with_each_round_and_leave_on_the_way():
    """What the simulator expects of them, counted by hand."""
    head, tail = stage("loop0.0", 0), replace(stage("loop0.1", 1, 0), back_to=1)
    wider = replace(tail, reads=(1, 0))  # each row of the source comes here twice
    leaving = replace(sink(2), reads=(1, 2))
    for stages, of_one_row in (
        ((source(), head, replace(tail, reads=(1,)), sink(2)), lambda again: 1),
        ((source(), head, wider, sink(2)), lambda again: 2),
        ((source(), head, replace(tail, reads=(1,)), leaving), lambda again: 2 + again),
    ):
        job = build_job(stages, sharing_depth=1, rows=8)
        (last,) = (t for t in job.plan.tasks if t.operator == "loop0.1")
        rounds = {row: (row * 31 + last.inputs[0] * 17) % 4 for row in range(1, 9)}
        (expected,) = deliveries(job, {0: list(rounds)}).values()
        assert expected == {row: of_one_row(again) for row, again in rounds.items()}
    jobs = [loop_job(Random(seed), Random(seed)) for seed in range(60)]
    assert sum(_copies(job) for job in jobs) > 10


def _copies(job):
    rows = deliveries(job, {t.id: [t.id * 1000 + 1] for t in job.plan.tasks if t.is_source})
    return any(count > 1 for counts in rows.values() for count in counts.values())


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def play(request, has_markers):
    """A job whose loop is at work."""
    play = Play(request.param, SEEDS[0], rows=60)
    play.all_live()
    play.at(min(play.job.plan.loops), 8)
    return play


def test_all_tasks_of_a_loop_die_at_once(play):
    for slot in [play.slot(task) for task in sorted(play.job.plan.loops)]:
        play.cluster.kill(slot, "script")
    play.finish()


def late_marker(seed):
    """A task has what its twin has sent it behind a marker, and not that marker, which is late."""
    play = Play(ITSELF, seed, rows=200, slots=4, standbys=0)
    source, twin, late, _ = range(4)
    channels = play.job.plan.channels
    (between,) = (
        c.id for c in channels if c.is_feedback and (c.sender, c.receiver) == (twin, late)
    )
    play.all_live()
    play.at(late, 8)
    play.until(lambda: not play.checkpoints.pending_epoch)
    play.cluster.network.delay_from(play.slot(source), play.slot(late), 100.0)
    epoch = play.machine(late).epoch

    def is_ahead():
        end = play.machine(late).inputs[between]
        _, sent = play.machine(twin).outputs[between].log.carried
        return any(i.epoch > epoch and i.seq <= end.consumed + len(end.queue) for i in sent)

    play.until(is_ahead)
    assert play.machine(late).epoch == epoch
    play.until(lambda: play.keeper.epoch > epoch)
    return play


@pytest.mark.parametrize("seed", SEEDS)
def test_feedback_from_behind_a_marker_waits_for_it(seed):
    """Or a floor would have rows that its sender's has yet to make, and may make differently."""
    play = late_marker(seed)
    play.kill(1, 2, 3)  # and with them, what the journal lacks of their logs
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_if_it_does_not_wait_the_floor_has_it_twice(seed):
    with (
        MUTATIONS["feedback from behind a marker is taken before it"].active(),
        pytest.raises(Violation, match="carried feedback"),
    ):
        late_marker(seed).finish()


def test_it_settles_only_when_nothing_goes_round(play):
    play.checkpoints.settle()
    play.until(lambda: play.checkpoints.have_settled)
    for channel in play.job.plan.channels:
        if channel.is_feedback:
            _, items = play.machine(channel.sender).outputs[channel.id].log.carried
            rows = [item.seq for item in items if item.kind is Kind.BATCH]
            assert max(rows, default=0) <= play.keeper.needs[channel.id]


def test_every_input_of_a_loop_is_told_that_it_ends(play, monkeypatch):
    """Also the one on which a task hears by an END that others have found out."""
    ended = []

    def on_end(toy, step, channel):
        ended.append((toy.task, channel))
        original(toy, step, channel)

    original = Toy.on_end
    monkeypatch.setattr(Toy, "on_end", on_end)
    play.finish()
    for task in play.job.plan.loops:
        assert {c for t, c in ended if t == task} == set(play.job.plan.tasks[task].inputs)


def test_rows_given_out_at_the_end_of_a_loop_are_an_error():
    """They would be lost: who should take them is over."""
    late = Behaviour(waits_for_watermark=True)
    play = Play((source(), replace(stage("tail", 0, behaviour=late), back_to=1), sink(1)), 0)
    play.all_live()
    with pytest.raises(LoopIsOver, match="no task takes them"):
        play.finish()


def test_it_settles_again_though_nothing_happens(has_markers):
    """The next driver has nothing to replay, and there are no more rows."""
    play = Play(LOOP, SEEDS[0], rows=20)
    play.until(lambda: play.machine(0) and play.machine(0).intake.taken == 20)
    play.checkpoints.settle()
    play.until(lambda: play.checkpoints.have_settled)
    first = play.coordinator
    play.cluster.kill_driver()
    play.until(lambda: play.coordinator is not first)
    play.checkpoints.settle()
    play.until(lambda: play.checkpoints.have_settled)
