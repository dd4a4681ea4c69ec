"""Deliberate mistakes in how much is held of logs."""

from __future__ import annotations

from typing import Any

from clonos.core.throttle import Throttle


def never_too_much(_: Any) -> Any:
    """Only items in flight make sources wait."""

    def fullness(self: Throttle) -> float:
        return self._inflight_fullness

    return property(fullness)


def never_hurried(_: Any) -> Any:
    """The next checkpoint comes when it is due, however long logs are."""
    return property(lambda _: False)
