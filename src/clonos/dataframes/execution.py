"""Running a job as Spark's plans: once, to the end of its input, or as streaming queries."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from clonos.columns.batches import conform
from clonos.dataframes.answers import Answers
from clonos.dataframes.plan import Plans
from clonos.dataframes.sources import inputs_of, streams
from clonos.errors import (
    DefinitionError,
    NotEnded,
    NotInSpark,
    OtherExecution,
    SinkFailed,
    Unbounded,
    WrongType,
)
from clonos.graph.compile import compile_graph
from clonos.graph.description import describe_plans, require_same
from clonos.graph.logical import LogicalGraph, Vertex
from clonos.sinks.data_source import FORMAT, register
from clonos.sinks.outputs import hand_over, write_with_spark
from clonos.sinks.query_writer import claim
from clonos.sinks.spec import NO_FORMAT, Query, SinkSpec
from clonos.spark.micro_batches import short_errors
from clonos.spark.session import is_connected
from clonos.spark.slots import SPARK_ERRORS, in_short
from clonos.storage.checkpoint import OF_QUERIES, OF_TASKS, TERMS
from clonos.storage.files import files_of, folder_name
from clonos.storage.folder import Folder
from clonos.storage.tables import Table

_QUERIES: Final = "spark"
"""The folder of the queries' checkpoints, within the job's."""

_TIMES: Final = "spark.sql.parquet.outputTimestampType"

_POLL_S: Final = 1


class PlanResult:
    """The result of a job that ran as batch plans.

    Attributes
    ----------
    sinks
        The names of the sinks.
    """

    def __init__(
        self, frames: dict[str, Any], tables: dict[str, pa.Table], *, is_log_over: bool = False
    ) -> None:
        self._frames, self._tables = frames, tables
        self._is_log_over = is_log_over
        self.sinks = list(frames)

    def table(self, sink: str | None = None) -> pa.Table:
        """The rows of a ``collect`` sink (the only one, if not named), in no particular order."""
        name = self._named(sink)
        if name not in self._tables:
            raise DefinitionError(
                "this sink keeps no rows", where=name, remedy="use clonos.sinks.collect()"
            )
        return self._tables[name]

    def dataframe(self, sink: str | None = None) -> Any:
        """The plan of a sink, which computes its rows again with each use."""
        name = self._named(sink)
        if self._is_log_over:
            raise DefinitionError(
                "the plan would ask again, as the log of its answers ended with the run",
                where=name,
                remedy="use table(), or call causal.start(spark, directory) before the run",
            )
        return self._frames[name]

    def _named(self, sink: str | None) -> str:
        if sink is None and len(self.sinks) == 1:
            return self.sinks[0]
        if sink not in self._frames:
            raise DefinitionError(
                "the job has several sinks" if sink is None else f"there is no sink {sink!r}",
                remedy=f"name one of {', '.join(self.sinks)}",
            )
        return sink

    def __repr__(self) -> str:
        return f"<PlanResult of {', '.join(self.sinks)}>"


class RunningPlans:
    """The streaming queries of a job; when one fails, the others are stopped.

    Attributes
    ----------
    queries
        PySpark's ``StreamingQuery`` of each sink, by its name.
    """

    def __init__(self, queries: dict[str, StreamingQuery], log: Answers | None = None) -> None:
        self.queries = queries
        self._log = log

    def watch(self) -> None:
        """See to it that the other queries stop when one fails, also if nobody waits."""
        for name, query in self.queries.items():
            threading.Thread(
                target=self._watch, args=(query,), name=f"clonos {name}", daemon=True
            ).start()

    def _watch(self, query: StreamingQuery) -> None:
        with suppress(*SPARK_ERRORS):  # the session has ended meanwhile
            try:
                query.awaitTermination()
            except StreamingQueryException:
                self.stop()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of all queries.

        Raises
        ------
        StreamingQueryException
            A query has failed.
        NotEnded
            The queries have not ended in time, and keep running; also a `TimeoutError`.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while active := [query for query in self.queries.values() if query.isActive]:
            if until is not None and time.monotonic() >= until:
                running = ", ".join(n for n, query in self.queries.items() if query in active)
                raise NotEnded(
                    f"queries have not ended within {timeout_s:g} s, and keep running: {running}",
                    remedy="wait again, or stop them with running.stop()",
                )
            with suppress(StreamingQueryException):  # told below; it stops the others
                active[0].awaitTermination(_POLL_S)
        self.stop()  # the log
        for query in self.queries.values():
            query.awaitTermination()  # raises the error if it has failed

    def stop(self) -> None:
        """Stop all queries; with a ``checkpoint_dir`` the job can be continued later."""
        for query in self.queries.values():
            query.stop()
        if self._log is not None:
            self._log.stop()

    @property
    def is_running(self) -> bool:
        """Whether any query is running."""
        return any(query.isActive for query in self.queries.values())

    @property
    def status(self) -> dict[str, dict[str, Any]]:
        """The status of each query, as PySpark reports it."""
        return {name: query.status for name, query in self.queries.items()}

    @property
    def last_progress(self) -> dict[str, Any]:
        """The newest progress of each query; None before its first micro-batch."""
        return {name: query.lastProgress for name, query in self.queries.items()}


def run_plans(graph: LogicalGraph, plans: Plans) -> PlanResult:
    """Run a job with bounded input.

    Raises
    ------
    NotInSpark
        An operation or a sink has no plan. Then nothing has been written.
    Unbounded
        A source streams.
    """
    sinks = _sinks(graph)
    for vertex, _ in sinks:
        if plans.streams(vertex):
            raise Unbounded(
                "a streaming DataFrame may never end",
                where=vertex.name,
                remedy='use job.start(execution="spark")',
            )
    writers = {vertex.name: _writer(vertex, sink) for vertex, sink in sinks}
    if graph.options.checkpoint_dir is not None:
        _require_no_tasks(graph.options.checkpoint_dir)
    with Answers.of(graph, plans.spark) as log:
        frames = {vertex.name: plans.dataframe(vertex) for vertex, _ in sinks}
        tables = {}
        for name, write in writers.items():
            kept = write(frames[name])
            if kept is not None:
                tables[name] = kept
        log.done()
    return PlanResult(frames, tables, is_log_over=log.is_ours)


def start_plans(
    graph: LogicalGraph,
    plans: Plans,
    *,
    processing_time: str | None = None,
    available_now: bool = False,
) -> RunningPlans:
    """Start a streaming query for each sink.

    Raises
    ------
    NotInSpark
        An operation or a sink has no plan. Then nothing has been started.
    OtherExecution
        The checkpoint belongs to tasks.
    SinkFailed
        Spark does not know the format of a sink.
    """
    if processing_time is not None and available_now:
        raise WrongType("processing_time and available_now", remedy="give one of them")
    sinks = _sinks(graph)
    for vertex, _ in sinks:
        if not plans.streams(vertex):
            raise NotInSpark(
                "its input does not stream",
                where=vertex.name,
                remedy='use job.run(execution="spark"), or give the job a streaming DataFrame',
            )
    folder = graph.options.checkpoint_dir
    if folder is not None:
        _require_no_tasks(folder)
    queries: dict[str, StreamingQuery] = {}
    with ExitStack() as undo:
        log = undo.enter_context(Answers.of(graph, plans.spark))
        begun = [(v, sink, _begun(v, sink, plans.dataframe(v), queries)) for v, sink in sinks]
        if folder is not None:
            _claim(folder, graph)
        undo.callback(RunningPlans(queries).stop)
        for vertex, sink, writer in begun:
            writer.queryName(f"{graph.name}: {vertex.name}")
            if folder is not None:
                name = folder_name(vertex.name)
                writer.option("checkpointLocation", f"{folder}/{_QUERIES}/{name}")
            if processing_time is not None:
                writer.trigger(processingTime=processing_time)
            if available_now:
                writer.trigger(availableNow=True)
            with _known_format(vertex.name), _place_known(vertex.name, folder):
                query = queries[vertex.name] = writer.start()
            if sink.kind == "table" and sink.path is not None:
                # So that others may read the table before it has a row.
                claim(Table(sink.path, "fsync"), vertex.schema, str(query.id))
        undo.pop_all()
    running = RunningPlans(queries, log)
    running.watch()
    return running


def _sinks(graph: LogicalGraph) -> list[tuple[Vertex, SinkSpec]]:
    compile_graph(graph)  # an error in the graph is an error in every execution
    return [(vertex, vertex.sink) for vertex in graph.vertices if vertex.sink is not None]


def _writer(vertex: Vertex, sink: SinkSpec) -> Callable[[Any], pa.Table | None]:
    """A function that writes a DataFrame, and returns the rows that the result keeps, if any."""
    if sink.kind == "collect":
        return lambda frame: _arrow(vertex, frame)
    if sink.kind == "parquet":
        return partial(_written, sink)
    if sink.kind == "spark_write":
        return partial(write_with_spark, sink, vertex.name)
    if sink.kind in ("callback", "console"):
        return lambda frame: _handed_over(vertex, sink, _arrow(vertex, frame))
    if sink.query is not None:
        return partial(_saved, vertex.name, sink.query)
    raise _no_sink(vertex, sink, "use clonos.sinks.spark_write(fn), which calls fn(df)")


def _saved(where: str, how: Query, frame: Any) -> None:
    """Write where Spark writes."""
    writer = frame.write.format(how.format).options(**how.options).partitionBy(*how.partition_by)
    with _known_format(where):
        writer.mode("append" if how.path is None else "errorifexists").save(how.path)


@contextmanager
def _place_known(where: str, folder: str | None) -> Iterator[None]:
    """What PySpark asks for is an option of the job here."""
    try:
        yield
    except AnalysisException as error:
        if folder is not None or "checkpointLocation" not in str(error):
            raise
        raise DefinitionError(
            "the query needs a place for its checkpoint",
            where=where,
            remedy="write clonos.Job(..., checkpoint_dir=...)",
        ) from error


@contextmanager
def _known_format(where: str) -> Iterator[None]:
    """PySpark has no exception of its own for a format that is not there."""
    try:
        yield
    except Py4JError as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        raise SinkFailed(
            f"Spark cannot write there: {in_short(error)}", where=where, remedy=NO_FORMAT
        ) from error


def _written(sink: SinkSpec, frame: Any) -> None:
    """Write Parquet files with the types that tasks write: Spark's default has no time zone."""
    conf = frame.sparkSession.conf
    was = conf.get(_TIMES)
    conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        frame.write.mode("errorifexists").parquet(sink.path)
    finally:
        conf.set(_TIMES, was)


def _begun(vertex: Vertex, sink: SinkSpec, frame: Any, queries: dict[str, StreamingQuery]) -> Any:
    """The writer of a streaming DataFrame."""
    if sink.query is not None:
        return _following(sink.query, frame)
    if sink.kind == "table":
        register(frame.sparkSession)
        return frame.writeStream.format(FORMAT).option("path", sink.path)
    if sink.kind not in ("callback", "console"):
        remedy = 'write stream.to_dataframe(spark, execution="spark").writeStream yourself'
        raise _no_sink(vertex, sink, remedy)

    if is_connected(frame.sparkSession):
        raise NotInSpark(
            f"a {sink.kind} sink is called in the driver, which is not this process: Spark Connect "
            "would call a copy of it on the server",
            where=vertex.name,
            remedy="use clonos.sinks.table or clonos.sinks.spark, and read what they have written",
        )

    def is_stopping() -> bool:
        query = queries.get(vertex.name)
        return query is not None and not query.isActive

    def hand_over(batch: Any, number: int) -> None:
        del number
        with short_errors(is_stopping):
            rows = _arrow(vertex, batch)
        _handed_over(vertex, sink, rows)

    return frame.writeStream.foreachBatch(hand_over)


def _following(how: Query, frame: Any) -> Any:
    """The writer of a query that writes where Spark does."""
    writer = frame.writeStream.format(how.format).options(**how.options)
    if how.path is not None:
        writer = writer.option("path", how.path)
    if how.partition_by:
        writer = writer.partitionBy(*how.partition_by)
    if how.processing_time is not None:
        writer = writer.trigger(processingTime=how.processing_time)
    return writer


def _no_sink(vertex: Vertex, sink: SinkSpec, remedy: str) -> NotInSpark:
    return NotInSpark(
        f"Spark's plans cannot write each row once to a {sink.kind} sink",
        where=vertex.name,
        remedy=f"{remedy}, or run the job with execution='tasks'",
    )


def _arrow(vertex: Vertex, frame: Any) -> pa.Table:
    """The rows of a DataFrame with the types of tasks: Spark's depend on the session."""
    batches = [conform(batch, vertex.schema) for batch in frame.toArrow().to_batches()]
    return pa.Table.from_batches(batches, vertex.schema)


def _handed_over(vertex: Vertex, sink: SinkSpec, rows: pa.Table) -> None:
    for batch in rows.to_batches():
        hand_over(vertex.name, sink, batch)


def _require_no_tasks(folder: str) -> None:
    files, path = files_of(folder)
    # The first is missing where the journal is elsewhere.
    if any(files.info(f"{path}/{name}") is not None for name in (OF_TASKS, TERMS)):
        raise OtherExecution(
            f"the checkpoint {folder} belongs to a job that ran in tasks",
            remedy="give another checkpoint_dir: positions and state mean different things",
        )


def _claim(folder: str, graph: LogicalGraph) -> None:
    """Claim a checkpoint for these streaming queries, unless it belongs to others."""
    files, path = files_of(folder)
    inputs = {
        vertex.id: inputs_of(vertex.source)
        for vertex in graph.vertices
        if vertex.source is not None and streams(vertex.source)
    }
    place, now = Folder(files, path, "fsync"), describe_plans(graph, inputs)
    if files.info(f"{path}/{_QUERIES}") is None:  # no query has begun
        place.put(OF_QUERIES, json.dumps({"graph": now}, indent=1).encode())
    else:
        before = json.loads(place.read(OF_QUERIES).to_pybytes())
        require_same(before["graph"], now, place.path(OF_QUERIES))
