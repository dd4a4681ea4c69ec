"""Starts and stops the log of a job, in its driver."""

from __future__ import annotations

import ipaddress
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from py4j.protocol import Py4JError

from clonos.causal import process
from clonos.causal.holder import LogAccess
from clonos.causal.process import RUN_PROPERTY
from clonos.causal.server import LogServer
from clonos.errors import DefinitionError
from clonos.errors.causal import UnsupportedQuery, UnsupportedSession
from clonos.storage.files import Durability

BYTES_MAX: Final = 1 << 30
PATIENCE_S: Final = 600.0
LOOPBACK: Final = "127.0.0.1"


class Log:
    """The running log of this driver: made by :func:`start`.

    As a context manager it ends the run: after success its answers are forgotten, after an
    exception they are kept for the next start.
    """

    def __init__(self, spark_context: Any, server: LogServer | None, access: LogAccess) -> None:
        self.run = access.run
        self._spark_context = spark_context
        self._server = server
        self._holder = access.holder()
        process.connect(access, spark_context)

    @property
    def nbytes(self) -> int:
        """Bytes of answers held by this driver; 0 if PostgreSQL holds them."""
        return 0 if self._server is None else self._server.nbytes

    @contextmanager
    def batch(self, name: str) -> Iterator[None]:
        """A part of a batch job, like a micro-batch of a streaming query.

        Answers in Spark jobs that this thread starts in the block are kept under this name. At the
        end of the block the part is done, and they are forgotten. If the block raises, the next
        start with this name gets the same answers.

        Examples
        --------
        >>> with log.batch("2024-06-01"):  # doctest: +SKIP
        ...     enrich(day).write.parquet("out/2024-06-01")
        """
        context, run = self._spark_context, f"{self.run}/{name}"
        if context is None:
            raise UnsupportedSession(
                "a Spark Connect session cannot tell its tasks which part of the job they are",
                remedy="give each part a run of its own: causal.start(spark, directory, run=...)",
            )
        before = context.getLocalProperty(RUN_PROPERTY)
        context.setLocalProperty(RUN_PROPERTY, run)
        try:
            yield
        finally:
            context.setLocalProperty(RUN_PROPERTY, before)
        self.forget(run)

    def done(self) -> None:
        """The run is complete: forget its answers."""
        self.forget(self.run)

    def forget(self, scope: str) -> None:
        """Forget all answers of a run, or of a streaming query (by its id)."""
        self._holder.forget(scope)

    def stop(self) -> None:
        """Stop the log; its answers stay in the directory."""
        process.connect(None)
        self._holder.close()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.done()
        self.stop()


def start(
    spark: Any,
    directory: str | Path | None = None,
    *,
    store: str | None = None,
    run: str | None = None,
    host: str | None = None,
    bytes_max: int = BYTES_MAX,
    durability: Durability = "fsync",
    patience_s: float = PATIENCE_S,
    tls: bool | None = None,
) -> Log:
    """Start the log of this driver. Functions handed to Spark from now on use it.

    Parameters
    ----------
    spark
        The running session.
    directory
        A directory on a disk that survives the driver. If the log is started with it again, a run
        or query gets the same answers.
    store
        Instead of `directory`: ``"postgresql://..."``. Executors talk to the database directly.
    run
        The name under which batch jobs' answers are kept; by default the application's name.
        Streaming queries have their own ids.
    host
        The address at which executors reach the driver. By default loopback for local masters,
        otherwise the driver's host.
    bytes_max
        The largest size of uncommitted answers; beyond it calls are refused.
    durability
        ``"fsync"``: answers survive the machine. ``"process"``: only the death of processes.
    patience_s
        How long a speculative copy of a task waits for the other attempt if that is alive but gets
        no answers.
    tls
        Encrypt connections to the log. By default, if `host` is not a loopback address.

    Raises
    ------
    UnsupportedSession
        `spark` is not a session; or it is one of Spark Connect (the log is beside the client)
        without `run` and `host`, or with :meth:`Log.batch`.
    JournalInUse
        Another driver uses this directory.

    Examples
    --------
    >>> from clonos import causal
    >>> causal.start("no session", "answers")
    Traceback (most recent call last):
        ...
    clonos.errors.causal.UnsupportedSession: 'str' is not a Spark session...
    """
    context = _spark_context(spark)
    _check_place(directory, store)
    if context is None:
        host = _connect_host(spark, run, LOOPBACK if store else host)
    access = LogAccess(run or context.appName, secrets.token_hex(4), patience_s)
    if store is not None:
        return Log(context, None, replace(access, dsn=store, bytes_max=bytes_max))
    assert directory is not None
    server = LogServer(
        directory,
        host or _driver_host(context),
        bytes_max=bytes_max,
        durability=durability,
        tls=tls,
        judge=_Queries(spark),
    )
    return Log(context, server, server.reached_by(access))


class _Queries:
    """Checks streaming queries, at each of their batches."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._executions: dict[str, str] = {}

    def __call__(self, scope: str, batch: int) -> None:
        """Refuse a query whose next batch may begin before the last one's commit is durable.

        The option shows only in the class with which Spark executes the query. Tasks may outlive a
        failed query, so the class last seen is used for them.
        """
        execution = self._execution(scope) or self._executions.get(scope, "")
        self._executions[scope] = execution
        if "AsyncProgressTracking" in execution:
            raise UnsupportedQuery(
                f"the streaming query {scope} runs with asyncProgressTrackingEnabled: Spark begins "
                "a batch before the commit of the last one is durable, so answers could be "
                "forgotten that a restart needs",
                remedy="start the query without the option asyncProgressTrackingEnabled",
            )

    def _execution(self, scope: str) -> str:
        """The name of the class that executes a query; "" if unknown."""
        try:
            query = uuid.UUID(scope)  # else it is a batch job's run
            active = self._spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
            java_id = self._spark._jvm.java.util.UUID.fromString(str(query))  # noqa: SLF001
            return str(active.get(java_id).getClass().getSimpleName())
        except (ValueError, AttributeError, TypeError, Py4JError, OSError):
            return ""  # Spark Connect, another version of Spark, or Spark or the query is over


def _check_place(directory: str | Path | None, store: str | None) -> None:
    if (directory is None) == (store is None):
        raise DefinitionError(
            "the log needs a directory or a store, and not both",
            where="causal.start",
            remedy='causal.start(spark, "/data/answers") or store="postgresql://..."',
        )
    if process.access() is not None:
        raise DefinitionError(
            "this driver has a log already", where="causal.start", remedy="stop it: log.stop()"
        )


def _spark_context(spark: Any) -> Any:
    from pyspark.sql import SparkSession

    if isinstance(spark, SparkSession):
        return spark.sparkContext
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return None
    raise UnsupportedSession(
        f"{type(spark).__name__!r} is not a Spark session", remedy="pass the SparkSession"
    )


def _connect_host(spark: Any, run: str | None, host: str | None) -> str:
    """The address of the log beside a Spark Connect client."""
    is_local = getattr(spark.client, "host", "") in {"localhost", LOOPBACK}
    missing = ["run"] if run is None else []
    if host is None and not is_local:
        missing.append("host")
    if missing:
        raise UnsupportedSession(
            "this is a Spark Connect session: its driver is another process, in which nothing can "
            "be started from here, so the log is beside this client; missing for that: "
            + " and ".join(missing),
            remedy='pass run="..." (what answers are kept under) and host="..." (an address of '
            "this machine that the executors reach), or use a classic session or a PostgreSQL "
            "store",
        )
    return host or LOOPBACK


def _driver_host(context: Any) -> str:
    if context.master.startswith("local"):
        return LOOPBACK
    host: str = context.getConf().get("spark.driver.host")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        import socket

        return socket.gethostbyname(host)
    return host
