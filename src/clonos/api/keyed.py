"""Keyed streams: rows with the same key are in the same task."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from clonos.api.joins import check_join, join_bounds, kind_of_join
from clonos.api.stateful import transform_operation
from clonos.api.streams import Stream
from clonos.api.windowed import WindowedStream, check_aggregates, has_watermark, require_time
from clonos.columns.durations import parse_duration
from clonos.columns.schema import parse_schema, require_columns, require_sortable
from clonos.errors import BadGraph, UnknownColumn, WrongType
from clonos.graph.logical import Edge, Vertex
from clonos.operators import operations as op
from clonos.operators.aggregates import Aggregate
from clonos.operators.by_key.join import Always
from clonos.operators.context import require_takes
from clonos.operators.process.process import CALLBACKS, Process
from clonos.operators.router import Routing
from clonos.operators.windows.kinds import Window


class KeyedStream(Stream):
    """Rows with the same key are in the same task, in order."""

    def __repr__(self) -> str:
        return f"{super().__repr__()} by {', '.join(self.keys)}"

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
        how: str = "inner",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> KeyedStream:
        """Pairs of rows of this and another stream with the same key: columns of both.

        Without `window`, `keep` and `between` every row is kept for ever. A row of an outer or
        anti join that has no partner comes when event time has passed the last moment at which one
        could come, or when the input ends.

        Parameters
        ----------
        window
            A tumbling window: both rows are in the same one.
        keep
            How long a row waits for rows of the other side that are later (one duration for both
            sides, or one for each).
        between
            Two columns of this stream: the other row's time is from the first of them (which is
            this row's event time) up to before the second.
        on
            The column with the event time, or one for each side; not needed on this side with
            `between`.
        how
            As in PySpark: "inner", "left", "right" and "full" (with rows without a partner, of
            this stream, of the other one, of both), "semi" (rows of this stream that have a
            partner), "anti" (those that have none). The result is keyed as this stream is, that of
            "right" as the other one.

        Examples
        --------
        >>> import clonos
        >>> job = clonos.Job()
        >>> left = job.source(clonos.sources.from_batches([], "id long, name string"))
        >>> right = job.source(clonos.sources.from_batches([], "owner long, item string"))
        >>> left.key_by("id").join(right.key_by("owner")).schema.names
        ['id', 'name', 'owner', 'item']
        >>> left.key_by("id").join(right.key_by("owner"), how="anti").schema.names
        ['id', 'name']
        """
        where = name or "join"
        kind = kind_of_join(how, where)
        check_join(self, other, kind, where)
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
        operation = op.Join(schemas, keys, bounds, kind)
        vertex = self._job.graph.add(
            "join",
            name,
            schema=operation.output,
            parallelism=self._job.parallelism if parallelism is None else parallelism,
            operation=operation,
            edges=(self._hashed, other._hashed),
        )
        # Rows of a full join are where the key of either side has sent them.
        routing = Routing.HASH if kind == "full" else Routing.FORWARD
        return KeyedStream(self._job, vertex, Edge(vertex, routing, keys[kind == "right"]))

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
            Forget a key when event time is more than `within` past the time of its row, in column
            `on`; by default keys are remembered for ever.

        Examples
        --------
        ``events.key_by("id").deduplicate("1 hour", on="time")``
        """
        where = name or "deduplicate"
        within_ms = 0
        if (within is None) != (on is None):
            raise WrongType(
                "deduplicate has a duration, but no column with the event time" if on is None
                else "deduplicate has a column with the event time, but no duration",
                where=where,
                remedy='write deduplicate("1 hour", on="time")',
            )  # fmt: skip
        if within is not None and on is not None:
            require_columns(self.schema, [on], where)
            require_time(self.schema, on, where)
            within_ms = parse_duration(within, minimum_ms=0)
        operation = op.Deduplicate(self.schema, self.keys, on, within_ms)
        return self._like_this(self._add("deduplicate", name, self.schema, parallelism, operation))

    def in_order(
        self, time: str, *ties: str, name: str | None = None, parallelism: int | None = None
    ) -> KeyedStream:
        """Hold rows back until event time has passed them, and sort them by it.

        Parameters
        ----------
        time
            The column with the event time.
        ties
            Columns that decide the order of rows with the same time.

        Examples
        --------
        ``bids.key_by("seller").in_order("time", "id")``
        """
        where = name or "in_order"
        require_columns(self.schema, [time], where)
        require_sortable(self.schema, ties, where)
        require_time(self.schema, time, where)
        if not has_watermark(self._vertex):
            raise BadGraph(
                "without a watermark no row would ever come out",
                where=where,
                remedy=f'write with_watermark("{time}", "5 seconds") before it',
            )
        operation = op.InOrder(self.schema, self.keys, time, ties)
        return self._like_this(self._add("in_order", name, self.schema, parallelism, operation))

    def last(
        self,
        number: int,
        *,
        name: str | Aggregate | None = None,
        parallelism: int | Aggregate | None = None,
        **aggregates: Aggregate,
    ) -> KeyedStream:
        """Add to each row aggregates of the last `number` rows of its key, itself included.

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
            raise WrongType(f"last({number!r})", where=where, remedy="give a number of 1 or more")
        check_aggregates(aggregates, self.schema, self.schema.names, where)
        given = tuple(aggregates.items())
        operation = op.Last(self.schema, self.keys, number, given, where)
        return self._like_this(self._add("last", name, operation.output, parallelism, operation))

    def process(
        self,
        process: Process,
        schema: Any,
        *,
        in_flight: int = 100,
        effects: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Run your own logic, with state and timers per key.

        Parameters
        ----------
        process
            An object of your own class, derived from :class:`clonos.Process`.
        schema
            The columns of its output rows.
        in_flight
            How many calls of its services may be open in a task; calls beyond that wait, and so
            does the task's input.
        effects
            Whether some of its services are effects (:func:`clonos.effect`).

        Examples
        --------
        >>> import clonos
        >>> class Total(clonos.Process):
        ...     def on_row(self, row, ctx):
        ...         total = ctx.state("total", "long")
        ...         total.set(total.get(0) + row.cents)
        ...         yield row.user, total.get()
        >>> job = clonos.Job()
        >>> batches = [[("ann", 3), ("bob", 1), ("ann", 4)]]
        >>> paid = job.source(clonos.sources.from_batches(batches, "user string, cents long"))
        >>> totals = paid.key_by("user").process(Total(), "user string, total long")
        >>> totals.sink(clonos.sinks.collect(), name="out")
        >>> from clonos.testing import InMemoryRun
        >>> InMemoryRun(job.compile()).run()["out"].column("total").to_pylist()
        [3, 1, 7]
        """
        if not isinstance(process, Process):
            raise WrongType(
                f"{process!r} is not a Process object",
                where=name or "process",
                remedy="derive a class from clonos.Process and give an object of it",
            )
        if type(process).on_row is Process.on_row:
            raise WrongType(
                f"{type(process).__name__} has no on_row",
                where=name or "process",
                remedy="write on_row(self, row, ctx)",
            )
        for callback, values in CALLBACKS.items():
            require_takes(process, callback, values, name or "process")
        parsed = parse_schema(schema)
        operation = op.ProcessRows(process, self.keys, parsed, in_flight, effects)
        known = {"has_effects": effects}
        vertex = self._add("process", name, parsed, parallelism, operation, **known)
        return Stream(self._job, vertex)

    def transformWithState(  # noqa: N802 - as PySpark spells it
        self,
        statefulProcessor: Any,  # noqa: N803
        outputStructType: Any,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        initialState: Any = None,  # noqa: N803
        eventTimeColumnName: str = "",  # noqa: N803
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Run one of Spark's ``StatefulProcessor`` objects, unchanged.

        It is called for each batch of a task, once for each key that has rows in it. Values, lists
        and maps by key, timers and ``ttlDurationMs`` work as in Spark, and survive
        failures. :meth:`process` also has services, and both kinds of timers at once.

        Parameters
        ----------
        statefulProcessor, outputStructType
            The object, and the columns of its results.
        outputMode
            "Append" or "Update", which is the same here.
        timeMode
            "None", "ProcessingTime" or "EventTime": of its timers.
        initialState, eventTimeColumnName
            Refused.

        Raises
        ------
        NotInTasks
            It uses something of Spark's that tasks do not have.

        Examples
        --------
        ``clicks.key_by("user").transformWithState(Count(), "user string, n long", "Append",
        "None")``
        """
        where = name or "transformWithState"
        operation = transform_operation(
            self,
            statefulProcessor,
            outputStructType,
            output_mode=outputMode,
            time_mode=timeMode,
            initial_state=initialState,
            event_time_column=eventTimeColumnName,
            where=where,
        )
        vertex = self._add("transformWithState", name, operation.schema, parallelism, operation)
        return Stream(self._job, vertex)

    def _like_this(self, vertex: Vertex) -> KeyedStream:
        for key in self.keys:
            if key not in vertex.schema.names or (
                vertex.schema.field(key).type != self.schema.field(key).type
            ):
                raise UnknownColumn(
                    f"the key {key!r} is lost",
                    where=vertex.name,
                    remedy="keep the key's columns, or use key_by afterwards",
                )
        return KeyedStream(self._job, vertex, Edge(vertex, Routing.FORWARD, self.keys))
