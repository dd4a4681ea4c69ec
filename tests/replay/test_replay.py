"""What a job has done is done again, from its journal and its layers, by the tasks' own code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

import clonos
from clonos.cluster.durable import JournalFile
from clonos.core.housekeeper import HouseKeeper
from clonos.errors import Divergence, OperatorError
from clonos.replay import NothingToReplay, Replay
from clonos.replay.past import Past, activations
from clonos.simulator.jobs.arrow import (
    SCHEMA,
    ArrowJob,
    ReaderSource,
    Running,
    enrich,
    random_arrow_job,
)
from clonos.simulator.processes.cluster import Options
from clonos.simulator.runs.seeds import random_options, simulate_job
from clonos.simulator.world.disks import JOURNAL
from clonos.sources.readers import BatchesReader
from clonos.storage.layers import LayerStore


def reader(batch, index, parallelism):
    return BatchesReader([batch], batch.schema)


def readable(job, code):
    if code.source is None:
        return code
    source = job.sources[code.task.id]
    if isinstance(source, ReaderSource):
        return code  # it is read as in production
    factory = partial(reader, source.rows)
    return replace(code, source=replace(code.source, factory=factory))


def past_of(job, cluster, compiled=None, rewind=None):
    """What the disks of a simulated cluster know when all is over."""
    compiled = compiled or job.compiled
    keeper = HouseKeeper(job.plan, job.encode, job.decode)
    journal = JournalFile(JOURNAL, "process", print, cluster.disks.local.observe())
    journal.recover(keeper)
    journal.close()
    codes = tuple(readable(job, code) for code in compiled.codes)
    store = LayerStore(cluster.driver.layers, files=cluster.disks.shared.observe())
    if rewind is not None:
        rewind(keeper, store)
    lives, failed, lost = activations(compiled, keeper)
    return Past(compiled, codes, keeper, lives, failed, lost, "", "", "", store)


def my_job(process=None, work=enrich):
    job = clonos.Job("mine", seed=7, sharing_depth="full", checkpoints="marked")
    rows = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="rows")
    keyed = rows.map(work, SCHEMA, name="enrich").key_by("key")
    running = keyed.process(process or Running(), SCHEMA, name="running")
    running.sink(clonos.sinks.collect(), name="out")
    return ArrowJob(job.compile(), rows=40)


@pytest.fixture(scope="module")
def mine():
    job = my_job()
    options = Options(slots=3, standbys=0, epoch_ms=20.0, floors_at_end=0)
    result, cluster = simulate_job(5, job, options, Random(5))
    assert not result.failure
    return job, cluster


@pytest.mark.parametrize("seed", range(10))
def test_all_that_the_log_knows_is_done_again(seed):
    """Kills, markers or none, windows, joins, calls: what was delivered is made again."""
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    options = random_options(random, job)
    options.epoch_ms, options.floors_at_end, options.availability = 60.0, 0, False
    result, cluster = simulate_job(seed, job, options, random)
    assert not result.failure
    past = past_of(job, cluster)
    keeper = past.keeper
    floors = dict(keeper.positions)
    lengths = {task.id: keeper.length(task.id) for task in job.plan.tasks}
    sinks = [task for task in job.plan.tasks if task.is_sink]
    with Replay(past) as replay:
        before = {t.name: replay[t.name].machine.outputs[t.outputs[-1]].log.last for t in sinks}
        steps = replay.run()
        assert replay.is_at_the_end
        for task in sinks:
            due = keeper.inputs[task.outputs[-1]].consumed - before[task.name]
            assert replay.compared[task.name] == (due, due)
    for task in job.plan.tasks:
        positions = [step.position for step in steps if step.task == task.name]
        assert positions == list(range(floors[task.id] + 1, lengths[task.id] + 1))
    assert all(step.is_logged for step in steps)


def test_steps_tell_what_they_took_used_and_made(mine):
    with Replay(past_of(*mine)) as replay:
        step = replay.step("rows[0]")
        assert step is not None
        assert step.position == replay["rows[0]"].restored_at + 1
        rows = sum(batch.num_rows for batch in step.took)
        assert rows
        assert len(step.answers) > rows, "a call for each row, and the clock"
        assert set(step.made) == {"running[0]"}
        assert str(step).startswith(f"rows[0] step {step.position}: {rows} row")
        before = replay["running[0]"].position
        done = replay.run("running[0]", to=before + 2)
        assert [s.position for s in done] == [before + 1, before + 2]
        assert {s.task for s in done} == {"running[0]"}
        with pytest.raises(NothingToReplay, match=r"use one of rows\[0\], running\[0\]"):
            replay["nobody"]


def test_state_is_that_of_the_step(mine):
    seen: list[str] = []
    with Replay(past_of(*mine)) as replay:
        task = replay["running[0]"]
        while (step := replay.step("running[0]")) is not None:
            if step.cause.endswith("of rows[0]") and step.made:
                (made,) = step.made.values()
                last = {row["key"]: row["amount"] for row in made.to_pylist()}
                state = task.state("running")
                assert {key: state[key]["sum"] for key in last} == last
                seen += last
        assert seen
        with pytest.raises(NothingToReplay, match="its processes are running"):
            task.state("out")


def test_other_code_is_noticed(mine):
    class Other(Running):
        def on_row(self, row, ctx):
            return [(*made[:3], made[3] + 1) for made in super().on_row(row, ctx)]

    job, cluster = mine
    past = replace(past_of(job, cluster, my_job(Other()).compiled), hash_seed="7")
    with Replay(past) as replay:
        with pytest.raises(Divergence, match="differ from those delivered") as caught:
            replay.run()
        assert "PYTHONHASHSEED=7" in caught.value.remedy, "it may be the order of sets"
        with pytest.raises(Divergence, match="differ from those delivered"):
            replay.run()
    with (
        Replay(replace(past, hash_seed="")) as replay,
        pytest.raises(Divergence, match="begin at a point that was made since"),
    ):
        replay.run()


def shortened(mine):
    """As if the log had ended after the first step of all."""
    past = past_of(*mine)
    first = past.activations[0]
    (run, *_) = first.log
    past.activations[0] = replace(first, log=(replace(run, records=run.records[:1]),))
    past.activations[1] = replace(past.activations[1], log=())
    past.keeper.generation = 1  # nothing to compare with
    return past


def test_behind_the_log_the_world_is_not_asked(mine):
    with Replay(shortened(mine)) as replay:
        assert [step.is_logged for step in replay.run()] == [True]
        with pytest.raises(NothingToReplay, match=r"asks look_up.*Replay\(call="):
            replay.run("rows[0]", beyond=True)


def test_unless_somebody_answers_in_its_place(mine):
    asked = []

    def call(fn, number):
        asked.append((fn.__name__, number))
        return 7

    with Replay(shortened(mine), call=call) as replay:
        logged = replay.run("rows[0]")
        first = [row for step in logged for batch in step.took for row in batch.to_pylist()]
        steps = replay.run("running[0]", beyond=True)
        assert {name for name, _ in asked} == {"look_up"}
        assert not any(step.is_logged for step in steps)
        rows = [batch.num_rows for step in steps for batch in step.took]
        assert sum(rows) == len({number for _, number in asked}) + len(first)
        assert replay["running[0]"].machine.ended
        assert replay.run(beyond=True) == [], "nothing is left"


def test_an_error_is_raised_again_as_it_was(mine):
    class Failing(Running):
        def on_row(self, row, ctx):
            if row.id == bad:
                raise ValueError(f"not {row.id}")
            return super().on_row(row, ctx)

    job, cluster = mine
    with Replay(past_of(job, cluster)) as replay:
        steps = iter(partial(replay.step, "running[0]"), None)
        bad = next(step for step in steps if step.took).took[0].column("id")[0].as_py()
    with (
        Replay(past_of(job, cluster, my_job(Failing()).compiled)) as replay,
        pytest.raises(OperatorError, match=f"not {bad}") as caught,
    ):
        replay.run()
    assert isinstance(caught.value.__cause__, ValueError)


def test_without_a_checkpoint(tmp_path):
    job = clonos.Job("job")
    job.source(clonos.sources.from_batches([[(1,)]], "n long")).sink(clonos.sinks.collect())
    with pytest.raises(NothingToReplay, match="has no checkpoint_dir"):
        Replay(job)
    with pytest.raises(NothingToReplay, match="there is no journal"):
        Replay(job, str(tmp_path / "mistyped"))
    assert not list(tmp_path.iterdir())


def test_a_step_is_of_a_task_and_not_before_the_beginning(mine):
    with Replay(past_of(*mine)) as replay:
        begins = replay["running[0]"].restored_at
        assert begins > 0
        with pytest.raises(NothingToReplay, match=f"after step {begins}"):
            replay.run("running[0]", to=begins - 1)
        with pytest.raises(NothingToReplay, match="of which one"):
            replay.run(to=begins + 1)
        assert not replay.run("running[0]", to=begins)
        (step,) = replay.run("running[0]", to=begins + 1)
        assert step.position == begins + 1
