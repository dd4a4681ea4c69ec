"""Splits windows into two parts: rows are aggregated before the shuffle, partial results after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clonos.graph.logical import Edge, Vertex
from clonos.operators.operations import AggregateWindows, EarlyPart, LatePart, TopOfWindows
from clonos.operators.router import Routing

EARLY: Final = "_partial"
"""What the name of an early part has behind that of its window."""


def with_early_parts(vertices: Sequence[Vertex]) -> list[Vertex]:
    """The same vertices, with an early part before each window that can be folded early.

    Parameters
    ----------
    vertices
        Every vertex after those it reads from.
    """
    names = {vertex.name for vertex in vertices}
    number = max(vertex.id for vertex in vertices)
    made: dict[int, Vertex] = {}
    result: list[Vertex] = []
    for vertex in vertices:
        edges = tuple(replace(edge, vertex=made[edge.vertex.id]) for edge in vertex.edges)
        same = replace(vertex, edges=edges)
        operation = vertex.operation
        if isinstance(operation, (AggregateWindows, TopOfWindows)) and operation.folds_early:
            (edge,) = edges
            if edge.routing is Routing.HASH or not operation.keys:
                number += 1
                early = _early(same, operation, number, names)
                late = replace(edge, vertex=early, is_chained=True)
                if not operation.keys:
                    late = Edge(early, group=edge.group)
                result.append(early)
                same = replace(same, operation=LatePart(operation), edges=(late,), reads=None)
        made[vertex.id] = same
        result.append(same)
    return result


def _early(
    window: Vertex, operation: AggregateWindows | TopOfWindows, number: int, names: set[str]
) -> Vertex:
    """The early part of a window, in the slots of its input."""
    (edge,) = window.edges
    here = replace(edge, group=None)
    name = chosen = f"{window.name}{EARLY}"
    again = 2
    while chosen in names:
        chosen, again = f"{name}_{again}", again + 1
    names.add(chosen)
    return Vertex(
        id=number,
        name=chosen,
        is_named=False,
        schema=operation.content().schema,
        parallelism=edge.vertex.parallelism,
        operation=EarlyPart(operation),
        edges=(replace(here, routing=Routing.FORWARD, keys=()) if operation.keys else here,),
        reads=window.reads,
    )
