"""Replaces functions of a compiled job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clonos.errors import CannotReplace
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.graph.replaced import require_there, with_function


def changed(compiled: CompiledJob, changes: Mapping[str, Any] | CompiledJob) -> CompiledJob:
    """The job with other functions, by operator name; or another job in its place.

    Raises
    ------
    CannotReplace
        There is no such operator, it has no user function, or the other job has other tasks or
        channels.
    """
    if isinstance(changes, CompiledJob):
        require_same_shape(compiled, changes)
        return changes
    names = (name for code in compiled.codes for name, _ in code.operators)
    require_there(compiled.name, names, changes)
    codes = tuple(_changed(code, changes) for code in compiled.codes)
    return replace(compiled, codes=codes)


def _changed(code: TaskCode, functions: Mapping[str, Any]) -> TaskCode:
    operators = tuple(
        (name, with_function(name, made, functions[name]) if name in functions else made)
        for name, made in code.operators
    )
    return replace(code, operators=operators)


def require_same_shape(original: CompiledJob, other: CompiledJob) -> None:
    """Check that a job can run on the log of another.

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
