"""Decides when a floor becomes a point of the job's history, and when a point goes.

The order is that of :mod:`clonos.core.history`: a point is durable before its segment is written,
and a segment is stored before the journal gives up its log entries. Points that are going are
journaled as such before the driver looks for pins, and forgotten before anything is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clonos.core import history as past
from clonos.core.history import Chains
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import STORE
from clonos.nodes.events import Archived, ArchiveFailed, Surveyed
from clonos.nodes.layers import Unused
from clonos.nodes.ports import Merger

AGAIN_S: Final = 30.0
"""Time until a failed write to the store is tried again, until pins are looked at again, and until
the bytes of all points are counted again (which takes time) if there is no new point."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Once this is durable, the segment of a point is stored."""

    number: int


@dataclass(frozen=True, slots=True)
class LookForPins:
    """Once this is durable, points up to this one go, unless they are pinned."""

    number: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Once this is durable, points are gone, and these files may be deleted. ``kept``: the layers
    of the oldest point left; None: there is none."""

    paths: tuple[str, ...]
    kept: Chains | None


HistoryAct = Archive | LookForPins | Forgotten


class HistoryCare:
    """Keeps a job's history within what the user wants to keep.

    Parameters
    ----------
    term
        The driver's term: files of two drivers have different names.
    again_s
        See :data:`AGAIN_S`.

    Attributes
    ----------
    kept
        The layers of the oldest point that the journal has; None: it has none.
    """

    def __init__(
        self, keeper: HouseKeeper, merger: Merger, term: int, again_s: float = AGAIN_S
    ) -> None:
        self._keeper, self._merger, self._term = keeper, merger, term
        self._again_s = again_s
        self._storing: set[int] = set()
        self._not_before_s = 0.0  # for the next attempt to store
        self._weigh_s = 0.0  # when to count bytes again
        self._look_s = 0.0  # when pins were last looked for
        self._has_failed = False
        points = keeper.history.points
        self.kept: Chains | None = points[0].layers if points else None

    def begin(self, wall_ms: int) -> None:
        """The job has started. If it had settled, its functions may be others than before: make a
        point, from which these can repeat what they have done."""
        history, floors = self._keeper.history, self._keeper.hard.positions
        is_here = bool(history.points) and history.points[-1].positions == floors
        self.look(wall_ms, is_due=self._keeper.is_settled and not is_here)

    def look(self, wall_ms: int, *, is_due: bool = False) -> None:
        """Floors have moved, or the job has started: make a point if it is time."""
        history = self._keeper.history
        if history.is_due(wall_ms) or (is_due and history.keep is not None):
            self._keeper.make_point(wall_ms)
            self._weigh_s = 0.0
            self.kept = self._keeper.layers if self.kept is None else self.kept

    def tick(self, now_s: float, wall_ms: int, *, may_delete: bool) -> list[HistoryAct]:
        """Store closed segments, and find out which points are too old."""
        history = self._keeper.history
        if not history.points:
            return []
        acts: list[HistoryAct] = []
        if now_s >= self._not_before_s:
            acts += [Archive(number) for number in history.closed if number not in self._storing]
            self._storing.update(history.closed)
        if now_s < self._weigh_s:
            return acts
        self._weigh_s = now_s + self._again_s
        number = history.too_old(wall_ms, self._keeper.layers)
        if may_delete and (number > history.going or self._is_look_due(now_s)):
            if number > history.going:
                self._keeper.keep_in_mind("going", number)
            self._look_s = now_s
            acts.append(LookForPins(history.going))
        return acts

    def _is_look_due(self, now_s: float) -> bool:
        history = self._keeper.history
        is_left = history.points[0].number <= history.going
        return is_left and now_s >= self._look_s + self._again_s

    def act(self, action: HistoryAct) -> None:
        """A decision is durable: act on it."""
        if isinstance(action, LookForPins):
            self._merger.survey(action.number)
        elif isinstance(action, Forgotten):
            self.kept = action.kept
        elif (runs := self._keeper.history.closed.get(action.number)) is not None:
            path = past.segment_path(action.number, self._term)
            self._merger.archive(action.number, path, past.encode_segment(runs))

    def archived(self, event: Archived) -> None:
        """A segment is in the store: the journal no longer needs its log entries."""
        self._storing.discard(event.number)
        self._has_failed, self._weigh_s = False, 0.0
        if event.number in self._keeper.history.closed:
            self._keeper.keep_in_mind("archived", event.number, event.path, event.nbytes)

    def failed(self, event: ArchiveFailed, now_s: float) -> str | None:
        """Retry later; return a warning the first time."""
        self._storing.discard(event.number)
        self._not_before_s = now_s + self._again_s
        is_first, self._has_failed = not self._has_failed, True
        return f"{event.error}; until it works, the journal keeps it" if is_first else None

    def surveyed(self, event: Surveyed, wall_s: float) -> Forgotten:
        """Decide what may be deleted, from a listing of the store made after points were going."""
        keeper, history = self._keeper, self._keeper.history
        oldest = past.pinned(event.paths, wall_s)
        gone = min(history.going, event.going, *([] if oldest is None else [oldest - 1]))
        found = set(past.litter(event.paths, history, self._term, wall_s))
        if history.points and history.points[0].number <= gone:
            before = history.paths
            keeper.keep_in_mind("gone", gone)
            used = {ref.path for chain in keeper.layers.values() for ref in chain}
            found |= before - history.paths - used
        kept = history.points[0].layers if history.points else None
        return Forgotten(tuple(sorted(found)), kept)

    @property
    def used(self) -> set[str]:
        """All files in the store that floors or the history need."""
        chains = (*self._keeper.layers.values(), *self._keeper.hard.layers.values())
        stored = {ref.path for chain in chains for ref in chain if ref.level == STORE}
        return stored | self._keeper.history.paths

    def unused(self, found: Unused) -> Unused:
        """The files among these that the history does not need, either."""
        kept = self._keeper.history.paths
        return Unused(tuple(path for path in found.paths if path not in kept))
