"""Errors that the driver raises."""

from __future__ import annotations

from clonos.core.decisions import Fail
from clonos.errors import ClonosError, TaskFailed


class ExecutorLost(ClonosError):
    """The executor of a slot has ended, and the slot with it: no fault of its own."""


def failure_of(fail: Fail, task: str) -> ClonosError:
    """The error that ends a job. If a slot has raised it, the coordinator knows only its name."""
    where = fail.where or (task if fail.task >= 0 else "")
    kind, what = _error_types().get(fail.error), fail.message
    if kind is None:
        kind, what = TaskFailed, f"{fail.error}: {what}"
    return kind(what, where=where, remedy=fail.remedy, trace=fail.trace)


def _error_types() -> dict[str, type[ClonosError]]:
    """Every error of clonos by its name: slots report errors by name."""
    found: dict[str, type[ClonosError]] = {}
    todo: list[type[ClonosError]] = [ClonosError]
    while todo:
        kind = todo.pop(0)
        found.setdefault(kind.__name__, kind)  # of two with the same name, the more general one
        todo += kind.__subclasses__()
    del found["CallError"]  # it has other arguments than all others
    return found
