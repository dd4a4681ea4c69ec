"""Objects that reach the log of the job whose code they are part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clonos.causal import process


class Shipped:
    """An object that is pickled together with the access to its job's log."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild, (type(self), process.access(), self.__dict__)


def _rebuild(cls: type[Any], access: Any, state: dict[str, Any]) -> Any:
    rebuilt = object.__new__(cls)
    rebuilt.__dict__.update(state)
    process.arrived(access)
    return rebuilt
