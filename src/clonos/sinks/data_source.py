"""Spark's format ``clonos``: tables between jobs and queries.

Spark reads the tables that ``clonos.sinks.table`` writes, as a stream or as a batch. A streaming
query can write such a table, too, for any number of jobs (``clonos.sources.table``) and queries.

Examples
--------
::

    live = spark.readStream.format("clonos").load("/data/alerts")
    so_far = spark.read.format("clonos").load("/data/alerts")
    clicks.writeStream.format("clonos").options(checkpointLocation="/data/q").start("/data/a")

Options for reading: ``maxRowsPerTrigger``, ``maxFilesPerTrigger`` or ``maxBytesPerTrigger`` limits
a micro-batch (which has at least one file), from Spark 4.2 on; with ``failOnDataLoss`` ``"false"``
a query continues after rows that were removed before it read them, instead of failing. For writing:
with ``removeRead`` ``"true"`` a query removes rows that all jobs that read the table have passed.

Rows of a sink task come in its order. An offset names, for each task, the newest file read. Files
never change, so a restarted query reads the same rows between the same offsets, and any number of
queries can follow a table.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from clonos.columns.schema import parse_schema
from clonos.errors import DefinitionError, NoTable, NotEnded, OtherTable, RowsRemoved
from clonos.sinks.query_writer import QueryWriter
from clonos.storage.segments import START, Position, Positions, Segment, newest
from clonos.storage.tables import Table

Offset = dict[str, str]
"""For each task, the position of the newest file read; ``"table"``: the table's name."""

FORMAT: Final = "clonos"
PARTITION_BYTES: Final = 32 << 20
"""A Spark partition takes further files of a task only until it has this much."""
TOGETHER_BYTES: Final = 1 << 20
"""It takes those of another task only until it has this much: to start a task of Spark's for them
takes longer than to read them."""
_TABLE: Final = "table"
_LOOK_S: Final = 0.05

_SIZES: Final[Mapping[str, tuple[str, Callable[[Segment], int]]]] = {
    "maxRowsPerTrigger": ("max_rows", lambda segment: segment.rows),
    "maxFilesPerTrigger": ("max_files", lambda _: 1),
    "maxBytesPerTrigger": ("max_bytes", lambda segment: segment.nbytes),
}
"""Option -> Spark's name for the limit, and what it counts."""


class Files(InputPartition):
    """Some files of one task, in order."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths


class _Rows:
    """Base of both readers."""

    _tolerant = False

    def __init__(self, table: Table, schema: StructType) -> None:
        self._table = table
        self._schema: pa.Schema = parse_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for path in getattr(partition, "paths", ()):  # empty tables have no paths
            try:
                for batch in self._table.read(path):
                    yield batch.select(self._schema.names).cast(self._schema)
            except RowsRemoved:  # removed after the partition was planned
                if not self._tolerant:
                    raise


class TableReader(_Rows, DataSourceReader):
    """Batch reads: the present rows."""

    def partitions(self) -> Sequence[InputPartition]:
        return packed(self._table.segments())


class TableStream(_Rows, DataSourceStreamReader):
    """Streaming reads."""

    def __init__(self, table: Table, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(table, schema)
        self._limit = _chosen_limit(options)
        self._tolerant = options.get("failOnDataLoss", "true").lower() == "false"
        self._target: dict[int, Position] | None = None
        self._last: Offset | None = None
        self._end: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {_TABLE: self._table.id}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - see above
        from pyspark.sql.streaming import datasource  # exists from Spark 4.2 on

        if self._limit is None:
            return datasource.ReadAllAvailable()
        option, most = self._limit
        kind = option.removesuffix("PerTrigger").replace("max", "ReadMax")
        return getattr(datasource, kind)(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - see above
        """Note the present end of the table, where the query is to end."""
        self._target = newest(self._table.segments())

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        if start is None:  # Spark before 4.2 does not pass it
            # For a query that continues, the start is unknown until a batch is planned; removed
            # rows are noticed there, too.
            start = self._last or self.initialOffset() | _offset(self._table.removed)
        first = self._positions(start)
        segments = self._table.segments(first)
        self._end = start | _offset(newest(segments))
        self._require_kept(first, self._table.removed)
        if self._target is not None:
            end = self._target
            segments = [s for s in segments if s.position <= end.get(s.task, START)]
        for name, size in _SIZES.values():
            if hasattr(limit, name):
                segments = admitted(segments, getattr(limit, name), size)
        self._last = start | _offset(newest(segments))
        return self._last

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - see above
        """The end of the table when it was last asked for, for the query's progress."""
        return self._end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._last = end
        first, last = self._positions(start), self._positions(end)
        segments = self._table.segments(first)
        segments = [s for s in segments if s.position <= last.get(s.task, START)]
        self._require_kept(first, (t for t, end in last.items() if end > first.get(t, START)))
        found = newest(segments)
        lost = [t for t, end in last.items() if end not in (found.get(t), first.get(t))]
        if lost and not self._tolerant:
            raise self._lost(lost)
        return packed(segments)

    def commit(self, end: Offset) -> None:
        """Remove nothing: the table may have other readers (see :func:`remove_rows`)."""

    def _positions(self, offset: Offset) -> dict[int, Position]:
        if offset[_TABLE] != self._table.id:
            raise OtherTable(
                "the query has read another table than the one that is in this folder now",
                where=self._table.path,
                remedy="start the query with a new checkpointLocation, or put the table back",
            )
        return {int(t): Position.parse(p) for t, p in offset.items() if t != _TABLE}

    def _require_kept(self, first: Positions, tasks: Iterable[int]) -> None:
        """Raise `RowsRemoved` if rows of these tasks after `first` were removed."""
        removed = self._table.removed
        lost = [t for t in tasks if removed.get(t, START) > first.get(t, START)]
        if lost and not self._tolerant:
            raise self._lost(lost)

    def _lost(self, tasks: Sequence[int]) -> RowsRemoved:
        return RowsRemoved(
            f"rows of {', '.join(f'task {task}' for task in tasks)} were removed before this "
            "query had read them",
            where=self._table.path,
            remedy="keep rows for longer than their slowest reader needs; to go on without them, "
            'set .option("failOnDataLoss", "false")',
        )


class TableSource(DataSource):
    """The entry point for Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(self._table().schema)

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(self._table(), schema)

    def streamReader(self, schema: StructType) -> TableStream:  # noqa: N802 - Spark's name
        return TableStream(self._table(), schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise DefinitionError(
            "only streaming queries write into a table",
            where=FORMAT,
            remedy="use df.writeStream, with trigger(availableNow=True) for rows that are there, "
            "or job.source(df).sink(clonos.sinks.table(path))",
        )

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return QueryWriter(self._path, schema, self.options, overwrite=overwrite)

    def _table(self) -> Table:
        return Table(self._path)

    @property
    def _path(self) -> str:
        path = self.options.get("path")
        if not path:
            raise DefinitionError(
                "which table?",
                where=FORMAT,
                remedy='write .format("clonos").load("/path") or .start("/path")',
            )
        return path


def _declare() -> None:
    """Declare support for the trigger availableNow, from Spark 4.2 on."""
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return
    SupportsTriggerAvailableNow.register(TableStream)


_declare()


# --- for the user --------------------------------------------------------------------------------


def register(spark: Any) -> None:
    """Register the format with a session that has not found it by itself.

    Spark finds it if clonos is installed on the driver, so this is seldom needed.
    """
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(TableSource)
    except AnalysisException as error:
        if "ALREADY_EXISTS" not in str(error.getCondition()):
            raise


def finish(query: Any, path: str, timeout_s: float | None = None) -> None:
    """Wait until the job has ended and a query has processed all of its table; stop the query.

    Parameters
    ----------
    query
        A running ``StreamingQuery``.
    path
        The table that it reads.

    Raises
    ------
    NoTable
        The table does not exist.
    StreamingQueryException
        The query has failed.
    NotEnded
        The job has not ended in time; the query keeps running. Also a `TimeoutError`.
    """
    table = _existing(path)
    until = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
    while not table.ended:
        if not query.isActive:
            query.awaitTermination()  # raises the query's error
            return
        if time.monotonic() > until:
            raise NotEnded(
                f"the job that writes this table has not ended within {timeout_s:g} s; the query "
                "keeps running",
                where=path,
                remedy="is the job running? A job that was stopped ends the table when it is "
                "started again and its input ends. Wait again, or stop the query",
            )
        time.sleep(_LOOK_S)
    query.processAllAvailable()
    query.stop()


def remove_rows(path: str, older_than: timedelta) -> int:
    """Remove rows older than a given age from a table, and return the number of files removed.

    Queries that have not read them all fail with :class:`~clonos.errors.RowsRemoved`, and
    so do new ones, unless the option ``failOnDataLoss`` lets them begin with the remaining rows.
    """
    return _existing(path).remove(older_than.total_seconds())


def remove_read(path: str) -> int:
    """Remove rows that all reading jobs have passed for good; return the number of files removed.

    A job is a reader from its first start until it is complete (:func:`readers`). Without readers
    nothing is removed. Spark's queries do not count as readers: keep the rows that they need by
    age (:func:`remove_rows`).
    """
    return _existing(path).remove_read()


def readers(path: str) -> dict[str, dict[int, str]]:
    """The jobs that read a table: for each, and for each task of the writer, the position up to
    which the job needs no rows any more."""
    found = _existing(path).readers()
    return {name: {t: str(p) for t, p in passed.items()} for name, passed in found.items()}


def forget_reader(path: str, reader: str) -> None:
    """Stop keeping rows for a job that will never be started again."""
    _existing(path).forget_reader(reader)


def end(path: str) -> None:
    """End a table that a query has written, which ends the input of its readers. Stop the query
    first, because it could not continue."""
    table = _existing(path)
    if not table.is_of_query:
        raise DefinitionError(
            "the job that writes this table ends it", where=path, remedy="wait for it, or stop it"
        )
    table.end()


def _existing(path: str) -> Table:
    table = Table(path)
    if not table.exists:
        raise NoTable("there is no table of a job here", where=path, remedy="correct the path")
    return table


# --- offsets and limits -------------------------------------------------------------------------


def admitted(
    segments: Sequence[Segment], most: int, size: Callable[[Segment], int]
) -> list[Segment]:
    """As many of the first segments as fit, at least one; tasks that have had less come first."""
    queues: dict[int, deque[Segment]] = {}
    for segment in segments:
        queues.setdefault(segment.task, deque()).append(segment)
    taken, chosen = dict.fromkeys(queues, 0), list[Segment]()
    while queues:
        task = min(queues, key=lambda task: (taken[task], task))
        segment = queues[task].popleft()
        taken[task] += size(segment)
        if chosen and sum(taken.values()) > most:
            break
        chosen.append(segment)
        if not queues[task]:
            del queues[task]
    return sorted(chosen)


def packed(segments: Sequence[Segment]) -> list[Files]:
    """Pack files into partitions of limited size; those of one task stay in order."""
    partitions: list[Files] = []
    task, nbytes, paths = -1, 0, list[str]()
    for segment in segments:
        most = PARTITION_BYTES if segment.task == task else TOGETHER_BYTES
        if not partitions or nbytes + segment.nbytes > most:
            nbytes, paths = 0, []
            partitions.append(Files(paths))
        task, nbytes = segment.task, nbytes + segment.nbytes
        paths.append(segment.path)
    return partitions


def _offset(positions: Mapping[int, Position]) -> Offset:
    return {str(task): str(position) for task, position in sorted(positions.items())}


def _chosen_limit(options: Mapping[str, str]) -> tuple[str, int] | None:
    given = [option for option in _SIZES if option in options]
    text = options[given[0]] if given else "1"
    if len(given) > 1 or not text.isdecimal() or int(text) < 1:
        said = ", ".join(f"{option}={options[option]}" for option in given)
        raise DefinitionError(
            f"a limit that cannot be kept: {said}",
            where=FORMAT,
            remedy=f"give one of {', '.join(_SIZES)}, a whole number, 1 or more",
        )
    return (given[0], int(text)) if given else None
