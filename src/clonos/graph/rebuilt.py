"""A graph made of another one, vertex by vertex."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clonos.graph.logical import LogicalGraph, Vertex


def rebuilt(graph: LogicalGraph, change: Callable[[Vertex, Vertex], Vertex]) -> LogicalGraph:
    """The same graph with other vertices; it stays as it is.

    Parameters
    ----------
    change
        Is given a vertex with its edges from the new ones, and as it was; returns the new one.
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
