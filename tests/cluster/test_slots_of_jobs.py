"""What happens to a job's slots: frozen, cancelled in Spark, without Spark; and what is told."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from types import ModuleType

import pytest

import clonos
from clonos.cluster import setup
from clonos.cluster.driver import RunningJob
from clonos.errors import JobCancelled, OtherVersion, SparkStopped
from clonos.nodes import places
from clonos.nodes.views import JobEvent, JobProgress, JobTerminated, Recovery, Sample
from clonos.runtime.versions import installed
from tests.processes import is_there

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

SILENCE_S = 3.0


def test_a_frozen_slot_is_given_up_and_leaves_when_it_wakes(kit, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "EXPELLED_S", 60.0)
    rows = 4_000
    job = kit.build(kit.gated(tmp_path, rows)).start(spark, silence_s=SILENCE_S)
    kit.wait_quiet(job)
    (frozen,) = kit.pids(job, "running[0]")
    os.kill(frozen, signal.SIGSTOP)
    try:
        kit.wait_recovered(job, 1)
        assert kit.pids(job, "running[0]") != [frozen]
        assert is_there(frozen)
        os.kill(frozen, signal.SIGCONT)
        kit.wait_for(lambda: not is_there(frozen))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
    kit.wait_quiet(job)  # another slot is in its place
    kit.open_tap(tmp_path)
    kit.check(job.wait(600).table(), rows)


def test_a_slot_frozen_for_good_is_killed_and_replaced(kit, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "EXPELLED_S", 0.5)
    rows = 3_000
    source = kit.gated(tmp_path, rows)
    job = kit.build(source, standbys=0).start(spark, silence_s=SILENCE_S)
    kit.wait_quiet(job)
    (frozen,) = kit.pids(job, "windows[0]")
    os.kill(frozen, signal.SIGSTOP)
    kit.wait_recovered(job, 1)
    kit.wait_for(lambda: not is_there(frozen))
    kit.open_tap(tmp_path)
    kit.check(job.wait(600).table(), rows)


def test_cancelled_in_spark(kit, spark, tmp_path):
    """By stage, as the UI's link does it, and by group: the job ends, and goes on when started."""
    rows = 3_000
    context = spark.sparkContext
    source, small = kit.gated(tmp_path, rows), {"parallelism": 1, "standbys": 0}
    job = kit.build(source, checkpoint_dir=str(tmp_path / "checkpoint"), **small)

    def cancel_a_stage(running: RunningJob) -> None:
        scheduler = context._jsc.sc()
        stages = scheduler.statusStore().activeStages()
        scheduler.cancelStage(stages.apply(0).stageId(), "killed via the Web UI")

    def cancel_the_group(running: RunningJob) -> None:
        context.cancelJobGroup(running.run_id)

    for term, cancel in enumerate((cancel_a_stage, cancel_the_group), 1):
        running = job.start(spark)
        assert running.term == term
        kit.wait_quiet(running)
        cancel(running)
        with pytest.raises(JobCancelled, match="cancelled it in Spark") as caught:
            running.wait(30)
        assert "checkpoint_dir" in caught.value.remedy
        assert running.last_progress.checkpoint.id > 0
    kit.open_tap(tmp_path)
    kit.check(job.run(spark, timeout_s=600).table(), rows)


def test_another_version_on_the_executors(kit, spark, tmp_path, monkeypatch):
    """The driver is made to believe that it has another PyArrow than it has."""
    monkeypatch.setattr(setup, "installed", lambda: {**installed(), "PyArrow": "0.1"})
    with pytest.raises(OtherVersion, match=r"it should have PyArrow 0\.1") as caught:
        kit.build(kit.gated(tmp_path, 100), parallelism=1, standbys=0).run(spark, timeout_s=600)
    assert caught.value.where.startswith("slot ")


class Hearing(clonos.Listener):
    def __init__(self) -> None:
        self.progress: list[JobProgress] = []
        self.recoveries: list[Recovery] = []
        self.ends: list[JobTerminated] = []

    def on_progress(self, progress: JobProgress) -> None:
        self.progress.append(progress)

    def on_recovery(self, recovery: Recovery) -> None:
        self.recoveries.append(recovery)

    def on_terminated(self, terminated: JobTerminated) -> None:
        self.ends.append(terminated)


def test_events_and_progress_are_told(kit, spark, tmp_path):
    rows = 2_000
    hearing = Hearing()
    job = kit.build(kit.gated(tmp_path, rows), checkpoints="marked")  # all tasks have a layer soon
    job = job.start(spark, listeners=[hearing], progress_s=0.1)
    heard: list[JobEvent] = []
    job.on_event(heard.append)
    samples: list[Sample] = []
    job.observer.samplers += (samples.append,)
    before = job.last_progress
    kit.wait_quiet(job)
    kit.kill(job, "running[0]")
    kit.wait_recovered(job, 1)
    kit.open_tap(tmp_path)
    result = job.wait(600)
    stages = [e.what for e in heard if e.task == "running[0]" and e.what != "standby"]
    in_order = ["detected", "fenced", "fetched", "activated", "restored", "live"]
    assert stages[stages.index("detected") :] == in_order
    assert [event.value for event in heard if event.what == "floor"]

    (recovery,) = hearing.recoveries
    assert (recovery.name, list(recovery.stages)) == ("running[0]", in_order)
    assert [(end.is_complete, end.error) for end in hearing.ends] == [(True, None)]
    # What was read and replayed has been counted once, and never less than before.
    last = hearing.progress[-1]
    assert last is job.last_progress
    operators = {o.name: o for o in last.operators}
    assert operators["events"].rows_out == operators["running"].rows_in == rows
    assert operators["running"].rows_out == rows
    assert operators["out"].rows_in == last.delivered["out"] == result.rows["out"]
    for before, after in itertools.pairwise(hearing.progress):
        for a, b in zip(before.tasks, after.tasks, strict=True):
            assert (a.rows_in, a.rows_out, a.batches_in) <= (b.rows_in, b.rows_out, b.batches_in)
    killed = next(t for t in last.tasks if t.name == "running[0]")
    assert (killed.incarnation, killed.state_bytes > 0) == ("1.1", True)
    assert 0 < killed.log_bytes_per_row < 100
    # It costs no messages of its own: every one is a sample that a task takes anyway.
    told_before = before.reports if before is not None else 0
    assert last.reports - told_before <= len(samples)


TYPED = """
import clonos

FACTOR = 3

def scaled(n):
    return n * FACTOR

class Scaled(clonos.Process):
    def on_row(self, row, ctx):
        yield (scaled(row.n),)

job = clonos.Job("typed", parallelism=2)
rows = job.source(clonos.sources.from_batches([[(n,) for n in range(50)]], schema="n long"))
tripled = rows.map(lambda row: (scaled(row.n),), "n long")
tripled.key_by("n").process(Scaled(), "n long").sink(clonos.sinks.collect(), name="out")
result = job.run(spark, timeout_s=600)
"""
"""As somebody types it into a notebook: everything is in ``__main__``, which no executor has."""


def test_what_is_typed_into_a_session_travels(spark, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", session := ModuleType("__main__"))
    session.__dict__["spark"] = spark
    exec(compile(TYPED, "<stdin>", "exec"), session.__dict__)
    rows = session.__dict__["result"].table().column("n").to_pylist()
    assert sorted(rows) == [n * 9 for n in range(50)]


def test_spark_stopped_in_mid_job(kit, spark, tmp_path):
    """The last test of this module: it takes the session with it, as the fixture would."""
    job = kit.build(kit.gated(tmp_path, 2_000)).start(spark)
    kit.wait_quiet(job)
    spark.stop()
    with pytest.raises(SparkStopped, match="checkpoint_dir"):
        job.wait(30)
    assert not job.is_running
    with pytest.raises(SparkStopped, match=r"was stopped before .* To do: give a new one"):
        kit.build(kit.gated(tmp_path, 2_000)).start(spark)
