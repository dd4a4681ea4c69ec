"""From every point of the past that a job has kept, all that came then is done again."""

from __future__ import annotations

import time
from random import Random

import pytest

import clonos
from clonos.core.history import History, Keep, Point, pinned
from clonos.errors import WrongType
from clonos.replay import NothingToReplay, Replay
from clonos.replay.kept import Pin, find, parse_time, require_there, since
from clonos.simulator.jobs.arrow import random_arrow_job
from clonos.simulator.runs.seeds import random_options
from clonos.simulator.runs.upgrades import Upgrades
from clonos.storage.layers import LayerStore
from tests.replay.test_replay import past_of
from tests.simulated import with_history

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 60))]


def at_point(job, cluster, number, compiled=None):
    """The past from a point on; `compiled`: with the functions of this job."""

    def rewind(keeper, store):
        (point,) = (p for p in keeper.history.points if p.number == number)
        keeper.rewind(point, since(keeper, point, store))

    return past_of(job, cluster, compiled, rewind=rewind)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_since_a_point_is_done_again(seed):
    """Kills, markers or none, windows, joins, calls: from the beginning, and from in between."""
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    cluster = with_history(job, seed, random)
    keeper = past_of(job, cluster).keeper
    points = keeper.history.points
    assert len(points) > 1
    sinks = [task for task in job.plan.tasks if task.is_sink]
    for point in {p.number: p for p in (points[0], random.choice(points), points[-1])}.values():
        with Replay(at_point(job, cluster, point.number)) as replay:
            before = {t.name: replay[t.name].machine.outputs[t.outputs[-1]].log.last for t in sinks}
            for task in job.plan.tasks:
                assert replay[task.name].restored_at == point.positions[task.id]
            replay.run()
            assert replay.is_at_the_end
            for task in sinks:
                due = keeper.inputs[task.outputs[-1]].consumed - before[task.name]
                assert replay.compared[task.name] == (due, due)
        if point is points[0]:
            assert not any(before.values())
            assert any(done for done, _ in replay.compared.values())


def kept(*points, going=0):
    history = History(Keep(ms=1))
    for point in points:
        history.take("point", point.number, point.at_ms, 0, {}, {}, {})
    history.take("going", going)
    return history


def test_a_point_is_found_by_number_and_time():
    noon_s = parse_time("2030-05-04 12:00", 0.0).timestamp()
    ats = (noon_s - 7200, noon_s - 3600, noon_s - 60)
    points = [Point(n, int(at * 1000), 0, {}, {}, {}) for n, at in enumerate(ats, 4)]
    history = kept(*points, going=4)

    def number(at):
        return find(history, at, now_s=noon_s).number

    assert [number(at) for at in (5, "6", "oldest", "11:30", "2030-05-04 12:00")] == [5, 6, 5, 5, 6]
    assert number(parse_time("11:59", noon_s)) == 6
    for at in (4, "10:30", "12:01"):  # on its way out; before; of the day before
        with pytest.raises(NothingToReplay, match=r"kept are 5 \(.*\) to 6 \("):
            number(at)
    with pytest.raises(NothingToReplay, match="neither a time nor a point"):
        number("yesterday")
    with pytest.raises(NothingToReplay, match="keeps no history"):
        find(kept(), 1)


def test_what_shall_be_kept_is_checked():
    job = clonos.Job(history="6 hours", history_bytes="50 GB")
    assert job._graph.options.keep == Keep(6 * 3_600_000, 50_000_000_000, 60_000)
    assert clonos.Job()._graph.options.keep is None
    with pytest.raises(WrongType, match="without history="):
        clonos.Job(history_bytes=1)
    with pytest.raises(WrongType, match="at_least_once"):
        clonos.Job(history="1 hour", guarantee="at_least_once")
    with pytest.raises(WrongType, match="availability"):
        clonos.Job(history="1 hour", on_orphan="availability")


def test_a_pin_is_there_until_it_is_closed(tmp_path):
    store = LayerStore(tmp_path)
    pin = Pin(store, 3)
    assert pinned(store.list(), time.time()) == 3
    pin.close()
    assert store.list() == []
    pin.close()


def test_who_cannot_write_reads_without_a_pin(tmp_path):
    (tmp_path / "history").write_text("a file is in the way")
    store = LayerStore(tmp_path)
    pin = Pin(store, 3)
    assert store.list() == ["history"]
    pin.close()


def test_a_point_that_goes_while_it_is_pinned_is_no_point_to_begin_with():
    points = [Point(n, n, 0, {}, {}, {}) for n in (1, 2, 3)]
    require_there(kept(*points, going=1), points[1])
    for history in (kept(*points, going=2), kept(points[2])):
        with pytest.raises(NothingToReplay, match="has just been deleted"):
            require_there(history, points[1])


def test_what_was_delivered_is_compared_after_another_plan_too():
    """A changed function shows in the output of a job that has been rescaled, as in any other."""
    compared = []
    for seed in range(4):
        upgrades = Upgrades(seed, random_options, trace=False, checks_state=False)
        upgrades.run()
        past = past_of(upgrades.job, upgrades.cluster)
        assert past.keeper.generation == upgrades.switches
        with Replay(past) as replay:
            replay.run()
            found = list(replay.compared.values())
        assert all(done == due for done, due in found)
        compared += [done for done, _ in found if upgrades.switches]
    assert any(compared)
