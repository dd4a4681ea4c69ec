"""Deliberate mistakes in processes that ask several services."""

from __future__ import annotations

from typing import Any

from clonos.core.calls import Request
from clonos.core.program import Step
from clonos.operators.process.asking import CallTable


def first_declared(original: Any) -> Any:
    """Every question goes to the first service, whichever was meant."""

    def request(self: CallTable, service: str, number: int, under_way: int) -> Request:
        first = next(iter(self.policies))
        result: Request = original(self, service, number, under_way)
        return result._replace(service=self._purses[first].policy(under_way))

    return request


def until_one_is_due(_: Any) -> Any:
    """Services are checked only until one is due, so whether the clock is read depends on their
    order, which differs in a later life."""

    def ready(self: CallTable, step: Step) -> list[str]:
        return next(([name] for name in self._queues if self._is_due(name, step)), [])

    return ready
