"""Columns that nobody looks at are not read: a source is told which are wanted.

Known of an operator is what it declares in the graph (:attr:`Node.reads`); a function of the user's
may look at all of its rows, so `select` before it is what says that it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clonos.graph.nodes import Edge, Node


def without_unread_columns(nodes: Sequence[Node]) -> list[Node]:
    """The same nodes, whose sources make only columns that are looked at behind them.

    Parameters
    ----------
    nodes
        Every node after those it reads from.
    """
    unread = _unread(nodes)
    made: dict[int, Node] = {}
    for node in nodes:
        edges = tuple(replace(e, node=made[e.node.id]) for e in node.edges)
        made[node.id] = _narrowed(replace(node, edges=edges), unread[node.id])
    return list(made.values())


def _unread(nodes: Sequence[Node]) -> dict[int, frozenset[str]]:
    """Per node the columns of its rows that no node behind it looks at."""
    unread: dict[int, frozenset[str]] = {}
    readers: dict[int, list[tuple[Edge, Node]]] = {node.id: [] for node in nodes}
    for node in reversed(nodes):
        every = frozenset(node.schema.names)
        left = [_ignored(edge, reader, unread[reader.id]) for edge, reader in readers[node.id]]
        unread[node.id] = every.intersection(*left) if left else frozenset()
        for edge in node.edges:
            readers[edge.node.id].append((edge, node))
    return unread


def _ignored(edge: Edge, reader: Node, unread: frozenset[str]) -> frozenset[str]:
    """What `reader` does not look at of the rows of `edge`, if nobody needs `unread` behind it."""
    if reader.reads is None:
        return frozenset()
    passed = unread if reader.passes_on else frozenset(edge.node.schema.names)
    return passed.difference(reader.reads, edge.keys)


def _narrowed(node: Node, unread: frozenset[str]) -> Node:
    """A source without these columns, or what passes on the rows of such a source."""
    if node.source is not None and node.source.narrow is not None and unread:
        schema = node.schema
        columns = [name for name in schema.names if name not in unread]
        # Rows are counted by a column.
        source = node.source.narrow(columns or schema.names[:1])
        return replace(node, source=source, make=source.head, schema=source.rows_schema)
    if node.passes_on:
        return replace(node, schema=node.edges[0].node.schema)
    return node
