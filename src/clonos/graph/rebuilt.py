"""Copies a graph with changes, vertex by vertex."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clonos.graph.logical import LogicalGraph, Vertex


def rebuilt(graph: LogicalGraph, change: Callable[[Vertex, Vertex], Vertex]) -> LogicalGraph:
    """A copy of the graph with changed vertices; the original stays the same.

    Parameters
    ----------
    change
        Called with a vertex whose edges come from new vertices, and with the original vertex;
        returns the new vertex.
    """
    made: dict[int, Vertex] = {}
    for vertex in graph.vertices:
        edges = tuple(replace(edge, vertex=made[edge.vertex.id]) for edge in vertex.edges)
        made[vertex.id] = change(replace(vertex, edges=edges), vertex)
    feedback = {
        number: None if edge is None else replace(edge, vertex=made[edge.vertex.id])
        for number, edge in graph.feedback.items()
    }
    return replace(graph, vertices=list(made.values()), feedback=feedback)
