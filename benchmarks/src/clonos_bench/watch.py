"""What a running job delivers: when, how late, and whether every row once."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clonos.cluster.driver import RunningJob
from clonos.core.housekeeper import Deliver
from clonos.core.messages import Kind
from clonos.errors import ClonosError
from clonos_bench.jobs import Schedule
from clonos_bench.statistics import Series

_GROWTH: Final = 1 << 16


class Ledger:
    """Which ids were delivered how often, and whether state counted each key without a fault.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.add(np.array([7, 7]), np.array([0, 1]), np.array([1, 2]))
    >>> ledger.faults(parallelism=1)
    []
    >>> ledger.add(np.array([7]), np.array([1]), np.array([2]))
    >>> ledger.faults(parallelism=1)
    ['1 rows delivered more than once', '1 keys counted wrongly']
    """

    def __init__(self) -> None:
        self._times = np.zeros(_GROWTH, np.uint8)
        self._per_key = np.zeros(_GROWTH, np.int64)
        self._sums = np.zeros(_GROWTH, np.int64)
        self.rows = 0

    def add(self, keys: Any, ids: Any, seen: Any) -> None:
        """Delivered rows: key, row number, and the how-manieth row of its key state says it is."""
        self._times = _fit(self._times, int(ids.max()))
        self._per_key = _fit(self._per_key, int(keys.max()))
        self._sums = _fit(self._sums, int(keys.max()))
        np.add.at(self._times, ids, np.uint8(1))
        np.add.at(self._per_key, keys, 1)
        np.add.at(self._sums, keys, seen)
        self.rows += len(ids)

    def faults(self, parallelism: int) -> list[str]:
        """What is wrong, in words. Ids i, i + p, i + 2p, ... come from source task i of p."""
        times = self._times
        missing = 0
        for i in range(parallelism):
            share = times[i::parallelism]
            last = int(np.flatnonzero(share)[-1]) if share.any() else -1
            missing += int((share[: last + 1] == 0).sum())
        repeated = int((times > 1).sum())
        # The counts of a key that were delivered have to be 1, 2, ... n.
        wrong = int((self._sums != self._per_key * (self._per_key + 1) // 2).sum())
        found = {
            "rows missing": missing,
            "rows delivered more than once": repeated,
            "keys counted wrongly": wrong,
        }
        return [f"{count} {what}" for what, count in found.items() if count]


def _fit(array: npt.NDArray[Any], index: int) -> npt.NDArray[Any]:
    if index < len(array):
        return array
    grown = np.zeros(max(index + 1, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown


class Watch:
    """Records each delivered output of a job; cheap in the driver's loop, the rest in `drain`.

    Latency is the delivery (the output is durable and out) less the moment when the output's
    oldest row was due by the schedule. Without one, less the moment when the source read that row:
    what it has waited in the reader before, at most the job's linger, is not in it.

    Attributes
    ----------
    ledger
        Of rows ``(key, id, seen)``.
    counted
        Sum of ``rows`` in rows ``(key, rows)``.
    """

    def __init__(self, job: RunningJob, schedule: Schedule | None = None) -> None:
        self._schedule = schedule
        self.ledger = Ledger()
        self.counted = 0
        self._fresh: deque[tuple[float, float, Deliver]] = deque()
        self._times: dict[int, list[float]] = {}
        self._latencies: dict[int, list[float]] = {}
        job.consumers.watch(self._delivered)

    def _delivered(self, operator: str, output: Deliver) -> None:
        del operator
        if output.item.kind is Kind.BATCH:
            self._fresh.append((time.monotonic(), time.time(), output))

    def drain(self) -> None:
        """Take what has come; called often, not in the driver's loop."""
        while self._fresh:
            at_s, wall_s, output = self._fresh.popleft()
            batch = output.item.batch
            assert batch is not None
            self._times.setdefault(output.task, []).append(at_s)
            late_ms = wall_s * 1000 - output.item.born_ms
            if self._schedule is not None:
                oldest = int(batch.payload.column("id").to_numpy().min())
                late_ms = self._schedule.late_ms(oldest, wall_s)
            self._latencies.setdefault(output.task, []).append(late_ms)
            if batch.payload.schema.names == ["key", "id", "seen"]:
                self.ledger.add(*(column.to_numpy() for column in batch.payload.columns))
            elif batch.payload.schema.names == ["key", "rows"]:
                self.counted += int(batch.payload.column(1).to_numpy().sum())

    def require_right(self, parallelism: int) -> None:
        """Raise a `ClonosError` unless every row was delivered once and counted right."""
        if faults := self.ledger.faults(parallelism):
            raise ClonosError(f"wrong output: {'; '.join(faults)}")

    def series(self, task: int) -> tuple[Series, Series]:
        """When a sink task's outputs were delivered (s, monotonic), and how late (ms; NaN: the
        schedule had no moment for them)."""
        return np.array(self._times.get(task, [])), np.array(self._latencies.get(task, []))

    def latest_ms(self) -> float:
        """How late the newest output of the partition was that is most behind."""
        return max((late[-1] for late in self._latencies.values()), default=math.inf)

    def tasks(self) -> list[int]:
        return sorted(self._times)
