"""A record that kills its readers is found, and named; no other is blamed, whoever kills what."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from clonos.core import blame, notes
from clonos.core.blame import TOGETHER_MANY, Suspicion
from clonos.core.canonical import decode_error
from clonos.core.determinants import LeftOut, Order, Outcomes, decode_record
from clonos.core.events import Trial
from clonos.core.messages import Kind
from clonos.core.watch import DEATHS, LIVES
from clonos.errors import EffectUnknown, PoisonRecord
from clonos.nodes import one_by_one
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options

from .play import Play, sink, source, stage

SEEDS = range(4)
FEW = [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))]
"""The same, for a test that takes seconds for each."""
SELDOM_MS = 60.0
"""A checkpoint every so often, where a job takes seconds: nothing merges its layers."""
POISON = 20
WORK = 1
"""The task that may meet poison, and is killed."""


@pytest.fixture(autouse=True)
def shorter_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is faster here."""
    monkeypatch.setattr(blame, "HOLD_MS", 100)
    monkeypatch.setattr(one_by_one, "ELSEWHERE_S", 0.03)


def cluster_of(
    seed: int, *, rows: int = 60, poison: int = -1, leaves_out: bool = False, stage: int = WORK
) -> Cluster:
    behaviour = Behaviour(poison_id=poison, leaves_out=leaves_out)
    source, work = (behaviour if number == stage else Behaviour() for number in (0, WORK))
    stages = (
        Stage("source", 1, (), source),
        Stage("work", 1, (0,), work),
        Stage("sink", 1, (1,), is_sink=True),
    )
    job = build_job(stages, sharing_depth=1, rows=rows)
    options = Options(slots=8, epoch_ms=15.0, standbys=2, floors_at_end=2)
    cluster = Cluster(job, options, Random(seed))
    cluster.start()
    return cluster


def case_of(cluster: Cluster) -> Any:
    return cluster.driver.coordinator.blame._cases[WORK]


def kill(cluster: Cluster) -> None:
    slot = cluster.slot_of(WORK)
    assert slot is not None
    cluster.kill(slot, "script")


def works(cluster: Cluster, steps: int) -> bool:
    slot = cluster.slot_of(WORK)
    return slot is not None and slot.machine is not None and slot.machine.position >= steps


def leaves_out(cluster: Cluster, task: int) -> bool:
    """Whether the newest step of a task has left out a row."""
    slot = cluster.slot_of(task)
    machine = None if slot is None else slot.machine_of(task)
    if machine is None or machine.position <= machine.book.base(task):
        return False
    record = decode_record(machine.book.record(task, machine.position))
    return any(isinstance(one, LeftOut) for one in record)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_that_kills_is_named(seed):
    cluster = cluster_of(seed, poison=POISON)
    outcome = cluster.run(30_000)
    assert (outcome.state, outcome.error, outcome.task) == ("failed", "PoisonRecord", WORK)
    assert f"the record ({POISON}, " in outcome.message
    assert cluster.poisonings == 2, "the first death says nothing, the second one makes it suspect"
    (task, (position, record)) = next(iter(cluster.driver.node.keeper.failed.items()))
    assert (task, position) == (WORK, cluster.driver.node.keeper.length(WORK) + 1)
    assert isinstance(decode_record(record)[0], Order), "the step is known, and can be looked at"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stage", [0, WORK])
def test_a_record_that_kills_may_be_left_out(seed, stage):
    """Once and for all: lives that come later find in the log that it was."""
    cluster = cluster_of(seed, rows=100, poison=POISON, leaves_out=True, stage=stage)
    cluster.heals_at = float("inf")
    cluster.run_until(lambda: leaves_out(cluster, stage))
    assert cluster.poisonings == 2
    slot = cluster.slot_of(stage)
    assert slot is not None
    cluster.kill(slot, "script")
    cluster.heals_at = cluster.scheduler.now
    outcome = cluster.run(cluster.scheduler.now + 30_000)
    assert outcome.state == "done"
    cluster.recorder.check_end(cluster.service)
    assert cluster.poisonings <= 2 + 2, "only if the log of that step was lost, it is found anew"
    output = cluster.recorder.output(2)
    ids = [row for kind, rows, _ in output if kind == Kind.BATCH for row, _ in rows]
    assert sorted(ids) == [row for row in range(1, 101) if row != POISON]


@pytest.mark.parametrize("seed", SEEDS)
def test_where_trials_say_nothing_deaths_within_the_same_rows_count(seed):
    cluster = cluster_of(seed, poison=POISON)
    cluster.trials.attempt = lambda *_: Trial.UNKNOWN  # type: ignore[method-assign]
    outcome = cluster.run(30_000)
    assert (outcome.state, outcome.error, outcome.task) == ("failed", "PoisonRecord", WORK)
    assert f"{DEATHS} lives of the task have ended within the same step" in outcome.message
    assert cluster.poisonings == 1 + DEATHS


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_task_may_be_killed_in_every_step(seed):
    cluster = cluster_of(seed, rows=200)
    cluster.heals_at = float("inf")  # sources do not end before the script does
    cluster.run_until(lambda: works(cluster, 3))
    kill(cluster)
    seen = set()
    for _ in range(5 * DEATHS):
        cluster.run_until(lambda: case_of(cluster).within is not None)
        kill(cluster)
        cluster.run_until(lambda: cluster.slot_of(WORK) is not None)
        seen.add(case_of(cluster).machine.state)
    assert Suspicion.SUSPECT in seen
    cluster.heals_at = cluster.scheduler.now
    assert cluster.run(cluster.scheduler.now + 30_000).state == "done"
    cluster.recorder.check_end(cluster.service)


@pytest.mark.parametrize("seed", SEEDS)
def test_after_64_steps_nobody_watches_any_more(seed):
    cluster = cluster_of(seed, rows=400)
    cluster.heals_at = float("inf")
    cluster.run_until(lambda: works(cluster, 3))
    kill(cluster)
    cluster.run_until(lambda: case_of(cluster).machine.state is Suspicion.WATCHED)
    cluster.run_until(lambda: case_of(cluster).machine.state is Suspicion.CLEAR)
    cluster.heals_at = cluster.scheduler.now
    assert cluster.run(cluster.scheduler.now + 30_000).state == "done"


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("has_effects", [False, True])
@pytest.mark.parametrize("cells", [(), (0, 1, 1, 2)])
def test_a_call_that_kills_is_found_and_gets_an_error(seed, has_effects, cells):
    """Although other calls are open all the time, those of a neighbour in the slot, too."""
    behaviour = Behaviour(in_flight=4, has_effects=has_effects, lethal_id=POISON)
    stages = (source(), stage("first", 0, behaviour=behaviour),
              stage("ask", 1, behaviour=behaviour), sink(2))  # fmt: skip
    play = Play(stages, seed, rows=60, cells=cells, slots=12, epoch_ms=SELDOM_MS)
    logged = []
    play.cluster.heals_at = play.cluster.scheduler.now
    outcome = play.cluster.run(play.cluster.scheduler.now + 60_000)
    assert outcome.state == "done", outcome
    for task in (1, 2):
        records = (decode_record(one)[0] for one in play.cluster.recorder.history(task))
        said = [o for one in records if isinstance(one, Outcomes) for o in one.outcomes]
        logged.append([decode_error(o.answer) for o in said if not o.ok])
    kind = EffectUnknown if has_effects else PoisonRecord
    errors = [[e for e in each if isinstance(e, EffectUnknown | PoisonRecord)] for each in logged]
    assert [[type(e) for e in each] for each in errors] == [[kind], [kind]]
    deaths = len(play.cluster.service.lethal)
    assert deaths < 2 * LIVES, "some count little: executors die, announcements are lost"


@pytest.mark.parametrize(("seed", "has_effects"), [(0, False), (1, True)])
def test_a_call_that_ends_its_executor_is_found_and_no_other(monkeypatch, seed, has_effects):
    """Although the executor has other slots, in which calls are open whenever it dies."""
    monkeypatch.setattr(blame, "TOGETHER_MS", 50)
    lethal = Behaviour(in_flight=4, has_effects=has_effects, lethal_id=POISON, kills_executor=True)
    others = Behaviour(in_flight=4, has_effects=has_effects)
    stages = (source(), stage("first", 0, behaviour=others),
              stage("ask", 1, behaviour=lethal), sink(2))  # fmt: skip
    play = Play(stages, seed, rows=60, slots=12, groups=2, epoch_ms=SELDOM_MS)
    play.cluster.heals_at = play.cluster.scheduler.now
    outcome = play.cluster.run(play.cluster.scheduler.now + 600_000)
    assert outcome.state == "done", outcome
    play.cluster.recorder.check_end(play.cluster.service)
    deaths = len(play.cluster.service.lethal)
    assert 1 + TOGETHER_MANY + LIVES <= deaths <= 4 * LIVES
    assert play.noted(notes.Together, 2)
    told = play.noted(notes.Call, 2)
    assert told[-1].proofs in {LIVES, LIVES + 1}
    assert all(f", {POISON}, " in note.call for note in told)


@pytest.mark.parametrize(("seed", "together"), [(0, False), (1, True)])
def test_a_call_that_takes_long_is_not_put_down_by_kills(monkeypatch, seed, together):
    """Each life is killed from outside, soon after it has begun; and nearly always within it."""
    monkeypatch.setattr(blame, "TOGETHER_MS", 50)
    slow = Behaviour(in_flight=4)
    stages = (source(), stage("ask", 0, behaviour=slow), sink(1))
    play = Play(stages, seed, rows=60, slots=12, groups=2, hanging_calls=1.0)
    cluster = play.cluster

    def lives() -> bool:
        machine = play.machine(1)
        return machine is not None and machine.is_live and len(machine.calls) > 0

    for _ in range(LIVES):
        play.until(lives)
        at = cluster.scheduler.now + 180
        cluster.scheduler.at(at, lambda: None)  # so that time goes on
        play.until(lambda at=at: cluster.scheduler.now >= at)
        victim = play.slot(1)
        assert victim is not None
        for slot in [s for s in cluster.alive() if s is victim or together]:
            if slot.group == victim.group:
                cluster.kill(slot, "script")
    play.finish()
    records = (decode_record(one)[0] for one in cluster.recorder.history(1))
    said = [o for one in records if isinstance(one, Outcomes) for o in one.outcomes if not o.ok]
    assert not [o for o in said if isinstance(decode_error(o.answer), PoisonRecord)]
