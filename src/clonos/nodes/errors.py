"""Errors that the driver raises."""

from __future__ import annotations

from clonos.core.decisions import Fail
from clonos.errors import ClonosError, TaskFailed


class SlotsLost(ClonosError):
    """A slot ended repeatedly before it registered."""


class OtherVersion(ClonosError):
    """An executor's versions differ from the driver's: a replay might not be bit-exact."""


class ExecutorLost(ClonosError):
    """The executor of a slot has ended, and the slot with it: no fault of its own."""


class SlotBroken(ClonosError):
    """The loop of a slot has raised, not the user's code in it: a bug in clonos."""


def failure_of(fail: Fail, task: str) -> ClonosError:
    """The error that ends a job: of a slot, the coordinator knows it by name only."""
    where = fail.where or (task if fail.task >= 0 else "")
    kind, what = _error_types().get(fail.error), fail.message
    if kind is None:
        kind, what = TaskFailed, f"{fail.error}: {what}"
    return kind(what, where=where, remedy=fail.remedy, trace=fail.trace)


def _error_types() -> dict[str, type[ClonosError]]:
    """Every error of clonos by its name: a slot tells what went wrong by name."""
    found: dict[str, type[ClonosError]] = {}
    todo: list[type[ClonosError]] = [ClonosError]
    while todo:
        kind = todo.pop(0)
        found.setdefault(kind.__name__, kind)  # of two with one name, the more general one
        todo += kind.__subclasses__()
    del found["CallError"]  # made of other things than the rest
    return found
