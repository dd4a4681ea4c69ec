"""Collects rows until they fill a file, before the Parquet sink writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from clonos.columns.batches import concat, from_bytes, to_bytes
from clonos.operators.base import Operator
from clonos.operators.make import make_operator
from clonos.operators.operations import Operation
from clonos.operators.shares import Share, highest, nothing
from clonos.state.deltas import WHOLE_TASK, Changes, Frozen

_NUMBER_BYTES = 8


@dataclass(frozen=True)
class BufferFiles(Operation):
    """Holds rows until there are enough for a file, or until a time is over."""

    rows_per_file: int
    linger_ms: int


class FileBufferOperator(Operator):
    """Sends `rows_per_file` rows at a time, or the waiting rows after `linger_ms`.

    Waiting rows are state, kept in pieces as they came. A step sends at most one batch: if more
    than one file is full, a timer that is due at once sends the next.
    """

    joins: ClassVar = {"pieces": nothing, "due": highest}

    def __init__(self, rows_per_file: int, linger_ms: int) -> None:
        super().__init__()
        self._rows_per_file = rows_per_file
        self._linger_ms = linger_ms
        self._pieces: dict[int, pa.RecordBatch] = {}
        self._rows = 0
        self._dirty: dict[int, None] = {}
        self._last_step: Any = None  # the last step that has sent a batch

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        now_ms = self.services.step.clock_ms()
        if not self._pieces:
            self.facts.set("due", now_ms + self._linger_ms)
        self._add(batch)
        if self._is_full:
            self.facts.set("due", now_ms)
        return self._take(self._rows_per_file, now_ms) if self._is_full and self._may_send else None

    def on_timer(self, now_ms: int) -> pa.RecordBatch | None:
        due = self.next_due_ms()
        if due is None or due > now_ms or not self._may_send:
            return None
        return self._take(self._rows_per_file, now_ms)

    def next_due_ms(self) -> int | None:
        due: int = self.facts.get("due", 0)
        return due if self._pieces else None

    def on_end(self) -> pa.RecordBatch | None:
        # There is no later step, so all remaining rows leave as one batch, however large.
        return self._take(self._rows, 0) if self._pieces else None

    def changes(self) -> Frozen:
        pieces, self._dirty = [(number, self._pieces.get(number)) for number in self._dirty], {}

        def work_out() -> list[Changes]:
            keys = [number.to_bytes(_NUMBER_BYTES, "big") for number, _ in pieces]
            values = [None if piece is None else to_bytes(piece) for _, piece in pieces]
            return [Changes([WHOLE_TASK] * len(pieces), keys, values)]

        return work_out

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        for key, value in zip(keys, values, strict=True):
            number = int.from_bytes(key, "big")
            if value is None:
                self._pieces.pop(number, None)
            else:
                self._pieces[number] = from_bytes(value)
        self._pieces = dict(sorted(self._pieces.items()))
        self._rows = sum(piece.num_rows for piece in self._pieces.values())

    def adopt_state(self, shares: Sequence[Share], where: str) -> None:
        for share in shares:
            pieces = zip(share.keys.to_pylist(), share.values.to_pylist(), strict=True)
            for _, value in sorted(pieces):
                self._add(from_bytes(value))

    @property
    def _may_send(self) -> bool:
        """Whether this step has sent nothing yet: rows may arrive several times in a step."""
        return self._last_step is not self.services.step

    @property
    def _is_full(self) -> bool:
        return self._rows >= self._rows_per_file

    def _add(self, batch: pa.RecordBatch) -> None:
        number = self.facts.get("pieces", 0)
        self.facts.set("pieces", number + 1)
        self._put(number, batch)
        self._rows += batch.num_rows

    def _put(self, number: int, piece: pa.RecordBatch | None) -> None:
        self._dirty[number] = None
        if piece is None:
            del self._pieces[number]
        else:
            self._pieces[number] = piece

    def _take(self, rows: int, now_ms: int) -> pa.RecordBatch:
        """Remove the first `rows` rows; the rest is due now (a full file) or a linger later."""
        self._last_step = self.services.step
        taken = []
        wanted = rows
        for number, piece in list(self._pieces.items()):
            if piece.num_rows <= wanted:
                self._put(number, None)
                taken.append(piece)
            else:
                taken.append(piece.slice(0, wanted))
                self._put(number, piece.slice(wanted))
            wanted -= taken[-1].num_rows
            if not wanted:
                break
        batch = concat(taken)
        self._rows -= batch.num_rows
        self.facts.set("due", now_ms if self._is_full else now_ms + self._linger_ms)
        return batch


@make_operator.register
def _(operation: BufferFiles) -> Operator:
    return FileBufferOperator(operation.rows_per_file, operation.linger_ms)
