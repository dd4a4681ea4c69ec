"""Base of map, flat_map and filter: a user function that is called once per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clonos.operators.base import Operator, OperatorInfo, Services
from clonos.operators.context import Context, takes_context


class UserFunctionOperator(Operator):
    """Wraps a function of ``(row)`` or ``(row, ctx)`` as one of ``(row)``."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self._fn = fn
        self._call: Callable[[Any], Any]

    def open(self, info: OperatorInfo, services: Services) -> None:
        super().open(info, services)
        if takes_context(self._fn, info.where):
            self._ctx = Context(self)
            self._call = self._with_context  # a closure would share the context with copies
        else:
            self._call = self._fn

    def _with_context(self, row: Any) -> Any:
        return self._fn(row, self._ctx)
