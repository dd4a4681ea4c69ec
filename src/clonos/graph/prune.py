"""Removes unread columns: sources and projections neither read nor compute them.

The columns that an operator reads are declared in the graph (:attr:`Vertex.reads`). A user function
may read all columns, unless there is a `select` before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clonos.graph.logical import Edge, Vertex
from clonos.operators.operations import Project


def without_unread_columns(vertices: Sequence[Vertex]) -> list[Vertex]:
    """The same vertices, but sources and projections make only columns that are read downstream.

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
    """For each vertex, the columns of its rows that no vertex downstream reads."""
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
    """The columns of `edge` that `reader` does not need, if `unread` are not read downstream."""
    every = frozenset(edge.vertex.schema.names)
    if reader.projection is not None:
        return every.difference(reader.projection.reads(unread), edge.keys)
    if reader.reads is None:
        return frozenset()
    passed = unread if reader.passes_on else every
    return passed.difference(reader.reads, edge.keys)


def _narrowed(vertex: Vertex, unread: frozenset[str]) -> Vertex:
    """A vertex that no longer makes these columns, or passes on rows without them."""
    if vertex.source is not None and vertex.source.narrow is not None and unread:
        schema = vertex.schema
        columns = [name for name in schema.names if name not in unread]
        # One column must remain, so that rows can be counted.
        source = vertex.source.narrow(columns or schema.names[:1])
        return replace(vertex, source=source, operation=source.head, schema=source.rows_schema)
    if vertex.projection is not None and unread:
        projection = vertex.projection.without(unread)
        return replace(vertex, operation=Project(projection), schema=projection.schema)
    if vertex.passes_on:
        return replace(vertex, schema=vertex.edges[0].vertex.schema)
    return vertex
