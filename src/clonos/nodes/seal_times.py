"""Without markers: when a task seals its next layer.

A lost task repeats what it has done since its floor. So layers that are sealed soon make recovery
short; but each of them takes time itself, and a request to the store. Unless the user has said how
often, a task seals as soon as there is enough work that a layer would save, as long as layers take
only a small part of its time; and at the latest after the usual interval. They may take more of
the time in which it has nothing else to do: a task that is catching up seals less often.

What counts is what a layer costs *however little is in it*. The rest of its cost grows with the
work since the last layer, and is paid once, however often the task seals. (If it counted, layers
that come late and are large would look expensive, and the next ones would come later still.) Both
parts are estimated by a regression of what layers cost on the work that they save. It needs layers
that differ, so if they have been too much alike, one comes early.
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
"""How much the newest layer counts in what a layer costs on average ..."""
MEMORY: Final = 0.05
"""... and in how that depends on the work that it saves."""
ALIKE: Final = 0.1
"""Layers are too much alike if the variance of this work is less than so much of its square."""
EARLY: Final = 0.25
"""If so, one comes after this part of the time."""


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


class FixedCost:
    """What a layer costs however little is in it, in seconds.

    The intercept of a regression (least squares, older layers count less) through the layers so
    far; at most their mean cost.

    Attributes
    ----------
    seconds
        The cost; zero before the first layer.

    Examples
    --------
    >>> cost = FixedCost()
    >>> for work_s in (0.1, 0.2, 0.3, 1.0):
    ...     cost.add(work_s, 0.002 + 0.03 * work_s)
    >>> round(cost.seconds, 6)
    0.002
    """

    def __init__(self) -> None:
        self.seconds, self._mean_s, self._layers = 0.0, 0.0, 0
        self._work_s = self._cost_s = 0.0  # means
        self._work2 = self._both = 0.0  # means of squares and of products

    def add(self, work_s: float, cost_s: float) -> None:
        """A layer that saves so much work has cost so much."""
        self._mean_s += (cost_s - self._mean_s) * LATEST
        self._layers += 1
        part = max(1 / self._layers, MEMORY)
        self._work_s += (work_s - self._work_s) * part
        self._cost_s += (cost_s - self._cost_s) * part
        self._work2 += (work_s * work_s - self._work2) * part
        self._both += (work_s * cost_s - self._both) * part
        slope = (self._both - self._work_s * self._cost_s) / max(self._variance, 1e-12)
        self.seconds = min(max(self._cost_s - max(slope, 0.0) * self._work_s, 0.0), self._mean_s)

    @property
    def _variance(self) -> float:
        return self._work2 - self._work_s**2

    @property
    def are_alike(self) -> bool:
        """Whether layers have been too much alike to tell."""
        return self._variance < ALIKE * self._work_s**2


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

    Attributes
    ----------
    saves_s
        How much work the newest layer saves.
    """

    def __init__(self, settings: SealSettings) -> None:
        self._settings = settings
        self._news_since: float | None = None  # None: all is sealed
        self._sealed_at, self._sealed_busy_s = -inf, 0.0
        self._cpu, self._wall = FixedCost(), FixedCost()
        self._is_wanted = self._is_early = False
        self.saves_s = 0.0

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
        pause_s = max(self._cpu.seconds / share, self._wall.seconds / STORE_SHARE)
        return EARLY * min(pause_s, self._settings.longest_s) if self._is_early else pause_s

    def wanted(self) -> None:
        """The next layer saves others work, too: layers of theirs wait for it to become floors."""
        self._is_wanted = True

    def sealed(self, now: float, *, busy_s: float) -> None:
        """A layer was sealed."""
        self.saves_s = busy_s - self._sealed_busy_s
        self._news_since, self._sealed_at, self._sealed_busy_s = None, now, busy_s
        self._is_wanted, self._is_early = False, self._cpu.are_alike and not self._is_early

    def stored(self, saves_s: float, cpu_s: float, wall_s: float) -> None:
        """A layer that saves so much work is stored, which took so much time of the processor and
        by the clock."""
        self._cpu.add(saves_s, cpu_s)
        self._wall.add(saves_s, wall_s)
