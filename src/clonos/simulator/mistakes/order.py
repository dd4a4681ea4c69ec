"""Deliberate mistakes with rows of one key."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from clonos.operators.calls.lanes import Lanes
from clonos.state.stores import KeyedStore


def overtake(_: Any) -> Any:
    def unblocked(_: Lanes, numbers: Iterable[int], __: Collection[int]) -> list[int]:
        return sorted(numbers)

    return unblocked


def any_number(original: Any) -> Any:
    def next_calls(self: Lanes, asked: int, came: int, most: int) -> Any:
        per_key, self.per_key = self.per_key, None
        try:
            return original(self, asked, came, most)
        finally:
            self.per_key = per_key

    return next_calls


def forget_held(original: Any) -> Any:
    """Layers do not record which rows are held back: a later life believes that they have asked."""
    return _forgetting(original, b"h")


def forget_together(original: Any) -> Any:
    """Layers do not record which questions form one call: a later life asks each by itself."""
    return _forgetting(original, b"b")


def _forgetting(original: Any, kind: bytes) -> Any:
    def put(self: KeyedStore, key: bytes, group: int, value: Any) -> None:
        original(self, key, group, value)
        if key[:1] == kind:
            self._dirty.pop(key)

    return put
