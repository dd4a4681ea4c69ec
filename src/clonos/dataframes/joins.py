"""Joins and duplicates as plans."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from clonos.columns.keys import has_floats
from clonos.dataframes.rows import Rows, Site, col, cols, one_zero, select, signs
from clonos.dataframes.stateless import plan_of
from clonos.operators import operations as op
from clonos.operators.by_key.join import Always, Between, Keep, SameWindow
from clonos.operators.by_key.outer_join import HOWS

_TIMES: Final = ("~left time", "~right time")
_WINDOWS: Final = ("~left window", "~right window")
_ROW: Final = "~row"


@plan_of.register
def _(operation: op.Join, site: Site, inputs: list[Rows]) -> Rows:
    sides = [rows.applied for rows in inputs]
    left, right = operation.bounds
    if isinstance(left, Always):
        if site.streams and operation.how != "inner":
            raise site.refusal(
                "in a stream, a row without a partner may still get one",
                "give keep=, or window=",
            )
        return _joined(operation, site, [rows.visible for rows in sides], [])
    if isinstance(left, Between):
        if site.streams:
            raise site.refusal("Spark could never forget a row of a join between columns")
        assert isinstance(right, Keep)
        frames = [rows.visible for rows in sides]
        start, end = (site.in_ms(sides[0], name) for name in (left.start, left.end))
        frames[0] = frames[0].withColumn("~start", start).withColumn("~end", end)
        frames[1] = frames[1].withColumn(_TIMES[1], site.in_ms(sides[1], right.time))
        within = (col("~start") <= col(_TIMES[1])) & (col(_TIMES[1]) < col("~end"))
        return _joined(operation, site, frames, [within])
    assert isinstance(left, (Keep, SameWindow))
    assert isinstance(right, (Keep, SameWindow))
    # In a stream, Spark could never tell that a row without a time has no partner.
    frames = [
        site.timed(rows, bound.time, name, is_required=site.streams and alone)
        for rows, bound, name, alone in zip(
            sides, (left, right), _TIMES, HOWS[operation.how].alone, strict=True
        )
    ]
    if isinstance(left, SameWindow):
        frames = [
            frame.withColumn(window, _window_of(time, left.size_ms, site))
            for frame, time, window in zip(frames, _TIMES, _WINDOWS, strict=True)
        ]
        return _joined(operation, site, frames, [col(_WINDOWS[0]) == col(_WINDOWS[1])])
    assert isinstance(right, Keep)
    within = _reaches(_TIMES[0], left.keep_ms, _TIMES[1]) & _reaches(
        _TIMES[1], right.keep_ms, _TIMES[0]
    )
    return _joined(operation, site, frames, [within])


def _window_of(time: str, size_ms: int, site: Site) -> Column:
    """The window of a row as a number; in a stream, Spark knows when the window is over."""
    if site.streams:
        return F.window(time, f"{size_ms} milliseconds")
    # F.window would leave out the rows that have no time.
    ms = F.unix_millis(col(time))
    return ms - F.pmod(ms, F.lit(size_ms))


def _reaches(time: str, keep_ms: int, other: str) -> Column:
    """Whether a row is still kept when the other one comes."""
    return col(other) <= col(time) + F.expr(f"interval {keep_ms} milliseconds")


def _joined(operation: op.Join, site: Site, frames: list[Any], within: list[Column]) -> Rows:
    left, right = frames
    how = operation.how
    keys = operation.keys[1]
    if not HOWS[how].pairs:  # the right side may have columns of the same names
        hidden = [name for name in (_WINDOWS[1], _TIMES[1]) if name in right.columns][:1]
        renamed = [f"~right {name}" for name in keys]
        right = select(right, [*zip(keys, renamed, strict=True), *hidden])
        keys = tuple(renamed)
    equal = [col(a) == col(b) for a, b in zip(operation.keys[0], keys, strict=True)]
    if how == "full" and site.streams:  # else Spark treats nulls as equal here
        equal += [col(name).isNotNull() for name in (*operation.keys[0], *keys)]
    kind = {"semi": "left_semi", "anti": "left_anti"}.get(how, how)
    if how == "anti" and site.streams:  # streams in Spark have outer joins but no anti joins
        frame = left.join(right, [*equal, *within], "left").where(col(hidden[0]).isNull())
    else:
        frame = left.join(right, [*equal, *within], kind)
    schema = site.vertex.schema
    return Rows(select(frame, schema.names), schema, lost="Spark loses event time in a join")


@plan_of.register
def _(operation: op.Deduplicate, site: Site, inputs: list[Rows]) -> Rows:
    rows = inputs[0].applied
    site.require_comparable(rows.schema, "compares none")
    if operation.time is not None:
        raise site.refusal(
            "when a key is forgotten depends on the watermark at the moment a row arrives",
            "leave out within=",
        )
    if set(operation.keys) == set(rows.schema.names):
        nested = [f.name for f in rows.schema if pa.types.is_nested(f.type) and has_floats(f.type)]
        if site.streams and nested:
            raise site.refusal(
                f"of 0.0 and -0.0 in column {nested[0]!r} Spark keeps the one that comes first",
                "select columns that are not nested",
            )
        one = [one_zero(col(f.name), f.type).alias(f.name) for f in rows.schema]
        frame = rows.visible.select(*one).dropDuplicates(list(operation.keys))
        return Rows(frame, rows.schema, lost="Spark loses event time in deduplicate")
    if site.streams:
        raise site.refusal(
            "which row of a key comes first depends on the order of arrival",
            "select only the key's columns before it",
        )
    told = (
        f"{site.vertex.name}: rows of one key differ, and which comes first depends on the "
        "order of arrival, which Spark does not keep. To do: select only the key's columns before "
        "it, or run the job with execution='tasks'"
    )
    others = [name for name in rows.schema.names if name not in operation.keys]
    told_apart = signs(pa.schema([rows.schema.field(name) for name in others]))
    row = F.struct(*cols(others), *(each.alias(f"~{i}") for i, each in enumerate(told_apart)))
    found = rows.visible.groupBy(*cols(operation.keys)).agg(
        F.min(row).alias(_ROW), F.max(row).alias("~other")
    )
    same = F.when(col(_ROW).eqNullSafe(col("~other")), col(_ROW)).otherwise(
        F.raise_error(F.lit(told))
    )
    columns = {name: col(_ROW).getField(name) for name in others}
    frame = found.select(*cols(operation.keys), same.alias(_ROW)).select(
        *(columns.get(name, col(name)).alias(name) for name in rows.schema.names)
    )
    return Rows(frame, rows.schema)
