"""Deliberate mistakes with values by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from clonos.columns.batches import empty
from clonos.state.large_pieces import LargePieceStore
from clonos.state.piece_runs import PlacedPieces
from clonos.state.pieces import PieceStore
from clonos.state.sessions import SessionStore
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


def nothing_there(original: Any) -> Any:
    """Pieces of windows that are not in memory are forgotten."""
    del original

    def between(self: LargePieceStore, low: int, high: int) -> PlacedPieces:
        del low, high
        pieces = empty(self.decode(pa.array([], pa.large_binary())).schema)
        return PlacedPieces(pieces, np.empty(0, np.uint64), np.empty(0, np.int64))

    return between


def gone_for_good(original: Any) -> Any:
    """Sessions that are not in memory are not joined by rows that belong to them."""
    del original

    def touched(_: SessionStore, fresh: pa.RecordBatch) -> pa.RecordBatch:
        return empty(fresh.schema)

    return touched


def those_here_are_all(original: Any) -> Any:
    """No session is over as long as it is not in memory."""
    del original
    return PieceStore.earliest
