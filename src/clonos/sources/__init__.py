"""Sources: where rows come from. Give one to ``job.source(...)``.

The modules of this package hold their parts: the description (``spec``), the readers of tasks (and
``prefetch``), and the ways in which Spark hands rows over (``materialized``, ``queries``,
``versions``, ``spool``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from clonos.arguments import require_types
from clonos.columns.batches import empty, from_table
from clonos.columns.durations import parse_duration
from clonos.columns.instants import to_ms
from clonos.columns.rows import RowBuilder, describe, short
from clonos.columns.schema import parse_schema, quoted
from clonos.errors import BadGraph, BadSchema, WrongType
from clonos.sources.files_reader import (
    FileList,
    FindLine,
    LinesReader,
    ParquetReader,
    first_lines,
    parquet_schema,
    require_first_header,
)
from clonos.sources.inlets import mqtt, webhook, websocket
from clonos.sources.json_lines import require_readable
from clonos.sources.lines import LINES, TEXT, ParseLines, infer_schema, require_csv
from clonos.sources.messages import (
    METADATA,
    ParseFields,
    Value,
    message_rows,
    message_schema,
    with_metadata,
)
from clonos.sources.readers import BatchesReader, RateReader, Reader
from clonos.sources.socket_reader import SocketReader
from clonos.sources.spec import Feeding, SourceSpec, rate_of
from clonos.sources.tables import table

if TYPE_CHECKING:
    from clonos.sources.kafka_reader import Topics
    from clonos.sources.postgres_reader import Query
    from clonos.sources.redis_reader import Streams

__all__ = [
    "dataframe",
    "files",
    "from_batches",
    "kafka",
    "mqtt",
    "postgres",
    "rate",
    "redis",
    "socket_lines",
    "stream",
    "table",
    "webhook",
    "websocket",
]


def __dir__() -> list[str]:
    return __all__


_SAMPLE_LINES = 1000
_OUTPUT_MODES = ("append", "update", "complete")
_FORMATS = ("text", "json", "csv", "parquet")
_REQUIRE = {"json": require_readable, "csv": require_csv}


def socket_lines(host: str, port: int, *, resume: bool = False) -> SourceSpec:
    """Lines of text from a TCP server, as a column ``value``.

    Parameters
    ----------
    resume
        Send ``RESUME <rows>`` on connecting, for servers that can continue from that row.
    """
    require_types(socket_lines, locals())
    return SourceSpec(
        kind="socket",
        schema=LINES,
        factory=partial(_socket, host, port, resume),
        replayable=False,
        rows_schema=TEXT,
        head=ParseLines("text", TEXT),
        parallelism_max=1,
        ends=False,
    )


def files(path: str | Path, format: str = "text", schema: Any = None) -> SourceSpec:  # noqa: A002 - Spark's
    """Files of a folder, a pattern (``*.json``) or one file, on any file system of pyarrow.

    Parameters
    ----------
    format
        "text" (a column ``value``), "json" (an object per line), "csv" (with a header line), or
        "parquet".
    schema
        The schema of the rows; without it, JSON and CSV schemas are inferred from the first lines.
    """
    require_types(files, locals())
    if format not in _FORMATS:
        raise BadGraph(f"unknown format {format!r}", remedy=f"use one of {', '.join(_FORMATS)}")
    found = FileList.find(str(path))
    wanted = None if schema is None else parse_schema(schema)
    if format == "parquet":
        rows = wanted or parse_schema(parquet_schema(found))
        return _parquet(found, rows)
    if format == "text":
        rows = TEXT if wanted is None else wanted
        if [str(f.type) for f in rows] != ["string"]:
            raise BadSchema("text files have one column, a string")
    else:
        rows = _REQUIRE[format](wanted or _guess(found, format))
    header = rows if format == "csv" else None
    if header is not None:
        require_first_header(found, header)
    return SourceSpec(
        kind="files",
        schema=LINES,
        factory=partial(_lines, found, header),
        replayable=True,
        rows_schema=rows,
        head=ParseLines(format, rows, FindLine(found, header)),
    )


def kafka(
    servers: str,
    topics: str | Sequence[str],
    *,
    value: Value = "json",
    schema: Any = None,
    start: str | datetime | Mapping[tuple[str, int], int] = "earliest",
    metadata: bool = False,
    group: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> SourceSpec:
    """Messages of Kafka topics, as soon as they arrive: an input without end.

    Partitions are distributed over the tasks, without a consumer group; new ones are found within
    10 seconds. The log records the offsets of each batch, and a replay reads exactly these again.
    So messages must be retained for as long as a job may stand still, and must not be compacted
    away. Executors need ``pip install ".[kafka]"``.

    Parameters
    ----------
    servers
        ``"host:port,host:port"``.
    value
        "json" (an object per message, whose fields are the columns), "text" or "bytes" (a column
        ``value``). A message that cannot be parsed is a bad record, like a broken line of a file.
        A null is a row of nulls.
    schema
        The schema of "json" messages.
    start
        Where a new job begins: "earliest", "latest", a time, or offsets by ``(topic, partition)``.
        Partitions without an offset, and those that appear later, are read from their first
        message.
    metadata
        Add the columns ``key``, ``topic``, ``partition``, ``offset`` and ``timestamp``.
    group
        Commit the offsets read under this group, for tools that show them. The job never reads
        them.
    options
        For librdkafka: ``{"security.protocol": "SSL", ...}``. Error messages never show them.

    Raises
    ------
    BadSchema
        "json" without a schema, or with a column that has the name of a metadata column.
    WrongType
        An argument is invalid, or an option must not be set by users.

    Examples
    --------
    >>> kafka("kafka:9092", "clicks", schema="user string, at timestamp").rows_schema.names
    ['user', 'at']
    >>> kafka("kafka:9092", "clicks", value="bytes", metadata=True).rows_schema.names
    ['value', 'key', 'topic', 'partition', 'offset', 'timestamp']
    """
    require_types(kafka, locals())
    # Every slot imports this package; few read from Kafka.
    from clonos.kafka import Cluster
    from clonos.sources.kafka_reader import OURS, Topics, require_start

    cluster = Cluster(servers, dict(options or {}))
    cluster.require_options(OURS)
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise WrongType("no topics", where="kafka", remedy="name at least one")
    require_start(start, names)
    if group is not None and not group:
        raise WrongType("group= is empty", where="kafka", remedy="name a group, or leave it out")
    found = Topics(cluster, tuple(sorted(set(names))), start, metadata, group=group)
    head, rows = message_rows(value, schema, METADATA if metadata else ())
    return SourceSpec(
        kind="kafka",
        schema=message_schema(metadata=metadata),
        factory=partial(_kafka, found),
        replayable=True,
        rows_schema=rows,
        head=head,
        ends=False,
        begins_now=start == "latest",
        reads=found.names,
        forget=found.forget,
    )


def rate(
    rows_per_second: float, rows: int | None = None, *, start: datetime | None = None
) -> SourceSpec:
    """Rows ``(timestamp, value)`` at a steady rate, for tests and measurements.

    Parameters
    ----------
    rows
        Stop after this many rows; None: never stop.
    start
        Timestamp of the first row; 1970 if not given. It is not the current time, because a job
        that is started again must get the same rows.
    """
    require_types(rate, locals())
    if rows is not None and (type(rows) is not int or rows < 0):
        raise WrongType(f"rows={rows!r}", remedy="give a whole number from 0, or None")
    start_us = 1000 * to_ms(start) if start is not None else 0
    factory = partial(_rate, rate_of("rows_per_second", rows_per_second), rows, start_us)
    schema = RateReader.schema
    return SourceSpec("rate", schema, factory, True, schema, ends=rows is not None)


def from_batches(batches: Iterable[Any], schema: Any = None) -> SourceSpec:
    """Given batches, for tests: batch i goes to task i modulo the parallelism.

    Parameters
    ----------
    batches
        Arrow record batches or tables, or lists of rows if `schema` is given.

    Examples
    --------
    >>> from_batches([[("a", 1)], [("b", 2)]], schema="word string, n long").rows_schema.names
    ['word', 'n']
    """
    require_types(from_batches, locals())
    wanted = None if schema is None else parse_schema(schema)
    made = [_batch(batch, wanted) for batch in batches]
    if not made and wanted is None:
        raise BadSchema("no batches and no schema", remedy="give a schema")
    rows = parse_schema(made[0].schema) if wanted is None else wanted
    made = [pa.RecordBatch.from_arrays(batch.columns, schema=rows) for batch in made]
    return SourceSpec("batches", rows, partial(_batches, made, rows), True, rows)


def dataframe(df: Any) -> SourceSpec:
    """The rows of a Spark DataFrame, streaming or not."""
    if not hasattr(df, "isStreaming"):
        raise WrongType(f"df={short(df)}", where="dataframe", remedy="give a Spark DataFrame")
    if df.isStreaming:
        return stream(df)
    schema = parse_schema(df.schema)

    def narrow(columns: Sequence[str]) -> SourceSpec:
        return dataframe(df.select(*map(quoted, columns)))

    return SourceSpec("dataframe", schema, None, True, schema, dataframe=df, narrow=narrow)


def stream(
    df: Any,
    *,
    output_mode: str = "append",
    processing_time: str | None = None,
    available_now: bool = False,
    backlog_bytes: int = 256 << 20,
) -> SourceSpec:
    """The rows of a streaming DataFrame, each exactly once: an input without end.

    A separate streaming query hands its micro-batches over. Spark commits its offset when their
    rows are safe below the job's ``checkpoint_dir``. Stopping the query ends the input; running the
    same command again continues both. ``job.source(df)`` is short for ``job.source(stream(df))``.

    Parameters
    ----------
    output_mode
        The query's output mode: "append", "update" or "complete".
    processing_time
        Time between micro-batches, such as "1 second"; by default one follows the other.
    available_now
        End the input after the rows that are available now.
    backlog_bytes
        The query waits while this many bytes are spooled: rows that the job has not read, or that
        are not below a checkpoint. One more micro-batch may come; limit its size with options of
        Spark's source, such as ``maxFilesPerTrigger``.

    Examples
    --------
    >>> lines = spark.readStream.text("/data/in")  # doctest: +SKIP
    >>> job.source(clonos.sources.stream(lines, available_now=True))  # doctest: +SKIP
    """
    require_types(stream, locals())
    if not getattr(df, "isStreaming", False):
        raise WrongType(
            "not a streaming DataFrame",
            remedy="give it to job.source(...) as it is, or use readStream",
        )
    if output_mode not in _OUTPUT_MODES:
        use = f"use one of {', '.join(_OUTPUT_MODES)}"
        raise WrongType(f"output_mode={output_mode!r}", remedy=use)
    if available_now and processing_time is not None:
        raise WrongType("available_now and processing_time", remedy="give one of them")
    if processing_time is not None:
        parse_duration(processing_time, minimum_ms=0)
    if backlog_bytes <= 0:
        raise WrongType(f"backlog_bytes={backlog_bytes!r}", remedy="give a number above 0")
    schema = parse_schema(df.schema)
    feeding = Feeding(output_mode, processing_time, available_now, backlog_bytes)
    return SourceSpec(
        "stream", schema, None, True, schema, dataframe=df, feeding=feeding, ends=available_now
    )


def redis(
    url: str,
    streams: str | Sequence[str],
    *,
    schema: Any,
    start: Literal["earliest", "latest"] | datetime = "earliest",
    metadata: bool = False,
) -> SourceSpec:
    """Entries of Redis Streams, as soon as they arrive: an input without end.

    Streams are distributed over the tasks by name. The log records the ids of each batch, and a
    replay reads exactly these again. So entries must be kept for as long as a job may stand still.
    Executors need ``pip install ".[redis]"``.

    Parameters
    ----------
    url
        ``"redis://:secret@host:6379/0"``. Error messages never show the password.
    schema
        The schema of the rows. Each column is the field of the same name, or null. An entry that
        does not fit is a bad record, like a broken line of a file.
    start
        Where a new job begins: "earliest", "latest", or a time.
    metadata
        Add the columns ``stream``, ``id`` and ``timestamp`` (the time in the id).

    Examples
    --------
    >>> source = redis("redis://cache", "clicks", schema="user string, n long", metadata=True)
    >>> source.rows_schema.names
    ['user', 'n', 'stream', 'id', 'timestamp']
    """
    require_types(redis, locals())
    # Every slot imports this package; few read from Redis.
    from clonos.sources.redis_reader import METADATA as BESIDE
    from clonos.sources.redis_reader import Streams

    names = (streams,) if isinstance(streams, str) else tuple(sorted(set(streams)))
    if not names:
        raise WrongType("no streams", where="redis", remedy="name at least one")
    if not isinstance(start, datetime) and start not in ("earliest", "latest"):
        say = 'say "earliest", "latest" or a datetime'
        raise WrongType(f"start={start!r}", where="redis", remedy=say)
    fields = parse_schema(schema)
    rows = with_metadata(fields, BESIDE if metadata else ())
    if wrong := [f.name for f in fields if pa.types.is_nested(f.type)]:
        raise BadSchema(f"{', '.join(wrong)}: a field is bytes, text or a number", remedy="cast it")
    found = Streams(url, names, tuple(fields.names), start, metadata)
    return SourceSpec(
        kind="redis",
        schema=found.schema,
        factory=partial(_redis, found),
        replayable=True,
        rows_schema=rows,
        head=ParseFields(fields),
        ends=False,
        begins_now=start == "latest",
        reads=found.reads,
        forget=found.forget,
    )


def postgres(
    dsn: str,
    query: str,
    *,
    column: str,
    schema: Any,
    every: str | timedelta = "1 second",
    settled: str | timedelta = "0 seconds",
    start: int | datetime | str = "earliest",
) -> SourceSpec:
    """Rows of a PostgreSQL query, in the order of a growing column: an input without end.

    Rows are read when no row with a smaller value can appear any more, that is, when all
    transactions that were writing in the database after the rows had appeared have ended. So a
    transaction that stays open holds up all later rows. The log records the values of each batch,
    and a replay reads exactly these again. So rows must be kept unchanged for as long as a job may
    stand still. One task reads. Executors need ``pip install ".[postgres]"``, and a connection
    to PostgreSQL's primary server.

    Parameters
    ----------
    dsn
        As psycopg takes it. Error messages never show the password.
    query
        ``"select id, word from events"``, without parameters. An index on `column` is needed.
    column
        A column of the query. It must be unique, never change, and get its value in the inserting
        statement, as from a sequence (``CACHE 1``, the default) or identity column. Rows where it
        is null are ignored.
    schema
        The schema of the columns to read. A row with a value that does not fit is a bad record.
    every
        The time between two polls for new rows.
    settled
        Read rows this much later. Needed if values are taken *before* the inserting statement, as
        with ``now()``, numbers that an object-relational mapper takes from a sequence in advance,
        and sequences with a cache. Choose it longer than such a transaction takes to commit.
    start
        Where a new job begins: "earliest", "latest" (after the greatest value), or after a given
        value of `column`. A datetime must have a zone only if `column` has one too, and is UTC
        without it.

    Examples
    --------
    >>> events = postgres(
    ...     "postgresql://me:secret@db.example/shop",
    ...     "select id, word from events",
    ...     column="id",
    ...     schema="id long, word string",
    ... )
    >>> events.rows_schema.names, events.parallelism_max
    (['id', 'word'], 1)
    """
    require_types(postgres, locals())
    # Every slot imports this package; few read from PostgreSQL.
    from clonos.postgres import Server
    from clonos.sources.postgres_reader import query_of

    rows = parse_schema(schema)
    if wrong := [f.name for f in rows if pa.types.is_nested(f.type)]:
        raise BadSchema(f"{', '.join(wrong)}: read it as string, it is JSON then", remedy="cast it")
    if not query.strip() or not column:
        raise WrongType("no query or no column", where="postgres", remedy="give both")

    def narrow(columns: Sequence[str]) -> SourceSpec:
        few = pa.schema([rows.field(name) for name in columns])
        return postgres(
            dsn, query, column=column, schema=few, every=every, settled=settled, start=start
        )

    found = query_of(
        Server(dsn),
        query,
        column,
        rows,
        start,
        every_s=parse_duration(every) / 1000,
        settled_s=parse_duration(settled, minimum_ms=0) / 1000,
    )
    return SourceSpec(
        kind="postgres",
        schema=found.schema,
        factory=partial(_postgres, found),
        replayable=True,
        rows_schema=rows,
        head=ParseFields(rows),
        parallelism_max=1,
        ends=False,
        begins_now=start == "latest",
        reads=(f"{' '.join(query.split())} by {column}",),
        narrow=narrow,
    )


def _batch(batch: Any, schema: pa.Schema | None) -> pa.RecordBatch:
    if isinstance(batch, pa.Table):
        return from_table(batch)
    if isinstance(batch, pa.RecordBatch):
        return batch
    if schema is None:
        raise BadSchema("rows without a schema", remedy='give schema="word string, ..."')
    builder = RowBuilder(schema)
    try:
        built = builder.build([builder.as_tuple(row) for row in batch], _refuse)
        return empty(schema) if built is None else built
    except (TypeError, ValueError) as error:
        raise WrongType(
            f"not rows of {', '.join(schema.names)}: {describe(error)}",
            where="from_batches",
            remedy='give a list of batches, each a list of rows: [[("a", 1), ("b", 2)]]',
        ) from error


def _parquet(found: FileList, rows: pa.Schema) -> SourceSpec:
    def narrow(columns: Sequence[str]) -> SourceSpec:
        return _parquet(found, pa.schema([rows.field(name) for name in columns]))

    reader = partial(ParquetReader, found, rows)
    return SourceSpec("files", rows, reader, True, rows, narrow=narrow)


def _refuse(error: Exception, row: object) -> None:
    raise WrongType(f"{error} (for {short(row)})") from error


def _guess(found: FileList, line_format: str) -> pa.Schema:
    sample = first_lines(found, _SAMPLE_LINES)
    try:
        if line_format == "csv":
            header = sample[0].decode() if sample else ""
            names = infer_schema("csv", sample[:1], []).names if header else []
            return parse_schema(infer_schema("csv", sample[1:] or [b""], names))
        return parse_schema(infer_schema("json", sample, []))
    except (pa.ArrowException, ValueError) as error:
        raise BadSchema(
            f"cannot guess the columns of {found.root}: {error}", remedy="give a schema"
        ) from error


# Factories are functions of this module, so that they can be shipped to other processes.


def _socket(host: str, port: int, resume: bool, index: int, parallelism: int) -> Reader:
    del index, parallelism
    return SocketReader(host, port, resume=resume)


def _lines(found: FileList, header: pa.Schema | None, index: int, parallelism: int) -> Reader:
    return LinesReader(found, index, parallelism, header=header)


def _kafka(topics: Topics, index: int, parallelism: int) -> Reader:
    from clonos.sources.kafka_reader import KafkaReader

    return KafkaReader(topics, index, parallelism)


def _postgres(query: Query, index: int, parallelism: int) -> Reader:
    from clonos.sources.postgres_reader import PostgresReader

    del index, parallelism
    return PostgresReader(query)


def _redis(streams: Streams, index: int, parallelism: int) -> Reader:
    from clonos.sources.redis_reader import RedisReader

    return RedisReader(streams, index, parallelism)


def _rate(rate: float, rows: int | None, start_us: int, index: int, parallelism: int) -> Reader:
    return RateReader(rate, rows, start_us, index, parallelism)


def _batches(
    batches: list[pa.RecordBatch], schema: pa.Schema, index: int, parallelism: int
) -> Reader:
    return BatchesReader(batches[index::parallelism], schema)
