"""What could be done wrong when a job goes back to a point of its past."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clonos.core.housekeeper import HouseKeeper
from clonos.upgrade.rewind import Rewind


def lanes_of_the_point(original: Any) -> Any:
    """Outputs go on with the numbers that the point had."""

    def discarded(position: int, lanes: Any) -> Any:
        return original(position, dict.fromkeys(lanes, (0, 0)))

    return discarded


def positions_of_the_point(original: Any) -> Any:
    """Logs go on at the beginning."""

    def discarded(position: int, lanes: Any) -> Any:
        del position
        return original(1, lanes)

    return discarded


def without_the_past(original: Any) -> Any:
    """The points that there were are forgotten."""

    def succeed(
        self: HouseKeeper, before: HouseKeeper, first: Any, *, keeps_history: bool = False
    ) -> None:
        original(self, before, first, keeps_history=keeps_history)
        self.history = type(before.history)(before.history.keep)

    return succeed


def without_what_waits(original: Any) -> Any:
    """Output that is in the journal only goes with it."""

    def make(self: Rewind, term: int, announce: Any, journal: Any, records: Any, *rest: Any) -> Any:
        del records
        return original(self, term, announce, journal, [], *rest)

    return make


def at_the_newest(original: Any) -> Any:
    """State is not that of the point, but the newest there is."""

    def init(self: Rewind, keeper: Any, compiled: Any, point: Any, store: Any) -> None:
        original(self, keeper, compiled, replace(point, layers=keeper.layers), store)

    return init
