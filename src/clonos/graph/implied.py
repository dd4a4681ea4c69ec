"""Finds implied tasks: everything that they do follows from their input, so they share no log."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from clonos.columns.user_functions import prepared
from clonos.graph.logical import LogicalGraph, Vertex
from clonos.operators import operations as op
from clonos.operators.operations import Operation
from clonos.operators.windows.kinds import is_event_time


def is_implied(graph: LogicalGraph, chain: Sequence[Vertex], inputs: int) -> bool:
    """Whether tasks of this chain, with this many inputs, are implied.

    Several inputs would need a logged order, and kept bad records contain the time.
    """
    return (
        graph.options.log == "needed"
        and inputs == 1
        and chain[0].source is None
        and graph.on_bad_record != "keep"
        and all(is_deterministic(vertex.operation) for vertex in chain)
    )


def is_deterministic(operation: Operation) -> bool:
    """Whether an operation's output follows from its rows and watermarks, batch by batch.

    A UDF in an expression does not count as deterministic merely because Spark treats it so, which
    it does unless told otherwise.

    Examples
    --------
    >>> is_deterministic(op.PassOn())
    True
    >>> schema = pa.schema([("n", pa.int64())])
    >>> is_deterministic(op.Map(print, schema))
    False
    >>> is_deterministic(op.Map(print, schema, is_declared=True))
    True
    """
    match operation:
        case op.PassOn():
            return True
        case op.Where(condition=condition):
            return not prepared([condition]).calls
        case op.Project(projection=projection):
            return not prepared([made for _, made in projection.columns]).calls
        case op.Deduplicate() | op.InOrder() | op.Last():
            return True
        case op.WithWatermark(idle_ms=idle_ms):
            return idle_ms is None
        case op.EarlyPart(of=of) | op.LatePart(of=of):
            return is_event_time(of.window)
        case op.AggregateWindows(window=window) | op.TopOfWindows(window=window):
            return is_event_time(window)
        case op.RowsOfWindows(window=window):
            return is_event_time(window)
        case op.LookUp(table=table, changes=changes):
            return isinstance(table, pa.RecordBatch) and not changes
        case op.Map() | op.FlatMap() | op.Filter() | op.MapBatches() | op.WithColumn():
            return operation.is_declared
    return False
