"""Without markers: when a task seals its next layer.

A lost task repeats what it has done since its floor. So layers that are sealed soon make recovery
short; but each of them takes time itself, and a request to the store. Unless the user has said how
often, a task seals as soon as there is enough work that a layer would save, as long as layers take
only a small part of its time; and at the latest after the usual interval. They may take more of
the time in which it has nothing else to do: a task that is catching up seals seldom.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

LONGEST_S: Final = 1.0
"""News are in a layer after this time, however little they are."""
WORK_S: Final = 0.02
"""A layer comes sooner only if it saves at least this much work."""
BUSY_SHARE: Final = 0.01
IDLE_SHARE: Final = 0.1
"""The parts of its time at work, and of its other time, that a task gives to layers that come
sooner ..."""
STORE_SHARE: Final = 0.25
"""... and the part of the time during which the store has one of them to write."""
SOONEST_S: Final = 0.04
TASK_S: Final = 0.005
"""A layer comes no sooner than this time, or this time for each task of the job: the driver hears
of every layer, and 200 a second are enough for it."""
MANY: Final = 4
"""A task with more layers beyond its floor than this seals half as often for each further one, down
to a sixteenth: floors are held up, and layers that make no floor are of no use."""
LATEST: Final = 0.25
"""How much the newest layer counts in what a layer is thought to cost."""


@dataclass(frozen=True, slots=True)
class SealSettings:
    """How often the tasks of a job seal.

    Attributes
    ----------
    longest_s
        News are in a layer after this time.
    soonest_s
        A layer comes no sooner after the one before; infinite: never before `longest_s`.
    work_s
        A layer comes sooner only if it saves at least this much work.
    """

    longest_s: float = LONGEST_S
    soonest_s: float = inf
    work_s: float = WORK_S


def as_soon_as_cheap(tasks: int) -> SealSettings:
    """The settings of a job with so many tasks whose user has not said how often.

    Examples
    --------
    >>> as_soon_as_cheap(8), as_soon_as_cheap(100).soonest_s
    (SealSettings(longest_s=1.0, soonest_s=0.04, work_s=0.02), 0.5)
    """
    return SealSettings(LONGEST_S, max(SOONEST_S, TASK_S * tasks))


class SealTimes:
    """When one task seals.

    Examples
    --------
    >>> times = SealTimes(as_soon_as_cheap(tasks=8))
    >>> times.look(5.0, has_news=True)
    >>> times.due_s(5.0, busy_s=0.001, beyond_floor=0)
    6.0
    >>> times.sealed(6.0, busy_s=0.001)
    >>> times.look(6.0, has_news=True)
    >>> times.due_s(6.0, busy_s=0.05, beyond_floor=1)
    6.04
    """

    def __init__(self, settings: SealSettings) -> None:
        self._settings = settings
        self._news_since: float | None = None  # None: all is sealed
        self._sealed_at, self._sealed_busy_s = -inf, 0.0
        self._cpu_s = self._wall_s = 0.0  # of a layer
        self._is_wanted = False

    def look(self, now: float, *, has_news: bool) -> None:
        """Note since when there is something to seal."""
        if not has_news:
            self._news_since = None
        elif self._news_since is None:
            self._news_since = now

    def due_s(self, now: float, *, busy_s: float, beyond_floor: int) -> float:
        """When to seal what is new; `busy_s`: how long all steps so far have taken."""
        if self._news_since is None:
            return inf
        rare = 2.0 ** min(max(beyond_floor - MANY, 0), MANY)
        settings = self._settings
        latest_s = self._news_since + settings.longest_s * rare
        work_s, soonest_s = busy_s - self._sealed_busy_s, settings.soonest_s
        if self._is_wanted:
            soonest_s = min(soonest_s, settings.longest_s / 2)
        elif work_s < settings.work_s:
            return latest_s
        pause_s = max(soonest_s, self._pays_after_s(now, work_s))
        return min(latest_s, self._sealed_at + pause_s * rare)

    def _pays_after_s(self, now: float, work_s: float) -> float:
        """How long after a layer the next one takes no more than its part of the time."""
        busy = min(1.0, work_s / max(now - self._sealed_at, 1e-6))
        share = busy * BUSY_SHARE + (1.0 - busy) * IDLE_SHARE
        return max(self._cpu_s / share, self._wall_s / STORE_SHARE)

    def wanted(self) -> None:
        """The next layer saves others work, too: layers of theirs wait for it to become floors."""
        self._is_wanted = True

    def sealed(self, now: float, *, busy_s: float) -> None:
        """A layer was sealed."""
        self._news_since, self._sealed_at, self._sealed_busy_s = None, now, busy_s
        self._is_wanted = False

    def stored(self, cpu_s: float, wall_s: float) -> None:
        """A layer is stored, which took so much time of the processor and by the clock."""
        self._cpu_s += (cpu_s - self._cpu_s) * LATEST
        self._wall_s += (wall_s - self._wall_s) * LATEST
