"""Joins and duplicates as plans."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from clonos.columns.keys import has_floats
from clonos.dataframes.rows import Rows, Site, col, cols, one_zero, signs
from clonos.dataframes.stateless import plan_of
from clonos.operators import operations as op
from clonos.operators.join import Always, Between, Keep, SameWindow

_TIMES: Final = ("~left time", "~right time")
_WINDOWS: Final = ("~left window", "~right window")
_ROW: Final = "~row"


@plan_of.register
def _(operation: op.Join, site: Site, inputs: list[Rows]) -> Rows:
    sides = [rows.applied for rows in inputs]
    equal = [col(a) == col(b) for a, b in zip(*operation.keys, strict=True)]
    bounds = operation.bounds
    if isinstance(bounds[0], Always):
        frames = [rows.visible for rows in sides]
        return _joined(site, frames, equal)
    left, right = bounds
    if isinstance(left, Between):
        if site.streams:
            raise site.refusal("Spark could never forget a row of a join between columns")
        assert isinstance(right, Keep)
        frames = [rows.visible for rows in sides]
        start, end = (site.in_ms(sides[0], name) for name in (left.start, left.end))
        frames[0] = frames[0].withColumn("~start", start).withColumn("~end", end)
        frames[1] = frames[1].withColumn(_TIMES[1], site.in_ms(sides[1], right.time))
        within = (col("~start") <= col(_TIMES[1])) & (col(_TIMES[1]) < col("~end"))
        return _joined(site, frames, [*equal, within])
    assert isinstance(left, (Keep, SameWindow))
    assert isinstance(right, (Keep, SameWindow))
    frames = [
        site.timed(rows, bound.time, name, is_required=False)
        for rows, bound, name in zip(sides, (left, right), _TIMES, strict=True)
    ]
    if isinstance(left, SameWindow):
        frames = [
            frame.withColumn(window, F.window(time, f"{left.size_ms} milliseconds"))
            for frame, time, window in zip(frames, _TIMES, _WINDOWS, strict=True)
        ]
        return _joined(site, frames, [*equal, col(_WINDOWS[0]) == col(_WINDOWS[1])])
    assert isinstance(right, Keep)
    within = _reaches(_TIMES[0], left.keep_ms, _TIMES[1]) & _reaches(
        _TIMES[1], right.keep_ms, _TIMES[0]
    )
    return _joined(site, frames, [*equal, within])


def _reaches(time: str, keep_ms: int, other: str) -> Column:
    """Whether a row is kept until the other one comes."""
    return col(other) <= col(time) + F.expr(f"interval {keep_ms} milliseconds")


def _joined(site: Site, frames: list[Any], condition: list[Column]) -> Rows:
    schema = site.vertex.schema
    frame = frames[0].join(frames[1], condition, "inner").select(*cols(schema))
    return Rows(frame, schema, lost="Spark loses event time in a join")


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
