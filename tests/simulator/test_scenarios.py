"""Named scenarios: each broke an earlier version of the protocol."""

from __future__ import annotations

import pytest

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.determinants import Marker, Order, decode_record
from clonos.core.life import Phase
from clonos.core.messages import Kind
from clonos.core.plan import FULL_DEPTH
from clonos.core.roster import RUNNING, TaskPhase
from clonos.core.task import TaskMachine
from clonos.simulator.jobs.programs import Behaviour
from clonos.simulator.runs.limits import limits

from .play import CHAIN, SEEDS, Play, sink, source, stage


@pytest.mark.parametrize("seed", SEEDS)
def test_fast_and_slow_receiver_with_a_mid_epoch_restore(seed):
    play = Play((source(), sink(0, name="fast"), sink(0, name="slow")), seed)
    play.all_live()
    play.cluster.slow[play.slot(2).number] = 6.0
    play.until(lambda: play.acked() >= {0, 1} and 2 not in play.acked())
    play.at(1, play.machine(1).position + 2)
    play.kill(1)
    play.until(lambda: play.noted(notes.Live, 1)[1:])
    play.kill(1)
    play.finish()
    assert play.keeper.epoch


@pytest.mark.parametrize("seed", SEEDS)
def test_restored_sealed_but_incomplete_checkpoint(seed):
    play = Play(CHAIN, seed)
    play.all_live()
    play.until(lambda: play.keeper.epoch == 1)
    play.cluster.slow[play.slot(3).number] = 20.0
    play.until(lambda: 1 in play.acked() and 3 not in play.acked())
    floor = play.keeper.epoch
    play.kill(1)
    play.until(lambda: (m := play.machine(1)) and m.incarnation.n == 1)
    assert play.keeper.epoch == floor
    assert play.machine(1).incarnation.n == 1
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_and_its_only_first_hop_holder_die_while_a_second_hop_survivor_depends_on_it(seed):
    play = Play(CHAIN, seed, epoch_ms=10_000, floors_at_end=0)
    play.all_live()
    play.at(2, 2)
    first = play.slot(1)
    play.cluster.network.cut(first, play.cluster.driver)  # so the house-keeper hears nothing
    play.until(lambda: play.machine(2).dep[0].position > play.keeper.length(0) + 3)
    play.kill(0, 1)
    play.finish()
    assert play.noted(notes.Orphan, 2)


def arrivals_from(play, sender, log):
    """Spies on the network: up to which position a slot's messages have brought a log, each."""
    found: list[int] = []
    deliver = play.cluster.network._deliver

    def spy(stream, data):
        if stream.sender is sender and isinstance(data, msg.Data):
            found.extend(run.end for run in data.runs if run.task == log)
        deliver(stream, data)

    play.cluster.network._deliver = spy
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_zombie_delivers_a_longer_delta_after_the_prefix_was_fetched(seed):
    with limits(1024, 16, 1):  # an item per step
        play = Play(CHAIN, seed, depth=FULL_DEPTH, rows=300, rows_ms=0.2)
        play.at(1, 5)
        zombie = play.slot(1)
        play.cluster.slow[zombie.number] = 6.0
        play.until(lambda: len(zombie.machine.inputs[0].queue) > 10)
        arrivals = arrivals_from(play, zombie, 1)
        play.cluster.suspect(zombie, lives_for=500.0)
        zombie.slowness = 60.0
        play.until(lambda: play.noted(notes.Fetched, 1)[1:])
        fetched = play.noted(notes.Fetched, 1)[1]
        arrivals.clear()
        play.until(lambda: arrivals and max(arrivals) > fetched.length)
        play.finish()
        lives = [life for life, _ in play.cluster.recorder.entries(1)]
        assert max(lives[: fetched.length]) < fetched.incarnation <= min(lives[fetched.length :])


@pytest.mark.parametrize("seed", SEEDS)
def test_sink_and_its_upstream_die_together_with_output_already_in_the_world(seed):
    play = Play(CHAIN, seed)
    play.until(lambda: len(play.cluster.recorder.output(3)) > 5)
    before = play.cluster.recorder.output(3)
    play.kill(2, 3)
    play.finish()
    assert play.cluster.recorder.output(3)[: len(before)] == before
    assert not play.keeper.generation


@pytest.mark.parametrize("seed", SEEDS)
def test_log_full_of_received_items_while_the_marker_waits_behind(seed):
    with limits(6, 2, 2):
        play = Play(CHAIN, seed, rows_ms=0.2)
        play.all_live()
        play.cluster.slow[play.slot(3).number] = 10.0

        def marker_waits():
            machine = play.machine(2)
            kinds = [item.kind for item in machine.inputs[1].queue]
            return machine.outbounds.blocked() and Kind.MARKER in kinds and kinds[0] is Kind.BATCH

        play.until(marker_waits)
        epoch = play.coordinator.checkpoints.pending_epoch
        play.kill(2)
        play.finish()
        assert play.keeper.epoch >= epoch


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_queue_on_one_side_while_the_other_is_demanded(seed):
    """X -> A -> T and X -> B -> T: T replays and wants B's items, which are being made again, while
    A's queue is full. A must not wait for T, nor X for A; also not for who replays them anew."""
    diamond = (source(), stage("x", 0), stage("a", 1), stage("b", 1), sink(2, 3))
    with limits(6, 2, 2):
        play = Play(diamond, seed, rows=400, rows_ms=0.2, epoch_ms=10_000, floors_at_end=0)
        play.at(4, 40)
        play.kill(3, 4)
        play.until(lambda: (m := play.machine(3)) and m.incarnation.n == 1)
        play.cluster.slow[play.slot(3).number] = 8.0
        from_a, from_b = play.job.plan.tasks[4].inputs

        def demands_b():
            machine = play.machine(4)
            if machine is None or machine.phase is not Phase.REPLAYING:
                return False
            cause = decode_record(machine.book.record(4, machine.position + 1))[0]
            if not isinstance(cause, Order) or cause.channel != from_b:
                return False
            queues = [len(machine.inputs[channel].queue) for channel in (from_a, from_b)]
            return queues[0] > 6 and queues[1] < cause.taken

        play.until(demands_b)
        x, t = play.machine(1), play.machine(4)
        made, waits_at = x.position, t.position
        play.until(lambda: x.position >= made + 10)
        assert t.phase is Phase.REPLAYING
        assert t.position < waits_at + 10  # it takes longer than X needs for as much
        play.kill(1)
        play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_source_dies_right_after_injecting_a_marker(seed):
    play = Play((source(), source("other"), sink(0, 1)), seed)
    play.all_live()

    def injected():
        machine = play.machine(0)
        if machine is None or machine.position == 0:
            return False
        record = machine.book.record(0, machine.position)
        return isinstance(decode_record(record)[0], Marker)

    play.until(injected)
    for stream in list(play.cluster.network.streams):
        if stream.sender is play.slot(0):
            stream.is_lost = True
    play.kill(0)
    play.finish()
    assert play.keeper.epoch >= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_layer_is_acknowledged_and_the_surviving_log_ends_before_it(seed):
    play = Play(CHAIN, seed, store_ms=0.2, latency_ms=0.3)
    play.at(1, 4)
    upstream = play.slot(1)
    streams = [s for s in play.cluster.network.streams if s.sender is upstream and s.channel == 1]
    play.until(lambda: play.coordinator.checkpoints.pending_epoch)
    for stream in streams:
        stream.is_lost = True  # nobody hears of the marker
    play.until(lambda: 1 in play.acked())
    position = play.checkpoints.sealed[1][-1].ref.position
    play.kill(1)
    play.until(lambda: play.noted(notes.Fetched, 1)[1:])
    assert play.noted(notes.Fetched, 1)[1].length < position
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_upstream_truncates_while_a_task_is_restored_one_checkpoint_earlier(seed):
    play = Play(CHAIN, seed, store_ms=15.0, epoch_ms=5.0)
    play.until(lambda: play.keeper.epoch >= 1)
    play.until(lambda: len(play.acked()) == 3 and 2 not in play.acked())
    play.kill(2)
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_finished_tasks_receiver_dies(seed):
    play = Play(CHAIN, seed, rows=20, rows_ms=0.2, floors_at_end=0)
    play.all_live()
    play.cluster.slow[play.slot(2).number] = 8.0
    play.until(lambda: play.coordinator.tasks[1].phase is TaskPhase.FINISHED)
    play.kill(2)
    play.until(lambda: (m := play.machine(3)) and m.position > 2)
    play.kill(3)
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("standbys", [0, 1])
def test_two_neighbours_recover_together(seed, standbys):
    play = Play(CHAIN, seed, standbys=standbys)
    play.at(2, 8)
    play.kill(1, 2)
    play.until(lambda: (m := play.machine(2)) and m.incarnation.n == 1)
    play.kill(2)
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_socket_source_dies(seed):
    """What has left it is in the house-keeper; it cannot be read again."""
    play = Play((source(is_gated=True), stage("first", 0), sink(1)), seed, depth=1)
    play.at(2, 6)
    delivered = len(play.cluster.recorder.output(2))
    play.kill(0)
    play.until(lambda: play.noted(notes.Live, 0)[1:])
    play.kill(0, 1)
    play.finish()
    assert len(play.cluster.recorder.output(2)) >= delivered


@pytest.mark.parametrize("seed", SEEDS)
def test_the_coordinator_restarts_with_the_same_numbers_while_orphaned_workers_still_write(seed):
    stages = (source(), stage("first", 0, behaviour=Behaviour(call_every=2)))
    play = Play((*stages, sink(1, writes_itself=True)), seed, rotate_bytes=3_000)
    play.at(2, 10)
    workers = list(play.cluster.slots)
    play.cluster.kill_driver()
    play.until(lambda: play.cluster.driver.alive and play.coordinator.term == 2)
    play.until(lambda: play.cluster.driver.slots)
    assert any(worker.alive for worker in workers)
    assert {w.number for w in workers} & play.cluster.driver.slots.keys()
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_dead_sink_had_delivered_and_not_written_its_next_life_writes(seed):
    play = Play((source(), sink(0, writes_itself=True)), seed, store_ms=20.0, floors_at_end=0)
    recorder = play.cluster.recorder
    play.until(lambda: len(recorder.output(1)) > len(recorder.written_by(1)) + 2)
    lost = len(recorder.output(1))
    play.kill(1)
    play.until(lambda: play.noted(notes.Live, 1)[1:])
    assert len(recorder.written_by(1)) < lost
    play.finish()
    assert len(recorder.written_by(1)) > lost


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_is_not_done_before_its_last_output_is_written(seed):
    """A simulated writer used to finish its writes in any order, though a Written stands for all
    that was released before it, as one thread writes. So jobs were done with rows never written."""
    stages = (source(parallelism=2), sink(0, writes_itself=True))
    play = Play(stages, seed, rows=20, rows_ms=0.2, store_ms=20.0, floors_at_end=0).finish()
    assert len(play.cluster.recorder.written_by(2)) == len(play.cluster.recorder.output(2)) - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_the_driver_pauses_for_seconds(seed):
    play = Play(CHAIN, seed)
    play.at(2, 8)
    play.cluster.driver.paused_until = play.cluster.scheduler.now + 4_000
    play.kill(1)
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_standbys_of_one_lost_executor_kept_in_one_slot_activate_in_two(seed):
    play = Play((source(), sink(0)), seed, slots=3, groups=1, standbys=1)
    play.at(1, 5)
    play.until(lambda: any(s.standbys.keys() >= {0, 1} for s in play.cluster.slots))
    play.kill(0, 1)
    play.finish()
    slots = [task.slot for task in play.coordinator.tasks.values()]
    assert len(set(slots)) == len(slots)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_holder_that_stays_silent_is_given_up(seed):
    play = Play(CHAIN, seed)
    play.at(2, 8)
    silent = play.slot(2)
    silent.stalled_until = play.cluster.scheduler.now + 3_000
    play.kill(1)
    play.finish()
    assert play.noted(notes.Detected, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_epochs_go_on_after_the_driver_died_with_a_marker_on_its_way(seed):
    """The marker is in the logs that the next term replays: nobody injects it again."""
    play = Play(CHAIN, seed)
    play.until(lambda: play.keeper.epoch >= 1)
    play.until(lambda: {0, 1} <= play.acked() and 3 not in play.acked())
    play.until(lambda: play.keeper.length(0) > play.keeper.positions[0] + 2)
    play.cluster.kill_driver()
    play.until(lambda: play.cluster.driver.alive)
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_more_failures_than_slots(seed):
    play = Play(CHAIN, seed, slots=4, standbys=0)
    play.at(2, 8)
    play.kill(0, 1, 2, 3)
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cell_dies_whose_logs_are_one_hop_away(seed):
    """Tasks 0 and 1 are one hop from 2, not two: with depth 1 all that it depends on survives."""
    play = Play(CHAIN, seed, depth=1, cells=(0, 0, 1, 2), epoch_ms=1000.0)
    play.all_live()
    assert play.slot(0) is play.slot(1)
    play.at(2, 2)
    play.cluster.network.cut(play.slot(2), play.cluster.driver)  # nobody else holds these logs
    play.until(lambda: play.machine(2).dep[0].position > play.keeper.length(0) + 3)
    play.kill(0)
    play.cluster.network.cuts.clear()
    play.until(lambda: len(play.noted(notes.Live, 0)) > 1 and len(play.noted(notes.Live, 1)) > 1)
    assert play.slot(0) is play.slot(1)
    assert not play.noted(notes.Orphan)
    play.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_orphan_recovers_in_its_slot_beside_those_who_live_on(seed):
    """Task 3 shares a slot with the source's second half, which depends on nobody."""
    stages = (source(), stage("first", 0), source("other"), sink(1, 2))
    play = Play(stages, seed, depth=0, cells=(0, 1, 2, 2), epoch_ms=10_000, floors_at_end=0)
    play.all_live()
    slot = play.slot(3)
    play.until(lambda: play.machine(3).dep.keys() >= {0})
    play.cluster.network.cut(play.slot(0), play.cluster.driver)
    play.until(lambda: play.machine(3).dep[0].position > play.keeper.length(0) + 3)
    play.kill(0)
    play.until(lambda: len(play.noted(notes.Live, 0)) > 1)
    play.until(lambda: all(t.phase in RUNNING for t in play.coordinator.tasks.values()))
    assert play.noted(notes.Orphan, 3)
    assert play.slot(3) is slot is play.slot(2)
    assert play.machine(2).incarnation.n == 0
    play.finish()


def test_a_task_that_has_nothing_to_do_is_not_woken(monkeypatch):
    """Its ticks used to beget ticks: twenty a second for every idle task."""
    ticks = []
    take = TaskMachine.handle

    def handle(self, event):
        ticks.extend([event] if isinstance(event, ev.Tick) else [])
        return take(self, event)

    monkeypatch.setattr(TaskMachine, "handle", handle)
    play = Play(CHAIN, 0, rows=4, rows_ms=0.2, epoch_ms=10_000, standbys=0)
    clock = play.cluster.scheduler
    play.until(lambda: len(play.cluster.recorder.output(3)) >= 2 and clock.now > 100)
    ticks.clear()
    play.until(lambda: clock.now > 1_100)
    assert len(ticks) < 10
