"""Running one job to measure it: session, watch, end."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import clonos
from clonos.cluster.driver import RunningJob
from clonos.errors import ClonosError
from clonos.spark.session import get_or_create
from clonos_bench.jobs import Schedule
from clonos_bench.processes import CpuMeter
from clonos_bench.watch import Watch

FILL_S: Final = 600.0
"""State has to be there within this time."""
LOOK_S: Final = 0.02
"""How often a measurement looks at its job."""

_END_S: Final = 30


@contextlib.contextmanager
def session(master: str, *, config: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A Spark session of its own: an earlier one may have too few cores for this job.

    With settings of its own (of the heap, say) it has a virtual machine of its own, too: one that
    runs cannot be given others, nor should it keep these for who comes next.
    """
    from pyspark.sql import SparkSession

    earlier = SparkSession.getActiveSession()
    if earlier is not None:
        earlier.stop()
    if config:
        end_jvm()
    spark = get_or_create(master, "clonos-bench", config=config)
    spark.range(1).count()  # Spark's own start belongs to no measurement
    try:
        yield spark
    finally:
        spark.stop()
        if config:
            end_jvm()


def end_jvm() -> None:
    """End the virtual machine that PySpark keeps for the next session, if there is one."""
    from pyspark import SparkContext

    # Nothing public ends it: PySpark keeps it for as long as Python runs.
    running, gateway = SparkContext._active_spark_context, SparkContext._gateway  # noqa: SLF001
    if running is not None:
        running.stop()
    if gateway is not None:
        process: Any = getattr(gateway, "proc")  # noqa: B009 - its type knows nothing of it
        gateway.shutdown()
        process.stdin.close()  # it leaves when it sees this
        process.wait(_END_S)
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


@contextlib.contextmanager
def running(
    job: clonos.Job, spark: Any, schedule: Schedule | None = None, **options: Any
) -> Iterator[tuple[RunningJob, Watch]]:
    """A started job and what it delivers; stopped in the end if it has not ended by itself.

    With a schedule, rows are as late as they come out after they were due.
    """
    started = RunningJob(job.compile(), spark, **options)
    watch = Watch(started, schedule)
    started.start()
    try:
        yield started, watch
    finally:
        if started.is_running:
            started.stop()


@contextlib.contextmanager
def paced(rate: float, at_once: int = 0) -> Iterator[Schedule]:
    """A schedule with a folder of its own; rows come until its ``stop`` exists."""
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        yield Schedule(rate, at_once, folder)


def until(
    job: RunningJob, watch: Watch, condition: Callable[[], bool], timeout_s: float, what: str
) -> None:
    """Watch until something is the case.

    Raises
    ------
    ClonosError
        The job has failed, or it takes too long.
    """
    give_up = time.monotonic() + timeout_s
    while not condition():
        if not job.is_running:
            job.wait(0)  # raises why it has failed
            watch.drain()
            if condition():
                return
            raise ClonosError(f"the job ended before this: {what}")
        if time.monotonic() > give_up:
            raise ClonosError(
                f"not within {timeout_s:g} s: {what}",
                remedy="use a quieter machine, a lower --rate, or less state",
            )
        watch.drain()
        time.sleep(LOOK_S)
    watch.drain()


def all_live(job: RunningJob) -> bool:
    """Whether every task is live and has its standbys."""
    tasks = job.tasks()
    kept = [name for slot in job.slots() for name in slot.keeps]
    wanted = job.options.standbys
    return all(t.phase == "live" and kept.count(t.name) >= wanted for t in tasks)


@dataclass(frozen=True)
class Used:
    """What it took to deliver some rows, in seconds. ``cpu_s``: of all slots, standbys included."""

    wall_s: float
    cpu_s: float
    driver_cpu_s: float


def time_all(
    job: RunningJob, watch: Watch, delivered: Callable[[], int], rows: int, timeout_s: float
) -> Used:
    """Measure from when all tasks are live until all `rows` are delivered.

    To begin later, with the first rows delivered, would leave out what the source and the tasks
    behind it had done by then: their queues hold millions of rows.
    """
    live = lambda: all(t.phase in {"live", "finished"} for t in job.tasks())  # noqa: E731
    until(job, watch, live, timeout_s, "all tasks are live")
    slots, driver = CpuMeter(), CpuMeter()
    began = time.monotonic()

    def complete() -> bool:
        slots.look(slot.pid for slot in job.slots())
        driver.look([os.getpid()])
        return delivered() >= rows

    until(job, watch, complete, timeout_s, "all rows are delivered")
    used = Used(time.monotonic() - began, slots.seconds, driver.seconds)
    job.wait(60)
    watch.drain()
    if delivered() != rows:
        raise ClonosError(f"{delivered()} rows were delivered, not {rows}")
    return used


def report_arguments(parser: argparse.ArgumentParser) -> None:
    """What all measurements understand."""
    add = parser.add_argument
    add("--out", default="out/bench", help="where the results go, a folder per measurement")
    add("--markdown", action="store_true", help="print tables as Markdown")


def common_arguments(parser: argparse.ArgumentParser) -> None:
    """What all measurements of jobs understand."""
    report_arguments(parser)
    add = parser.add_argument
    add("--parallelism", type=int, default=2, help="tasks per operator")
    add("--profile", action="store_true", help="profile the slots (slows everything down)")


def state_arguments(parser: argparse.ArgumentParser, *, state_mb: float) -> None:
    """The keyed state of the job."""
    add = parser.add_argument
    add("--state-mb", type=float, default=state_mb, help="keyed state, all tasks together")
    add("--value-bytes", type=int, default=1000, help="state per key")
    add("--checkpoint-ms", type=int, default=200, help="time between checkpoints; 0: auto")
    add("--linger-ms", type=float, default=10.0, help="how long a source collects a batch")


def keys_of(arguments: argparse.Namespace) -> int:
    """How many keys make up the state that was asked for."""
    keys: int = round(arguments.state_mb * 1e6 / arguments.value_bytes)
    return max(1, keys)


def folder(arguments: argparse.Namespace, name: str) -> Path:
    """Where a measurement's files go; processes of executors have other working directories."""
    out = (Path(arguments.out) / name).absolute()
    out.mkdir(parents=True, exist_ok=True)
    return out


@contextlib.contextmanager
def profiled(arguments: argparse.Namespace, out: Path) -> Iterator[None]:
    """While this lasts, slots that are started write profiles (see :mod:`clonos_bench.profile`)."""
    from clonos_bench import profile

    if not arguments.profile:
        yield
        return
    raw = out / "profiles"
    profile.clear(raw)
    os.environ[profile.VARIABLE] = str(raw.absolute())
    try:
        yield
    finally:
        del os.environ[profile.VARIABLE]
        profile.write_text(raw, out / "profile.txt")
