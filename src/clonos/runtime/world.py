"""The nondeterministic outside of a task: clock and calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from clonos.columns.batches import from_bytes, seal
from clonos.columns.rows import dicts_of
from clonos.core.events import Trial
from clonos.core.program import Batch, Program
from clonos.runtime.trial import attempt

SHOWN_MAX: Final = 300
"""How many characters of a row an error shows."""


class RealWorld:
    """Implements :class:`clonos.core.events.World`."""

    def clock_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ticks_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return fn(*args, **kwargs)

    def decode_rows(self, content: bytes) -> Batch:
        return seal(from_bytes(content))

    def attempt(self, program: Program, do: Callable[[Program], None]) -> Trial:
        return attempt(lambda: do(program))

    def pick(self, batch: Batch, rows: Sequence[int]) -> Batch:
        return seal(batch.payload.take(pa.array(rows, pa.int64())), digests=False)

    def show(self, batch: Batch) -> str:
        text = str(dicts_of(batch.payload.slice(0, 1))[0])
        return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
