"""A graph with other numbers of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clonos.errors import CannotUpgrade
from clonos.graph.logical import Edge, LogicalGraph, Vertex
from clonos.operators.router import Routing


def rescaled(graph: LogicalGraph, parallelism: int | Mapping[str, int]) -> LogicalGraph:
    """The same graph with other numbers of tasks.

    Parameters
    ----------
    graph
        It stays as it is.
    parallelism
        By the names of operators; or of all operators to whose tasks rows are shared out. What
        follows such an operator, and had as many tasks, has as many again.

    Raises
    ------
    CannotUpgrade
        There is no such operator, or it is a source.

    Examples
    --------
    >>> import clonos
    >>> job = clonos.Job(parallelism=2)
    >>> rows = job.source(clonos.sources.from_batches([], "n long"), name="numbers")
    >>> rows.key_by("n").deduplicate(name="once").sink(clonos.sinks.collect(), name="out")
    >>> [(v.name, v.parallelism) for v in rescaled(job.graph, 4).vertices]
    [('numbers', 2), ('once', 4), ('out', 4)]
    """
    names = {vertex.name: vertex for vertex in graph.vertices}
    for name in parallelism if isinstance(parallelism, Mapping) else ():
        if name not in names or names[name].source is not None:
            raise CannotUpgrade(
                f"{name!r} is a source, which keeps its tasks"
                if name in names
                else f"there is no operator {name!r}",
                where=graph.name,
                remedy="name one of "
                + ", ".join(v.name for v in graph.vertices if v.source is None),
            )
    made: dict[int, Vertex] = {}
    for vertex in graph.vertices:
        edges = tuple(replace(edge, vertex=made[edge.vertex.id]) for edge in vertex.edges)
        count = _count(vertex, edges, parallelism)
        made[vertex.id] = replace(vertex, parallelism=count, edges=edges)
    feedback = {
        number: None if edge is None else replace(edge, vertex=made[edge.vertex.id])
        for number, edge in graph.feedback.items()
    }
    return replace(graph, vertices=list(made.values()), feedback=feedback)


def _count(vertex: Vertex, edges: tuple[Edge, ...], parallelism: int | Mapping[str, int]) -> int:
    if isinstance(parallelism, Mapping):
        if vertex.name in parallelism:
            return parallelism[vertex.name]
    elif any(edge.routing is not Routing.FORWARD for edge in edges):
        return parallelism
    is_next = edges and edges[0].routing is Routing.FORWARD
    if is_next and vertex.edges[0].vertex.parallelism == vertex.parallelism:
        return edges[0].vertex.parallelism
    return vertex.parallelism
