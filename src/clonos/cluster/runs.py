"""Jobs that are started, or run to their end."""

from __future__ import annotations

from typing import Any

from clonos.cluster.driver import RunningJob
from clonos.cluster.not_ended import so_far, stopped
from clonos.cluster.pool import SlotPool
from clonos.cluster.result import JobResult
from clonos.errors import NotEnded, SparkStopped, WrongType
from clonos.graph.compile import CompiledJob
from clonos.spark.slots import SPARK_ERRORS, is_stopped


def start_job(compiled: CompiledJob, spark: Any = None, **options: Any) -> RunningJob:
    """Start a compiled job on a Spark session (the active one, or a new local one)."""
    from clonos.spark.session import get_or_create, require_driver

    if spark is None:
        needed = SlotPool.count(compiled, options.get("standby_slots"))
        spark = get_or_create(f"local[{needed}]")
    if not hasattr(spark, "createDataFrame"):
        raise WrongType(
            f"{spark!r} is not a Spark session",
            where=compiled.name,
            remedy='give one, such as clonos.spark.session.get_or_create("local[8]")',
        )
    require_driver(spark)
    try:
        if not is_stopped(spark.sparkContext):
            return RunningJob(compiled, spark, **options).start()
    except (*SPARK_ERRORS, AttributeError):  # an attribute is missing where PySpark has stopped
        if not is_stopped(spark.sparkContext):
            raise
    raise SparkStopped(
        "the Spark session was stopped before the job had started",
        where=compiled.name,
        remedy="give a new one, such as SparkSession.builder.getOrCreate()",
    )


def run_job(
    compiled: CompiledJob, spark: Any = None, *, timeout_s: float | None = None, **options: Any
) -> JobResult:
    """Start a job and wait for its end; interrupting the wait stops the job.

    Raises
    ------
    NotEnded
        It had not ended in time, and was stopped.
    """
    return to_its_end(start_job(compiled, spark, **options), timeout_s)


def to_its_end(running: RunningJob, timeout_s: float | None) -> JobResult:
    """Wait for the end of a job, which nobody else waits for: it is stopped after this time."""
    try:
        return running.wait(timeout_s)
    except NotEnded:
        how_far = so_far(running)
    except BaseException:
        if running.is_running:  # somebody has interrupted the wait
            running.stop()
        raise
    running.stop()
    if (has_ended := not running.is_running) and (result := running.wait()).is_complete:
        return result  # it came to its end just then
    raise stopped(running, timeout_s or 0.0, how_far, has_ended=has_ended)
