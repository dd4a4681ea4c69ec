"""What joins are given, checked and turned into what their operators need."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from clonos.api.windowed import require_time
from clonos.columns.batches import from_table
from clonos.columns.durations import parse_duration
from clonos.columns.schema import parse_schema, require_columns, require_keys
from clonos.errors import BadGraph, WrongType
from clonos.operators.by_key.join import Always, Between, Bound, Keep, SameWindow
from clonos.operators.by_key.look_up import SideTable
from clonos.operators.by_key.outer_join import HOWS
from clonos.operators.operations import LookUp
from clonos.operators.windows.kinds import Fixed, Window

if TYPE_CHECKING:
    from clonos.api.keyed import KeyedStream

Duration = str | timedelta
_SPELLED: Final = {
    "leftouter": "left", "rightouter": "right", "fullouter": "full", "outer": "full",
    "leftsemi": "semi", "leftanti": "anti",
}  # fmt: skip
"""PySpark's other names for kinds of joins."""
Both = tuple[Bound, Bound]


def check_join(left: KeyedStream, right: KeyedStream, how: str, where: str) -> None:
    """Raise what is wrong with a join of these streams."""
    if not hasattr(right, "keys"):
        raise WrongType("a join needs keys on both sides", where=where, remedy="use key_by")
    if left._job is not right._job:  # noqa: SLF001 - our own
        raise BadGraph("streams of different jobs cannot be joined", where=where)
    types = [[s.schema.field(key).type for key in s.keys] for s in (left, right)]
    if types[0] != types[1]:
        raise WrongType(
            f"keys of different types: {_texts(types[0])} and {_texts(types[1])}",
            where=where,
            remedy="map them to the same types first",
        )
    if HOWS[how].pairs:
        _no_duplicates(left.schema, right.schema.names, where)


def kind_of_join(how: str, where: str) -> str:
    """The shortest name of a kind of join.

    Examples
    --------
    >>> kind_of_join("left_outer", "join"), kind_of_join("LeftAnti", "join")
    ('left', 'anti')
    """
    spelled = how.replace("_", "").lower()
    kind = _SPELLED.get(spelled, spelled)
    if kind not in HOWS:
        raise WrongType(
            f"how={how!r}", where=where, remedy=f"use one of {', '.join(map(repr, HOWS))}"
        )
    return kind


def join_bounds(
    schemas: tuple[pa.Schema, pa.Schema],
    *,
    window: Window | None,
    keep: Duration | tuple[Duration, Duration] | None,
    between: tuple[str, str] | None,
    on: str | tuple[str, str] | None,
    where: str,
) -> Both:
    """Which times the rows of each side accept."""
    given = [option for option in (window, keep, between) if option is not None]
    if not given:
        return Always(), Always()
    if len(given) > 1:
        raise BadGraph(
            "a join is bounded in more than one way",
            where=where,
            remedy="give one of window, keep and between",
        )
    if between is not None:
        if on is None:
            raise WrongType(
                "a join with between= needs the column that has the time of the other side",
                where=where,
                remedy="give on=",
            )
        time = on if isinstance(on, str) else on[1]
        _require(schemas[0], between, where)
        _require(schemas[1], (time,), where)
        return Between(*between), Keep(time, 0)
    if isinstance(window, Fixed) and window.is_tumbling and on is None and window.event_time:
        on = window.event_time
    if on is None:
        raise WrongType(
            "a join in event time needs the column that has it", where=where, remedy="give on="
        )
    times = (on, on) if isinstance(on, str) else on
    for schema, time in zip(schemas, times, strict=True):
        _require(schema, (time,), where)
    if keep is not None:
        keeps = keep if isinstance(keep, tuple) else (keep, keep)
        left, right = (parse_duration(duration, minimum_ms=0) for duration in keeps)
        return Keep(times[0], left), Keep(times[1], right)
    if not isinstance(window, Fixed) or not window.is_tumbling:
        raise WrongType(
            f"rows cannot be joined in {window!r}",
            where=where,
            remedy='use clonos.tumbling("5 seconds"), or keep',
        )
    return SameWindow(times[0], window.size_ms), SameWindow(times[1], window.size_ms)


def look_up_operation(
    schema: pa.Schema,
    table: pa.RecordBatch | SideTable,
    on: str | Mapping[str, str],
    how: str,
    where: str,
    *,
    changes: bool = False,
) -> LookUp:
    """The operation for a side input."""
    if how not in ("inner", "left"):
        raise WrongType(f"how={how!r}", where=where, remedy="use 'inner' or 'left'")
    pairs = {on: on} if isinstance(on, str) else dict(on)
    require_keys(schema, list(pairs), where)
    require_columns(table.schema, list(pairs.values()), f"the table of {where}")
    for ours, theirs in pairs.items():
        types = schema.field(ours).type, table.schema.field(theirs).type
        if types[0] != types[1]:
            raise WrongType(
                f"column {ours!r} is {types[0]}, the table's {theirs!r} is {types[1]}",
                where=where,
                remedy="cast one of them",
            )
    added = [name for name in table.schema.names if name not in pairs.values()]
    _no_duplicates(schema, added, where)
    left, right = tuple(pairs), tuple(pairs.values())
    return LookUp(schema, left, table, right, how == "left", changes)


def side_table(table: Any, where: str) -> pa.RecordBatch | SideTable:
    """What is looked up: content, or what the driver is to read."""
    if isinstance(table, (pa.Table, pa.RecordBatch)):
        parse_schema(table.schema)
        return from_table(table) if isinstance(table, pa.Table) else table
    found = table() if callable(table) else table
    is_frame = hasattr(found, "toArrow") and not getattr(found, "isStreaming", False)
    if not is_frame and not (callable(table) and isinstance(found, (pa.Table, pa.RecordBatch))):
        raise WrongType(
            f"{type(found).__name__} is not a table",
            where=where,
            remedy="give an Arrow table, a DataFrame that does not stream, or a function that "
            "returns one of these",
        )
    return SideTable(table, parse_schema(found.schema))


def _no_duplicates(left: pa.Schema, right: list[str], where: str) -> None:
    both = [name for name in left.names if name in right]
    if both:
        raise BadGraph(
            f"both sides have a column {both[0]!r}",
            where=where,
            remedy=f'rename one of them before: withColumnRenamed("{both[0]}", "other_{both[0]}")',
        )


def _require(schema: pa.Schema, columns: tuple[str, ...], where: str) -> None:
    require_columns(schema, columns, where)
    for column in columns:
        require_time(schema, column, where)


def _texts(types: list[pa.DataType]) -> str:
    return ", ".join(map(str, types))
