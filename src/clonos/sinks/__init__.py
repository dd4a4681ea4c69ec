"""Sinks: where rows go. Give one to ``stream.sink(...)``.

Rows are delivered once, in order per sink task, as soon as they are durable.

The modules of this package hold their parts: the description (``spec``), writers in tasks
(``file_buffer``, ``writers``, ``tables``; ``transactions`` and ``postgres``), delivery in the
driver (``delivered``, ``outputs``), and the format that Spark reads (``data_source``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from clonos.arguments import AS_TEXT, NEARLY_URI, require_types
from clonos.columns.durations import parse_duration
from clonos.errors import StoreAway, WrongType
from clonos.sinks.file_buffer import BufferFiles
from clonos.sinks.lanes import Lane, OutputKey
from clonos.sinks.spec import Query, SinkSpec
from clonos.sinks.transactions import UserStore, UserTransactions

__all__ = [
    "Lane",
    "OutputKey",
    "StoreAway",
    "callback",
    "collect",
    "console",
    "http",
    "kafka",
    "parquet",
    "postgres",
    "spark",
    "spark_write",
    "table",
    "transactional",
]


def __dir__() -> list[str]:
    return __all__


def collect() -> SinkSpec:
    """Keep the rows; they are the job's result.

    Examples
    --------
    >>> collect().kind
    'collect'
    """
    return SinkSpec("collect")


def console() -> SinkSpec:
    """Print the rows in the driver."""
    return SinkSpec("console")


def callback(fn: Callable[..., Any]) -> SinkSpec:
    """Call ``fn(batch)`` in the driver with each delivered ``pyarrow.RecordBatch``.

    A driver that is started again gives `fn` the rows that its journal still has once more.

    Examples
    --------
    >>> callback(print).kind
    'callback'
    """
    return SinkSpec("callback", fn=_function(fn, "callback"))


def parquet(
    path: str | Path, *, rows_per_file: int = 100_000, linger: str | timedelta = "1 second"
) -> SinkSpec:
    """Write Parquet files, from the tasks themselves.

    Parameters
    ----------
    path
        A folder on any file system of pyarrow.
    rows_per_file
        A file is written when this many rows have come, ...
    linger
        ... or after this time.
    """
    require_types(parquet, locals())
    return _files("parquet", path, rows_per_file, linger)


def table(
    path: str | Path, *, rows_per_file: int = 100_000, linger: str | timedelta = "100 ms"
) -> SinkSpec:
    """Write a growing table that Spark and other readers follow while the job runs.

    ``spark.readStream.format("clonos").load(path)`` reads it as a stream, ``spark.read`` reads the
    present rows; see :mod:`clonos.sinks.data_source`.

    Parameters
    ----------
    path
        A folder on any file system of pyarrow, for this job only.
    rows_per_file
        Rows become visible when this many have come, ...
    linger
        ... or after this time.
    """
    require_types(table, locals())
    return _files("table", path, rows_per_file, linger)


def spark(
    format: str,  # noqa: A002 - as writeStream calls it
    path: str | Path | None = None,
    *,
    through: str | Path | None = None,
    partition_by: str | tuple[str, ...] | list[str] = (),
    processing_time: str | None = None,
    linger: str | timedelta = "100 ms",
    **options: Any,
) -> SinkSpec:
    """Write with Spark while the job runs, in any format of ``df.writeStream``.

    The tasks write a :func:`table`, and a streaming query of this Spark application follows it. The
    query starts, stops and fails with the job. Its checkpoint is inside the job's, so it continues
    after a restart. Spark's file sink, Delta and Iceberg then have each row exactly once; Spark's
    Kafka sink may repeat rows after a failure (:func:`kafka` does not).

    Parameters
    ----------
    format, path, partition_by, processing_time, options
        As for ``writeStream``: ``format(...)``, ``start(path)``, ``partitionBy(...)``,
        ``trigger(processingTime=...)``, ``option(...)``.
    through
        The folder of the table, for this job only; by default ``<path>.clonos``.
    linger
        Rows become visible to the query after this time.

    Raises
    ------
    WrongType
        Neither `path` nor `through` is given.

    Examples
    --------
    >>> spark("parquet", "/data/judged", partition_by="day").query.partition_by
    ('day',)
    >>> spark("kafka", through="/data/out", topic="judged").query.options
    {'topic': 'judged'}
    """
    require_types(spark, locals())
    if path is None and through is None:
        raise WrongType(
            "there is no path, and rows go through a folder",
            where=f"spark({format!r})",
            remedy='name it: through="/data/out", on a file system that executors reach',
        )
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    said = {name: str(value) for name, value in options.items()}
    query = Query(format, None if path is None else str(path), said, names, processing_time)
    return replace(table(through or f"{path}.clonos", linger=linger), query=query)


def spark_write(fn: Callable[..., Any]) -> SinkSpec:
    """Call ``fn(df)`` with a Spark DataFrame of all rows when the job has ended.

    If the driver dies within `fn`, `fn` is called again with the same rows.

    Examples
    --------
    >>> spark_write(lambda df: df.write.mode("overwrite").parquet("/data/out")).kind
    'spark_write'
    """
    return SinkSpec("spark_write", fn=_function(fn, "spark_write"))


def postgres(
    dsn: str,
    table: str,
    *,
    upsert: str | tuple[str, ...] | list[str] | None = None,
    mode: Literal["error", "append"] = "error",
) -> SinkSpec:
    """Write to a PostgreSQL table, from the tasks themselves, each row once.

    Rows become visible as soon as they are durable in the job: rows that come while a transaction
    runs go into the next one. A second table, ``clonos_sink_marks``, has a row per task. Driver and
    executors need ``pip install ".[postgres]"``, a direct connection (no PgBouncer in
    transaction mode), and the right to create tables in that schema, unless both tables exist.

    Parameters
    ----------
    dsn
        As psycopg takes it. Error messages never show the password, which may also come from
        libpq's password file or environment on every machine.
    table
        ``"orders"`` or ``"shop.orders"``. It is created if it does not exist. Otherwise it must
        have the stream's columns; its other columns need a default.
    upsert
        Columns of a unique index: a later row replaces an earlier one with the same values. If the
        sink has several tasks, the stream must be keyed by these columns; otherwise rows of one key
        would come from several tasks, in any order.
    mode
        ``"error"``: the table must be empty or belong to this job; ``"append"``: it may have other
        rows.

    Raises
    ------
    UnknownColumn, WrongType
        Where the sink is attached: PostgreSQL has no type for a column, or there is no such column.
    UnknownColumn, WrongType, BadGraph
        When the job starts: the table does not match the stream.
    OutputExists
        When the job starts: the table has other rows.

    Examples
    --------
    >>> sink = postgres("postgresql://me:secret@db.example/shop", "orders", upsert="id")
    >>> sink.store
    <PostgreSQL: table orders of db.example:5432/shop>
    """
    require_types(postgres, locals())
    # Every slot imports this package; few write to PostgreSQL.
    from clonos.sinks.postgres_claim import PostgresStore
    from clonos.sinks.postgres_session import Target
    from clonos.sinks.postgres_transactions import PostgresTransactions

    keys = (upsert,) if isinstance(upsert, str) else tuple(upsert or ())
    if mode not in {"error", "append"}:
        raise WrongType(f"mode={mode!r}", where="postgres", remedy='say "error" or "append"')
    store = PostgresStore(PostgresTransactions(Target(dsn, table), keys), mode)
    return SinkSpec("postgres", store=store, upsert=keys)


def kafka(
    servers: str,
    topic: str,
    *,
    key: str | None = None,
    value: Literal["json", "text", "bytes"] = "json",
    transactions: bool = True,
    options: Mapping[str, Any] | None = None,
) -> SinkSpec:
    """Write to a Kafka topic, from the tasks themselves.

    Rows go out in transactions: rows that come while one runs go into the next one. Readers with
    ``isolation.level=read_committed`` see each row once, in the order of its task. The compacted
    topic ``clonos-marks`` has a mark for each task; it is created if it does not exist. Driver and
    executors need ``pip install ".[kafka]"``.

    Parameters
    ----------
    servers
        ``"host:port,host:port"``.
    key
        The column with the messages' key: text, bytes or an integer. Messages with the same key go
        to the same partition, the one that Java's producers choose.
    value
        "json": an object of all columns; "text" and "bytes": the column ``value``.
    transactions
        False: messages are written at least once; some are repeated if a task dies or brokers do
        not answer. Each message has a header ``clonos-key``, which is the same in repetitions.
    options
        For librdkafka: ``{"security.protocol": "SSL", ...}``. Error messages never show them.

    Raises
    ------
    BadSchema, UnknownColumn, WrongType
        Where the sink is attached: the stream's columns do not match.
    SinkFailed
        When the job starts: the topic does not exist, or the cluster does not answer.

    Examples
    --------
    >>> kafka("kafka:9092", "judged", key="user").store.topic.place
    'topic judged of <Kafka at kafka:9092>'
    """
    require_types(kafka, locals())
    # Every slot imports this package; few write to Kafka.
    from clonos.kafka import Cluster
    from clonos.sinks.kafka_messages import Format
    from clonos.sinks.kafka_session import OURS, Topic
    from clonos.sinks.kafka_store import KafkaStore

    if value not in {"json", "text", "bytes"}:
        raise WrongType(f"value={value!r}", where="kafka", remedy='say "json", "text" or "bytes"')
    cluster = Cluster(servers, dict(options or {}))
    cluster.require_options(dict.fromkeys(OURS))
    return SinkSpec(
        "kafka", store=KafkaStore(Topic(cluster, topic), Format(value, key), transactions)
    )


def http(
    url: str,
    *,
    body: Literal["array", "lines", "object"] = "array",
    headers: Mapping[str, str] | None = None,
    key: str = "Idempotency-Key",
    rows_per_request: int = 100,
    timeout: str | timedelta = "30 seconds",
    dead_letters: str | Path | None = None,
    under_way: str | timedelta = "5 minutes",
) -> SinkSpec:
    """POST rows as JSON to a service, from the tasks themselves.

    Each request has a unique name, which stays the same when the request is sent again because a
    task died or an answer was lost. So the service gets each row at least once, and exactly once if
    it ignores requests whose name it knows. A task sends one request after the other, in order.
    Temporary failures (no answer, 408, 425, 429, 5xx) are retried without limit, and not
    before ``Retry-After``.

    Parameters
    ----------
    url
        ``"https://host/path"``. Error messages never show what follows the path.
    body
        "array" of rows, "lines" (one row each), or "object": one row per request.
    headers
        Additional headers, such as ``{"Authorization": "Bearer ..."}``. Error messages never show
        them.
    key
        The header with the request's name.
    rows_per_request
        The largest number of rows. Do not change it for a job that is to continue, because names
        identify the rows of a request.
    timeout
        How long to wait for an answer.
    dead_letters
        A folder for rows that the service refuses (400, 413, 415, 422), one file each. By default
        such a row fails the job. A refused request is halved and sent again, down to single rows.
    under_way
        How long an answer of 409 is taken to mean that a request of this name is still under way,
        and is retried. After that it is a lasting conflict, which fails the job.

    Examples
    --------
    >>> http("https://api.example/orders?secret=x", headers={"Authorization": "Bearer y"}).store
    HttpStore(endpoint=<HTTP: https://api.example:443/orders>)
    """
    require_types(http, locals())
    # Every slot imports this package; few send requests.
    from clonos.sinks.http_writer import Endpoint, HttpStore, check_headers, check_url

    check_url(url)
    if body not in {"array", "lines", "object"}:
        raise WrongType(f"body={body!r}", where="http", remedy='say "array", "lines" or "object"')
    if rows_per_request < 1:
        raise WrongType(f"rows_per_request={rows_per_request}", remedy="give a number above 0")
    try:
        sent = check_headers(headers or {}, key)
    except ValueError as error:
        raise WrongType(str(error), where="http", remedy="correct or leave it out") from None
    rows = 1 if body == "object" else rows_per_request
    timeout_s = parse_duration(timeout) / 1000
    under_way_s = parse_duration(under_way, minimum_ms=0) / 1000
    folder = None if dead_letters is None else str(dead_letters)
    endpoint = Endpoint(url, sent, body, key, rows, timeout_s, folder, under_way_s)
    return SinkSpec("http", store=HttpStore(endpoint))


def transactional(
    *,
    open: Callable[[Lane], Any],  # noqa: A002 - what it is
    last_key: Callable[[Any, Lane], tuple[int, int] | None],
    write: Callable[..., Any],
    close: Callable[[Any], Any] | None = None,
    retry_on: tuple[type[Exception], ...] = (ConnectionError, TimeoutError),
) -> SinkSpec:
    """Write to any store with transactions, from the tasks themselves, each row once.

    A thread of the task calls the functions. ``clonos.testing.check_sink`` tests them: it kills and
    freezes processes at each of their lines.

    Parameters
    ----------
    open
        ``open(lane)`` connects and returns the connection `db` for the other functions. It records
        ``lane.incarnation`` under ``lane.name`` in the store; if a higher one is recorded, it
        raises :class:`clonos.Fenced`. From then on no older life may be able to commit. If it fails
        after it has connected, it closes the connection, which may hold locks.
    last_key
        ``last_key(db, lane)`` returns the mark that `write` has left; None if nothing was written.
    write
        ``write(db, lane, outputs, before, last)`` does this in *one* transaction: it checks that
        the incarnation is ``lane.incarnation`` and the mark is `before`, and otherwise raises
        :class:`clonos.Fenced`; it writes the Arrow batches `outputs`; it moves the mark to `last`.
        Marks are pairs of integers (``generation``, ``seq``), or None.
    close
        ``close(db)``; ``db.close()`` if not given.
    retry_on
        After these exceptions, and after :class:`StoreAway`, the write is retried on a new
        connection, with growing pauses. Any other exception ends the job with ``SinkFailed``.

    Examples
    --------
    >>> rows = []
    >>> sink = transactional(
    ...     open=lambda lane: rows,
    ...     last_key=lambda db, lane: db[-1][0] if db else None,
    ...     write=lambda db, lane, outputs, before, last: db.append((last, outputs)),
    ... )
    >>> sink.kind
    'transactional'
    """
    require_types(transactional, locals())
    _function(open, "transactional, open")
    _function(last_key, "transactional, last_key")
    _function(write, "transactional, write")
    made = UserTransactions(open, last_key, write, close, tuple(retry_on))
    return SinkSpec("transactional", store=UserStore(made))


def _files(kind: str, path: str | Path, rows_per_file: int, linger: str | timedelta) -> SinkSpec:
    if not path:  # str(None) would be a folder, too
        raise WrongType(f"path={path!r}", where=kind, remedy="give a folder")
    if NEARLY_URI.match(str(path)):
        raise WrongType(f"path={path!r}", where=kind, remedy=AS_TEXT)
    if rows_per_file < 1:
        raise WrongType(f"rows_per_file={rows_per_file}", remedy="give a number above 0")
    head = BufferFiles(rows_per_file, parse_duration(linger, minimum_ms=0))
    return SinkSpec(kind, head, path=str(path))


def _function(fn: Callable[..., Any], where: str) -> Callable[..., Any]:
    if not callable(fn):
        raise WrongType(f"{fn!r} is not a function", where=where)
    return fn
