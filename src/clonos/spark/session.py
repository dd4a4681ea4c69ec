"""A SparkSession that is set up well for slots (any other session works, too)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from clonos.errors import NeedsSpark, SparkSetup

LOOPBACK: Final = "127.0.0.1"

_SETTINGS: Final = {
    # Of two attempts of a slot at the same time, one would only be stopped.
    "spark.speculation": "false",
    # A slot says nothing to Spark as long as it lives.
    "spark.python.worker.idleTimeoutSeconds": "0",
    # It intercepts signals and writes files that nobody reads.
    "spark.python.worker.faulthandler.enabled": "false",
    # The coordinator has asked a cancelled slot to leave before.
    "spark.python.task.killTimeout": "200ms",
    # One line of progress per running job is drawn over the user's own output.
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}

_CHECKPOINTS: Final = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM: Final = tuple(
    f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"
    for package in ("checkpointing.", "")
)
"""Its name in Spark 4.1 and later, and before."""


def get_or_create(
    master: str = "local[8]",
    app_name: str = "clonos",
    *,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the running session, or a new one that is ready to run slots.

    Parameters
    ----------
    master
        Such as ``"local[8]"`` (eight slots at most) or ``"local-cluster[2,4,1024]"`` (two
        executors of four). With a local master everything stays on the loopback interface.
    app_name
        Shown in Spark's UI.
    config
        Further settings; they win over the ones made here.

    Raises
    ------
    SparkSetup
        The running session is one of Spark Connect.

    Examples
    --------
    >>> spark = get_or_create("local[2]")  # doctest: +SKIP
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        **_SETTINGS,
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": _python_path(),
    }
    if master.startswith("local"):
        # Local executors certainly find clonos; without it, this daemon could start no worker.
        settings["spark.python.daemon.module"] = "clonos.cluster.daemon"
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = LOOPBACK
        # The executors of a local-cluster choose their interface by this.
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    # The executors of a local-cluster are started with it; a JVM reads it once, at its start.
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    require_driver(spark)
    _quieten(spark)
    if master.startswith("local") and spark.conf.get(_CHECKPOINTS, None) is None:
        _hasten_checkpoints(spark)
    return spark


def active() -> SparkSession:
    """The session of this process.

    Raises
    ------
    NeedsSpark
        There is none.
    """
    # A thread other than the one that made the session has no active one.
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001
    if spark is None:
        raise NeedsSpark(
            "there is no Spark session",
            remedy="create one first: clonos.spark.session.get_or_create()",
        )
    return spark


def is_connected(spark: Any) -> bool:
    """Whether a session is one of Spark Connect: its driver is somewhere else."""
    return not hasattr(spark, "_jsparkSession")


def require_analysis(spark: Any, where: str = "") -> None:
    """Make sure that a session shows how it understands a column expression.

    Raises
    ------
    SparkSetup
        It is one of Spark Connect.
    """
    if is_connected(spark):
        raise SparkSetup(
            "Spark Connect does not show how it has understood a column expression, and tasks "
            "compute it from that",
            where=where,
            remedy="write it on the DataFrame before job.source(df), or on the result of "
            'to_dataframe(execution="spark"); or define the job in a classic session',
        )


def require_driver(spark: Any) -> None:
    """Make sure that the driver of a session is this process.

    Raises
    ------
    SparkSetup
        It is one of Spark Connect, says what is missing there and what to do.
    """
    if is_connected(spark):
        raise SparkSetup(
            "a Spark Connect session has no driver in this process: a job starts and cancels "
            "Spark jobs through its SparkContext and listens beside it, and Connect offers neither",
            remedy="use a classic session (with a master, not remote(), and without SPARK_REMOTE), "
            "where Spark's driver runs; clonos.causal works with Spark Connect, too",
        )


_REPORTED_BY_US: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.scheduler.TaskSchedulerImpl",
)
"""Spark logs a page about every slot that dies. Our events say it in one line."""


def _quieten(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - log4j has no other way in
    log4j = jvm.org.apache.logging.log4j
    for name in _REPORTED_BY_US:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def _hasten_checkpoints(spark: SparkSession) -> None:
    """Let streaming queries write what they commit without starting other processes.

    Without Hadoop's native library, Spark's usual way runs `chmod` and `readlink` several times for
    each micro-batch, which takes longer than the micro-batch. The files are the same.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - only Java knows which classes it has
    for name in _BY_FILE_SYSTEM:
        with suppress(Py4JJavaError):
            jvm.java.lang.Class.forName(name)
            spark.conf.set(_CHECKPOINTS, name)
            return


def _python_path() -> str:
    """The path on which workers find this clonos when it runs from a source tree."""
    home = str(Path(__file__).resolve().parents[2])
    already = os.environ.get("PYTHONPATH", "")
    paths = [path for path in already.split(os.pathsep) if path]
    if "site-packages" not in home and home not in paths:
        paths.insert(0, home)
    return os.pathsep.join(paths)
