"""The nondeterministic outside of a task: clock and calls, watched for the heartbeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from clonos.columns.batches import from_bytes, seal
from clonos.core.program import Batch


class RealWorld:
    """Implements :class:`clonos.core.events.World`."""

    def __init__(self) -> None:
        self.in_call_since_ms: int | None = None

    def clock_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ticks_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self.in_call_since_ms = self.clock_ms()
        try:
            return fn(*args, **kwargs)
        finally:
            self.in_call_since_ms = None

    def decode_rows(self, content: bytes) -> Batch:
        return seal(from_bytes(content))
