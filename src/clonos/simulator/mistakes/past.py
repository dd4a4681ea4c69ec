"""Wrong functions of the history, for :mod:`clonos.simulator.mistakes.mutations`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from clonos.core.history import History, segment_path
from clonos.core.messages import Run
from clonos.nodes.events import Surveyed
from clonos.nodes.history import Archive, HistoryAct, HistoryCare


def as_it_is(_: Any) -> Any:
    return lambda _, found: found


def keep_the_first_entry(original: Any) -> Any:
    def passed(self: History, run: Run, position: int) -> None:
        original(self, run, min(position, run.start))

    return passed


def stored_when_asked(original: Any) -> Any:
    def act(self: HistoryCare, action: HistoryAct) -> None:
        original(self, action)
        if isinstance(action, Archive) and action.number in self._keeper.history.closed:
            path = segment_path(action.number, self._term)
            self._keeper.keep_in_mind("archived", action.number, path, 0)

    return act


def look_first(original: Any) -> Any:
    """Pins are judged by a survey made a while ago."""
    before: WeakKeyDictionary[HistoryCare, tuple[str, ...]] = WeakKeyDictionary()

    def surveyed(self: HistoryCare, event: Surveyed, wall_s: float) -> Any:
        seen, before[self] = before.get(self, event.paths), event.paths
        return original(self, replace(event, paths=seen), wall_s)

    return surveyed
