"""Columns that nobody looks at are neither read nor computed: what makes them is told.

Known of an operator is what it declares in the graph (:attr:`Vertex.reads`); a function of a user
may look at all of its rows, so `select` before it is what says that it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clonos.graph.logical import Edge, Vertex
from clonos.operators.operations import Project


def without_unread_columns(vertices: Sequence[Vertex]) -> list[Vertex]:
    """The same vertices, whose sources and projections make only what is looked at behind them.

    Parameters
    ----------
    vertices
        Every vertex after those it reads from.
    """
    unread = _unread(vertices)
    made: dict[int, Vertex] = {}
    for vertex in vertices:
        edges = tuple(replace(e, vertex=made[e.vertex.id]) for e in vertex.edges)
        made[vertex.id] = _narrowed(replace(vertex, edges=edges), unread[vertex.id])
    return list(made.values())


def _unread(vertices: Sequence[Vertex]) -> dict[int, frozenset[str]]:
    """Per vertex the columns of its rows that no vertex behind it looks at."""
    unread: dict[int, frozenset[str]] = {}
    readers: dict[int, list[tuple[Edge, Vertex]]] = {vertex.id: [] for vertex in vertices}
    for vertex in reversed(vertices):
        every = frozenset(vertex.schema.names)
        left = [_ignored(edge, reader, unread[reader.id]) for edge, reader in readers[vertex.id]]
        unread[vertex.id] = every.intersection(*left) if left else frozenset()
        for edge in vertex.edges:
            readers[edge.vertex.id].append((edge, vertex))
    return unread


def _ignored(edge: Edge, reader: Vertex, unread: frozenset[str]) -> frozenset[str]:
    """What `reader` does not look at of the rows of `edge`, if nobody needs `unread` behind it."""
    every = frozenset(edge.vertex.schema.names)
    if reader.projection is not None:
        return every.difference(reader.projection.reads(unread), edge.keys)
    if reader.reads is None:
        return frozenset()
    passed = unread if reader.passes_on else every
    return passed.difference(reader.reads, edge.keys)


def _narrowed(vertex: Vertex, unread: frozenset[str]) -> Vertex:
    """What makes columns, without these; or what passes on the rows of such a vertex."""
    if vertex.source is not None and vertex.source.narrow is not None and unread:
        schema = vertex.schema
        columns = [name for name in schema.names if name not in unread]
        # Rows are counted by a column.
        source = vertex.source.narrow(columns or schema.names[:1])
        return replace(vertex, source=source, operation=source.head, schema=source.rows_schema)
    if vertex.projection is not None and unread:
        projection = vertex.projection.without(unread)
        return replace(vertex, operation=Project(projection), schema=projection.schema)
    if vertex.passes_on:
        return replace(vertex, schema=vertex.edges[0].vertex.schema)
    return vertex
