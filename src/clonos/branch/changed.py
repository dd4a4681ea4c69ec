"""A job with other functions in some of its operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from clonos.branch.errors import CannotReplace
from clonos.branch.original import function_name
from clonos.graph.compile import CompiledJob, TaskCode
from clonos.operators.base import Operator
from clonos.operators.calls import CallOperator
from clonos.operators.process import ProcessOperator
from clonos.operators.rowwise import UserFunctionOperator
from clonos.operators.service import Policy
from clonos.operators.with_column import WithColumnOperator

WITH_FUNCTION: Final = (UserFunctionOperator, WithColumnOperator, ProcessOperator)
"""Operators whose first argument is the user's function, or process."""


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
            remedy=f"the operators are {', '.join(sorted(names))}; name= gives one a name",
        )
    codes = tuple(_changed(code, functions) for code in compiled.codes)
    return replace(compiled, codes=codes)


def _changed(code: TaskCode, functions: Mapping[str, Any]) -> TaskCode:
    operators = tuple(
        (name, _with_function(name, make, functions[name]) if name in functions else make)
        for name, make in code.operators
    )
    return replace(code, operators=operators)


def _with_function(name: str, make: Any, fn: Any) -> Callable[[], Operator]:
    made: Any = make.func if isinstance(make, partial) else make
    kind: Any = made if isinstance(made, type) else object
    if issubclass(kind, CallOperator):
        policy: Policy = make.args[0]
        return partial(kind, replace(policy, fn=fn), *make.args[1:], **make.keywords)
    if issubclass(kind, WITH_FUNCTION):
        if issubclass(kind, ProcessOperator) != hasattr(fn, "on_row"):
            raise CannotReplace(
                f"{function_name(fn)} cannot replace what {name!r} has",
                where=name,
                remedy="a clonos.Process is replaced by a Process, a function by a function",
            )
        return partial(kind, fn, *make.args[1:], **make.keywords)
    raise CannotReplace(
        f"{name!r} has no function of yours",
        where=name,
        remedy="replace functions of map, flat_map, filter, map_batches, with_column, map_async "
        "and with_column_async, and processes",
    )


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
