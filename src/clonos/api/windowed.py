"""Windowed streams: rows by key and window, to be aggregated or ranked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from clonos.columns.schema import require_columns, require_sortable
from clonos.errors import BadGraph, WrongType
from clonos.graph.logical import Vertex
from clonos.operators import operations as op
from clonos.operators.aggregates import Aggregate
from clonos.operators.windows.content import BOUNDS, WINDOW_END, WINDOW_START, Ranking
from clonos.operators.windows.kinds import Fixed, Given, Session, Window

if TYPE_CHECKING:
    from clonos.api.streams import Stream


class WindowedStream:
    """A stream cut into windows, by key if it has one.

    Before they are shuffled, the rows of each batch are folded into one per key and window,
    wherever that changes nothing: not for sums of floats, which depend on the order.
    """

    def __init__(self, stream: Stream, keys: Sequence[str], window: Window) -> None:
        if not isinstance(window, (Fixed, Session, Given)):
            raise WrongType(
                f"{window!r} is not a window", remedy='write window(clonos.tumbling("5 seconds"))'
            )
        times = list(window) if isinstance(window, Given) else [window.event_time]
        self._times = [column for column in times if column is not None]
        for column in self._times:
            require_columns(stream.schema, [column], "window")
            require_time(stream.schema, column, "window")
        if self._times and not has_watermark(stream._vertex):  # noqa: SLF001 - our own
            raise BadGraph(
                "a window in event time on a stream without a watermark would never end",
                where="window",
                remedy=f'write with_watermark("{times[0]}", "5 seconds") before it',
            )
        self._stream = stream
        self._keys = tuple(keys)
        self._window = window

    def agg(
        self,
        *,
        name: str | Aggregate | None = None,
        parallelism: int | Aggregate | None = None,
        pre_aggregate: bool | Aggregate = True,
        **aggregates: Aggregate,
    ) -> Stream:
        """One row per key and window: the key, window_start, window_end, and the aggregates.

        Parameters
        ----------
        pre_aggregate
            Fold rows before they are shuffled. This is not worth its cost if few rows of a batch
            share a key.

        Examples
        --------
        >>> import clonos
        >>> words = clonos.Job().source(clonos.sources.from_batches([], schema="word string"))
        >>> windows = words.key_by("word").window(clonos.tumbling("5 seconds"))
        >>> windows.agg(n=clonos.count()).schema.names
        ['word', 'window_start', 'window_end', 'n']
        """
        # Somebody may want to call a column "name".
        if isinstance(name, Aggregate):
            aggregates["name"], name = name, None
        if isinstance(parallelism, Aggregate):
            aggregates["parallelism"], parallelism = parallelism, None
        if isinstance(pre_aggregate, Aggregate):
            aggregates["pre_aggregate"], pre_aggregate = pre_aggregate, True
        where = name or "window"
        check_aggregates(
            aggregates, self._stream.schema, (*self._keys, WINDOW_START, WINDOW_END), where
        )
        schema, keys, window = self._stream.schema, self._keys, self._window
        operation = op.AggregateWindows(
            schema, keys, window, tuple(aggregates.items()), where, bool(pre_aggregate)
        )
        of = [each.column for each in aggregates.values()]
        reads = tuple(column for column in (*keys, *self._times, *of) if column is not None)
        return self._add(operation, name, parallelism, reads=reads)

    def top(
        self,
        number: int,
        *by: str | Ranking,
        ties: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The highest-ranked rows of each key and window, with window_start and window_end.

        Parameters
        ----------
        number
            How many.
        by
            Columns to rank by, the largest first; ``clonos.asc("column")`` for the smallest. Rows
            that rank the same are in order of arrival.
        ties
            Also return the rows that rank the same as the last one.

        Examples
        --------
        >>> import clonos
        >>> bids = clonos.Job().source(clonos.sources.from_batches([], "item long, price long"))
        >>> bids.key_by("item").window(clonos.tumbling("1 s")).top(1, "price").schema.names
        ['item', 'price', 'window_start', 'window_end']
        """
        where = name or "top"
        if type(number) is not int or number < 1:
            raise WrongType(f"top({number!r})", where=where, remedy="give a number of 1 or more")
        if isinstance(self._window, Session):
            raise BadGraph(
                "rows of sessions cannot be ranked",
                where=where,
                remedy="aggregate them, and rank the sessions between their bounds",
            )
        rankings = [r if isinstance(r, Ranking) else Ranking(r, is_descending=True) for r in by]
        if not rankings:
            raise WrongType("top without a column", where=where, remedy='top(1, "price")')
        require_sortable(self._stream.schema, [ranking.column for ranking in rankings], where)
        schema, keys, window = self._stream.schema, self._keys, self._window
        operation = op.TopOfWindows(schema, keys, window, number, tuple(rankings), ties)
        return self._add(operation, name, parallelism, kind="top")

    def rows(self, *, name: str | None = None, parallelism: int | None = None) -> Stream:
        """All rows with window_start and window_end, when their window is over.

        Examples
        --------
        >>> import clonos
        >>> rows = clonos.Job().source(clonos.sources.from_batches([], "user long"))
        >>> rows.key_by("user").window(clonos.session("5 s")).rows().schema.names
        ['user', 'window_start', 'window_end']
        """
        stream, window, where = self._stream, self._window, name or "rows"
        if isinstance(window, Given) or not window.is_tumbling or not self._keys:
            raise BadGraph(
                "rows() needs a keyed stream, and windows that do not overlap",
                where=where,
                remedy="use key_by, and tumbling windows or sessions",
            )
        for column in (WINDOW_START, WINDOW_END):
            if column in stream.schema.names:
                raise BadGraph(
                    f"the output would have two columns {column!r}",
                    where=where,
                    remedy="rename it before: withColumnRenamed(...)",
                )
        operation = op.RowsOfWindows(stream.schema, self._keys, window)
        schema = pa.schema([*stream.schema, *BOUNDS])
        edge = stream._edge  # noqa: SLF001 - our own
        return stream._follow("rows", name, schema, parallelism, operation, edge)  # noqa: SLF001

    def _add(
        self,
        operation: op.AggregateWindows | op.TopOfWindows,
        name: str | None,
        parallelism: int | None,
        *,
        kind: str = "window",
        reads: tuple[str, ...] | None = None,
    ) -> Stream:
        stream = self._stream
        if not self._keys:
            if parallelism not in (None, 1):
                raise BadGraph(
                    f"a window over all rows in {parallelism} tasks",
                    where=name or kind,
                    remedy="use key_by before it",
                )
            parallelism = 1
        return stream._follow(  # noqa: SLF001
            kind,
            name,
            operation.content().output,
            parallelism,
            operation,
            stream._edge,  # noqa: SLF001
            reads=reads,
        )


def check_aggregates(
    aggregates: dict[str, Aggregate], schema: pa.Schema, taken: Sequence[str], where: str
) -> None:
    """Raise what is wrong with aggregates of columns of `schema`; names in `taken` are refused."""
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
            require_columns(schema, [aggregate.column], where)
        aggregate.fold(schema, where)
        if column in taken:
            raise BadGraph(
                f"the output would have two columns {column!r}",
                where=where,
                remedy="rename the aggregate",
            )


def require_time(schema: pa.Schema, column: str, where: str) -> None:
    """Raise :class:`WrongType` unless the column is a time."""
    data_type = schema.field(column).type
    if not (pa.types.is_timestamp(data_type) or pa.types.is_date(data_type)):
        raise WrongType(
            f"column {column!r} is {data_type}, not a time",
            where=where,
            remedy="use a timestamp or date column",
        )


def has_watermark(vertex: Vertex) -> bool:
    """Whether event time advances after this operator."""
    if isinstance(vertex.operation, op.WithWatermark):
        return True
    if isinstance(vertex.operation, op.Join) and not vertex.operation.passes_event_time:
        return False
    return bool(vertex.edges) and all(has_watermark(edge.vertex) for edge in vertex.edges)
