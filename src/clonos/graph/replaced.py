"""Replaces functions in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from clonos.errors import CannotReplace
from clonos.graph.logical import LogicalGraph
from clonos.graph.rebuilt import rebuilt
from clonos.operators import operations as op
from clonos.operators.calls.effects import Effect
from clonos.operators.calls.service import Policy, Service, undeclared
from clonos.operators.operations import Operation
from clonos.operators.process.process import Process


def replaced(graph: LogicalGraph, functions: Mapping[str, Any]) -> LogicalGraph:
    """A copy of the graph with other functions, by operator name; the original stays the same.

    Raises
    ------
    CannotReplace
        There is no such operator, or it has no user function.

    Examples
    --------
    >>> import clonos
    >>> job = clonos.Job()
    >>> rows = job.source(clonos.sources.from_batches([], "n long"), name="numbers")
    >>> rows.filter(lambda row: row.n > 1, name="some").sink(clonos.sinks.collect(), name="out")
    >>> fn = replaced(job.graph, {"some": lambda row: row.n > 2}).vertices[1].operation.fn
    >>> fn is job.graph.vertices[1].operation.fn
    False
    """
    require_there(graph.name, (vertex.name for vertex in graph.vertices), functions)
    return rebuilt(
        graph,
        lambda vertex, _: (
            replace(
                vertex,
                operation=with_function(vertex.name, vertex.operation, functions[vertex.name]),
            )
            if vertex.name in functions
            else vertex
        ),
    )


def require_there(job: str, names: Iterable[str], functions: Mapping[str, Any]) -> None:
    """Raise `CannotReplace` if a job has no operator of one of the names."""
    known = sorted(set(names))
    if unknown := functions.keys() - set(known):
        raise CannotReplace(
            f"there is no operator {min(unknown)!r}",
            where=job,
            remedy=f"the operators are {', '.join(known)}; name= names one",
        )


def with_function(name: str, operation: Operation, fn: Any) -> Operation:
    """The operation with another user function.

    Raises
    ------
    CannotReplace
        It has no user function, or this one is of another kind.
    """
    match operation:
        case (
            op.MapAsync(policy=policy)
            | op.WithColumnAsync(policy=policy)
            | op.ForEachAsync(policy=policy)
        ):
            is_fitting = callable(fn) or isinstance(fn, Service)
            change: dict[str, Any] = {"policy": _asking(name, policy, fn)}
        case op.ProcessRows():
            is_fitting = isinstance(fn, Process)
            change = {"process": fn}
        case op.TransformRows():
            is_fitting = hasattr(fn, "handleInputRows")
            change = {"processor": fn}
        case op.Map() | op.FlatMap() | op.Filter() | op.MapBatches() | op.WithColumn():
            is_fitting = callable(fn) and not isinstance(fn, Process)
            change = {"fn": fn}
        case _:
            raise CannotReplace(
                f"{name!r} has no function that could be replaced",
                where=name,
                remedy="replace the functions of map, flat_map, filter, map_batches, with_column, "
                "map_async, with_column_async and for_each_async, or a Process",
            )
    if not is_fitting:
        raise CannotReplace(
            f"{function_name(fn)} cannot replace what {name!r} runs",
            where=name,
            remedy="give a clonos.Process for a Process, a StatefulProcessor for one, and a "
            "function for a function",
        )
    return replace(operation, **change)


def _asking(name: str, policy: Policy, fn: Any) -> Policy:
    """The policy with another function: an effect stays an effect, and a plain call one."""
    asked, _ = undeclared(fn, {})
    effect = asked if isinstance(asked, Effect) else None
    other = replace(policy, fn=asked if effect is None else effect.fn, effect=effect)
    if other.fingerprint != policy.fingerprint:
        raise CannotReplace(
            f"{function_name(other.fn)} is {other.fingerprint}, and what it would replace is "
            f"{policy.fingerprint}",
            where=name,
            remedy="declare both in the same way: with @clonos.effect(...), or without",
        )
    return other


def function_name(fn: Any) -> str:
    """The name of a function in bills and options: ``Judge``, ``ask_model``."""
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    return str(named.__qualname__).rpartition("<locals>.")[2]
