"""Changes the parallelism of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clonos.columns.keys import KEY_GROUPS
from clonos.errors import CannotUpgrade
from clonos.graph.logical import LogicalGraph, Vertex
from clonos.graph.rebuilt import rebuilt
from clonos.operators.operations import AggregateWindows, TopOfWindows
from clonos.operators.router import Routing


def rescaled(graph: LogicalGraph, parallelism: int | Mapping[str, int]) -> LogicalGraph:
    """A copy of the graph with other numbers of tasks.

    Parameters
    ----------
    graph
        The graph, which stays the same.
    parallelism
        By operator name, or one number for all operators after a shuffle. Operators that follow
        such an operator, and had the same number of tasks, get its new number.

    Raises
    ------
    CannotUpgrade
        There is no such operator, it is a source or takes all rows in one task, or the number is
        invalid.

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
    counts = parallelism.values() if isinstance(parallelism, Mapping) else (parallelism,)
    for count in counts:
        if type(count) is not int or not 1 <= count <= KEY_GROUPS:
            raise CannotUpgrade(
                f"parallelism {count!r}",
                where=graph.name,
                remedy=f"give whole numbers from 1 to {KEY_GROUPS}",
            )
    return rebuilt(
        graph,
        lambda vertex, was: replace(
            vertex, parallelism=_count(vertex, was, parallelism, graph.name)
        ),
    )


def _count(vertex: Vertex, was: Vertex, parallelism: int | Mapping[str, int], job: str) -> int:
    edges = vertex.edges
    if _takes_all(vertex):
        if isinstance(parallelism, Mapping) and parallelism.get(vertex.name, 1) != 1:
            raise CannotUpgrade(
                f"{vertex.name!r} is a window over all rows, which are in one task",
                where=job,
                remedy="use key_by before it",
            )
        return 1
    if isinstance(parallelism, Mapping):
        if vertex.name in parallelism:
            return parallelism[vertex.name]
    elif any(edge.routing is not Routing.FORWARD for edge in edges):
        return parallelism
    is_next = edges and edges[0].routing is Routing.FORWARD
    if is_next and was.edges[0].vertex.parallelism == was.parallelism:
        return edges[0].vertex.parallelism
    return vertex.parallelism


def _takes_all(vertex: Vertex) -> bool:
    operation = vertex.operation
    return isinstance(operation, (AggregateWindows, TopOfWindows)) and not operation.keys
