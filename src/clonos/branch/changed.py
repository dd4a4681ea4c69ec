"""A job with other functions in some of its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clonos.branch.errors import CannotReplace
from clonos.branch.original import function_name
from clonos.graph.compile import CompiledJob, TaskCode
from clonos.operators import operations as op
from clonos.operators.operations import Operation
from clonos.operators.process import Process


def changed(compiled: CompiledJob, functions: Mapping[str, Any]) -> CompiledJob:
    """The job with other functions, by name of the operator.

    Raises
    ------
    CannotReplace
        There is no such operator, or it has no function of the user's.
    """
    names = {name for code in compiled.codes for name, _ in code.operators}
    if unknown := functions.keys() - names:
        raise CannotReplace(
            f"there is no operator {min(unknown)!r}",
            where=compiled.name,
            remedy=f"the operators are {', '.join(sorted(names))}; name= names one",
        )
    codes = tuple(_changed(code, functions) for code in compiled.codes)
    return replace(compiled, codes=codes)


def _changed(code: TaskCode, functions: Mapping[str, Any]) -> TaskCode:
    operators = tuple(
        (name, _with_function(name, made, functions[name]) if name in functions else made)
        for name, made in code.operators
    )
    return replace(code, operators=operators)


def _with_function(name: str, operation: Operation, fn: Any) -> Operation:
    match operation:
        case op.MapAsync(policy=policy) | op.WithColumnAsync(policy=policy):
            return replace(operation, policy=replace(policy, fn=fn))
        case op.ProcessRows():
            is_fitting = isinstance(fn, Process)
            change = {"process": fn}
        case op.Map() | op.FlatMap() | op.Filter() | op.MapBatches() | op.WithColumn():
            is_fitting = callable(fn) and not isinstance(fn, Process)
            change = {"fn": fn}
        case _:
            raise CannotReplace(
                f"{name!r} has no function that could be replaced",
                where=name,
                remedy="replace the functions of map, flat_map, filter, map_batches, with_column, "
                "map_async and with_column_async, or a Process",
            )
    if not is_fitting:
        raise CannotReplace(
            f"{function_name(fn)} cannot replace what {name!r} runs",
            where=name,
            remedy="give a clonos.Process for a Process, and a function for a function",
        )
    return replace(operation, **change)


def require_same_shape(original: CompiledJob, other: CompiledJob) -> None:
    """See that a job can be run on the log of another.

    Raises
    ------
    CannotReplace
        It has other tasks or channels.
    """
    for what, one, two in (
        ("tasks", _tasks(original), _tasks(other)),
        ("channels", original.plan.channels, other.plan.channels),
    ):
        if one != two:
            raise CannotReplace(
                f"the changed job has other {what}",
                where=other.name,
                remedy="operators may change within a task; shuffles, parallelism, sources and "
                "sinks may not",
            )


def _tasks(compiled: CompiledJob) -> list[tuple[Any, ...]]:
    return [(t.id, t.index, t.inputs, t.outputs, t.is_source, t.sink) for t in compiled.plan.tasks]
