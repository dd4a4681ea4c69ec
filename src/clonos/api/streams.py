"""Streams: what operators are applied to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clonos.api.durations import parse_duration
from clonos.api.windows import Tumbling
from clonos.errors import BadGraph, UnknownColumn, WrongType
from clonos.graph.nodes import Edge, Node, OperatorFactory
from clonos.operators.aggregates import Aggregate
from clonos.operators.context import takes_context
from clonos.operators.filter import FilterOperator
from clonos.operators.flat_map import FlatMapOperator
from clonos.operators.identity import IdentityOperator
from clonos.operators.map import MapOperator
from clonos.operators.map_batches import MapBatchesOperator
from clonos.operators.partition import Routing
from clonos.operators.process import Process, ProcessOperator
from clonos.operators.schema import parse_schema, require_columns
from clonos.operators.specs import SinkSpec
from clonos.operators.watermark import WatermarkOperator
from clonos.operators.window import WindowOperator

if TYPE_CHECKING:
    from clonos.api.job import Job

Function = Callable[..., Any]


class Stream:
    """Typed rows that flow from an operator.

    Every method that adds an operator takes ``name`` (for messages and to find its tasks) and
    ``parallelism`` (that of the operator before it, by default). Functions take ``(row)`` or
    ``(row, ctx)``; see :class:`clonos.operators.context.Context` for what ``ctx`` offers.
    """

    def __init__(self, job: Job, node: Node, edge: Edge | None = None) -> None:
        self._job = job
        self._node = node
        self._edge = edge or Edge(node)

    @property
    def schema(self) -> pa.Schema:
        """Columns and types."""
        return self._node.schema

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
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Event time is in `column`, and no row comes more than `delay` behind the newest."""
        require_columns(self.schema, [column], name or "with_watermark")
        _require_time(self.schema, column, name or "with_watermark")
        make = partial(WatermarkOperator, column, parse_duration(delay, minimum_ms=0))
        node = self._add("with_watermark", name, self.schema, parallelism, make)
        return self._like_this(node)

    def key_by(self, *columns: str) -> KeyedStream:
        """Bring rows with the same values in `columns` to the same task."""
        if not columns:
            raise WrongType("key_by without a column", remedy='write key_by("word")')
        require_columns(self.schema, columns, "key_by")
        return KeyedStream(self._job, self._node, Edge(self._node, Routing.HASH, columns))

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
        node = self._job.add_node(
            "union",
            name,
            schema=self.schema,
            parallelism=parallelism,
            make=IdentityOperator,
            edges=edges,
        )
        return Stream(self._job, node)

    def rebalance(self) -> Stream:
        """Share out batches evenly among the tasks of the next operator."""
        return Stream(self._job, self._node, Edge(self._node, Routing.ROUND_ROBIN))

    def broadcast(self) -> Stream:
        """Give every row to every task of the next operator."""
        return Stream(self._job, self._node, Edge(self._node, Routing.BROADCAST))

    def sink(
        self, sink: SinkSpec, *, name: str | None = None, parallelism: int | None = None
    ) -> None:
        """End the stream in one of ``clonos.sinks``."""
        if not isinstance(sink, SinkSpec):
            raise WrongType(
                f"{type(sink).__name__} is not a sink",
                where=name or "sink",
                remedy="give one of clonos.sinks, such as clonos.sinks.collect()",
            )
        self._job.add_node(
            sink.kind,
            name,
            schema=self.schema,
            parallelism=parallelism,
            make=sink.head,
            edges=(self._edge,),
            sink=sink.with_schema(self.schema),
        )

    def _add(
        self,
        kind: str,
        name: str | None,
        schema: pa.Schema,
        parallelism: int | None,
        make: OperatorFactory,
    ) -> Node:
        if parallelism is None and self._edge.routing is not Routing.FORWARD:
            parallelism = self._job.parallelism
        return self._job.add_node(
            kind,
            name,
            schema=schema,
            parallelism=parallelism,
            make=make,
            edges=(self._edge,),
        )

    def _like_this(self, node: Node) -> Stream:
        """The stream behind an operator that keeps keys and partitioning."""
        return Stream(self._job, node)


class KeyedStream(Stream):
    """Rows with the same key are in the same task, in order."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return self._edge.keys

    def window(self, window: Tumbling) -> WindowedStream:
        """Group rows by key and window."""
        if not isinstance(window, Tumbling):
            raise WrongType(
                f"{window!r} is not a window", remedy='write window(clonos.tumbling("5 seconds"))'
            )
        if window.event_time is not None:
            require_columns(self.schema, [window.event_time], "window")
            _require_time(self.schema, window.event_time, "window")
            if not _has_watermark(self._node):
                raise BadGraph(
                    "a window in event time on a stream without a watermark would never end",
                    where="window",
                    remedy=f'write with_watermark("{window.event_time}", "5 seconds") before it',
                )
        return WindowedStream(self, window)

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

    def _like_this(self, node: Node) -> Stream:
        for key in self.keys:
            if key not in node.schema.names or (
                node.schema.field(key).type != self.schema.field(key).type
            ):
                raise UnknownColumn(
                    f"the key {key!r} is lost",
                    where=node.name,
                    remedy="keep the key's columns, or key_by afterwards",
                )
        return KeyedStream(self._job, node, Edge(node, Routing.FORWARD, self.keys))


class WindowedStream:
    """A keyed stream cut into windows, to be aggregated."""

    def __init__(self, stream: KeyedStream, window: Tumbling) -> None:
        self._stream = stream
        self._window = window

    def agg(
        self,
        *,
        name: str | Aggregate | None = None,
        parallelism: int | Aggregate | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """One row per key and window: the key, window_start, window_end, and the aggregates.

        Examples
        --------
        ``words.key_by("word").window(clonos.tumbling("5 seconds")).agg(n=clonos.count())``
        """
        # Somebody may want to call a column "name".
        if isinstance(name, Aggregate):
            aggregates["name"], name = name, None
        if isinstance(parallelism, Aggregate):
            aggregates["parallelism"], parallelism = parallelism, None
        stream, window, where = self._stream, self._window, name or "window"
        self._check(aggregates, where)
        make = partial(
            WindowOperator,
            stream.schema,
            stream.keys,
            window.size_ms,
            window.event_time,
            dict(aggregates),
        )
        for aggregate in aggregates.values():
            aggregate.accumulator(stream.schema, where)
        node = stream._add("window", name, make().schema, parallelism, make)  # noqa: SLF001
        return Stream(stream._job, node)  # noqa: SLF001

    def _check(self, aggregates: dict[str, Aggregate], where: str) -> None:
        if not aggregates:
            raise WrongType("agg without aggregates", where=where, remedy="agg(n=clonos.count())")
        for column, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise WrongType(
                    f"{column}={aggregate!r} is not an aggregate",
                    where=where,
                    remedy="use clonos.count, sum, min, max or avg",
                )
            if aggregate.column is not None:
                require_columns(self._stream.schema, [aggregate.column], where)
            if column in (*self._stream.keys, "window_start", "window_end"):
                raise BadGraph(
                    f"the output would have two columns {column!r}",
                    where=where,
                    remedy="rename the aggregate",
                )


def _require_time(schema: pa.Schema, column: str, where: str) -> None:
    data_type = schema.field(column).type
    if not (pa.types.is_timestamp(data_type) or pa.types.is_date(data_type)):
        raise WrongType(
            f"column {column!r} is {data_type}, not a time",
            where=where,
            remedy="use a timestamp or date column",
        )


def _has_watermark(node: Node) -> bool:
    if isinstance(node.make, partial) and node.make.func is WatermarkOperator:
        return True
    return bool(node.edges) and all(_has_watermark(edge.node) for edge in node.edges)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
