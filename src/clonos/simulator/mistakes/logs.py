"""Deliberate mistakes in limiting how much of logs is held."""

from __future__ import annotations

from typing import Any

from clonos.core.throttle import Throttle


def never_too_much(_: Any) -> Any:
    """Only retained items make sources wait; logs do not."""

    def fullness(self: Throttle) -> float:
        return self._inflight_fullness

    return property(fullness)


def never_hurried(_: Any) -> Any:
    """The next checkpoint comes when it is due, however long logs are."""
    return property(lambda _: False)
