"""Streams: what operators are applied to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from clonos.api.joins import check_join, join_bounds, look_up_operator, side_table
from clonos.api.placed import Placed
from clonos.api.windowed import WindowedStream, check_aggregates, has_watermark, require_time
from clonos.columns.durations import parse_duration
from clonos.columns.schema import parse_schema, require_columns
from clonos.errors import BadGraph, UnknownColumn, WrongType
from clonos.graph.logical import Edge, Vertex
from clonos.operators.aggregates import Aggregate
from clonos.operators.base import OperatorFactory
from clonos.operators.context import takes_context
from clonos.operators.deduplicate import DeduplicateOperator
from clonos.operators.filter import FilterOperator
from clonos.operators.flat_map import FlatMapOperator
from clonos.operators.identity import IdentityOperator
from clonos.operators.in_order import InOrderOperator
from clonos.operators.join import Always, JoinOperator
from clonos.operators.last import LastOperator
from clonos.operators.map import MapOperator
from clonos.operators.map_batches import MapBatchesOperator, Select
from clonos.operators.process import Process, ProcessOperator
from clonos.operators.router import Routing
from clonos.operators.watermark import WatermarkOperator
from clonos.operators.window_kinds import Window
from clonos.operators.with_column import WithColumnOperator
from clonos.sinks.spec import SinkSpec
from clonos.sources import table_versions

Function = Callable[..., Any]


class Stream(Placed):
    """Typed rows that flow from an operator.

    Every method that adds an operator takes ``name`` (for messages and to find its tasks) and
    ``parallelism`` (that of the operator before it, by default). Functions take ``(row)`` or
    ``(row, ctx)``; see :class:`clonos.operators.context.Context` for what ``ctx`` offers.
    """

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return self._vertex.schema

    def map(
        self, fn: Function, schema: Any, *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """``fn(row)`` makes one row of each: a tuple, a dict, or the value of the only column."""
        takes_context(fn, name or "map")
        parsed = parse_schema(schema)
        make = partial(MapOperator, fn, parsed)
        return Stream(self._job, self._add("map", name, parsed, parallelism, make))

    def flat_map(
        self, fn: Function, schema: Any, *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """``fn(row)`` returns an iterable of rows, or None."""
        takes_context(fn, name or "flat_map")
        parsed = parse_schema(schema)
        make = partial(FlatMapOperator, fn, parsed)
        return Stream(self._job, self._add("flat_map", name, parsed, parallelism, make))

    def filter(
        self, fn: Function, *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """Keep the rows for which ``fn(row)`` is true."""
        takes_context(fn, name or "filter")
        make = partial(FilterOperator, fn)
        return self._like_this(self._add("filter", name, self.schema, parallelism, make))

    def with_column(
        self,
        column: str,
        fn: Function,
        *of: str,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """``fn(value, ...)`` of the columns `of` makes a column; the others pass as they are.

        Only the values that the function asks for become Python's, and what it returns: of rows
        with many columns this is several times as fast as :meth:`map`.

        Parameters
        ----------
        column
            Name and type of what is made (``"price long"``), or the name of a column whose type
            stays. It replaces the column of this name, or comes last.
        fn
            Takes the values of one row, and ``ctx`` behind them if it wants it.

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
        takes_context(fn, where, of)
        is_known = column in self.schema.names
        (field, *more) = [self.schema.field(column)] if is_known else parse_schema(column)
        if more:
            remedy = "make one after the other, or use map"
            raise WrongType(f"{column!r} are several columns", where=where, remedy=remedy)
        at = self.schema.get_field_index(field.name)
        schema = self.schema.append(field) if at < 0 else self.schema.set(at, field)
        make = partial(WithColumnOperator, fn, of, field.name, schema)
        vertex = self._add("with_column", name, schema, parallelism, make)
        is_key = field.name in self._edge.keys
        return Stream(self._job, vertex) if is_key else self._like_this(vertex)

    def map_batches(
        self,
        fn: Function,
        schema: Any = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """``fn(batch)`` makes an Arrow batch or table (or None) of an Arrow batch.

        Without `schema` that of this stream is kept.
        """
        takes_context(fn, name or "map_batches")
        parsed = self.schema if schema is None else parse_schema(schema)
        make = partial(MapBatchesOperator, fn, parsed)
        return self._like_this(self._add("map_batches", name, parsed, parallelism, make))

    def with_watermark(
        self,
        column: str,
        delay: str | timedelta,
        *,
        idle_after: str | timedelta | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Event time is in `column`, and no row comes more than `delay` behind the newest.

        Parameters
        ----------
        idle_after
            A task that has had rows and gets no more for so long (processing time) does not hold
            back the event time of those behind it, until it gets rows again. By default they wait.
        """
        require_columns(self.schema, [column], name or "with_watermark")
        require_time(self.schema, column, name or "with_watermark")
        idle_ms = None if idle_after is None else parse_duration(idle_after)
        make = partial(WatermarkOperator, column, parse_duration(delay, minimum_ms=0), idle_ms)
        vertex = self._add(
            "with_watermark", name, self.schema, parallelism, make, reads=(column,), passes_on=True
        )
        return self._like_this(vertex)

    def select(
        self,
        *columns: str,
        name: str | None = None,
        parallelism: int | None = None,
        **renamed: str,
    ) -> Stream:
        """Only these columns, in this order; ``new="old"`` renames one.

        A keyed stream stays one if its keys are among them. Behind a source of Parquet files or of
        a DataFrame, with nothing but ``with_watermark`` between, the others are not even read.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "a long, b long, c long"))
        >>> rows.select("c", x="a").schema.names
        ['c', 'x']
        """
        chosen = dict(zip(columns, columns, strict=True)) | renamed
        where = name or "select"
        require_columns(self.schema, list(chosen.values()), where)
        fields = [self.schema.field(old).with_name(new) for new, old in chosen.items()]
        schema = parse_schema(pa.schema(fields))
        reads = tuple(chosen.values())
        make = partial(MapBatchesOperator, Select(reads, schema), schema)
        vertex = self._add("select", name, schema, parallelism, make, reads=reads)
        is_like_this = all(chosen.get(key) == key for key in self._edge.keys)
        return self._like_this(vertex) if is_like_this else Stream(self._job, vertex)

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
            job is defined, for its schema); a job that is started again has the table it had.
        on
            The column that has the key in both, or ``{column: column of the table}``.
        how
            "inner" drops rows without a match, "left" fills them up with nulls.
        refresh
            Read it again so often, such as "30 seconds". Rows see the versions in the order in
            which they came to their task, in a replay the same ones. Where Spark remembers what a
            DataFrame is to read (a list of files), give a function: ``lambda:
            spark.read.parquet(path)``.

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
            make = look_up_operator(self.schema, side, on, how, where)
            return self._like_this(self._add("look_up", name, make().schema, parallelism, make))
        if isinstance(side, pa.RecordBatch):
            raise WrongType(
                "an Arrow table does not change",
                where=where,
                remedy="give a DataFrame or a function, or no refresh",
            )
        make = look_up_operator(self.schema, side, on, how, where, changes=True)
        if parallelism is None and self._edge.routing is not Routing.FORWARD:
            parallelism = self._job.parallelism
        versions = self._job.source(
            table_versions(side, parse_duration(refresh)), name=f"{name}.table" if name else None
        )
        vertex = self._job.add_vertex(
            "look_up",
            name,
            schema=make().schema,
            parallelism=parallelism,
            make=make,
            edges=(self._edge, versions.broadcast()._edge),  # noqa: SLF001 - of the same class
        )
        return self._like_this(vertex)

    def window(self, window: Window) -> WindowedStream:
        """Group all rows by window, in one task (behind a local aggregation in each task)."""
        return WindowedStream(self, (), window)

    def key_by(self, *columns: str) -> KeyedStream:
        """Bring rows with the same values in `columns` to the same task."""
        if not columns:
            raise WrongType("key_by without a column", remedy='write key_by("word")')
        require_columns(self.schema, columns, "key_by")
        edge = replace(self._edge, routing=Routing.HASH, keys=columns)
        return KeyedStream(self._job, self._vertex, edge)

    def union(
        self, *others: Stream, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """The rows of this and other streams of the same schema, as they come."""
        for other in others:
            if other._job is not self._job:  # noqa: SLF001 - of the same class
                raise BadGraph("streams of different jobs cannot be joined", where=name or "union")
            if not other.schema.equals(self.schema):
                raise WrongType(
                    f"a union of ({_columns(self.schema)}) and ({_columns(other.schema)})",
                    where=name or "union",
                    remedy="map them to the same schema first",
                )
        edges = (self._edge, *(other._edge for other in others))  # noqa: SLF001
        vertex = self._job.add_vertex(
            "union",
            name,
            schema=self.schema,
            parallelism=parallelism,
            make=IdentityOperator,
            edges=edges,
        )
        return Stream(self._job, vertex)

    def rebalance(self) -> Stream:
        """Share out batches evenly among the tasks of the next operator."""
        return Stream(self._job, self._vertex, self._routed(Routing.ROUND_ROBIN))

    def broadcast(self) -> Stream:
        """Give every row to every task of the next operator."""
        return Stream(self._job, self._vertex, self._routed(Routing.BROADCAST))

    def _routed(self, routing: Routing) -> Edge:
        return replace(self._edge, routing=routing, keys=())

    def sink(
        self, sink: SinkSpec, *, name: str | None = None, parallelism: int | None = None
    ) -> None:
        """End the stream in one of ``clonos.sinks``, which takes rows where they are made."""
        if not isinstance(sink, SinkSpec):
            raise WrongType(
                f"{type(sink).__name__} is not a sink",
                where=name or "sink",
                remedy="give one of clonos.sinks, such as clonos.sinks.collect()",
            )
        described = sink.with_schema(self.schema)
        self._add(sink.kind, name, self.schema, parallelism, sink.head, sink=described)

    def to_dataframe(self, spark: Any = None, *, name: str | None = None, **options: Any) -> Any:
        """Run the job and give what this stream had as a Spark DataFrame.

        The job runs now, to its end, as with ``DataFrame.checkpoint()``, whatever is then asked of
        the DataFrame; its rows are read by Spark's own tasks. Other sinks get theirs, too.

        With a ``checkpoint_dir``, the same call, also in another process, gives the same rows at
        once; without one it runs the job again, and rows are kept until this process ends. The
        executors of a cluster must share that directory. For several streams of a job give each
        a sink, and use the result's ``dataframe(sink)``.

        Parameters
        ----------
        spark
            A session; a new local one by default.
        name
            Of the sink that is added.
        options
            As for :meth:`Job.run`.

        Raises
        ------
        Unbounded
            A source need not end.

        Examples
        --------
        >>> counts.to_dataframe(spark).write.parquet("/data/counts")  # doctest: +SKIP
        """
        return self._job.to_dataframe(self, spark, name, options)

    def _add(
        self,
        kind: str,
        name: str | None,
        schema: pa.Schema,
        parallelism: int | None,
        make: OperatorFactory,
        **known: Any,
    ) -> Vertex:
        if parallelism is None and self._edge.routing is not Routing.FORWARD:
            parallelism = self._job.parallelism
        known |= {"schema": schema, "parallelism": parallelism, "make": make}
        return self._job.add_vertex(kind, name, edges=(self._edge,), **known)

    def _follow(
        self,
        kind: str,
        name: str | None,
        schema: pa.Schema,
        parallelism: int | None,
        make: OperatorFactory,
        edge: Edge,
        **known: Any,
    ) -> Stream:
        """The stream behind an operator that reads from `edge`, and does not keep keys."""
        stream = Stream(self._job, edge.vertex, edge)
        vertex = stream._add(kind, name, schema, parallelism, make, **known)
        return Stream(self._job, vertex)

    def _like_this(self, vertex: Vertex) -> Stream:
        """The stream behind an operator that keeps keys and partitioning."""
        return Stream(self._job, vertex)


class KeyedStream(Stream):
    """Rows with the same key are in the same task, in order."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return self._edge.keys

    @property
    def _hashed(self) -> Edge:
        return replace(self._edge, routing=Routing.HASH)

    def window(self, window: Window) -> WindowedStream:
        """Group rows by key and window; see ``clonos.tumbling``, ``sliding``, ``session`` and
        ``between``."""
        return WindowedStream(self, self.keys, window)

    def join(
        self,
        other: KeyedStream,
        *,
        window: Window | None = None,
        keep: str | timedelta | tuple[str | timedelta, str | timedelta] | None = None,
        between: tuple[str, str] | None = None,
        on: str | tuple[str, str] | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> KeyedStream:
        """Pairs of rows of this and another stream with the same key: columns of both.

        Without `window`, `keep` and `between` every row is kept for ever.

        Parameters
        ----------
        window
            A tumbling one: both rows are in the same window.
        keep
            How long a row waits for rows of the other side that are later (one duration for both
            sides, or one for each).
        between
            Two columns of this stream: the other row's time is from the first of them (which is
            this row's event time) up to before the second.
        on
            The column with the event time, or one for each side; not needed on this side with
            `between`.

        Examples
        --------
        >>> import clonos
        >>> job = clonos.Job()
        >>> left = job.source(clonos.sources.from_batches([], "id long, name string"))
        >>> right = job.source(clonos.sources.from_batches([], "owner long, item string"))
        >>> left.key_by("id").join(right.key_by("owner")).schema.names
        ['id', 'name', 'owner', 'item']
        """
        where = name or "join"
        check_join(self, other, where)
        bounds = join_bounds(
            (self.schema, other.schema), window=window, keep=keep, between=between, on=on,
            where=where,
        )  # fmt: skip
        if bounds[0] != Always() and not all(map(has_watermark, (self._vertex, other._vertex))):
            raise BadGraph(
                "a join in event time of streams without a watermark would keep all rows",
                where=where,
                remedy="write with_watermark(...) on both streams before it",
            )
        schemas, keys = (self.schema, other.schema), (self.keys, other.keys)
        make = partial(JoinOperator, schemas, keys, bounds)
        vertex = self._job.add_vertex(
            "join",
            name,
            schema=make().schema,
            parallelism=self._job.parallelism if parallelism is None else parallelism,
            make=make,
            edges=(self._hashed, other._hashed),
        )
        return KeyedStream(self._job, vertex, Edge(vertex, Routing.FORWARD, self.keys))

    def deduplicate(
        self,
        within: str | timedelta | None = None,
        on: str | None = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> KeyedStream:
        """Only the first row of each key.

        Parameters
        ----------
        within, on
            Forget a key when event time is so far past the time of its row, in column `on`; by
            default keys are remembered for ever.

        Examples
        --------
        ``events.key_by("id").deduplicate("1 hour", on="time")``
        """
        where = name or "deduplicate"
        within_ms = 0
        if (within is None) != (on is None):
            raise WrongType(
                "deduplicate within a time, but of which column?" if on is None
                else "deduplicate on a time, but within which?",
                where=where,
                remedy='write deduplicate("1 hour", on="time")',
            )  # fmt: skip
        if within is not None and on is not None:
            require_columns(self.schema, [on], where)
            require_time(self.schema, on, where)
            within_ms = parse_duration(within, minimum_ms=0)
        make = partial(DeduplicateOperator, self.schema, self.keys, on, within_ms)
        return self._like_this(self._add("deduplicate", name, self.schema, parallelism, make))

    def in_order(
        self, time: str, *ties: str, name: str | None = None, parallelism: int | None = None
    ) -> KeyedStream:
        """Hold rows back until event time has passed them, and sort them by it.

        Parameters
        ----------
        time
            The column with the event time.
        ties
            Columns that decide between rows of one time.

        Examples
        --------
        ``bids.key_by("seller").in_order("time", "id")``
        """
        where = name or "in_order"
        require_columns(self.schema, [time, *ties], where)
        require_time(self.schema, time, where)
        if not has_watermark(self._vertex):
            raise BadGraph(
                "without a watermark no row would ever come out",
                where=where,
                remedy=f'write with_watermark("{time}", "5 seconds") before it',
            )
        make = partial(InOrderOperator, self.schema, self.keys, time, ties)
        return self._like_this(self._add("in_order", name, self.schema, parallelism, make))

    def last(
        self,
        number: int,
        *,
        name: str | Aggregate | None = None,
        parallelism: int | Aggregate | None = None,
        **aggregates: Aggregate,
    ) -> KeyedStream:
        """To each row, aggregates of the last `number` rows of its key, itself among them.

        Examples
        --------
        ``sales.key_by("seller").last(10, mean=clonos.avg("price"))``
        """
        if isinstance(name, Aggregate):
            aggregates["name"], name = name, None
        if isinstance(parallelism, Aggregate):
            aggregates["parallelism"], parallelism = parallelism, None
        where = name or "last"
        if type(number) is not int or number < 1:
            raise WrongType(f"last({number!r})", where=where, remedy="give a number from 1 on")
        check_aggregates(aggregates, self.schema, self.schema.names, where)
        make = partial(LastOperator, self.schema, self.keys, number, dict(aggregates), where)
        return self._like_this(self._add("last", name, make().schema, parallelism, make))

    def process(
        self,
        process: Process,
        schema: Any,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Run your own logic, with state and timers per key; see :class:`clonos.Process`."""
        if not isinstance(process, Process):
            raise WrongType(
                f"{process!r} is not a Process object",
                where=name or "process",
                remedy="derive a class from clonos.Process and give an object of it",
            )
        parsed = parse_schema(schema)
        make = partial(ProcessOperator, process, self.keys, parsed)
        return Stream(self._job, self._add("process", name, parsed, parallelism, make))

    def _like_this(self, vertex: Vertex) -> KeyedStream:
        for key in self.keys:
            if key not in vertex.schema.names or (
                vertex.schema.field(key).type != self.schema.field(key).type
            ):
                raise UnknownColumn(
                    f"the key {key!r} is lost",
                    where=vertex.name,
                    remedy="keep the key's columns, or key_by afterwards",
                )
        return KeyedStream(self._job, vertex, Edge(vertex, Routing.FORWARD, self.keys))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
