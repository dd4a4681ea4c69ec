"""Slots on a real local Spark: launched, killed, launched again, cancelled."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from clonos.core.messages import Stop
from clonos.errors import ClonosError, NotEnoughSlots, SparkSetup
from clonos.spark.errors import SlotFailed
from clonos.spark.identity import SlotInfo, interface_towards
from clonos.spark.ready import ReadyThread
from clonos.spark.session import require_driver
from clonos.spark.slots import Body, SlotLauncher, driver_address
from clonos.transport.events import ControlLost, ControlOpened, Register
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import JobSecret

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

WAIT_S = 60.0
LOOPBACK = "127.0.0.1"
CORES = 18
"""Of the session that modules share."""


class Launched:
    """A launcher, and a coordinator's plane to which slots register."""

    def __init__(self, spark: SparkSession) -> None:
        self.ends: SimpleQueue[tuple[int, int, ClonosError | None]] = SimpleQueue()
        self.launcher = SlotLauncher(spark, "wordcount", lambda *end: self.ends.put(end))
        self.secret = JobSecret.new()
        self.plane = Plane(LOOPBACK, self.secret, "job", Inbox())
        self._things: list[Any] = []

    def _until(self, found: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not found():
            self._things += self.plane.poll(0.1)
            assert time.monotonic() < until

    def event(self, kind: type) -> Any:
        """The next event of this kind; those before it are forgotten."""
        while True:
            self._until(lambda: bool(self._things))
            if isinstance(event := self._things.pop(0), kind):
                return event

    def end(self) -> tuple[int, ClonosError | None]:
        """The next slot that has ended."""
        self._until(lambda: not self.ends.empty())
        slot, _, error = self.ends.get()
        return slot, error


@pytest.fixture
def launched(spark: SparkSession) -> Iterator[Launched]:
    made = Launched(spark)
    yield made
    made.launcher.close()
    made.plane.shutdown()


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1"])
def test_the_address_of_a_driver_as_spark_writes_it(host):
    conf = SimpleNamespace(get={"spark.driver.host": host}.get)
    context = SimpleNamespace(master="spark://there:7077", getConf=lambda: conf)
    spark: Any = SimpleNamespace(sparkContext=context, _jsparkSession=None)
    assert driver_address(spark) == interface_towards(driver_address(spark)) == host.strip("[]")


def registering(secret: JobSecret, coordinator: str) -> Body:
    """A body that does what a slot does first and last, inside the worker itself."""

    def body(info: SlotInfo, batches: Any) -> None:
        plane = Plane(info.host, secret, "job", Inbox())
        register = Register(
            info.slot,
            info.attempt,
            info.nonce,
            info.host,
            info.executor,
            info.jvm_pid,
            info.pid,
            plane.address,
            {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "")},
        )
        plane.control(coordinator, register, lambda: (0, 0, "", ""))
        for _ in batches or ():
            pass  # Spark uses a worker again if it has read all of its input
        over = False
        while not over:
            for event in plane.poll(60.0):
                over = isinstance(event, ControlLost) or isinstance(event[1], Stop)
        plane.shutdown()

    # By value: workers cannot import this module.
    body.__module__ = "__main__"
    return body


def by_value(function: Callable[..., None]) -> Callable[..., None]:
    function.__module__ = "__main__"
    return function


def test_a_killed_slot_is_launched_again_and_others_live(launched: Launched) -> None:
    body = registering(launched.secret, launched.plane.address)
    handles = [launched.launcher.launch(slot, body, description="n 1") for slot in (0, 1)]
    opened = [launched.event(ControlOpened) for _ in handles]
    first = {event.register.slot: event for event in opened}
    assert first[0].register.versions == first[1].register.versions == {"PYTHONHASHSEED": "0"}
    assert first[0].register.jvm_pid == first[1].register.jvm_pid != os.getpid()

    os.kill(first[0].register.pid, signal.SIGKILL)
    assert launched.event(ControlLost).conn_id == first[0].conn_id
    slot, error = launched.end()
    assert (slot, type(error)) == (0, SlotFailed)
    assert "worker exited unexpectedly" in str(error)
    assert not handles[0].is_running
    launched.launcher.launch(0, body)
    again = launched.event(ControlOpened)
    assert again.register.nonce != first[0].register.nonce

    assert handles[1].is_running
    again.incoming.send(Stop())
    first[1].incoming.send(Stop())
    assert {launched.end() for _ in range(2)} == {(0, None), (1, None)}


def test_slots_are_not_idle_workers(launched: Launched, spark: SparkSession) -> None:
    prefix = "spark.sql.execution.pyspark.udf."
    settings = {prefix + "idleTimeoutSeconds": "1", prefix + "killOnIdleTimeout": "true"}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        handle = launched.launcher.launch(
            0, registering(launched.secret, launched.plane.address), spark.range(0, 1, 1, 1), 0
        )
        event = launched.event(ControlOpened)
        assert not handle.join(2.5)
        assert {key: spark.conf.get(key) for key in settings} == settings
        event.incoming.send(Stop())
        assert launched.end() == (0, None)
    finally:
        for key in settings:
            spark.conf.unset(key)


def test_worker_is_of_use_after_a_slot_has_ended(launched: Launched, spark: SparkSession) -> None:
    def pids(batches: Any) -> Any:
        yield from (pa.record_batch({"pid": [os.getpid()]}) for _ in batches)

    body = registering(launched.secret, launched.plane.address)
    launched.launcher.launch(0, body, spark.range(0, 1, 1, 1), 0)
    event = launched.event(ControlOpened)
    event.incoming.send(Stop())
    assert launched.end() == (0, None)
    pids.__module__ = "__main__"
    for _ in range(CORES):  # workers that were of use before have their turn first
        rows = spark.range(0, 4, 1, 4).mapInArrow(pids, "pid long").collect()
        assert len(rows) == 4
        if event.register.pid in {row.pid for row in rows}:
            return
    pytest.fail("it is of no use")


def test_rows_of_one_partition(launched: Launched, spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rows")

    @by_value
    def body(info: SlotInfo, batches: Any) -> None:
        rows = [row for batch in batches for row in batch.column(0).to_pylist()]
        Path(path).write_text(json.dumps([info.partition, rows]))

    launched.launcher.launch(7, body, spark.range(0, 30, 1, 3), partition=1)
    assert launched.end() == (7, None)
    assert json.loads(Path(path).read_text()) == [1, list(range(10, 20))]


def test_what_a_body_raises_is_told(launched: Launched) -> None:
    @by_value
    def body(info: SlotInfo, batches: Any) -> None:
        raise ValueError("no such table")

    launched.launcher.launch(2, body)
    slot, error = launched.end()
    assert slot == 2
    assert isinstance(error, SlotFailed)
    assert error.where == "wordcount: slot 2"
    assert error.what.endswith("ValueError: no such table")


def test_cancelled(launched: Launched, spark: SparkSession) -> None:
    body = registering(launched.secret, launched.plane.address)
    handle = launched.launcher.launch(0, body, description="n 2")
    launched.event(ControlOpened)
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    shown = {jobs.apply(i).description().toString() for i in range(jobs.size())}
    assert "Some(wordcount: slot 0 (n 2))" in shown
    handle.cancel()
    assert launched.end() == (0, None)
    assert launched.event(ControlLost)


def test_what_is_cancelled_while_it_is_prepared_does_not_begin(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark has no job that it could cancel yet."""
    go, begun = threading.Event(), list[str]()

    def making(_: Any, __: int) -> Callable[[], None]:
        assert go.wait(WAIT_S)
        return lambda: begun.append("begun")

    monkeypatch.setattr(launched.launcher, "_job", making)
    handle = launched.launcher.launch(0, registering(launched.secret, launched.plane.address))
    handle.cancel()
    go.set()
    assert launched.end() == (0, None)
    assert not begun


def test_what_nobody_waits_for_is_cancelled_in_the_end(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may have gone on before Spark knows that its slots have left."""
    monkeypatch.setattr("clonos.spark.slots.END_S", 0.0)
    body = registering(launched.secret, launched.plane.address)
    launched.launcher.launch(0, body)
    launched.event(ControlOpened)
    launched.launcher.close()
    assert launched.end() == (0, None)


def test_the_next_job_of_a_slot_is_ready_before_it_is_launched(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is known to the JVM, and its job is made and has its labels."""
    made: SimpleQueue[str] = SimpleQueue()
    make = launched.launcher._job

    def making(rows: Any, partition: int) -> Callable[[], None]:
        job = make(rows, partition)
        made.put(threading.current_thread().name)
        return job

    there: SimpleQueue[int] = SimpleQueue()
    successors = launched.launcher._successors
    put = successors._put

    def putting(slot: int, what: Any, thread: ReadyThread) -> None:
        put(slot, what, thread)
        there.put(slot)

    monkeypatch.setattr(launched.launcher, "_job", making)
    monkeypatch.setattr(successors, "_put", putting)
    body = registering(launched.secret, launched.plane.address)
    first = launched.launcher.launch(0, body)
    opened = launched.event(ControlOpened)
    names = {made.get(timeout=WAIT_S) for _ in "12"}
    assert there.get(timeout=WAIT_S) == 0
    os.kill(opened.register.pid, signal.SIGKILL)
    assert isinstance(launched.end()[1], SlotFailed)

    second = launched.launcher.launch(0, body)
    assert names == {first.tag, second.tag}, "it was ready"
    launched.event(ControlOpened)
    third = made.get(timeout=WAIT_S)
    other = launched.launcher.launch(0, body, description="another one")
    assert other.tag not in {*names, third}, "it was ready for something else"
    launched.event(ControlOpened)
    launched.launcher.close()
    for handle in (second, other):
        handle.cancel()
    assert [launched.end() for _ in "12"] == [(0, None)] * 2
    mine = {*names, third, other.tag}
    until = time.monotonic() + WAIT_S
    while mine & {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < until, "threads that are not needed end"
        time.sleep(0.01)


def test_a_local_master_permits_no_profile(spark: SparkSession) -> None:
    profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(0.5)).build
    with pytest.raises(SparkSetup, match="only supported for Standalone") as caught:
        SlotLauncher(spark, "job", print, profile=profile)
    assert "spark.task.cpus" in caught.value.remedy
    wrong: Any = "half a core"
    with pytest.raises(SparkSetup, match="is no ResourceProfile"):
        SlotLauncher(spark, "job", print, profile=wrong)


def test_too_few_cores(launched: Launched) -> None:
    launched.launcher.require(CORES)
    with pytest.raises(NotEnoughSlots, match=r"19 slots are needed and 18 .*local\[19\]"):
        launched.launcher.require(CORES + 1)
    launched.launcher.require(CORES + 1, leaving=1)  # slots that make room for them
    text = r"18 slots and a core for the streaming queries .* 18 of .*local\[19\]"
    with pytest.raises(NotEnoughSlots, match=text):
        launched.launcher.require(CORES, cores=1)


def test_slots_that_have_just_ended_are_waited_for(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = [1, 1, 0]
    monkeypatch.setattr(launched.launcher, "_cores", lambda: (5, counted.pop(0)))
    launched.launcher.require(5)
    assert not counted


def test_speculation_by_duration_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Spark does not copy the only task of a job."""
    settings = {"spark.speculation": "true"}
    monkeypatch.setattr(
        SlotLauncher, "_setting", lambda _, key, default: settings.get(key, default)
    )
    SlotLauncher(spark, "job", print)
    settings["spark.speculation.task.duration.threshold"] = "10s"
    with pytest.raises(SparkSetup, match="second copies of slots"):
        SlotLauncher(spark, "job", print)


@pytest.mark.parametrize(
    ("master", "setting", "retries"),
    [
        ("local[4]", None, False),
        ("local[*, 1]", None, False),
        ("local[4, 2]", None, True),
        ("spark://node:7077", None, True),
        ("local-cluster[1,2,1024]", "1", False),
    ],
)
def test_who_starts_a_slot_again(
    monkeypatch: pytest.MonkeyPatch, master: str, setting: str | None, retries: bool
) -> None:
    monkeypatch.setattr(SlotLauncher, "_setting", lambda _, key, default: setting or default)
    launcher = SlotLauncher.__new__(SlotLauncher)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    launcher._spark, launcher._context = spark, spark.sparkContext
    assert launcher._retries() == retries


def test_spark_connect_is_refused_with_a_word() -> None:
    with pytest.raises(SparkSetup, match=r"Spark Connect.*clonos\.causal works"):
        require_driver(object())


def test_a_query_goes_on_whoever_has_written_its_checkpoint(spark, tmp_path):
    """In our sessions that is another class than in others: the files are the same."""
    key = "spark.sql.streaming.checkpointFileManagerClass"
    ours = spark.conf.get(key)
    assert ours.endswith(".FileSystemBasedCheckpointFileManager")
    usual = ours.replace("FileSystemBased", "FileContextBased")
    (tmp_path / "in").mkdir()
    seen: list[list[str]] = []

    def take(frame: Any, _: int) -> None:
        seen.append([row.value for row in frame.collect()])

    lines = spark.readStream.schema("value string").text(str(tmp_path / "in"))
    writer = lines.writeStream.foreachBatch(take).trigger(availableNow=True)
    try:
        for number, manager in enumerate((usual, ours, usual)):
            spark.conf.set(key, manager)
            (tmp_path / "in" / str(number)).write_text(str(number))
            assert (
                writer.option("checkpointLocation", str(tmp_path / "q"))
                .start()
                .awaitTermination(60)
            )
    finally:
        spark.conf.set(key, ours)
    assert seen == [["0"], ["1"], ["2"]]
