"""Stateless operations as plans: expressions natively, functions by the operators of tasks."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce, singledispatch
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from clonos.columns.batches import from_bytes, to_bytes
from clonos.columns.formula import Column
from clonos.dataframes.asking import Asker, asks, why_not
from clonos.dataframes.functions import Step
from clonos.dataframes.rows import TIME, WINDOW, EventTime, Rows, Site, col, select, spark_schema
from clonos.operators import operations as op
from clonos.operators.by_key.look_up import SideTable
from clonos.operators.windows.content import WINDOW_END, WINDOW_START
from clonos.spark.expressions import read_by


@singledispatch
def plan_of(operation: op.Operation, site: Site, inputs: list[Rows]) -> Rows:
    """The output of an operation.

    Parameters
    ----------
    operation
        The operation to translate.
    site
        Its place in the job.
    inputs
        Its input rows.

    Raises
    ------
    NotInSpark
        It has no plan that gives the same rows.
    """
    raise NotImplementedError(f"plans do not know {type(operation).__name__}")


_REFUSED: dict[type[op.Operation], tuple[str, str]] = {
    op.InOrder: ("Spark's operators do not keep the order within a key", ""),
    op.Last: ("Spark's operators do not keep the order within a key", ""),
    op.TransformRows: (
        "Spark's operators do not keep the order within a key",
        'let Spark run it: to_dataframe(spark, execution="spark").groupBy(...).transformWithState',
    ),
    op.ProcessRows: ("a Process sees rows in their order of arrival, and may ask services", ""),
}
"""Why an operation has no plan, and what to write instead."""


def refused(operation: op.Operation, site: Site, inputs: list[Rows]) -> Rows:
    """An operation without a plan."""
    del inputs
    raise site.refusal(*_REFUSED[type(operation)])


for _kind in _REFUSED:
    plan_of.register(_kind)(refused)


@plan_of.register(op.EarlyPart)
@plan_of.register(op.LatePart)
def _(operation: op.EarlyPart | op.LatePart, site: Site, inputs: list[Rows]) -> Rows:
    return plan_of(operation.of, site, inputs)  # Spark aggregates early by itself


@plan_of.register
def _(operation: op.PassOn, site: Site, inputs: list[Rows]) -> Rows:
    del operation
    if len(inputs) == 1:
        return inputs[0]
    if not inputs:
        raise site.refusal("only tasks keep bad records")
    if not site.streams:
        frame = reduce(lambda a, b: a.unionByName(b), [rows.visible for rows in inputs])
        return Rows(frame, site.vertex.schema)
    times = [rows.time for rows in inputs]
    declared = []
    for rows, time in zip(inputs, times, strict=True):
        # Each input has its own watermark, and the slowest counts: a watermark declared after the
        # union would be ahead.
        if time is None or time.hidden not in ("", TIME):
            frame = reduce(lambda a, b: a.unionByName(b), [rows.visible for rows in inputs])
            why = rows.lost if time is None else "it is that of the windows before the union"
            return Rows(
                frame, site.vertex.schema, lost=f"a stream of the union has no event time: {why}"
            )
        declared.append(site.timed(rows, time.column))
    first = times[0]
    frame = reduce(lambda a, b: a.unionByName(b), declared)
    same = first if first is not None and {t.column for t in times if t} == {first.column} else None
    if same is None:
        return Rows(frame, site.vertex.schema).without_time("the union's watermarks differ")
    return Rows(frame, site.vertex.schema, time=replace(same, hidden=TIME))


@plan_of.register(op.Map)
@plan_of.register(op.FlatMap)
@plan_of.register(op.Filter)
@plan_of.register(op.MapBatches)
@plan_of.register(op.WithColumn)
@plan_of.register(op.MapAsync)
@plan_of.register(op.WithColumnAsync)
@plan_of.register(op.ForEachAsync)
def _(operation: op.Operation, site: Site, inputs: list[Rows]) -> Rows:
    (rows,) = inputs
    name, schema = site.vertex.name, site.vertex.schema
    if why := why_not(operation):
        raise site.refusal(*why)
    spark_schema(schema)
    time = rows.time.column if site.streams and rows.time and not rows.time.hidden else None
    step = Step(
        name,
        operation,
        rows.schema,
        time if time in schema.names else None,
        Asker(site.job, name, site.lineage) if asks(operation, name) else None,
    )
    return rows.with_step(step, schema)


@plan_of.register
def _(operation: op.Where, site: Site, inputs: list[Rows]) -> Rows:
    rows = inputs[0].applied
    _require_same_reader(operation, site)
    return replace(rows, frame=rows.frame.where(operation.given))


@plan_of.register
def _(operation: op.Project, site: Site, inputs: list[Rows]) -> Rows:
    rows, made = inputs[0].applied, operation.projection
    hidden = list(rows.hidden)
    if operation.choose is None:
        chosen = [
            (part.name, field.name) for field, part in made.columns if isinstance(part, Column)
        ]
        frame = select(rows.frame, [*chosen, *hidden])
    else:
        _require_same_reader(operation, site)
        frame = operation.choose(rows.frame)
        if sorted(frame.columns) != sorted([*made.schema.names, *hidden]):
            rows = rows.without_time("an expression does not keep it")
            frame = operation.choose(rows.frame)
    rows = replace(rows, frame=frame, schema=made.schema)
    if rows.time is None:
        return rows
    if rows.time.hidden == WINDOW:
        if all(map(made.keeps, (WINDOW_START, WINDOW_END))):
            return rows
        return rows.without_time("the bounds of the windows were left out or computed anew")
    for field, part in made.columns:
        if isinstance(part, Column) and part.name == rows.time.column:
            return replace(rows, time=replace(rows.time, column=field.name))
    return rows.without_time(f"{rows.time.column!r} was left out or computed anew")


@plan_of.register
def _(operation: op.WithWatermark, site: Site, inputs: list[Rows]) -> Rows:
    (rows,) = inputs
    if site.streams and rows.time is not None and rows.time.hidden:
        raise site.refusal("Spark allows one watermark, and another one is in use before it")
    if site.streams and operation.idle_ms is not None:
        raise site.refusal("idle_after counts processing time", "leave out idle_after=")
    return replace(rows, time=EventTime(operation.column, operation.delay_ms))


@plan_of.register
def _(operation: op.LookUp, site: Site, inputs: list[Rows]) -> Rows:
    if operation.changes:
        raise site.refusal(
            "only tasks read the table again while the job runs", "leave out refresh="
        )
    rows = inputs[0].applied
    table = operation.table
    found = table.given() if isinstance(table, SideTable) else table
    frame = found if hasattr(found, "toArrow") else dataframe_of(site.spark, found)
    keys = {name: f"~key {number}" for number, name in enumerate(operation.table_on)}
    side = select(frame, [(name, keys.get(name, name)) for name in operation.table.schema.names])
    condition = [
        col(ours) == col(keys[theirs])
        for ours, theirs in zip(operation.on, operation.table_on, strict=True)
    ]
    how = "left" if operation.is_left else "inner"
    joined = rows.frame.join(F.broadcast(side), condition, how)
    schema = site.vertex.schema
    return replace(rows, frame=select(joined, [*schema.names, *rows.hidden]), schema=schema)


def dataframe_of(spark: Any, rows: Any) -> Any:
    """A DataFrame of Arrow rows, with Arrow's types unchanged."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    if any(pa.types.is_nested(field.type) for field in table.schema):
        # PySpark cannot read slices of some nested columns; in a file there are none.
        table = pa.Table.from_batches(
            [from_bytes(to_bytes(batch)) for batch in table.to_batches()], table.schema
        )
    return spark.createDataFrame(table, spark_schema(table.schema))


def _require_same_reader(operation: op.Where | op.Project, site: Site) -> None:
    now = read_by(site.spark)
    if operation.read_by != now:
        was = operation.read_by
        raise site.refusal(
            f"its expression was read by a session with {was}, but this one has {now}",
            "set spark.sql.session.timeZone and spark.sql.ansi.enabled to what they were",
        )
