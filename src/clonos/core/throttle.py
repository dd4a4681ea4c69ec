"""Bounds memory: while some process keeps too much, sources wait and the next floor is hurried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clonos.core import messages as msg
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.log import LOG_BYTES
from clonos.core.roster import Roster, TaskState

KEEPER_TIMES: Final = 4
"""The house-keeper, which holds all logs, may hold this many times as much."""
RELIEVED: Final = 0.5
"""Sources resume once every process is down to this share of its limit; above it a floor is
requested, whatever the checkpoint interval."""


class Throttle:
    """Whether sources wait, and why."""

    def __init__(
        self,
        roster: Roster,
        inflight_bytes: int = INFLIGHT_BYTES,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        self._roster = roster
        self._inflight_limit, self._log_limit = 2 * inflight_bytes, log_bytes
        self._inflight_bytes: dict[int, int] = {}  # by task
        self._log_bytes: dict[int, int] = {}
        self._is_closed = self._is_held = False

    @property
    def _fullness(self) -> float:
        return max(self._inflight_fullness, self._log_fullness)

    @property
    def _inflight_fullness(self) -> float:
        return self._most(self._inflight_bytes) / self._inflight_limit

    @property
    def _log_fullness(self) -> float:
        of_keeper = self._roster.keeper.book.nbytes / KEEPER_TIMES
        return max(self._most(self._log_bytes), of_keeper) / self._log_limit

    def _most(self, nbytes: Mapping[int, int]) -> int:
        """The number of bytes in the process that has most."""
        cells = self._roster.plan.cells
        return max(sum(nbytes.get(task, 0) for task in cell) for cell in cells)

    @property
    def wants_floor(self) -> bool:
        """Whether logs are so long that the next checkpoint must not wait for its time."""
        return self._log_fullness > RELIEVED

    def pressure(self, task: int, inflight_bytes: int, log_bytes: int) -> None:
        """A task reports how much it keeps for its receivers, and how much of the logs it holds."""
        self._inflight_bytes[task] = inflight_bytes
        self._log_bytes[task] = log_bytes
        self._decide()

    def hold(self, *, is_held: bool) -> None:
        """Say whether sources wait for something other than memory."""
        if is_held is not self._is_held:
            self._is_held = is_held
            self._decide()

    def _decide(self) -> None:
        closed = self._is_held or self._fullness > (RELIEVED if self._is_closed else 1.0)
        if closed is not self._is_closed:
            self._is_closed = closed
            for source in self._roster.plan.tasks:
                if source.is_source:
                    self._roster.command(source.id, msg.Throttle(closed))

    def activated(self, task: TaskState) -> None:
        """Tell a new life of a source what the others were told, before it can take a row."""
        if self._is_closed and self._roster.plan.tasks[task.id].is_source:
            self._roster.command(task.id, msg.Throttle(closed=True))
