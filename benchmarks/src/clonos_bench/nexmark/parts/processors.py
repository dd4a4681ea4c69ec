"""PySpark's functions with state, as :mod:`clonos_bench.nexmark.parts.functions` compares them.

State is read and written once per key and micro-batch, not once per row: as PySpark does best.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class _Count(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "n long")

    def _seen(self) -> int:
        found = self._state.get()
        return 0 if found is None else int(found[0])

    def close(self) -> None:
        """Nothing is open."""


class CountRows(_Count):
    """Numbers the bids of each bidder, row by row."""

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 - see above
    ) -> Iterator[Row]:
        seen = self._seen()
        for row in rows:
            seen += 1
            yield Row(bidder=key[0], auction=row.auction, nth=seen)
        self._state.update((seen,))


class CountFrames(_Count):
    """The same, a frame at a time."""

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 - see above
    ) -> Iterator[pd.DataFrame]:
        seen = self._seen()
        for frame in rows:
            nth = np.arange(seen + 1, seen + 1 + len(frame))
            seen += len(frame)
            yield pd.DataFrame({"bidder": key[0], "auction": frame["auction"], "nth": nth})
        self._state.update((seen,))
