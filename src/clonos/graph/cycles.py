"""Loops of the logical graph: what feeds them, and what cannot be in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from clonos.errors import BadGraph
from clonos.graph.logical import Edge, LogicalGraph, Vertex
from clonos.operators import operations as op

_BY_EVENT_TIME: Final = (
    op.WithWatermark,
    op.AggregateWindows,
    op.TopOfWindows,
    op.RowsOfWindows,
    op.Join,
    op.InOrder,
)
"""Operations that need or make watermarks, which do not travel on feedback channels."""


def feedback_of(graph: LogicalGraph, needed: Sequence[Vertex]) -> dict[int, Edge]:
    """The edge that feeds each needed feedback vertex.

    Raises
    ------
    BadGraph
        A feedback vertex has no input, or the job cannot have loops.
    """
    found: dict[int, Edge] = {}
    for vertex in needed:
        if vertex.id not in graph.feedback:
            continue
        edge = graph.feedback[vertex.id]
        if edge is None:
            raise BadGraph(
                "nothing is fed back to it",
                where=vertex.name,
                remedy="close the loop: feedback.feed(stream)",
            )
        found[vertex.id] = edge
    if found:
        _require_support(graph, needed, found)
    return found


def _require_support(
    graph: LogicalGraph, needed: Sequence[Vertex], feedback: Mapping[int, Edge]
) -> None:
    name = next(vertex.name for vertex in needed if vertex.id in feedback)
    options = graph.options
    if (options.guarantee, options.on_orphan) != ("exactly_once", "consistency"):
        raise BadGraph(
            "a loop needs guarantee='exactly_once' and on_orphan='consistency'",
            where=name,
            remedy="leave both at their defaults",
        )
    if options.keep is not None:
        raise BadGraph(
            "a job with a loop keeps no history", where=name, remedy="leave history= out"
        )
    for vertex in _in_loops(needed, feedback):
        if isinstance(vertex.operation, _BY_EVENT_TIME):
            raise BadGraph(
                "windows, joins and watermarks use event time, which has no meaning in a loop",
                where=vertex.name,
                remedy="put it before or after the loop",
            )


def _in_loops(needed: Sequence[Vertex], feedback: Mapping[int, Edge]) -> list[Vertex]:
    """The vertices between a feedback vertex and the one that feeds it."""
    before = {v.id: {edge.vertex.id for edge in v.edges} for v in needed}
    for vertex, edge in feedback.items():
        before[vertex] = {edge.vertex.id}

    def upstream(vertex: int) -> set[int]:
        found, ahead = set[int](), [vertex]
        while ahead:
            for one in before.get(ahead.pop(), set()) - found:
                found.add(one)
                ahead.append(one)
        return found

    above = {vertex.id: upstream(vertex.id) for vertex in needed}
    return [vertex for vertex in needed if vertex.id in above[vertex.id]]
