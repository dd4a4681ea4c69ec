"""Event-time windows as plans: groups and ranks; in streams, lists that are sorted and cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import Window as Over
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from clonos.dataframes.rows import (
    TIME,
    WINDOW,
    EventTime,
    Rows,
    Site,
    col,
    cols,
    one_zero,
    select,
    signs,
)
from clonos.dataframes.stateless import plan_of
from clonos.operators import operations as op
from clonos.operators.aggregates import Aggregate
from clonos.operators.windows.content import WINDOW_END, WINDOW_START, Ranking
from clonos.operators.windows.kinds import Fixed, Given, Session, Window

_START: Final = "~start"
_END: Final = "~end"
_LIST: Final = "~rows"
_RANK: Final = "~rank"
_PLACE: Final = "~place"
_DOUBTFUL: Final = "~doubtful"

_LONGEST: Final = 2**31 - 2
"""The most elements of a list in Spark."""


@dataclass(frozen=True)
class Grouped:
    """Rows by key and window. ``bounds``: the columns that a window's start and end become."""

    frame: Any
    keys: tuple[str, ...]
    bounds: tuple[Column, Column]
    by: tuple[Column, ...]

    def agg(self, *made: Column) -> Any:
        """A row per key and window."""
        return self.frame.groupBy(*cols(self.keys), *self.by).agg(*made)


def _grouped(rows: Rows, site: Site, keys: tuple[str, ...], window: Window) -> Grouped:
    site.require_comparable(pa.schema([rows.schema.field(key) for key in keys]), "groups by none")
    of_window = (col(WINDOW)["start"], col(WINDOW)["end"])
    if isinstance(window, Given):
        if site.streams:
            return Grouped(_in_windows(rows, site, window), keys, of_window, (col(WINDOW),))
        frame = rows.visible
        for name, column in ((_START, window.start), (_END, window.end)):
            frame = frame.withColumn(name, site.required(site.in_ms(rows, column), column))
        return Grouped(frame, keys, (col(_START), col(_END)), (col(_START), col(_END)))
    if window.event_time is None:
        raise site.refusal(
            "its windows are in processing time, and Spark's rows have no time of arrival",
            "give the window an event time: on=",
        )
    frame = site.timed(rows, window.event_time)
    if isinstance(window, Fixed):
        sizes = (f"{window.size_ms} milliseconds", f"{window.slide_ms} milliseconds")
        return Grouped(frame, keys, of_window, (F.window(TIME, *sizes).alias(WINDOW),))
    if site.streams and not keys:
        raise site.refusal("sessions of a stream need a key", "use key_by before it")
    session = F.session_window(TIME, f"{window.gap_ms} milliseconds")
    return Grouped(frame, keys, of_window, (session.alias(WINDOW),))


def _in_windows(rows: Rows, site: Site, window: Given) -> Any:
    """Rows of a stream that already carry a window: only then does Spark know when it is over."""
    time = rows.time
    if time is not None and time.is_session:
        raise site.refusal("Spark would merge sessions that overlap, whatever their keys")
    if time is None or time.hidden != WINDOW or window != Given(WINDOW_START, WINDOW_END):
        told = rows.lost if time is None else "these are not the bounds of windows before it"
        raise site.refusal(
            f"Spark cannot tell in a stream when such a window is over: {told}",
            "use it directly after a window, between its bounds",
        )
    return rows.frame


def _behind(site: Site, frame: Any, window: Window) -> Rows:
    """The result rows of windows; in a stream, with the window in a hidden last column."""
    schema = site.vertex.schema
    if not site.streams:
        return Rows(frame, schema)
    given = {name for edge in site.vertex.edges for name in edge.vertex.schema.names}
    if not isinstance(window, Given) and {WINDOW_START, WINDOW_END} & given:
        why = "it has bounds of other windows"
        return Rows(select(frame, schema.names), schema, lost=why)
    time = EventTime(WINDOW_END, 0, WINDOW, isinstance(window, Session))
    return Rows(frame, schema, time=time)


@plan_of.register
def _(operation: op.AggregateWindows, site: Site, inputs: list[Rows]) -> Rows:
    for _, of in operation.aggregates:
        _require_overflow_fails(operation.schema, site, of)
    grouped = _grouped(inputs[0].applied, site, operation.keys, operation.window)
    made = [_aggregate(of, operation.schema).alias(name) for name, of in operation.aggregates]
    start, end = grouped.bounds
    bounds = {WINDOW_START: start.alias(WINDOW_START), WINDOW_END: end.alias(WINDOW_END)}
    names = site.vertex.schema.names
    also = [col(WINDOW)] if site.streams else []
    frame = grouped.agg(*made).select(*(bounds[n] if n in bounds else col(n) for n in names), *also)
    return _behind(site, frame, operation.window)


def _require_overflow_fails(schema: pa.Schema, site: Site, of: Aggregate) -> None:
    """Refuse a sum that would be wrong, or null, where a task fails."""
    if of.column is None or of.kind not in ("sum", "avg") or site.is_ansi:
        return
    data_type = schema.field(of.column).type
    if pa.types.is_decimal(data_type) or (of.kind == "sum" and pa.types.is_integer(data_type)):
        raise site.refusal(
            f"{of.kind}({of.column}): without ANSI mode Spark does not fail if a sum overflows",
            'set spark.sql.ansi.enabled to "true"',
        )


def _aggregate(of: Aggregate, schema: pa.Schema) -> Column:
    if of.column is None:
        return F.count(F.lit(1))
    known = {"count": F.count, "sum": F.sum, "min": F.min, "max": F.max, "avg": F.avg}
    made = known[of.kind](col(of.column))
    return one_zero(made, schema.field(of.column).type) if of.kind in ("min", "max") else made


@plan_of.register
def _(operation: op.RowsOfWindows, site: Site, inputs: list[Rows]) -> Rows:
    rows = inputs[0].applied
    return _listed(rows, site, operation.keys, operation.window, col(_LIST))


@plan_of.register
def _(operation: op.TopOfWindows, site: Site, inputs: list[Rows]) -> Rows:
    if isinstance(operation.window, Session):  # the API refuses it, too
        raise site.refusal("the rows of sessions cannot be ranked")
    rows = inputs[0].applied
    if not operation.ties:
        site.require_comparable(rows.schema, "sorts by none")
    if site.streams:  # Spark has no other way to rank rows of a stream
        return _sorted(operation, site, rows)
    return _ranked(operation, site, rows)


def _ranked(operation: op.TopOfWindows, site: Site, rows: Rows) -> Rows:
    """The first rows of each window by window functions: no window has to fit in memory."""
    grouped = _grouped(rows, site, operation.keys, operation.window)
    start, end = grouped.bounds
    frame, keys = grouped.frame, cols(operation.keys)
    if isinstance(operation.window, Fixed):
        frame = frame.withColumn(WINDOW, *grouped.by)
    parts = Over.partitionBy(*keys, start, end)
    by = _order(operation.by)
    frame = frame.withColumn(_RANK, F.rank().over(parts.orderBy(*by)))
    # A separate filter on the rank, so that Spark drops rows before the shuffle.
    frame = frame.where(col(_RANK) <= operation.number)
    if not operation.ties:
        whole = parts.orderBy(*by, *_order(_rest(operation, rows)), *signs(rows.schema))
        frame = frame.withColumn(_PLACE, F.row_number().over(whole))
        is_out = col(_PLACE) > operation.number
        # Rows that are equal in all columns share a rank: it does not matter which of them are out.
        is_doubtful = is_out & (F.rank().over(whole) > col(_RANK))
        frame = frame.withColumn(_DOUBTFUL, is_doubtful)
        told = F.raise_error(F.lit(_tied(operation, site))).cast("boolean")
        frame = frame.where(F.when(col(_DOUBTFUL), told).otherwise(~is_out))
    made = {WINDOW_START: start, WINDOW_END: end}
    known = rows.schema.names
    columns = [col(n) if n in known else made[n].alias(n) for n in site.vertex.schema.names]
    return _behind(site, frame.select(*columns), operation.window)


def _sorted(operation: op.TopOfWindows, site: Site, rows: Rows) -> Rows:
    """The first rows of each window out of a sorted list of all of them."""
    number, by = min(operation.number, _LONGEST), operation.by
    if operation.ties:
        ranked = F.array_sort(_LIST, lambda a, b: _compared(a, b, by))
        last = F.get(col(_LIST), F.lit(number - 1))
        kept = F.filter(
            col(_LIST), lambda row, i: (i < number) | last.isNull() | _same(row, last, by)
        )
        return _listed(rows, site, operation.keys, operation.window, kept, ranked)
    rest = _rest(operation, rows)
    ranked = F.array_sort(_LIST, lambda a, b: _compared(a, b, [*by, *rest]))
    inside, outside = (F.get(col(_LIST), F.lit(at)) for at in (number - 1, number))
    # Tied rows are neighbours, sorted by all columns: if the first and last are equal, all are.
    tied = F.filter(_LIST, lambda row: _same(row, inside, by))
    differ = ~F.get(tied, F.lit(0)).eqNullSafe(F.element_at(tied, -1))
    if signs(rows.schema):
        texts = F.array_distinct(F.transform(tied, lambda row: row.cast("string")))
        differ |= F.size(texts) > 1
    is_doubtful = (F.size(_LIST) > number) & _same(inside, outside, by) & differ
    told = F.raise_error(F.lit(_tied(operation, site)))
    kept = F.when(is_doubtful, told).otherwise(F.slice(_LIST, 1, number))
    return _listed(rows, site, operation.keys, operation.window, kept, ranked)


def _rest(operation: op.TopOfWindows, rows: Rows) -> list[Ranking]:
    """The columns not ranked by, to distinguish rows that rank the same."""
    names = {ranking.column for ranking in operation.by}
    return [Ranking(name, is_descending=False) for name in rows.schema.names if name not in names]


def _order(by: Sequence[Ranking]) -> list[Column]:
    """As tasks rank: NaN is the largest, null comes last."""
    return [
        col(name).desc_nulls_last() if is_descending else col(name).asc_nulls_last()
        for name, is_descending in by
    ]


def _tied(operation: op.TopOfWindows, site: Site) -> str:
    """The error for ties, which tasks break by the order of arrival: Spark has no such order."""
    return (
        f"{site.vertex.name}: several rows rank the same, and which are among the first "
        f"{operation.number} depends on the order of arrival, which Spark does not keep. "
        "To do: rank by more columns, or use ties=True"
    )


def _listed(
    rows: Rows,
    site: Site,
    keys: tuple[str, ...],
    window: Window,
    kept: Column,
    ranked: Column | None = None,
) -> Rows:
    """Some of the rows of each window, with its bounds."""
    grouped = _grouped(rows, site, keys, window)
    frame = grouped.agg(F.collect_list(F.struct(*cols(rows.schema))).alias(_LIST))
    if ranked is not None:
        frame = frame.withColumn(_LIST, ranked)
    start, end = grouped.bounds
    also = [col(WINDOW)] if site.streams else []
    frame = frame.select(F.explode(kept).alias(_LIST), start.alias(_START), end.alias(_END), *also)
    fields = [col(_LIST).getField(name).alias(name) for name in rows.schema.names]
    bounds = {WINDOW_START: _START, WINDOW_END: _END}
    added = [name for name in site.vertex.schema.names if name not in rows.schema.names]
    frame = frame.select(*fields, *(col(bounds[name]).alias(name) for name in added), *also)
    return _behind(site, frame, window)


def _same(a: Column, b: Column, by: Sequence[Ranking]) -> Column:
    """Whether two rows rank the same."""
    made = F.lit(True)
    for ranking in by:
        made &= a.getField(ranking.column).eqNullSafe(b.getField(ranking.column))
    return made


def _compared(a: Column, b: Column, by: Sequence[Ranking]) -> Column:
    """-1, 0 or 1, as tasks rank: NaN is the largest, null comes last."""
    made = F.lit(0)
    for name, is_descending in reversed(by):
        x, y = a.getField(name), b.getField(name)
        less = F.when(x < y, F.lit(1 if is_descending else -1))
        made = (
            F.when(x.eqNullSafe(y), made)
            .when(x.isNull(), F.lit(1))
            .when(y.isNull(), F.lit(-1))
            .otherwise(less.otherwise(F.lit(-1 if is_descending else 1)))
        )
    return made
