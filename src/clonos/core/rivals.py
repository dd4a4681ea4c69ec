"""Speculation: a task that falls far behind its peers is overtaken by its standby.

Peers are the tasks of one operator. They are compared by how long a row takes while they have
something to do. Rows per second would say nothing: a slow task holds up its senders, and so its
peers, which then get as few rows as it does. A busy machine slows down all tasks on it, and a key
with many rows makes its task busy, but no row slower.

A fence decides who wins (:mod:`clonos.core.moves`); this module only finds out which task is slow.
What counts as slow is learnt: if tasks are that much slower than their peers now and then anyway, a
task must be even slower to count. It must also last. A cell that was overtaken is left alone for a
while, each time twice as long, because some rows are slow wherever they are processed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final, NamedTuple

from clonos.core.pauses import doubled
from clonos.core.plan import Cell, Plan
from clonos.core.roster import Roster

WINDOW_MS: Final = 800
"""A pace is measured over this time ..."""
ENOUGH_MS: Final = 450
"""... at least over this ..."""
LONG_MS: Final = 10_000
"""... and at most over this, if steps are long."""
KNOWN_MS: Final = 10_000
"""How long a pace counts while the task has nothing to do."""
BUSY: Final = 0.7
"""A task that is busy for less of its time is not behind, however slow it is."""
SLOWER: Final = 2.5
"""A slow task takes at least this many times as long as its peers ..."""
SLACK: Final = 1.5
"""... and this many times its usual ratio to its peers."""
LATELY_MS: Final = 60_000
"""How long slow seconds are remembered ..."""
RARE: Final = 3
"""... and the third worst of them counts as usual."""
HOLDS_MS: Final = 700
"""How long a task must be slow."""
REST_MS: Final = 5_000
"""How long after one cell was overtaken no other is."""
AGAIN_MS: Final = 30_000
"""How long the same cell is left alone if it could not be overtaken, and when it was for the first
time; twice as long each further time ..."""
AGAIN_MAX_MS: Final = 600_000
"""... up to this."""


def median_low(values: list[float]) -> float:
    """The lower median."""
    return sorted(values)[(len(values) - 1) // 2]


class PaceSample(NamedTuple):
    """How many rows a life of a task has taken, and for how long it was busy. ``step_ms``: the part
    of this in a step whose rows are not counted yet."""

    at_ms: int
    rows: int
    busy_ms: int
    step_ms: int = 0

    @property
    def done_ms(self) -> int:
        """How long the counted rows have taken."""
        return self.busy_ms - self.step_ms


@dataclass(slots=True)
class _Pace:
    """The pace of one task. ``cost``: ms per row; ``slow_since``: None if it is not slow."""

    samples: deque[PaceSample] = field(default_factory=deque)
    cost: float | None = None
    known_ms: int = 0
    is_busy: bool = False
    slow_since: int | None = None
    worst: deque[tuple[int, float]] = field(default_factory=deque)  # ratio, by second

    def take(self, sample: PaceSample) -> None:
        samples = self.samples
        if samples and (sample.rows < samples[-1].rows or sample.busy_ms < samples[-1].busy_ms):
            samples.clear()  # another life
        samples.append(sample)
        while len(samples) > 1 and self._is_old(samples[0], samples[1], sample):
            samples.popleft()
        passed_ms = sample.at_ms - samples[0].at_ms
        rows, busy_ms = sample.rows - samples[0].rows, sample.busy_ms - samples[0].busy_ms
        self.is_busy = passed_ms >= ENOUGH_MS and busy_ms >= BUSY * passed_ms
        # The time of whole steps; a step under way counts if it lasts longer than all of these.
        spent_ms = max(sample.done_ms - samples[0].done_ms, sample.step_ms)
        if passed_ms >= ENOUGH_MS and rows > 0 and spent_ms > 0:
            self.cost, self.known_ms = spent_ms / rows, sample.at_ms

    @staticmethod
    def _is_old(first: PaceSample, second: PaceSample, newest: PaceSample) -> bool:
        """Whether a sample is no longer needed. While no step ends, older samples count."""
        passed_ms = newest.at_ms - first.at_ms
        is_enough = newest.rows > second.rows and newest.at_ms - second.at_ms >= ENOUGH_MS
        return passed_ms > LONG_MS or (passed_ms > WINDOW_MS and is_enough)

    def remember(self, now_ms: int, ratio: float) -> None:
        """Remember how much slower than its peers the task was."""
        second = now_ms // 1000
        if self.worst and self.worst[-1][0] == second:
            ratio = max(ratio, self.worst.pop()[1])
        self.worst.append((second, ratio))
        while (second - self.worst[0][0]) * 1000 > LATELY_MS:
            self.worst.popleft()

    def usual(self, before_ms: int | None) -> float:
        """How much slower than its peers the task is now and then."""
        worst = [r for second, r in self.worst if before_ms is None or second < before_ms // 1000]
        longest = nlargest(RARE, worst)
        return longest[-1] if len(longest) == RARE else 0.0


class Paces:
    """How long a row takes each task of a job."""

    def __init__(self, plan: Plan) -> None:
        self._of = {task.id: _Pace() for task in plan.tasks}
        tasks = {task.id: task.operator for task in plan.tasks}
        self._peers = {
            task: [other for other, name in tasks.items() if name == operator and other != task]
            for task, operator in tasks.items()
        }

    def forget(self) -> None:
        """Begin anew: something has failed, and everything is slow meanwhile."""
        for pace in self._of.values():
            pace.samples.clear()
            pace.slow_since = None

    def told(self, task: int, sample: PaceSample) -> bool:
        """A task reports. Return whether it has been slow for long enough."""
        pace, now_ms = self._of[task], sample.at_ms
        pace.take(sample)
        ratio = self._ratio(task, now_ms)
        if ratio is None:
            pace.slow_since = None
            return False
        limit = max(SLOWER, SLACK * self._usual(task))
        if not pace.is_busy or ratio < limit:
            pace.slow_since = None
        elif pace.slow_since is None:
            pace.slow_since = now_ms
        pace.remember(now_ms, ratio)
        return pace.slow_since is not None and now_ms - pace.slow_since >= HOLDS_MS

    def _ratio(self, task: int, now_ms: int) -> float | None:
        """How many times as long as its peers the task takes for a row."""
        own = self._of[task].cost
        peers = (self._of[other] for other in self._peers[task])
        costs = [p.cost for p in peers if p.cost and now_ms - p.known_ms <= KNOWN_MS]
        return own / median_low(costs) if costs and own is not None else None

    def _usual(self, task: int) -> float:
        """How slow is usual now and then: for most of its peers (one slow peer does not count), or
        for the task itself before it became slow."""
        peers = [self._of[other].usual(None) for other in self._peers[task]]
        return max(median_low(peers), self._of[task].usual(self._of[task].slow_since))


class Rivals:
    """Which cells to overtake, and how often.

    Cells with effects are left alone, because effects under way would be in doubt. So are cells
    that can only live in slots of their own, and tasks that call services in the middle of a step:
    there the service is slow, and a failure would ask it again.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster, self._paces = roster, Paces(roster.plan)
        self._left_alone = {
            cell
            for cell in roster.plan.cells
            if any(roster.plan.tasks[t].has_effects or t in roster.bound for t in cell)
        }
        self._asked: dict[Cell, int] = {}  # when: there may have been no slot for it
        self._overtaken: dict[Cell, tuple[int, int]] = {}  # when, and how often
        self._newest_ms: int | None = None

    def told(self, task: int, counters: Mapping[str, int]) -> bool:
        """A task reports. Return whether its cell should be overtaken now."""
        now_ms = self._roster.now_ms
        if not self._roster.all_run:
            self._paces.forget()
            return False
        busy_ms = counters.get("busy_ms", -1)
        if busy_ms < 0:
            return False
        sample = PaceSample(now_ms, counters.get("rows", 0), busy_ms, counters.get("step_ms", 0))
        cell = self._roster.plan.cell_of[task]
        if not self._paces.told(task, sample) or not self._may_overtake(cell, now_ms):
            return False
        self._newest_ms = self._asked[cell] = now_ms
        return True

    def overtaken(self, cell: Cell) -> None:
        """A cell is overtaken."""
        self._overtaken[cell] = self._roster.now_ms, self._overtaken.get(cell, (0, 0))[1] + 1

    def _may_overtake(self, cell: Cell, now_ms: int) -> bool:
        if cell in self._left_alone:
            return False
        if self._newest_ms is not None and now_ms - self._newest_ms < REST_MS:
            return False
        if now_ms - self._asked.get(cell, now_ms - AGAIN_MS) < AGAIN_MS:
            return False
        at_ms, times = self._overtaken.get(cell, (0, 0))
        return not times or now_ms - at_ms >= doubled(AGAIN_MS, times - 1, AGAIN_MAX_MS)
