"""Streams: what operators are applied to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from clonos.api.calls import CallOptions, call_policy
from clonos.api.frames import FrameOperations
from clonos.api.joins import look_up_operation, side_table
from clonos.api.udfs import typed, user_function
from clonos.api.windowed import WindowedStream, require_time
from clonos.columns.durations import parse_duration
from clonos.columns.schema import parse_schema, require_columns, require_keys, wider
from clonos.errors import BadGraph, WrongType
from clonos.graph.logical import Edge, Vertex
from clonos.operators import operations as op
from clonos.operators.calls.service import Service
from clonos.operators.context import takes_context
from clonos.operators.router import Routing
from clonos.operators.windows.kinds import Window
from clonos.sinks.spec import SinkSpec
from clonos.sources.spec import table_versions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clonos.api.keyed import KeyedStream

Function = Callable[..., Any]

Execution = Literal["tasks", "spark"]
"""What runs a job: Clonos tasks in slots, or Spark's own plans."""


class Stream(FrameOperations):
    """Typed rows that flow from an operator.

    Every method that adds an operator takes ``name`` (for messages and to find its tasks) and
    ``parallelism`` (that of the operator before it, by default). Functions take ``(row)`` or
    ``(row, ctx)``; see :class:`clonos.operators.context.Context` for what ``ctx`` offers.
    ``deterministic``: all that a function returns follows from its arguments, and of ``ctx`` it
    uses only ``random``; ``clonos check`` tries that, and ``Job(log="needed")`` relies on it.
    """

    def map(
        self,
        fn: Function,
        schema: Any,
        *,
        deterministic: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Make one row from each row.

        Parameters
        ----------
        fn
            ``fn(row)`` or ``fn(row, ctx)`` returns a tuple, a dict, or the value of the one column.
        schema
            The columns that it returns, as in PySpark: ``"word string, n long"``.

        Examples
        --------
        >>> import clonos
        >>> from clonos.testing import InMemoryRun
        >>> job = clonos.Job()
        >>> words = job.source(clonos.sources.from_batches([[("to",), ("be",)]], "word string"))
        >>> words.map(lambda row: (row.word, len(row.word)), "word string, n int").sink(
        ...     clonos.sinks.collect(), name="out"
        ... )
        >>> InMemoryRun(job.compile()).run()["out"].to_pylist()
        [{'word': 'to', 'n': 2}, {'word': 'be', 'n': 2}]
        """
        takes_context(fn, name or "map")
        parsed = parse_schema(schema)
        operation = op.Map(fn, parsed, deterministic)
        return Stream(self._job, self._add("map", name, parsed, parallelism, operation))

    def flat_map(
        self,
        fn: Function,
        schema: Any,
        *,
        deterministic: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Make any number of rows from each row.

        Parameters
        ----------
        fn
            ``fn(row)`` or ``fn(row, ctx)`` returns an iterable of rows as for :meth:`map`, or None.
        schema
            The columns of these rows.

        Examples
        --------
        >>> import clonos
        >>> lines = clonos.Job().source(clonos.sources.from_batches([], "value string"))
        >>> lines.flat_map(lambda row: row.value.split(), "word string").schema.names
        ['word']
        """
        takes_context(fn, name or "flat_map")
        parsed = parse_schema(schema)
        operation = op.FlatMap(fn, parsed, deterministic)
        return Stream(self._job, self._add("flat_map", name, parsed, parallelism, operation))

    def with_column(
        self,
        column: str,
        fn: Function,
        *of: str,
        deterministic: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """``fn(value, ...)`` makes a column from the columns `of`; the others stay as they are.

        Only the values that the function gets, and those that it returns, become Python objects:
        for rows with many columns this is several times as fast as :meth:`map`.

        Parameters
        ----------
        column
            Name and type of the new column (``"price long"``), or the name of a column whose type
            stays. It replaces the column of this name, or comes last.
        fn
            Takes the values of one row, and after them ``ctx``, if it has such a parameter. It may
            be one of Spark's ``udf``, ``pandas_udf`` or ``arrow_udf`` objects; then its type need
            not be repeated.

        Examples
        --------
        >>> import clonos
        >>> bids = clonos.Job().source(clonos.sources.from_batches([], "price long, note string"))
        >>> euros = bids.with_column("price", lambda price: price * 89 // 100, "price")
        >>> euros.with_column("words int", lambda note: len(note.split()), "note").schema.names
        ['price', 'note', 'words']
        """
        where = name or "with_column"
        require_columns(self.schema, of, where)
        udf = user_function(fn, where)
        field, schema = self._with_field(column if udf is None else typed(column, udf), where)
        if udf is not None and not udf.is_per_row:
            whole = udf.on_batches(of, self.schema, field, where)
            operation: op.Operation = op.MapBatches(whole, schema, deterministic)
        else:
            called = fn if udf is None else udf.fn
            takes_context(called, where, of)
            operation = op.WithColumn(called, of, field.name, schema, deterministic)
        vertex = self._add("with_column", name, schema, parallelism, operation)
        return self._with_changed(field, vertex)

    def _with_field(self, column: str, where: str) -> tuple[pa.Field, pa.Schema]:
        """The column that is made, and the schema with it."""
        is_known = column in self.schema.names
        (field, *more) = [self.schema.field(column)] if is_known else parse_schema(column)
        if more:
            remedy = "make one after the other, or use map"
            raise WrongType(f"{column!r} are several columns", where=where, remedy=remedy)
        at = self.schema.get_field_index(field.name)
        return field, self.schema.append(field) if at < 0 else self.schema.set(at, field)

    def _with_changed(self, field: pa.Field, vertex: Vertex) -> Stream:
        is_key = field.name in self._edge.keys
        return Stream(self._job, vertex) if is_key else self._like_this(vertex)

    def map_async(
        self,
        fn: Function | Service,
        schema: Any,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        **how: Unpack[CallOptions],
    ) -> Stream:
        """``fn(row)`` asks a service and returns one row; many calls are open at a time.

        Steps, checkpoints and recoveries wait for no call. Each answer or exception of `fn` is
        logged when it comes, and never asked for again. After a failure, only calls whose outcome
        was in no log are made again.

        Parameters
        ----------
        fn
            A coroutine function (``async def``), which runs in an event loop beside the steps; a
            plain function, which runs in a thread; a :class:`clonos.Service`; or one of these that
            must not be called twice, declared with :func:`clonos.effect`. It returns what
            :meth:`map` may return, in plain values, at most 256 KiB.
        how
            See :func:`clonos.api.calls.call_policy`: ``in_flight=100``, ``ordered=True`` (or
            ``"key"``), ``per_key=None``, ``timeout="60 seconds"``, ``attempts=1``,
            ``backoff=("100 ms", "10 seconds")``, ``per_second=None``, ``hedge=None``,
            ``on_error=None``, ``identity=None``, ``batch=None``, ``batch_within=None``,
            ``cache_ttl=None``.

        Examples
        --------
        >>> import clonos
        >>> async def judge(row):
        ...     return row.id, "good" if row.cents < 100 else "bad"
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "id long, cents long"))
        >>> rows.map_async(judge, "id long, verdict string", in_flight=500).schema.names
        ['id', 'verdict']

        The calls of one user come one after the other, and other users do not wait:

        >>> by_id = rows.key_by("id")
        >>> by_id.map_async(judge, "id long, verdict string", ordered="key", per_key=1).schema.names
        ['id', 'verdict']

        One call for up to 16 rows:

        >>> async def judge_all(rows):
        ...     return [(row.id, "good" if row.cents < 100 else "bad") for row in rows]
        >>> together = {"batch": 16, "batch_within": "20 ms"}
        >>> rows.map_async(judge_all, "id long, verdict string", **together).schema.names
        ['id', 'verdict']
        """
        where, keys = name or "map_async", self._edge.keys
        policy, then = call_policy(fn, where, ("row",), self.schema, keys, **how)
        parsed = parse_schema(schema)
        operation = op.MapAsync(policy, self.schema, parsed, keys, then)
        known = {"has_effects": policy.effect is not None}
        vertex = self._add("map_async", name, parsed, parallelism, operation, **known)
        return Stream(self._job, vertex)

    def with_column_async(
        self,
        column: str,
        fn: Function | Service,
        *of: str,
        name: str | None = None,
        parallelism: int | None = None,
        **how: Unpack[CallOptions],
    ) -> Stream:
        """:meth:`with_column` with a service that is asked as in :meth:`map_async`.

        Only the arguments and the answers become Python objects; only the answers are logged.

        Examples
        --------
        >>> import clonos
        >>> async def judge(text, price):
        ...     return "dear" if price > 100 else "cheap"
        >>> bids = clonos.Job().source(clonos.sources.from_batches([], "text string, price long"))
        >>> bids.with_column_async("verdict string", judge, "text", "price").schema.names
        ['text', 'price', 'verdict']
        """
        where = name or "with_column_async"
        require_columns(self.schema, of, where)
        policy, then = call_policy(fn, where, of, self.schema, self._edge.keys, **how)
        field, schema = self._with_field(column, where)
        operation = op.WithColumnAsync(
            policy, self.schema, of, field.name, schema, self._edge.keys, then
        )
        known = {"has_effects": policy.effect is not None}
        vertex = self._add("with_column_async", name, schema, parallelism, operation, **known)
        return self._with_changed(field, vertex)

    def for_each_async(
        self,
        fn: Function | Service,
        *of: str,
        name: str | None = None,
        parallelism: int | None = None,
        **how: Unpack[CallOptions],
    ) -> None:
        """End the stream in calls: ``fn(row)``, or ``fn(value, ...)`` of the columns `of`.

        It is :meth:`map_async` for effects and calls whose answers nobody reads. They are not kept,
        unless ``cost`` or ``tokens`` is a function of them. The result of ``on_error`` is not
        kept either.

        Examples
        --------
        >>> import clonos
        >>> @clonos.service(idempotent=True, attempts=3)
        ... async def remind(customer, *, call):
        ...     await mail.send(customer, idempotency_key=call.key)
        >>> due = clonos.Job().source(clonos.sources.from_batches([], "customer string, day int"))
        >>> due.for_each_async(remind, "customer", in_flight=20)
        """
        where, keys = name or "for_each_async", self._edge.keys
        require_columns(self.schema, of, where)
        policy, then = call_policy(fn, where, of or ("row",), self.schema, keys, **how)
        operation = op.ForEachAsync(policy, self.schema, of, keys, then)
        known = {"has_effects": policy.effect is not None}
        vertex = self._add("for_each_async", name, self.schema, parallelism, operation, **known)
        # No row ever comes there: it makes the operator one that leads to a sink.
        Stream(self._job, vertex).sink(SinkSpec("callback", fn=_nothing), name=f"{vertex.name}.end")

    def map_batches(
        self,
        fn: Function,
        schema: Any = None,
        *,
        deterministic: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Make Arrow batches from Arrow batches.

        Parameters
        ----------
        fn
            ``fn(batch)`` or ``fn(batch, ctx)`` takes a ``pyarrow.RecordBatch`` of any length and
            returns a batch or table, or None.
        schema
            The columns that it returns; by default those of this stream.

        Examples
        --------
        >>> import clonos
        >>> numbers = clonos.Job().source(clonos.sources.from_batches([], "n long"))
        >>> numbers.map_batches(lambda batch: batch.slice(0, 1)).schema.names
        ['n']
        """
        takes_context(fn, name or "map_batches")
        parsed = self.schema if schema is None else parse_schema(schema)
        operation = op.MapBatches(fn, parsed, deterministic)
        return self._like_this(self._add("map_batches", name, parsed, parallelism, operation))

    def with_watermark(
        self,
        column: str,
        delay: str | timedelta,
        *,
        idle_after: str | timedelta | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Event time is in `column`, and no row is more than `delay` older than the newest.

        Parameters
        ----------
        idle_after
            A task that gets no rows for this long (processing time), perhaps none at all, does not
            hold back the event time of later operators until it gets some. By default they wait.
        """
        require_columns(self.schema, [column], name or "with_watermark")
        require_time(self.schema, column, name or "with_watermark")
        idle_ms = None if idle_after is None else parse_duration(idle_after)
        operation = op.WithWatermark(column, parse_duration(delay, minimum_ms=0), idle_ms)
        known = {"reads": (column,), "passes_on": True}
        vertex = self._add("with_watermark", name, self.schema, parallelism, operation, **known)
        return self._like_this(vertex)

    def look_up(
        self,
        table: Any,
        on: str | Mapping[str, str],
        *,
        how: str = "inner",
        refresh: str | timedelta | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Add the columns of a table: a side input that every task has as a whole.

        Parameters
        ----------
        table
            An Arrow table or record batch, a DataFrame, or a function that returns one of these. A
            DataFrame is read when the job starts, a function is called then (and once when the
            job is defined, for its schema); a job that is started again has the same table.
        on
            The column that has the key in both, or ``{column: column of the table}``.
        how
            "inner" drops rows without a match, "left" fills them up with nulls.
        refresh
            How often to read the table again, such as "30 seconds". The rows of a task see the
            versions in the order in which these came; in a replay, each row sees the same version.
            If files are replaced, give a function, because a DataFrame remembers which files to
            read: ``lambda: spark.read.parquet(path)``.

        Examples
        --------
        >>> import clonos, pyarrow
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "city long, n long"))
        >>> cities = pyarrow.table({"id": [1, 2], "city_name": ["Rom", "Ulm"]})
        >>> rows.look_up(cities, {"city": "id"}).schema.names
        ['city', 'n', 'city_name']
        >>> rows.look_up(lambda: cities, {"city": "id"}, refresh="1 minute").schema.names
        ['city', 'n', 'city_name']
        """
        where = name or "look_up"
        side = side_table(table, where)
        if refresh is None:
            operation = look_up_operation(self.schema, side, on, how, where)
            schema = operation.output
            return self._like_this(self._add("look_up", name, schema, parallelism, operation))
        if isinstance(side, pa.RecordBatch):
            raise WrongType(
                "an Arrow table does not change",
                where=where,
                remedy="give a DataFrame or a function, or no refresh",
            )
        operation = look_up_operation(self.schema, side, on, how, where, changes=True)
        if parallelism is None and self._edge.routing is not Routing.FORWARD:
            parallelism = self._job.parallelism
        versions = self._job.source(
            table_versions(side, parse_duration(refresh)), name=f"{name}.table" if name else None
        )
        vertex = self._job.graph.add(
            "look_up",
            name,
            schema=operation.output,
            parallelism=parallelism,
            operation=operation,
            edges=(self._edge, versions.broadcast()._edge),  # noqa: SLF001 - of the same class
        )
        return self._like_this(vertex)

    def window(self, window: Window) -> WindowedStream:
        """Group all rows by window, in one task (after a local aggregation in each task)."""
        return WindowedStream(self, (), window)

    def key_by(self, *columns: str) -> KeyedStream:
        """Bring rows with the same values in `columns` to the same task.

        Examples
        --------
        >>> import clonos
        >>> words = clonos.Job().source(clonos.sources.from_batches([], "word string, n long"))
        >>> words.key_by("word").keys
        ('word',)
        """
        if not columns:
            raise WrongType("key_by without a column", remedy='write key_by("word")')
        require_keys(self.schema, columns, "key_by")
        from clonos.api.keyed import KeyedStream

        edge = replace(self._edge, routing=Routing.HASH, keys=columns)
        return KeyedStream(self._job, self._vertex, edge)

    def union(
        self, *others: Stream, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """The rows of this and other streams of the same schema, in the order in which they come.

        A column may be null in the result if it may be null in one of the streams.

        Raises
        ------
        WrongType
            The schemas differ.
        BadGraph
            The streams are of different jobs.
        """
        schema = self.schema
        for other in others:
            if other._job is not self._job:  # noqa: SLF001 - of the same class
                raise BadGraph("streams of different jobs cannot be joined", where=name or "union")
            if (both := wider(schema, other.schema)) is None:
                raise WrongType(
                    f"a union of ({_columns(self.schema)}) and ({_columns(other.schema)})",
                    where=name or "union",
                    remedy="map them to the same schema first",
                )
            schema = both
        edges = (self._edge, *(other._edge for other in others))  # noqa: SLF001
        is_same = all(edge.vertex.schema.equals(schema) for edge in edges)
        vertex = self._job.graph.add(
            "union",
            name,
            schema=schema,
            parallelism=parallelism,
            operation=op.PassOn() if is_same else op.Widen(schema),
            edges=edges,
        )
        return Stream(self._job, vertex)

    def rebalance(self) -> Stream:
        """Distribute batches evenly over the tasks of the next operator."""
        return Stream(self._job, self._vertex, self._routed(Routing.ROUND_ROBIN))

    def broadcast(self) -> Stream:
        """Give every row to every task of the next operator."""
        return Stream(self._job, self._vertex, self._routed(Routing.BROADCAST))

    def _routed(self, routing: Routing) -> Edge:
        return replace(self._edge, routing=routing, keys=())

    def sink(
        self, sink: SinkSpec, *, name: str | None = None, parallelism: int | None = None
    ) -> None:
        """End the stream in one of ``clonos.sinks``; its tasks are those that make the rows.

        `name` is the name of the rows in the job's result: ``result.table(name)``.
        """
        if not isinstance(sink, SinkSpec):
            raise WrongType(
                f"{type(sink).__name__} is not a sink",
                where=name or "sink",
                remedy="give one of clonos.sinks, such as clonos.sinks.collect()",
            )
        described = sink.with_schema(self.schema)
        self._add(sink.kind, name, self.schema, parallelism, sink.head, sink=described)

    def to_dataframe(
        self,
        spark: Any = None,
        *,
        name: str | None = None,
        execution: Execution = "tasks",
        **options: Any,
    ) -> Any:
        """Run the job and return the rows of this stream as a Spark DataFrame.

        The job runs now, to its end, as with ``DataFrame.checkpoint()``, whatever you then do with
        the DataFrame; its rows are read by Spark's own tasks. Other sinks get their rows, too.

        With a ``checkpoint_dir``, the same call, even in another process, gives the same rows at
        once; without one it runs the job again, and rows are kept until this process ends. The
        executors of a cluster must share that directory. For several streams of a job give each
        a sink, and use the result's ``dataframe(sink)``.

        Parameters
        ----------
        spark
            A session; a new local one by default.
        name
            Of the sink that is added.
        execution
            "spark": nothing runs yet. The DataFrame is a plan of Spark's own operators, with your
            functions in Spark's Python workers. It streams if the sources do. See
            ``docs/executions.md``.
        options
            As for :meth:`Job.run`.

        Raises
        ------
        Unbounded
            A source may never end.
        NotInSpark
            With "spark": some operation has no plan that gives the rows that tasks give.

        Examples
        --------
        >>> counts.to_dataframe(spark).write.parquet("/data/counts")  # doctest: +SKIP
        """
        if is_spark(execution):
            return self._job.plans(spark, **options).dataframe(self._vertex)
        return self._job.to_dataframe(self, spark, name, options)

    def _add(
        self,
        kind: str,
        name: str | None,
        schema: pa.Schema,
        parallelism: int | None,
        operation: op.Operation,
        **known: Any,
    ) -> Vertex:
        if parallelism is None and self._edge.routing is not Routing.FORWARD:
            parallelism = self._job.parallelism
        known |= {"schema": schema, "parallelism": parallelism, "operation": operation}
        return self._job.graph.add(kind, name, edges=(self._edge,), **known)

    def _follow(
        self,
        kind: str,
        name: str | None,
        schema: pa.Schema,
        parallelism: int | None,
        operation: op.Operation,
        edge: Edge,
        **known: Any,
    ) -> Stream:
        """The stream behind an operator that reads from `edge`, and does not keep keys."""
        stream = Stream(self._job, edge.vertex, edge)
        vertex = stream._add(kind, name, schema, parallelism, operation, **known)
        return Stream(self._job, vertex)

    def _like_this(self, vertex: Vertex) -> Stream:
        """The stream behind an operator that keeps keys and partitioning."""
        return Stream(self._job, vertex)


def is_spark(execution: Execution) -> bool:
    """Whether Spark's own plans shall run the job."""
    if execution not in get_args(Execution):
        raise WrongType(f"execution={execution!r}", remedy="use 'tasks' or 'spark'")
    return execution == "spark"


def _nothing(batch: pa.RecordBatch) -> None:
    raise AssertionError(f"{batch.num_rows} rows behind the end of a stream")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
