"""Slots: long-running processes borrowed from Spark, one small Spark job each.

A slot is a Python worker of an executor that runs one function, the slot's *body*, for as long as
it likes. Each slot is a job of its own, so that the end of one (its process is killed, its executor
is lost) never ends another, whatever the session's failure limits are. Where a cluster's
``spark.task.maxFailures`` lets Spark start the task of a failed slot again by itself, the body
runs anew with another ``attempt`` and ``nonce``; when Spark gives up, `on_end` is called.

All slots that read the same DataFrame share its RDD, and each runs one partition: Spark computes
its shuffles once, however often slots are launched again. A task learns from a local property of
its job which slot it is.

The body runs in the worker process itself, which Spark forked from a daemon that never loads gRPC.
A slot without a DataFrame leaves its input unread, so its worker exits after it. Spark reuses a
worker that has read its partition to the end; this does no harm, because the body has closed what
it opened.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import takewhile
from typing import Any, Final
from weakref import WeakSet

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.resource import ResourceProfile
from pyspark.sql import DataFrame, SparkSession

from clonos.errors import ClonosError, JobCancelled, NotEnoughSlots, SparkSetup
from clonos.spark.errors import SlotFailed
from clonos.spark.identity import SLOT, SlotInfo, slot_info
from clonos.spark.lines import Lines
from clonos.spark.ready import Ready, ReadyThread, Successors
from clonos.spark.resources import SlotResources, Taken
from clonos.spark.session import LOOPBACK, require_driver

EXECUTORS_WAIT_S: Final = 15.0
"""How long to wait, before slots count as missing, for a young application's executors to appear
and for ended tasks to leave Spark's count, which is updated at the latest by a heartbeat, every 10
s."""

_KILLS_IDLE: Final = "spark.sql.execution.pyspark.udf.killOnIdleTimeout"
"""Kills workers that send nothing to Spark; slots never do."""

_KILLS_ANY_IDLE: Final = "spark.python.worker.killOnIdleTimeout"
"""The same for RDDs without a plan of Spark SQL; a setting of the application, which cannot be
changed."""

_SETTINGS_LOCK: Final = threading.Lock()

END_S: Final = 5.0
"""How long slots may take to end, when nobody waits for them, before they are cancelled."""
STARTED_S: Final = 5.0
"""How long after a slot's first launch the next one is prepared: when the job has started."""
AGAIN_S: Final = 1.0
"""How long after each later one: when its task is live."""

CANCELLED: Final = "SPARK_JOB_CANCELLED"
"""Condition of the error that Spark raises for a cancelled job."""

_GROUP: Final = "spark.jobGroup.id"
_AFTER: Final = "spark.speculation.task.duration.threshold"
"""How long a task takes before Spark starts a copy of it, if it has no others to compare with."""

_INHERITED: Final = (_GROUP, "spark.scheduler.pool")
"""Local properties that a job's Spark jobs inherit from the thread that starts it."""


SPARK_ERRORS: Final = (Py4JError, PySparkException, OSError)
"""What PySpark raises when something fails in the JVM, or the JVM is gone."""

Batches = Iterator[pa.RecordBatch]
Body = Callable[[SlotInfo, "Batches | None"], None]
OnEnd = Callable[[int, int, "ClonosError | None"], None]


class SlotHandle:
    """A launched slot, as the driver sees it."""

    def __init__(self, tag: str, cancel: Callable[[str], None]) -> None:
        self.tag = tag
        self.cancelled = False
        self._cancel = cancel
        self._ended = threading.Event()

    @property
    def is_running(self) -> bool:
        """Whether its Spark job has not ended."""
        return not self._ended.is_set()

    def cancel(self) -> None:
        """Have Spark end the slot's job; `on_end` then gets no error.

        Its worker process is killed, also if it is frozen.
        """
        self.cancelled = True
        if self.is_running:
            with contextlib.suppress(Py4JError, OSError, AttributeError):  # Spark has stopped
                self._cancel(self.tag)

    def set_ended(self) -> None:
        """For the launcher: its job has ended."""
        self._ended.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of its job; True if it has ended."""
        return self._ended.wait(timeout_s)


class SlotLauncher:
    """Runs slots in the Spark application of a session.

    Parameters
    ----------
    spark
        A session with a driver in this process (not Spark Connect).
    name
        The name of the job; Spark's UI shows "`name`: slot 3".
    group
        Job group of the slots' Spark jobs, if the calling thread has not set one.
    on_end
        Called with (slot, attempt, error or None) from the slot's own thread when its Spark job is
        over. Launching the slot again from there is fine.
    profile
        Resource profile of the slots.

    Attributes
    ----------
    retries
        Whether Spark starts the task of a slot again by itself if it fails.

    Raises
    ------
    SparkSetup
        The session speculates, has no driver here, or permits no such profile.

    Examples
    --------
    >>> launcher = SlotLauncher(spark, "wordcount", on_end=print)  # doctest: +SKIP
    >>> launcher.require(4)  # doctest: +SKIP
    >>> launcher.launch(0, lambda info, batches: print(info.pid))  # doctest: +SKIP
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        on_end: OnEnd,
        group: str = "",
        profile: ResourceProfile | None = None,
    ) -> None:
        self._driver_host = driver_address(spark)
        self._spark = spark
        self._context = spark.sparkContext
        self._name = name
        self._on_end = on_end
        self._marks = {_GROUP: group or None}
        for key in _INHERITED:
            self._marks[key] = self._context.getLocalProperty(key) or self._marks.get(key)
        self._tags = self._context.getJobTags()
        self._lines = Lines(self._context, self.describe)
        self._handles: list[SlotHandle] = []
        self._successors = Successors(STARTED_S, AGAIN_S)
        self._prepared: dict[tuple[int, int], tuple[Body, DataFrame | None, Any]] = {}
        self._preparing = threading.Lock()
        # A slot is a job of one task, which Spark only copies if it is told after which time.
        if self._setting("spark.speculation", "false") == "true" and self._setting(_AFTER, ""):
            raise SparkSetup(
                f"spark.speculation with {_AFTER} would start second copies of slots",
                remedy=f"create the session without {_AFTER}, or with spark.speculation=false",
            )
        self._resources = SlotResources(spark, profile)
        self.retries = self._retries()
        _LAUNCHERS.add(self)

    def _retries(self) -> bool:
        if self.is_local:  # "local[4,2]": two attempts
            _, _, attempts = (self._context.master or "").partition(",")
            return attempts.strip(" ]") not in {"", "1"}
        return self._setting("spark.task.maxFailures", "4") != "1"

    def _setting(self, key: str, default: str) -> str:
        return (self._context.getConf().get(key) or default).lower()

    @property
    def is_stopped(self) -> bool:
        """See :func:`is_stopped`."""
        return is_stopped(self._context)

    # --- capacity ---

    def _cores(self) -> tuple[int | None, int]:
        """For how many slots there is room (None: unlimited), and how many of these are used."""
        taken = [(each.running, each.cpus) for each in _LAUNCHERS if each.is_in(self._context)]
        slots = sum(running for running, _ in taken)
        cores = sum((running * cpus for running, cpus in taken), Decimal(0))
        return self._resources.room(self._resources.executors(), Taken(slots, cores))

    def executors_with_room(self) -> set[str]:
        """The executors that could run one more slot now, by Spark's names."""
        return {e.name for e in self._resources.executors() if self._resources.fits(e)}

    @property
    def running(self) -> int:
        """How many of its slots have not ended. Spark's own count may be some tasks late."""
        return sum([handle.is_running for handle in self._handles])

    @property
    def cpus(self) -> Decimal:
        """Cores per slot."""
        return self._resources.cpus

    def is_in(self, context: Any) -> bool:
        """Whether its slots are of this Spark application."""
        return self._context is context

    def require(self, count: int, *, cores: int = 0, leaving: int = 0) -> None:
        """Make sure that `count` more slots can run; waits for executors, and for tasks that are
        ending.

        Parameters
        ----------
        cores
            Further cores, for streaming queries that feed the job.
        leaving
            How many slots will make room for these, which wait for that.

        Raises
        ------
        NotEnoughSlots
            They cannot; the error says for how many there is room and what to set.
        """
        needed, began = count + self._resources.in_slots(cores), time.monotonic()
        also = " and a core for the streaming queries that feed them" if cores else ""
        while True:
            capacity, active = self._cores()
            if capacity is None or (free := max(0, capacity - active + leaving)) >= needed:
                return
            # No core is added to a local master; but what has ended may still be counted.
            patience_s = 0.0 if self.is_local and capacity < needed else EXECUTORS_WAIT_S
            if time.monotonic() > began + patience_s:
                each = "" if self._resources.profile is None else f" of {self.cpus} cores each"
                there = f"{free} of Spark's cores are free"
                raise NotEnoughSlots(
                    f"{count} slots{each}{also} are needed and "
                    + (f"there is room for {free}" if each else there),
                    where=self._name,
                    remedy=self._remedy(needed, free, capacity),
                )
            time.sleep(0.1)

    @property
    def is_local(self) -> bool:
        """Whether the only executor is the driver."""
        return is_local(self._spark)

    def _remedy(self, count: int, free: int, capacity: int) -> str:
        if self.is_local:
            wanted = capacity + count - free  # with what else the application runs
            return (
                f"create the session with master local[{wanted}] or more (slots mostly wait: more"
                " of them than the machine has cores is fine), or lower parallelism or standbys"
            )
        more = -int(-(count - free) * self.cpus // 1)
        return (
            f"give the application {more} more cores (spark.executor.instances,"
            " spark.executor.cores, spark.cores.max), stop what else it runs, let a slot take less"
            " than a core (profile=), or lower parallelism or standbys"
        )

    # --- launching ---

    def launch(
        self,
        slot_id: int,
        body: Body,
        dataframe: DataFrame | None = None,
        partition: int | None = None,
        description: str = "",
        attempt: int = 0,
    ) -> SlotHandle:
        """Start a slot; returns at once, its body starts when Spark has a core for it.

        Parameters
        ----------
        slot_id
            The slot's number, for SlotInfo and `on_end`.
        body
            ``body(info, batches)``, shipped to the executor; when it returns, the slot ends.
        dataframe, partition
            Give the body the rows of this partition of a DataFrame (else ``batches`` is None).
        description
            For Spark's UI, after the job's name and the slot's number.
        attempt
            For `on_end`.
        """
        text = f"{self._name}: slot {slot_id}" + (f" ({description})" if description else "")

        def make() -> ReadyThread:
            tag = f"clonos-slot-{slot_id}-{secrets.token_hex(4)}"

            def begin() -> Callable[[], None]:
                self._label(slot_id, tag, text)
                return self._job(self.prepare(body, dataframe), partition or 0)

            return ReadyThread(tag, begin)

        what = (id(body), id(dataframe), partition, text)
        thread = self._successors.take(slot_id, what) or make()
        handle = SlotHandle(thread.name, self._context.cancelJobsWithTag)

        def work(ready: Ready) -> None:
            error: ClonosError | None = None
            try:
                begin = ready()
                if not handle.cancelled:  # else Spark had no job to cancel yet
                    begin()
            except (*SPARK_ERRORS, AttributeError) as failure:
                # An attribute is missing where PySpark has stopped meanwhile.
                error = None if handle.cancelled else _slot_failed(text, failure)
            finally:
                handle.set_ended()
                self._on_end(slot_id, attempt, error)

        self._handles = [other for other in self._handles if other.is_running] + [handle]
        thread.do(work)
        self._successors.ask(slot_id, what, make)
        return handle

    def prepare(self, body: Body, dataframe: DataFrame | None = None) -> Any:
        """Make, once, the RDD that runs `body` over a DataFrame (None: over nothing).

        Raises
        ------
        PySparkException
            The DataFrame cannot be computed.
        """
        from clonos.spark.packed import packed  # slots do not need it

        key = (id(body), id(dataframe))
        with self._preparing:
            if key not in self._prepared:
                run = packed(_task(self._driver_host, body, reads=dataframe is not None))
                self._prepared[key] = (body, dataframe, self._rows(run, dataframe))
            return self._prepared[key][2]

    def _rows(self, run: Callable[[Any], Batches], dataframe: DataFrame | None) -> Any:
        """An RDD without rows that runs a function. Without a DataFrame it needs no plan, which
        saves seconds if driver and executors have made none yet."""
        profile = self._resources.profile
        if dataframe is None:
            if self._setting(_KILLS_ANY_IDLE, "false") == "false":
                one: Any = self._context.parallelize([None], 1)
                if profile is not None:
                    one = one.withResources(profile)
                return one.mapPartitions(run)._jrdd  # noqa: SLF001 - see _job
            dataframe = self._spark.range(0, 1, 1, 1)
        with _without_idle_killer(dataframe.sparkSession):
            none = dataframe.mapInArrow(run, "nothing boolean", profile=profile)
            return none.rdd._jrdd  # noqa: SLF001 - see _job

    def _label(self, slot_id: int, tag: str, text: str) -> None:
        """Mark this thread's jobs; a thread's marks are Spark's "local properties"."""
        context = self._context
        self.describe(text)
        context.clearJobTags()
        for each in (*self._tags, tag):
            context.addJobTag(each)
        context.setInterruptOnCancel(interruptOnCancel=True)
        context.setLocalProperty(SLOT, str(slot_id))

    def describe(self, text: str) -> None:
        """Describe, and group, the Spark jobs that this thread will start."""
        for key, value in self._marks.items():
            self._context.setLocalProperty(key, value)  # type: ignore[arg-type]
        self._context.setJobDescription(text)

    def show(self, about: str, text: str) -> None:
        """Put a line among the jobs of Spark's UI, soon; see :mod:`clonos.spark.lines`."""
        self._lines.put(about, f"{self._name}: {text}")

    def close(self) -> None:
        """Stop updating Spark's UI, and end the threads that wait; slots that have not ended soon
        are cancelled."""
        self._lines.close()
        self._successors.close()
        if late := [handle for handle in self._handles if handle.is_running]:
            timer = threading.Timer(END_S, _cancel, [late])
            timer.daemon = True
            timer.start()

    def _job(self, rows: Any, partition: int) -> Callable[[], None]:
        """A job that runs one partition to its end.

        This is what SparkContext.runJob does, without its function on the resulting rows: that
        would occupy a second Python worker per slot, and there are no rows.
        """
        jvm, java_context = self._context._jvm, self._context._jsc  # noqa: SLF001 - see above
        if jvm is None or java_context is None:
            raise OSError("the SparkContext has been stopped")
        # The union (with nothing) is an RDD of this job's own: when a job fails, Spark also fails
        # all others that contain its last RDD.
        own, partitions = rows.union(java_context.emptyRDD()), jvm.java.util.ArrayList()
        partitions.add(partition)
        return partial(jvm.PythonRDD.runJob, java_context.sc(), own, partitions)


def _cancel(handles: Sequence[SlotHandle]) -> None:
    for handle in handles:
        handle.cancel()


_LAUNCHERS: Final[WeakSet[SlotLauncher]] = WeakSet()
"""All launchers of this process: jobs of one application share its executors."""


@contextlib.contextmanager
def _without_idle_killer(spark: SparkSession) -> Iterator[None]:
    """Change a setting of the user's session for the moment in which Spark reads it."""
    with _SETTINGS_LOCK:
        before = spark.conf.get(_KILLS_IDLE, None)
        spark.conf.set(_KILLS_IDLE, "false")
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(_KILLS_IDLE)
            else:
                spark.conf.set(_KILLS_IDLE, before)


def _task(driver_host: str, body: Body, *, reads: bool) -> Callable[[Any], Batches]:
    """The function that Spark runs; it holds only those objects of the driver that are named
    here."""

    def run(batches: Batches) -> Batches:
        body(slot_info(driver_host, reads=reads), batches if reads else None)
        yield from ()

    return run


def _slot_failed(where: str, failure: BaseException) -> ClonosError:
    if _condition(failure) == CANCELLED:
        return cancelled(where, failure)
    text, trace = f"the slot's Spark job has failed: {in_short(failure)}", _traceback(failure)
    return SlotFailed(text, where=where, trace=trace)


def cancelled(where: str, failure: BaseException) -> JobCancelled:
    """The error of a job whose Spark jobs somebody has cancelled."""
    text = in_short(failure)
    if CANCELLED not in text:  # a query wraps it in a consequent error
        text = str(failure)
    found = re.search(rf"\[{CANCELLED}\] (.*?) *(?:SQLSTATE.*)?$", text, re.MULTILINE)
    return JobCancelled(
        f"somebody has cancelled it in Spark: {found[1] if found else in_short(failure)}",
        where=where,
        remedy="start the job again: with a checkpoint_dir it goes on where it was",
    )


def _condition(failure: BaseException) -> str | None:
    """Spark's name for what happened, if it has one."""
    with contextlib.suppress(AttributeError, *SPARK_ERRORS):
        found: str | None = failure.java_exception.getCondition()  # type: ignore[attr-defined]
        return found
    return None


def _lines(failure: BaseException) -> list[str]:
    cause = getattr(failure, "java_exception", None)
    return str(cause.getMessage() if cause is not None else failure).splitlines()


def _traceback(failure: BaseException) -> str:
    """The traceback of what was raised in the worker; "" if Spark tells of none."""
    lines = iter(_lines(failure))
    if not any("Traceback (most recent call last)" in line for line in lines):
        return ""
    frames = list(takewhile(lambda line: line.startswith(" "), lines))
    return "\n".join(["Traceback (most recent call last):", *frames, in_short(failure)])


def in_short(failure: BaseException) -> str:
    """Say in one line what a Java stack trace says in a hundred."""
    lines = _lines(failure)
    if any("Traceback (most recent call last)" in line for line in lines):
        # The first line after the traceback's indented ones is what the body raised.
        start = next(i for i, line in enumerate(lines) if "Traceback (most" in line)
        reason = next((line for line in lines[start + 1 :] if line and line[0] != " "), lines[0])
    else:
        first = lines[0] if lines else type(failure).__name__
        reason = first.rpartition("Exception: ")[2].partition(" Consider setting")[0]
    return reason[:300]


def is_stopped(context: Any) -> bool:
    """Whether the Spark application of a SparkContext is over."""
    try:
        java_context = context._jsc  # noqa: SLF001 - None once it is stopped from Python
        return java_context is None or bool(java_context.sc().isStopped())
    except (Py4JError, OSError):
        return True  # the JVM itself is gone


def is_local(spark: SparkSession) -> bool:
    """Whether a session's only executor is its driver."""
    master = spark.sparkContext.master or ""
    return master == "local" or master.startswith("local[")


def driver_address(spark: SparkSession) -> str:
    """The address of the interface on which executors reach the driver.

    With a local master, or a local-cluster, everything is on this machine: the loopback one.

    Raises
    ------
    SparkSetup
        The session has no driver here, or its host name leads nowhere.
    """
    require_driver(spark)
    context = spark.sparkContext
    if (context.master or "").startswith("local"):
        return LOOPBACK
    # Spark writes addresses of IPv6 in brackets, and takes no others.
    host = (context.getConf().get("spark.driver.host") or LOOPBACK).strip("[]")
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise SparkSetup(
            f"the driver's host {host!r} has no address: {error}",
            remedy="set spark.driver.host to the address of the interface that executors reach",
        ) from error
