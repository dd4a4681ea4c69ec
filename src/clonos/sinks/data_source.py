"""The format ``clonos`` of Spark: tables between jobs and queries.

What ``clonos.sinks.table`` writes, Spark reads, as a stream or as it is now; what a streaming query
writes with it, any number of jobs read (``clonos.sources.table``), and so does Spark.

Examples
--------
::

    live = spark.readStream.format("clonos").load("/data/alerts")
    so_far = spark.read.format("clonos").load("/data/alerts")
    clicks.writeStream.format("clonos").options(checkpointLocation="/data/q").start("/data/a")

Options of reading: ``maxRowsPerTrigger``, ``maxFilesPerTrigger`` or ``maxBytesPerTrigger``, what a
micro-batch takes at most (but one file at least), from Spark 4.2 on; ``failOnDataLoss``: with
``"false"`` a query goes on behind rows that were removed before it read them, instead of failing.
Of writing: ``removeRead``; with ``"true"`` a query removes what all jobs that read it have passed.

Rows of a sink task come in its order; an offset names, for each task, the newest file that was
read. Files never change, so a query that is started again reads the same rows between the same
offsets, and any number of queries can follow a table.
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
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from clonos.columns.schema import parse_schema
from clonos.errors import DefinitionError
from clonos.sinks.query_writer import QueryWriter
from clonos.storage.segments import START, Position, Positions, Segment, newest
from clonos.storage.tables import NoTable, OtherTable, RowsRemoved, Table

Offset = dict[str, str]
"""Per task, the position of the newest file read; ``"table"``: the table it belongs to."""

FORMAT: Final = "clonos"
PARTITION_BYTES: Final = 32 << 20
"""A Spark partition takes more files of a task only until it has this much."""
_TABLE: Final = "table"
_LOOK_S: Final = 0.05

_SIZES: Final[Mapping[str, tuple[str, Callable[[Segment], int]]]] = {
    "maxRowsPerTrigger": ("max_rows", lambda segment: segment.rows),
    "maxFilesPerTrigger": ("max_files", lambda _: 1),
    "maxBytesPerTrigger": ("max_bytes", lambda segment: segment.nbytes),
}
"""Option -> what Spark calls that limit, and what it counts."""


class Files(InputPartition):
    """Some files of one task, in order."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths


class _Rows:
    """What both readers share."""

    _tolerant = False

    def __init__(self, table: Table, schema: StructType) -> None:
        self._table = table
        self._schema: pa.Schema = parse_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for path in getattr(partition, "paths", ()):  # of an empty table Spark asks for nothing
            try:
                for batch in self._table.read(path):
                    yield batch.select(self._schema.names).cast(self._schema)
            except RowsRemoved:  # since the partition was planned
                if not self._tolerant:
                    raise


class TableReader(_Rows, DataSourceReader):
    """The rows that are there now."""

    def partitions(self) -> Sequence[InputPartition]:
        return packed(self._table.segments())


class TableStream(_Rows, DataSourceStreamReader):
    """Rows as they come."""

    def __init__(self, table: Table, schema: StructType, options: Mapping[str, str]) -> None:
        super().__init__(table, schema)
        self._limit = _chosen_limit(options)
        self._tolerant = options.get("failOnDataLoss", "true").lower() == "false"
        self._target: dict[int, Position] | None = None
        self._start: Offset | None = None
        self._last: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {_TABLE: self._table.id}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - see above
        from pyspark.sql.streaming import datasource  # the module is there from Spark 4.2 on

        if self._limit is None:
            return datasource.ReadAllAvailable()
        option, most = self._limit
        kind = option.removesuffix("PerTrigger").replace("max", "ReadMax")
        return getattr(datasource, kind)(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - see above
        """The query is to end where the table ends now."""
        self._target = newest(self._table.segments())

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        if start is None:  # before Spark 4.2 nobody says from where
            # Of a query that goes on, that is not known before a batch is planned, which is also
            # where the rows that have been removed meanwhile are missed.
            start = self._last or self.initialOffset() | _offset(self._table.removed)
        self._start = start
        first = self._positions(start)
        segments = self._table.segments(first)
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
        """For the query's progress: where the table ends."""
        if self._start is None:
            return None
        return self._start | _offset(newest(self._table.segments(self._positions(self._start))))

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
        """Nothing is removed: others may read the table, too (see :func:`remove_rows`)."""

    def _positions(self, offset: Offset) -> dict[int, Position]:
        if offset[_TABLE] != self._table.id:
            raise OtherTable(
                "the query has read another table than the one that is in this folder now",
                where=self._table.path,
                remedy="start the query with a new checkpointLocation, or put the table back",
            )
        return {int(t): Position.parse(p) for t, p in offset.items() if t != _TABLE}

    def _require_kept(self, first: Positions, tasks: Iterable[int]) -> None:
        """What these tasks wrote behind `first` must not have been removed."""
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
    """Spark's way to the readers."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(self._table().schema)

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(self._table(), schema)

    def streamReader(self, schema: StructType) -> TableStream:  # noqa: N802 - Spark's name
        return TableStream(self._table(), schema, self.options)

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
    """Say that our stream knows the trigger availableNow, to a Spark that asks (4.2 and newer)."""
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return
    SupportsTriggerAvailableNow.register(TableStream)


_declare()


# --- for the user --------------------------------------------------------------------------------


def register(spark: Any) -> None:
    """Make the format known to a session that has not found it by itself.

    Spark finds it where clonos is installed on the driver, so this is seldom needed.
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
        There is none.
    StreamingQueryException
        The query has failed.
    TimeoutError
        The job has not ended in time; the query runs on.
    """
    table = _existing(path)
    until = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
    while not table.ended:
        if not query.isActive:
            query.awaitTermination()  # raises what it has failed with
            return
        if time.monotonic() > until:
            raise TimeoutError(f"the job that writes {path} has not ended after {timeout_s} s")
        time.sleep(_LOOK_S)
    query.processAllAvailable()
    query.stop()


def remove_rows(path: str, older_than: timedelta) -> int:
    """Remove what is older than a given age from a table, and return the number of files.

    A query that has not read them all fails with :class:`~clonos.storage.tables.RowsRemoved`, as
    does a new one: set its option ``failOnDataLoss`` to begin with what is left.
    """
    return _existing(path).remove(older_than.total_seconds())


def remove_read(path: str) -> int:
    """Remove what all jobs that read a table have passed for good, and return the number of files.

    A job is a reader from its first start until it is complete (:func:`readers`). Without readers
    nothing is removed. Queries of Spark's are none: keep what they need by age.
    """
    return _existing(path).remove_read()


def readers(path: str) -> dict[str, dict[int, str]]:
    """The jobs that read a table: by reader, up to where it needs nothing any more, by task of who
    writes the table."""
    found = _existing(path).readers()
    return {name: {t: str(p) for t, p in passed.items()} for name, passed in found.items()}


def forget_reader(path: str, reader: str) -> None:
    """Do not keep rows for a job that will never be started again."""
    _existing(path).forget_reader(reader)


def end(path: str) -> None:
    """Say that nothing more comes into a table that a query has written: the input of its readers
    ends. Stop the query first: it could not go on."""
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
    """As many of the first segments as fit, one at least; tasks that have had less go first."""
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
    """Partitions of the files of one task each, in order, of no more than a fair size."""
    partitions: list[Files] = []
    task, nbytes, paths = -1, 0, list[str]()
    for segment in segments:
        if segment.task != task or nbytes + segment.nbytes > PARTITION_BYTES:
            task, nbytes, paths = segment.task, 0, []
            partitions.append(Files(paths))
        nbytes += segment.nbytes
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
            remedy=f"give one of {', '.join(_SIZES)}, a whole number from 1 on",
        )
    return (given[0], int(text)) if given else None
