"""Jobs that cannot go on say why, at once, and take nothing with them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import clonos
from clonos import errors
from clonos.cluster import witness
from clonos.errors import (
    BadDirectory,
    JournalInUse,
    NotEnoughSlots,
    NothingKept,
    NotPicklable,
    OtherJob,
    OutputExists,
    SinkFailed,
    TlsUnavailable,
    UnreadableJournal,
    UnreadableLayer,
    WrongType,
)
from clonos.testing import run_past

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


def numbers(rows: int = 100) -> Any:
    return clonos.sources.from_batches([[(i,) for i in range(rows)]], schema="n long")


def mapped(fn: Any, *, is_apart: bool = False, **settings: Any) -> clonos.Job:
    """`is_apart`: the function has one task, in a slot of its own."""
    job = clonos.Job("failing", **{"checkpoint_interval": "300 ms", **settings})
    rows = job.source(numbers(), name="numbers", rows_per_second=200)
    if is_apart:
        rows = rows.slot_group("work").start_new_chain()
    worked = rows.map(fn, "n long", name="work", parallelism=1 if is_apart else 2)
    worked.sink(clonos.sinks.collect(), name="out")
    return job


def test_a_function_that_raises(spark):
    def work(row: Any) -> int:
        return int(row.n + 0 / (row.n - 7))

    sys.setswitchinterval(0.004)
    users = sys.getswitchinterval()
    running = mapped(work).start(spark)
    with pytest.raises(errors.OperatorError, match=r"ZeroDivisionError.*n=7") as caught:
        running.wait(600)
    assert caught.value.where.partition(" ")[0] in {"work[0]", "work[1]"}
    assert "on_bad_record" in caught.value.remedy
    first, *lines = str(caught.value).strip().splitlines()
    assert first == "Traceback of your code (most recent call last):"
    assert lines[0].endswith("in work")
    assert lines[1].strip() == "return int(row.n + 0 / (row.n - 7))"
    assert lines[-2:-1] == ["ZeroDivisionError: division by zero"]
    assert lines[-1].startswith("work[")
    assert not running.observer.recoveries
    assert "MODULE:JOB" not in caught.value.remedy, "nothing is kept that could be replayed"
    assert sys.getswitchinterval() == users, "the process is the user's again"


def bundle_of(error: errors.ClonosError, folder: Path) -> Path:
    """The file that an error names: it lies where the checkpoint is, and is the user's alone."""
    found = re.search(r"clonos replay MODULE:JOB (\S+) --pdb shows it again", error.remedy)
    assert found is not None, error.remedy
    path = Path(found[1])
    assert path.parent == folder / "bundles"
    assert (path.stat().st_mode | path.parent.stat().st_mode) & 0o077 == 0
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    return path


def test_an_error_leaves_a_bundle(spark, tmp_path):
    def work(row: Any) -> int:
        return int(row.n + 0 / (row.n - 57))

    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "is_apart": True}
    with pytest.raises(errors.OperatorError) as caught:
        mapped(work, bundle_redact=lambda name, value: value + 0, **settings).run(spark)
    path = bundle_of(caught.value, tmp_path)
    assert re.fullmatch(r"work-0-step-\d+.clonos", path.name)
    away = tmp_path.rename(tmp_path.with_name("away")) / "bundles" / path.name
    past = run_past(mapped(work, **settings), away)
    past.expect_error(ZeroDivisionError)
    mended = run_past(mapped(work, **settings), away, replace={"work": lambda row: row.n})
    mended.expect_same_output()
    assert 57 in mended.rows()["n"].to_pylist()
    away.parents[1].rename(tmp_path)
    with pytest.raises(errors.OperatorError) as caught:
        mapped(work, bundle_redact=["n"], **settings).run(spark)
    assert "MODULE:JOB" in caught.value.remedy
    assert "--pdb" not in caught.value.remedy, "with another n the function does not raise"


def test_a_replay_that_diverges_leaves_a_bundle(kit, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(witness, "WRITE_S", 600.0)  # a busy machine takes its time

    def work(row: Any) -> int:
        return int(row.n + os.getpid())

    folder = str(tmp_path / "cp")
    job = clonos.Job("pids", checkpoint_dir=folder, checkpoint_interval="1 hour")
    rows = job.source(kit.until_tapped(tmp_path), name="numbers", rows_per_second=500)
    apart = rows.slot_group("work").start_new_chain()
    apart.map(work, "n long", name="work").sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    kit.wait_quiet(running, floors=0)
    kit.wait_rows(running, 200)
    made = running.bundle(tmp_path / "early.clonos", task="numbers[0]")
    assert set(made.steps) == {"numbers[0]"}
    assert made.error is None
    with pytest.raises(errors.UnknownTask):
        running.bundle(tmp_path / "none.clonos", task="nobody")
    for ask in (running.canary, partial(running.branch, at="oldest")):
        with pytest.raises(NothingKept, match="keeps no history"):
            ask(replace={})
    kit.kill(running, "work[0]")
    with pytest.raises(errors.Divergence, match="differ from those delivered") as caught:
        running.wait(600)
    path = bundle_of(caught.value, tmp_path / "cp")
    with clonos.Replay(job, str(path)) as replay, pytest.raises(errors.Divergence):
        replay.run()
    kit.open_tap(tmp_path)


def test_bad_records_are_kept_once_whatever_dies(spark, tmp_path):
    died = tmp_path / "died"

    def work(row: Any) -> int:
        if row.n == 54 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if row.n % 10 == 3:
            raise ValueError("three")
        return int(row.n)

    job = mapped(work, on_bad_record="keep", is_apart=True)
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    result = job.run(spark, timeout_s=600)
    assert sorted(result.table("out").column(0).to_pylist()) == [
        n for n in range(100) if n % 10 != 3
    ]
    assert died.exists()
    assert result.recoveries
    bad = result.table("bad").to_pylist()
    assert sorted(json.loads(each["record"])["n"] for each in bad) == list(range(3, 100, 10))
    assert {(each["operator"], each["error"]) for each in bad} == {("work", "ValueError: three")}
    assert {each["raised_at"].partition(":")[0] for each in bad} == {"test_failures.py"}
    assert result.dropped == {"work: bad_records": 10}


def test_a_poison_record(spark, tmp_path):
    daemon, deaths = tmp_path / "daemon", tmp_path / "deaths"

    def work(row: Any) -> int:
        if row.n == 0 and not daemon.exists():  # a copy may take this row, too
            daemon.write_text(str(os.getppid()))  # that of all slots: Spark forks them
        if row.n == 50:
            with deaths.open("a") as file:
                file.write(f"{os.getppid()}\n")
            os._exit(0)
        return int(row.n)

    settings: dict[str, Any] = {"checkpoint_dir": str(tmp_path / "cp"), "is_apart": True}
    with pytest.raises(errors.PoisonRecord, match=r"\{'n': 50\}.* kills the process") as caught:
        # Apart: a source that dies, too, may cut its rows otherwise, and other items be suspect.
        mapped(work, **settings).run(spark, timeout_s=600)
    assert caught.value.where.startswith("work[")
    parents = deaths.read_text().split()
    assert parents.count(daemon.read_text()) == 2, "slots; the others are copies of a third"
    assert len(parents) >= 4
    path = bundle_of(caught.value, tmp_path / "cp")
    assert deaths.read_text().split() == parents, "it was made without dying of it"
    past = run_past(mapped(work, **settings), path, replace={"work": lambda row: row.n})
    assert "kills the process" in str(past.error_then)
    past.expect_same_output()
    assert 50 in past.rows()["n"].to_pylist()


def test_a_poison_record_is_kept(spark, tmp_path):
    deaths = tmp_path / "deaths"

    def work(row: Any) -> int:
        if row.n in {20, 70}:
            with deaths.open("a") as file:
                file.write(f"{row.n}\n")
            os._exit(0)
        return int(row.n)

    job = mapped(work, is_apart=True, on_bad_record="keep")
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    result = job.run(spark, timeout_s=600)
    left = [n for n in range(100) if n not in {20, 70}]
    assert sorted(result.table("out").column("n").to_pylist()) == left
    bad = result.table("bad").to_pylist()
    assert sorted(each["record"] for each in bad) == ['{"n": 20}', '{"n": 70}']
    assert {each["error"] for each in bad} == {"PoisonRecord: it kills the process that handles it"}
    assert sum(result.dropped.values()) == 2
    assert {*deaths.read_text().split()} == {"20", "70"}


def test_a_callback_that_raises(spark):
    def told(batch: pa.RecordBatch) -> None:
        raise RuntimeError("no room")

    job = clonos.Job("callback")
    job.source(numbers()).sink(clonos.sinks.callback(told), name="out")
    with pytest.raises(errors.OperatorError, match=r"out: .*RuntimeError: no room") as caught:
        job.run(spark, timeout_s=600)
    assert 'raise RuntimeError("no room")' in caught.value.trace


def test_nobody_listens(spark):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    job = clonos.Job("socket")
    job.source(clonos.sources.socket_lines("127.0.0.1", port)).sink(clonos.sinks.collect())
    with pytest.raises(errors.SourceError, match=f"cannot connect to 127.0.0.1:{port}") as caught:
        job.run(spark, timeout_s=600)
    assert "start the server" in caught.value.remedy


def test_a_dataframe_that_cannot_be_computed(spark, tmp_path):
    spark.range(3).write.parquet(str(tmp_path / "t"))
    frame = spark.read.parquet(str(tmp_path / "t")).repartition(2)
    for file in (tmp_path / "t").iterdir():
        file.unlink()
    job = clonos.Job("frame")
    job.source(frame, name="frame").sink(clonos.sinks.collect())
    with pytest.raises(errors.SourceError, match="frame: the DataFrame cannot be read"):
        job.start(spark)


def test_too_few_cores_leave_nothing_locked(spark, tmp_path):
    job = mapped(lambda row: row.n, parallelism=24, checkpoint_dir=str(tmp_path))
    for _ in range(2):
        with pytest.raises(NotEnoughSlots, match=r"local\["):
            job.start(spark)


def test_two_drivers_of_one_folder(spark, tmp_path):
    job = mapped(lambda row: row.n, checkpoint_dir=str(tmp_path))
    running = job.start(spark)
    with pytest.raises(JournalInUse, match=r"call stop\(\) of the running job"):
        job.start(spark)
    assert running.wait(600).rows == {"out": 100}
    with pytest.raises(OtherJob, match='was "fail", is "drop"'):
        mapped(lambda row: row.n, checkpoint_dir=str(tmp_path), on_bad_record="drop").start(spark)


def test_what_cannot_be_sent_is_named_and_leaves_nothing_locked(spark, tmp_path):
    def counted(row):
        return spark.range(row.n).count()

    for _ in range(2):
        with pytest.raises(NotPicklable, match=r"'spark' \(SparkSession\).*; counted uses it"):
            mapped(counted, checkpoint_dir=str(tmp_path)).start(spark)


def test_what_is_no_session_is_said():
    with pytest.raises(WrongType, match=r"'local\[4\]' is not a Spark session"):
        mapped(lambda row: row.n).start("local[4]")


def test_folders_are_checked_first(spark, tmp_path):
    with pytest.raises(BadDirectory, match="give journal="):
        mapped(lambda row: row.n, checkpoint_dir="s3://bucket/job").start(spark)
    with pytest.raises(BadDirectory, match="the journal cannot be opened"):
        mapped(lambda row: row.n, checkpoint_dir="/proc/clonos").start(spark)
    out = tmp_path / "out"
    job = clonos.Job("parquet")
    job.source(numbers()).sink(clonos.sinks.parquet(str(out)), name="out")
    job.run(spark, timeout_s=600)
    with pytest.raises(OutputExists, match="out"):
        job.run(spark, timeout_s=600)
    (tmp_path / "file").touch()
    job = clonos.Job("parquet")
    job.source(numbers()).sink(clonos.sinks.parquet(str(tmp_path / "file")), name="out")
    with pytest.raises(SinkFailed, match="cannot write"):
        job.run(spark, timeout_s=600)


def test_damaged_checkpoints_are_named(kit, spark, tmp_path):
    job = kit.build(kit.gated(tmp_path, 2_000), checkpoint_dir=str(tmp_path))
    running = job.start(spark)
    kit.wait_quiet(running)
    running.stop()
    assert not running.wait(0).is_complete
    for layer in (tmp_path / "layers").rglob("*.layer"):
        layer.write_bytes(b"\0" + layer.read_bytes()[1:])
    with pytest.raises(UnreadableLayer, match=r"\.layer: the stored layer cannot be read") as bad:
        job.run(spark, timeout_s=600)
    assert bad.value.remedy
    journal = next((tmp_path / "journal").glob("*.journal"))
    journal.write_bytes(b"x" + journal.read_bytes()[1:])
    with pytest.raises(UnreadableJournal, match="preamble"):
        job.run(spark, timeout_s=600)


def test_plaintext_stays_on_this_machine(spark, monkeypatch):
    monkeypatch.setattr("clonos.cluster.setup.driver_address", lambda spark: "192.0.2.2")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(TlsUnavailable, match=r"\.\[tls\].*tls=False"):
        mapped(lambda row: row.n).start(spark)


class Gate:
    """Passes so many rows in a life of its task, and the rest when there is a file `tap`."""

    def __init__(self, rows: int, tap: Path) -> None:
        self._rows, self._tap = rows, tap

    def __call__(self, row: Any) -> Any:
        self._rows -= 1
        while self._rows < 0 and not self._tap.exists():
            time.sleep(0.01)
        return row


def test_rows_in_another_order_are_noticed(kit, spark, tmp_path):
    def shuffled(batches: Any) -> Any:
        seed = os.getpid()
        for batch in batches:
            numbers = batch.column("n").to_pylist()
            yield pa.record_batch({"n": [(n * 7 + seed) % 1000 for n in numbers]})

    frame = spark.range(0, 4_000, 1, 1).withColumnRenamed("id", "n").mapInArrow(shuffled, "n long")
    job = clonos.Job("order", checkpoint_interval="1 hour")
    rows = job.source(frame, name="rows", rows_per_second=1000)
    rows.map(Gate(2_000, tmp_path / "tap"), "n long").sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    kit.wait_rows(running, 200)
    kit.kill(running, "rows[0]")
    with pytest.raises(errors.Divergence, match="other rows") as caught:
        running.wait(600)
    assert "materialize=True" in caught.value.remedy
    # Spooled, it is read from files: the same rows again, whoever reads them.
    job = clonos.Job("order", checkpoint_interval="300 ms")
    rows = job.source(frame, name="rows", rows_per_second=1000, materialize=True)
    rows.map(Gate(2_000, tmp_path / "tap"), "n long").sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    kit.wait_rows(running, 200)
    kit.kill(running, "rows[0]")
    kit.open_tap(tmp_path)
    result = running.wait(600)
    assert [r.name for r in result.recoveries] == ["rows[0]"]
    assert result.rows == {"out": 4_000}


def test_timestamps_survive_spooling(kit, spark):
    frame = kit.dataframe(spark, 2_000)
    kit.check(
        kit.build(frame, rate=None, materialize=True).run(spark, timeout_s=600).table(), 2_000
    )


def test_spark_computes_only_the_columns_that_are_read(spark):
    df = spark.range(10).selectExpr("id", "id * 2 AS twice", "assert_true(false) AS never")
    job = clonos.Job("narrow", parallelism=1)
    job.source(clonos.sources.dataframe(df)).select("twice").sink(clonos.sinks.collect())
    result = job.run(spark, timeout_s=600)
    assert sorted(result.table().column(0).to_pylist()) == list(range(0, 20, 2))
