"""Which slots have been silent for too long: the driver's failure detector.

Every slot beats ten times a second, whatever it does. What counts as too long is learnt: on a busy
machine all beats come late, and no slot is given up for that. This is an accrual failure detector
(Hayashibara et al., 2004, as in Akka and Cassandra) with the gaps of all slots in one sample and
two limits: a slot that owes a recovery an answer is given up sooner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, KeysView, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from math import inf
from typing import Final

from clonos.core.pauses import doubled
from clonos.nodes.places import Seat
from clonos.transport.events import STUCK_MS, Heartbeat

HUSH: Final = 0.2
"""Share of `silence_s` after which a silent slot is given up if a recovery awaits its answer."""
LIMIT_MAX_S: Final = 10.0
"""A silent slot is given up after this long at the latest, unless `silence_s` is longer."""
LOOK_MAX_S: Final = 0.1
"""If two looks are further apart than this, the driver was away; the slots were not silent."""
REMEMBER_S: Final = 10.0
"""Gaps between two beats are remembered for this long ..."""
RARE: Final = 3
"""... and the third longest counts as usual, because one frozen process must not change it."""
SLACK: Final = 3.0
"""A gap is silence if it is this many times as long as the usual one."""
FORGIVE_S: Final = 300.0
"""For this long, the successor of a slot that was given up has twice the time. Each further time
doubles it again and restarts this period."""
CALM_S: Final = 10.0
"""But after so long without silence, it has twice the time and no more. Code that keeps all threads
from running does so again at once when its step is repeated, and must succeed in the end. A process
that is frozen now and then must not get ever more time."""

SILENT_TOLD: Final = 2
"""If a slot and its successors were given up this often, there is a warning."""


class _Gaps:
    """The longest gaps of the last seconds, of all slots together."""

    def __init__(self) -> None:
        self._longest: deque[tuple[int, list[float]]] = deque()  # of each second

    def add(self, now_s: float, gap_s: float) -> None:
        """A slot has been heard again."""
        second = int(now_s)
        if not self._longest or self._longest[-1][0] != second:
            self._longest.append((second, []))
            while self._longest[0][0] < second - REMEMBER_S:
                self._longest.popleft()
        longest = self._longest[-1][1]
        if len(longest) < RARE:
            longest.append(gap_s)
        elif gap_s > (least := min(longest)):
            longest[longest.index(least)] = gap_s

    @property
    def usual_s(self) -> float:
        """The third longest gap."""
        longest = nlargest(RARE, chain.from_iterable(gaps for _, gaps in self._longest))
        return longest[-1] if len(longest) == RARE else 0.0


@dataclass(slots=True)
class _Heard:
    at_s: float
    is_told: bool = False  # of its long step


@dataclass(slots=True)
class _Doubt:
    """How often one after the other a task or place has been in a slot that was given up."""

    times: int
    since_s: float = inf  # its successor is back at the step that was under way

    def at(self, heard_s: float) -> int:
        """What is left of the doubt, if the successor was last heard then."""
        calm_s = heard_s - self.since_s
        if calm_s >= FORGIVE_S:
            return 0
        return 1 if calm_s >= CALM_S else self.times


class Pulses:
    """When each slot was heard last.

    Parameters
    ----------
    silence_s
        A slot that is silent for this long is given up, or after the share :data:`HUSH` of it if a
        recovery awaits its answer. The time is longer if beats are late in general; if the other
        slots are silent, too (the driver is probably cut off); and for the successor of a slot that
        was given up, because some code keeps all threads from running.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._max_s = max(LIMIT_MAX_S, silence_s)
        self._heard: dict[int, _Heard] = {}
        self._gaps = _Gaps()
        self._doubts: dict[str, _Doubt] = {}
        self._looked_s: float | None = None
        self._now_s = 0.0  # how long the driver has listened

    @property
    def slots(self) -> KeysView[int]:
        """The slots that should beat."""
        return self._heard.keys()

    def look(self, ticks_s: float) -> None:
        """Time has passed; beats that came meanwhile are taken next."""
        if self._looked_s is not None:
            self._now_s += min(ticks_s - self._looked_s, LOOK_MAX_S)
        self._looked_s = ticks_s

    def began(self, slot: int) -> None:
        """A slot has registered."""
        self._heard[slot] = _Heard(self._now_s)

    def ended(self, slot: int) -> None:
        """A slot is gone, or was given up."""
        self._heard.pop(slot, None)

    def goes_on(self, name: str) -> None:
        """A task or place is back where it was when its slot was given up, if that was so."""
        if name in self._doubts:
            self._doubts[name].since_s = self._now_s

    def came(self, slot: int, beat: Heartbeat) -> bool:
        """Take a beat. Return whether the slot is stuck in a step, once for each step."""
        heard = self._heard[slot]
        self._gaps.add(self._now_s, self._now_s - heard.at_s)
        heard.at_s = self._now_s
        is_stuck = beat.long_ms >= STUCK_MS
        is_news, heard.is_told = is_stuck and not heard.is_told, is_stuck
        return is_news

    def silent(
        self,
        asked: Callable[[], Collection[int]],
        known_by: Callable[[int], Sequence[str]],
    ) -> dict[int, Sequence[str]]:
        """The slots to give up now, and the names by which each is known.

        Parameters
        ----------
        asked
            Slots whose answer a recovery awaits.
        known_by
            The names by which a slot's successor is recognized: its place, its tasks.
        """
        shortest_s = HUSH * self._silence_s
        silences = {slot: self._now_s - heard.at_s for slot, heard in self._heard.items()}
        quiet = [slot for slot, silent_s in silences.items() if silent_s > shortest_s]
        if not quiet:
            return {}
        usual_s = SLACK * self._gaps.usual_s
        ranked = sorted([0.0, *silences.values()])
        median_s = ranked[(len(ranked) - 1) // 2]
        awaited = asked()
        given_up = {}
        for slot in quiet:
            least_s = shortest_s if slot in awaited else self._silence_s
            names = known_by(slot)
            doubts = max((self._doubts_about(slot, name) for name in names), default=0)
            limit_s = doubled(max(least_s, usual_s), doubts, self._max_s) + median_s
            if silences[slot] > min(limit_s, self._max_s):
                given_up[slot] = names
        for slot, names in given_up.items():
            for name in names:
                self._doubts[name] = _Doubt(self._doubts_about(slot, name) + 1)
        return given_up

    def is_silent_again(self, names: Iterable[str]) -> bool:
        """Whether a slot that was just given up is worth a warning: as its predecessor was, too."""
        return max(self._doubts[name].times for name in names) == SILENT_TOLD

    def _doubts_about(self, slot: int, name: str) -> int:
        doubt = self._doubts.get(name)
        return 0 if doubt is None else doubt.at(self._heard[slot].at_s)


def frozen(names: Sequence[str], seat: Seat) -> str:
    """The warning about processes that are given up one after the other."""
    place, *tasks = names
    said = f"its process {seat.pid} (executor {seat.executor}) is silent"
    if not tasks:
        return f"{place}, which runs no task, was given up again, because {said}: it is frozen"
    runs = tasks[0] if len(tasks) == 1 else f"{tasks[0]} and {len(tasks) - 1} more tasks"
    return (
        f"{place}, which runs {runs}, was given up again, because {said}. Its successor goes on "
        "with the same step. A process is silent while it is frozen (stopped, swapped out), or "
        "while code in it keeps all other threads from running, as a regular expression does that "
        "comes to no end. Code that needs that long can have the time with "
        "job.start(silence_s=...)"
    )


def stuck(beat: Heartbeat, seat: Seat) -> str:
    """The warning about a step that does not end."""
    lines = f", in these lines of your code:\n{beat.lines}" if beat.lines else ""
    does = f"{beat.task} has been in one step"
    if not beat.task:
        does = f"slot {seat.place} has been making what its tasks run, or restoring their state,"
    return (
        f"{does} for {beat.long_ms // 1000} s (process {seat.pid}, executor {seat.executor}); "
        f"everything behind it waits{lines}"
    )
