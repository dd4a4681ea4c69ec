"""Deliberate mistakes with values by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clonos.state.runs import Rows
from clonos.state.values import ValueStore


def oldest_first(original: Any) -> Any:
    """An older level hides newer ones."""

    def look_up(self: ValueStore, keys: list[bytes]) -> None:
        self._below.all.reverse()
        try:
            original(self, keys)
        finally:
            self._below.all.reverse()

    return look_up


def oldest_pieces(original: Any) -> Any:
    """The same with pieces of windows."""

    def newest(parts: Sequence[Rows], *how: Any) -> Any:
        return original(parts[::-1], *how)

    return newest
