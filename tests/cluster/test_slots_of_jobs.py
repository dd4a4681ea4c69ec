"""What happens to the slots of a job: frozen, cancelled in Spark's UI, or without Spark."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from clonos.cluster import pool
from clonos.cluster.progress import JobEvent
from clonos.spark.errors import SparkStopped

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(120),
]

SILENCE_S = 3.0


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_frozen_slot_is_given_up_and_leaves_when_it_wakes(kit, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "EXPELLED_S", 60.0)
    rows = 4_000
    job = kit.build(kit.gated(tmp_path, rows)).start(spark, silence_s=SILENCE_S)
    kit.wait_quiet(job)
    (frozen,) = kit.pids(job, "running[0]")
    os.kill(frozen, signal.SIGSTOP)
    try:
        kit.wait_recovered(job, 1)
        assert kit.pids(job, "running[0]") != [frozen]
        assert is_alive(frozen)
        os.kill(frozen, signal.SIGCONT)
        kit.wait_for(lambda: not is_alive(frozen), 20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
    kit.wait_quiet(job)  # another slot is in its place
    kit.open_tap(tmp_path)
    kit.check(job.wait(60).table(), rows)


def test_a_slot_frozen_for_good_is_killed_and_replaced(kit, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "EXPELLED_S", 0.5)
    rows = 3_000
    source = kit.gated(tmp_path, rows)
    job = kit.build(source, standbys=0).start(spark, silence_s=SILENCE_S)
    kit.wait_quiet(job)
    (frozen,) = kit.pids(job, "windows[0]")
    os.kill(frozen, signal.SIGSTOP)
    kit.wait_recovered(job, 1)
    kit.wait_for(lambda: not is_alive(frozen), 20)
    kit.open_tap(tmp_path)
    kit.check(job.wait(60).table(), rows)


def test_a_slot_cancelled_in_the_ui_is_launched_again(kit, spark, tmp_path):
    rows = 3_000
    job = kit.build(kit.gated(tmp_path, rows)).start(spark)
    kit.wait_quiet(job)
    place = next(slot.place for slot in job.slots() if slot.runs == "running[1]")
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    shown = [jobs.apply(i) for i in range(jobs.size())]
    (number,) = [
        j.jobId()
        for j in shown
        if f"windows: slot {place} (" in j.description().toString()
        and j.status().toString() == "RUNNING"
    ]
    spark.sparkContext._jsc.sc().cancelJob(number)
    kit.wait_recovered(job, 1)
    kit.wait_quiet(job)
    kit.open_tap(tmp_path)
    kit.check(job.wait(60).table(), rows)


def test_events_are_told(kit, spark, tmp_path):
    job = kit.build(kit.gated(tmp_path, 2_000)).start(spark)
    heard: list[JobEvent] = []
    job.on_event(heard.append)
    kit.wait_quiet(job)
    kit.kill(job, "out[0]")
    kit.wait_recovered(job, 1)
    kit.open_tap(tmp_path)
    job.wait(60)
    stages = [event.what for event in heard if event.task == "out[0]" and event.what != "standby"]
    assert stages[stages.index("detected") :] == [
        "detected",
        "fenced",
        "fetched",
        "activated",
        "restored",
        "live",
    ]
    assert [event.value for event in heard if event.what == "floor"]


def test_spark_stopped_in_mid_job(kit, spark, tmp_path):
    """The last test of this module: it takes the session with it, as the fixture would."""
    job = kit.build(kit.gated(tmp_path, 2_000)).start(spark)
    kit.wait_quiet(job)
    spark.stop()
    with pytest.raises(SparkStopped, match="checkpoint_dir"):
        job.wait(30)
    assert not job.is_running
