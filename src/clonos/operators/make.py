"""Makes a task's operator from an operation; the only place that maps one to the other.

Sources and sinks register their own operations in their own modules.
"""

from __future__ import annotations

from functools import singledispatch

from clonos.operators import operations as op
from clonos.operators.base import Operator
from clonos.operators.by_key.deduplicate import DeduplicateOperator
from clonos.operators.by_key.in_order import InOrderOperator
from clonos.operators.by_key.join import JoinOperator
from clonos.operators.by_key.last import LastOperator
from clonos.operators.by_key.look_up import (
    LookUpOperator,
    VersionedLookUpOperator,
    VersionsOperator,
)
from clonos.operators.by_key.outer_join import OuterJoinOperator
from clonos.operators.calls.map_async import (
    ForEachAsyncOperator,
    MapAsyncOperator,
    WithColumnAsyncOperator,
)
from clonos.operators.identity import IdentityOperator, WidenOperator
from clonos.operators.process.process import ProcessOperator
from clonos.operators.process.stateful import StatefulOperator
from clonos.operators.stateless.columns import ProjectOperator, WhereOperator
from clonos.operators.stateless.filter import FilterOperator
from clonos.operators.stateless.flat_map import FlatMapOperator
from clonos.operators.stateless.map import MapOperator
from clonos.operators.stateless.map_batches import MapBatchesOperator
from clonos.operators.stateless.with_column import WithColumnOperator
from clonos.operators.watermark import WatermarkOperator
from clonos.operators.windows.rows import WindowRowsOperator
from clonos.operators.windows.window import PartialOperator, WindowOperator


@singledispatch
def make_operator(operation: op.Operation) -> Operator:
    """A new operator, with no state.

    Raises
    ------
    NotImplementedError
        Tasks cannot run this operation.

    Examples
    --------
    >>> type(make_operator(op.PassOn())).__name__
    'IdentityOperator'
    """
    raise NotImplementedError(f"tasks do not know {type(operation).__name__}")


@make_operator.register
def _(_: op.PassOn) -> Operator:
    return IdentityOperator()


@make_operator.register
def _(operation: op.Widen) -> Operator:
    return WidenOperator(operation.schema)


@make_operator.register
def _(_: op.PassVersions) -> Operator:
    return VersionsOperator()


@make_operator.register
def _(operation: op.Map) -> Operator:
    return MapOperator(operation.fn, operation.schema)


@make_operator.register
def _(operation: op.FlatMap) -> Operator:
    return FlatMapOperator(operation.fn, operation.schema)


@make_operator.register
def _(operation: op.Filter) -> Operator:
    return FilterOperator(operation.fn)


@make_operator.register
def _(operation: op.MapBatches) -> Operator:
    return MapBatchesOperator(operation.fn, operation.schema)


@make_operator.register
def _(operation: op.WithColumn) -> Operator:
    return WithColumnOperator(operation.fn, operation.of, operation.column, operation.schema)


@make_operator.register
def _(operation: op.MapAsync) -> Operator:
    return MapAsyncOperator(
        operation.policy, operation.given, operation.schema, keys=operation.keys, **operation.then
    )


@make_operator.register
def _(operation: op.ForEachAsync) -> Operator:
    return ForEachAsyncOperator(
        operation.policy, operation.given, operation.of, keys=operation.keys, **operation.then
    )


@make_operator.register
def _(operation: op.WithColumnAsync) -> Operator:
    return WithColumnAsyncOperator(
        operation.policy,
        operation.given,
        operation.of,
        operation.column,
        operation.schema,
        keys=operation.keys,
        **operation.then,
    )


@make_operator.register
def _(operation: op.Where) -> Operator:
    return WhereOperator(operation.condition)


@make_operator.register
def _(operation: op.Project) -> Operator:
    return ProjectOperator(operation.projection)


@make_operator.register
def _(operation: op.WithWatermark) -> Operator:
    return WatermarkOperator(operation.column, operation.delay_ms, operation.idle_ms)


@make_operator.register
def _(operation: op.LookUp) -> LookUpOperator:
    kind = VersionedLookUpOperator if operation.changes else LookUpOperator
    return kind(
        operation.schema,
        operation.on,
        operation.table,
        operation.table_on,
        is_left=operation.is_left,
    )


@make_operator.register(op.AggregateWindows)
@make_operator.register(op.TopOfWindows)
def _(operation: op.AggregateWindows | op.TopOfWindows) -> Operator:
    return WindowOperator(operation.content(), operation.window, is_final=False)


@make_operator.register
def _(operation: op.EarlyPart) -> Operator:
    return PartialOperator(operation.of.content(), operation.of.window)


@make_operator.register
def _(operation: op.LatePart) -> Operator:
    return WindowOperator(operation.of.content(), operation.of.window, is_final=True)


@make_operator.register
def _(operation: op.RowsOfWindows) -> Operator:
    return WindowRowsOperator(operation.schema, operation.keys, operation.window)


@make_operator.register
def _(operation: op.Join) -> Operator:
    if operation.how == "inner":
        return JoinOperator(operation.schemas, operation.keys, operation.bounds)
    return OuterJoinOperator(operation.schemas, operation.keys, operation.bounds, operation.how)


@make_operator.register
def _(operation: op.Deduplicate) -> Operator:
    return DeduplicateOperator(
        operation.schema, operation.keys, operation.time, operation.within_ms
    )


@make_operator.register
def _(operation: op.InOrder) -> Operator:
    return InOrderOperator(operation.schema, operation.keys, operation.time, operation.ties)


@make_operator.register
def _(operation: op.Last) -> Operator:
    return LastOperator(
        operation.schema,
        operation.keys,
        operation.number,
        dict(operation.aggregates),
        operation.where,
    )


@make_operator.register
def _(operation: op.TransformRows) -> Operator:
    return StatefulOperator(
        operation.processor, operation.keys, operation.schema, operation.mode, operation.time
    )


@make_operator.register
def _(operation: op.ProcessRows) -> Operator:
    return ProcessOperator(
        operation.process,
        operation.keys,
        operation.schema,
        operation.in_flight,
        effects=operation.effects,
    )
