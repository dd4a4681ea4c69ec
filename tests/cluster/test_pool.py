"""What a slot that registers, or cannot, is judged by; no Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.cluster import pool
from clonos.cluster.pool import (
    SlotPool,
    executor_lost,
    slot_broken,
    unreadable,
    unusable_store,
    without_memory,
    wrong_environment,
)
from clonos.errors import (
    JobCancelled,
    NotPicklable,
    OtherVersion,
    SlotBroken,
    SparkStopped,
    UnusableStore,
)
from clonos.nodes.errors import ExecutorLost
from clonos.nodes.places import Places
from clonos.nodes.versions import CPU, HASH_SEED, MACHINE, check_versions
from clonos.runtime.versions import installed
from clonos.spark.errors import SlotFailed
from clonos.spark.slots import SlotHandle, _slot_failed
from clonos.transport.events import WIRE, Register
from clonos.transport.inbox import Inbox


def test_on_a_cluster_each_standby_needs_a_core():
    job = clonos.Job("copy", parallelism=4)
    job.source(clonos.sources.rate(10)).sink(clonos.sinks.collect())
    assert (job.cores(), job.cores(on_cluster=True)) == (6, 8)
    assert job.cores(1) == job.cores(1, on_cluster=True) == 5


def test_slots_that_have_ended_are_forgotten(monkeypatch):
    """A place where no slot can begin is launched again every ten seconds, for months perhaps."""
    handles: list[SlotHandle] = []

    class Launcher:
        is_local, retries = True, False

        def __init__(self, *_: Any) -> None:
            pass

        def launch(self, *_: Any, **__: Any) -> SlotHandle:
            handles.append(SlotHandle("tag", lambda tag: cancelled.append(len(handles))))
            return handles[-1]

    monkeypatch.setattr(pool, "SlotLauncher", Launcher)
    job = clonos.Job("copy")
    job.source(clonos.sources.from_batches([], "n long")).sink(clonos.sinks.collect())
    cancelled: list[int] = []
    shipment: Any = SimpleNamespace(job_id="copy-1")
    inbox = Inbox()
    made = pool.SlotPool(None, job.compile(), shipment, inbox, standby_slots=0)
    for attempt in range(1, 5):
        made.launch(0, attempt)
        if attempt < 4:
            handles[-1].set_ended()
    assert list(made._handles) == [4]
    made.cancel(1)
    assert not cancelled
    made.cancel(4)
    assert cancelled == [4]
    inbox.close()


def test_a_slot_that_cannot_be_launched_is_launched_again(monkeypatch):
    """A machine may start no more threads for a moment."""

    class Launcher:
        is_local, is_stopped, retries = True, False, False

        def __init__(self, *_: Any) -> None:
            pass

        def launch(self, *_: Any, **__: Any) -> SlotHandle:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pool, "SlotLauncher", Launcher)
    job = clonos.Job("copy")
    job.source(clonos.sources.from_batches([], "n long")).sink(clonos.sinks.collect())
    shipment: Any = SimpleNamespace(job_id="copy-1")
    inbox = Inbox()
    made = pool.SlotPool(None, job.compile(), shipment, inbox, standby_slots=0)
    places = Places("copy", [None], made, spare=False, versions={})
    places.launch_all(0.0)
    told: list[str] = []
    for now_s in range(1, 6):
        (ended,) = inbox.take()
        assert places.ended(ended, float(now_s)) is None
        told += places.tick(now_s + 0.9, waiting=[0])
    (text,) = told
    assert "can't start new thread" in text
    Launcher.is_stopped = True
    places.ended(inbox.take()[0], 20.0)
    places.tick(40.0)
    assert isinstance(inbox.take()[0].error, SparkStopped)
    inbox.close()


def register(**versions: str) -> Register:
    has = {**installed(), HASH_SEED: "0", **versions}
    return Register(3, 1, "nonce", "node7", "2", 10, 11, "there:1", has)


FIRST = {CPU: "B D"}


def test_equal_versions_pass():
    check_versions(register(), register(), installed())
    check_versions(register(**FIRST), register(**FIRST), installed())  # whatever the driver's are
    assert WIRE.decode(WIRE.encode(register())) == register()


@pytest.mark.parametrize(
    ("versions", "complaint", "remedy"),
    [
        ({"Python": "3.2"}, r"has Python 3\.2; it should have Python 3", "same environment"),
        ({"PyArrow": "1.0"}, r"has PyArrow 1\.0; it should have PyArrow", "same environment"),
        ({"NumPy": "1.0"}, r"has NumPy 1\.0; it should have NumPy", "same environment"),
        ({"Polars": "0.1"}, r"has Polars 0\.1; it should have ", "same environment"),
        ({"clonos": ""}, r"has no clonos; it should have clonos ", "same environment"),
        ({HASH_SEED: "7"}, r"PYTHONHASHSEED 7; it should have PYTHONHASHSEED 0", "executorEnv"),
        ({HASH_SEED: "random"}, r"PYTHONHASHSEED random: each process", "one number"),
        ({HASH_SEED: ""}, r"no PYTHONHASHSEED: each process", "one number"),
        ({MACHINE: "sparc"}, r"machine sparc; it should have machine ", "one architecture"),
        ({CPU: "A B C"}, r"features of NumPy A B C; it should have .* B D", 'FEATURES to "A C D"'),
    ],
)
def test_another_version_is_named(versions, complaint, remedy):
    with pytest.raises(OtherVersion, match=complaint) as caught:
        check_versions(register(**{**FIRST, **versions}), register(**FIRST), installed())
    assert caught.value.where == "slot 3 on node7"
    assert remedy in caught.value.remedy


def test_hash_seeds_that_are_drawn_are_refused_though_they_are_equal():
    with pytest.raises(OtherVersion, match="order of its own"):
        check_versions(
            register(**{HASH_SEED: "random"}), register(**{HASH_SEED: "random"}), installed()
        )


@pytest.mark.parametrize(
    "what",
    [
        "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version",
        "ModuleNotFoundError: No module named 'clonos'",
        "AttributeError: Can't get attribute 'judge' on <module 'jobs' from '/app/jobs.py'>",
    ],
)
def test_an_executor_where_nothing_can_begin(what):
    found = wrong_environment(SlotFailed(what, where="job: slot 1"))
    assert found is not None
    assert what in found.what
    assert found.where == "job: slot 1"
    assert "spark.pyspark.python" in found.remedy


IN_PYSPARK = (
    '  File "/x/pyspark/serializers.py", line 470, in loads\n    return cloudpickle.loads(obj)\n'
)
IN_OURS = '  File "/x/clonos/runtime/slot.py", line 42, in run\n    loop = SlotLoop(shipment)\n'
UNPACKED = (
    '  File "/x/clonos/spark/packed.py", line 37, in run\n    yield from pickle.loads(packet)\n'
)
USERS = '  File "/app/job.py", line 8, in __setstate__\n    raise ValueError("no")\n'


def raised_in_a_slot(*frames: str) -> Any:
    text = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
    return _slot_failed("job: slot 1", JavaError("", f"{text}{''.join(frames)}ValueError: no\n"))


@pytest.mark.parametrize("before", [(), (IN_PYSPARK,), (IN_PYSPARK, UNPACKED)])
def test_what_users_code_raises_when_it_is_unpickled_is_told_with_its_lines(before):
    found = unreadable(raised_in_a_slot(*before, USERS))
    assert isinstance(found, NotPicklable)
    assert found.where == "job: slot 1"
    assert "cannot be made anew in a slot: ValueError: no" in found.what
    assert str(found).lstrip().startswith("Traceback of your code")
    assert 'job.py", line 8' in found.trace


@pytest.mark.parametrize(
    "frames", [(), (UNPACKED, IN_OURS, USERS), (USERS, IN_PYSPARK), (IN_PYSPARK, UNPACKED)]
)
def test_what_is_raised_elsewhere_is_none_of_that(frames):
    assert unreadable(raised_in_a_slot(*frames)) is None
    assert unreadable(SlotFailed("Python worker exited unexpectedly")) is None
    assert unreadable(None) is None


@pytest.mark.parametrize(
    "said",
    [
        "ImportError: libgfortran.so.5.0.0: failed to map segment from shared object",
        "OSError: [Errno 12] Cannot allocate memory",
        "MemoryError",
    ],
)
def test_what_had_no_memory_to_begin_is_no_fault_of_the_job(said):
    """An import fails in the lines of a library, as if the user's own had raised."""
    library = '  File "/x/numpy/__init__.py", line 8, in <module>\n    import numpy.core\n'
    text = f"Traceback (most recent call last):\n{IN_PYSPARK}{UNPACKED}{library}{said}\n"
    error = _slot_failed("job: slot 1", JavaError("", text))
    found = without_memory(error)
    assert found is not None
    assert "spark.executor.pyspark.memory" in found.what
    assert said in found.what
    assert without_memory(raised_in_a_slot(USERS)) is None
    assert without_memory(None) is None

    inbox = Inbox()
    made = SlotPool.__new__(SlotPool)
    made._launcher = SimpleNamespace(is_stopped=False)  # type: ignore[assignment]
    made._inbox = inbox
    made._on_end(1, 1, error)
    (ended,) = inbox.take()
    assert isinstance(ended.error, SlotFailed)
    inbox.close()


def test_an_executor_that_has_ended_is_told_from_a_slot_that_has():
    spark_says = (
        "Job aborted due to stage failure: Task 0 in stage 9.0 failed 1 times, most recent failure:"
        " Lost task 0.0 in stage 9.0 (TID 12) (127.0.0.1 executor 3): ExecutorLostFailure (executor"
        " 3 exited caused by one of the running tasks) Reason: Command exited with code 137"
    )
    lost = executor_lost(_slot_failed("job: slot 1", JavaError("", spark_says)))
    assert isinstance(lost, ExecutorLost)
    assert "executor 3" in lost.what
    died = "Job aborted due to stage failure: Python worker exited unexpectedly (crashed)"
    assert executor_lost(_slot_failed("job: slot 1", JavaError("", died))) is None
    assert executor_lost(None) is None


@pytest.mark.parametrize("what", ["Python worker exited unexpectedly", "executor 2 lost"])
def test_a_death_is_none_of_that(what):
    assert wrong_environment(SlotFailed(what)) is None
    assert wrong_environment(None) is None


class JavaError(OSError):
    """As PySpark raises what was thrown in the JVM."""

    def __init__(self, condition: str | None, text: str) -> None:
        super().__init__(text)
        self.java_exception = self
        self._condition, self._text = condition, text

    def getCondition(self) -> str | None:  # noqa: N802 - Java's
        return self._condition

    def getMessage(self) -> str:  # noqa: N802 - Java's
        return self._text


def test_who_cancels_is_told_from_what_fails():
    text = "[SPARK_JOB_CANCELLED] Job 2 cancelled as part of cancellation of all jobs"
    cancelled = _slot_failed("job: slot 1", JavaError("SPARK_JOB_CANCELLED", text))
    assert isinstance(cancelled, JobCancelled)
    assert "cancellation of all jobs" in cancelled.what
    assert "checkpoint_dir" in cancelled.remedy
    for condition in (None, "SPARK_TASK_FAILED"):
        failed = _slot_failed("x", JavaError(condition, "Job aborted due to stage failure: dead"))
        assert isinstance(failed, SlotFailed)
    assert isinstance(_slot_failed("x", OSError("the JVM is gone")), SlotFailed)


def test_a_bug_in_the_loop_is_told_from_a_death():
    worker = (
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure:"
        " Lost task 0.0 in stage 3.0 (TID 3): org.apache.spark.api.python.PythonException: "
        "Traceback (most recent call last):\n"
        '  File "loop.py", line 190, in run\n'
        '    raise SlotBroken(f"{type(error).__name__}: {error} ({where})") from None\n'
        "clonos.errors.SlotBroken: KeyError: 3 (resident.py:10)\n"
        "\n\tat org.apache.spark"
    )
    broken = slot_broken(_slot_failed("job: slot 1", JavaError("", worker)))
    assert isinstance(broken, SlotBroken)
    assert broken.what == "KeyError: 3 (resident.py:10)"
    assert broken.where == "job: slot 1"
    for other in (None, SlotFailed("Python worker exited unexpectedly")):
        assert slot_broken(other) is None


def test_a_machine_that_cannot_keep_state_is_told_from_a_death():
    raised = UnusableStore("the folder /mnt: cannot be used: full", where="node7", remedy="give it")
    worker = (
        "Job aborted due to stage failure: Traceback (most recent call last):\n"
        '  File "slot.py", line 40, in run\n'
        f"clonos.errors.UnusableStore: {raised}\n"
        "\n\tat org.apache.spark"
    )
    found = unusable_store(_slot_failed("job: slot 1", JavaError("", worker)))
    assert isinstance(found, UnusableStore)
    assert str(found) == str(raised)
    for other in (None, SlotFailed("Python worker exited unexpectedly")):
        assert unusable_store(other) is None
