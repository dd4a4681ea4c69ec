"""Speculation: a task that falls far behind its peers is overtaken by its standby.

Peers are the tasks of one operator. What is compared is how long a row takes a task while it has
something to do. Rows per second would say nothing: who is slow holds up its senders, and so its
peers, which then have as few rows as it has. A machine that is busy makes all of them slow, and
a key with many rows makes its task busy, but no row slower.

Who wins is decided once, by a fence (:mod:`clonos.core.moves`); this part only says who is slow.
What counts as slow is learnt: where tasks are now and then that much slower than their peers
anyway, it has to be more. It has to last, and whoever was overtaken is left alone for a while, each
time twice as long: some rows are slow wherever they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final, NamedTuple

from clonos.core.plan import Cell, Plan
from clonos.core.roster import Roster

WINDOW_MS: Final = 800
"""A pace is that of so much of the past ..."""
ENOUGH_MS: Final = 450
"""... and of so much at least."""
LONG_MS: Final = 10_000
"""... and of so much at most, if steps are long."""
KNOWN_MS: Final = 10_000
"""A pace is known for so long, if a task has nothing to do then."""
BUSY: Final = 0.7
"""A task that is busy for less of its time is not behind, however slow it is."""
SLOWER: Final = 2.5
"""So many times as long as its peers takes who is slow, at least ..."""
SLACK: Final = 1.5
"""... and so many times as much as others have taken lately now and then."""
LATELY_MS: Final = 60_000
"""What tasks have taken is remembered for so long ..."""
RARE: Final = 3
"""... and the worst second but two counts as what happens."""
HOLDS_MS: Final = 700
"""It has to be so for so long."""
REST_MS: Final = 5_000
"""Nobody is overtaken for so long after somebody was."""
AGAIN_MS: Final = 30_000
"""Nor the same cell: for so long the first time, twice as long each further time ..."""
AGAIN_MAX_MS: Final = 600_000
"""... up to this."""


def median_low(values: list[float]) -> float:
    """The lower one in the middle."""
    return sorted(values)[(len(values) - 1) // 2]


class Sample(NamedTuple):
    """How many rows a life of a task has taken, and for how long it was busy; for ``step_ms`` of
    that with a step whose rows are yet to be counted."""

    at_ms: int
    rows: int
    busy_ms: int
    step_ms: int = 0

    @property
    def done_ms(self) -> int:
        """What the rows have taken that are counted."""
        return self.busy_ms - self.step_ms


@dataclass(slots=True)
class _Pace:
    """Of one task. ``cost``: ms per row; ``slow_since``: None: it is not."""

    samples: deque[Sample] = field(default_factory=deque)
    cost: float | None = None
    known_ms: int = 0
    is_busy: bool = False
    slow_since: int | None = None
    worst: deque[tuple[int, float]] = field(default_factory=deque)  # of each second

    def take(self, sample: Sample) -> None:
        samples = self.samples
        if samples and (sample.rows < samples[-1].rows or sample.busy_ms < samples[-1].busy_ms):
            samples.clear()  # another life
        samples.append(sample)
        while len(samples) > 1 and self._is_old(samples[0], samples[1], sample):
            samples.popleft()
        passed_ms = sample.at_ms - samples[0].at_ms
        rows, busy_ms = sample.rows - samples[0].rows, sample.busy_ms - samples[0].busy_ms
        self.is_busy = passed_ms >= ENOUGH_MS and busy_ms >= BUSY * passed_ms
        # Of whole steps; a step under way counts when it lasts longer than these together.
        spent_ms = max(sample.done_ms - samples[0].done_ms, sample.step_ms)
        if passed_ms >= ENOUGH_MS and rows > 0 and spent_ms > 0:
            self.cost, self.known_ms = spent_ms / rows, sample.at_ms

    @staticmethod
    def _is_old(first: Sample, second: Sample, newest: Sample) -> bool:
        """Whether a sample is needed no more. While no step ends, what was before counts."""
        passed_ms = newest.at_ms - first.at_ms
        is_enough = newest.rows > second.rows and newest.at_ms - second.at_ms >= ENOUGH_MS
        return passed_ms > LONG_MS or (passed_ms > WINDOW_MS and is_enough)

    def remember(self, now_ms: int, ratio: float) -> None:
        """How much slower than its peers it was."""
        second = now_ms // 1000
        if self.worst and self.worst[-1][0] == second:
            ratio = max(ratio, self.worst.pop()[1])
        self.worst.append((second, ratio))
        while (second - self.worst[0][0]) * 1000 > LATELY_MS:
            self.worst.popleft()

    def usual(self, before_ms: int | None) -> float:
        """How much slower than its peers it is now and then."""
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
        """Begin anew: something has failed, and all is slow meanwhile."""
        for pace in self._of.values():
            pace.samples.clear()
            pace.slow_since = None

    def told(self, task: int, sample: Sample) -> bool:
        """Take what a task reports; whether it is slow, and has been for long enough."""
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
        """How many times as long as its peers it takes for a row."""
        own = self._of[task].cost
        peers = (self._of[other] for other in self._peers[task])
        costs = [p.cost for p in peers if p.cost and now_ms - p.known_ms <= KNOWN_MS]
        return own / median_low(costs) if costs and own is not None else None

    def _usual(self, task: int) -> float:
        """What happens now and then: to most of its peers, as one that is slow teaches nothing; or
        to itself, and passed."""
        peers = [self._of[other].usual(None) for other in self._peers[task]]
        return max(median_low(peers), self._of[task].usual(self._of[task].slow_since))


class Rivals:
    """Whom to overtake, and how often.

    Cells with effects are left alone: those under way would be in doubt. So are cells that can only
    live in slots of their own, and tasks that call services in the midst of steps: it is these
    that are slow, and a failure would ask them again.
    """

    def __init__(self, roster: Roster, bound: frozenset[int]) -> None:
        self._roster, self._paces = roster, Paces(roster.plan)
        self._left_alone = {
            cell
            for cell in roster.plan.cells
            if any(roster.plan.tasks[t].has_effects or t in bound for t in cell)
        }
        self._overtaken: dict[Cell, tuple[int, int]] = {}  # when, and how often
        self._newest_ms: int | None = None

    def told(self, task: int, counters: Mapping[str, int]) -> bool:
        """A task reports; whether its cell is to be overtaken now."""
        now_ms = self._roster.now_ms
        if not self._roster.all_run:
            self._paces.forget()
            return False
        busy_ms = counters.get("busy_ms", -1)
        if busy_ms < 0:
            return False
        sample = Sample(now_ms, counters.get("rows", 0), busy_ms, counters.get("step_ms", 0))
        cell = self._roster.plan.cell_of[task]
        if not self._paces.told(task, sample) or not self._may_overtake(cell, now_ms):
            return False
        self._newest_ms = now_ms
        self._overtaken[cell] = now_ms, self._overtaken.get(cell, (0, 0))[1] + 1
        return True

    def _may_overtake(self, cell: Cell, now_ms: int) -> bool:
        if cell in self._left_alone:
            return False
        if self._newest_ms is not None and now_ms - self._newest_ms < REST_MS:
            return False
        at_ms, times = self._overtaken.get(cell, (0, 0))
        return not times or now_ms - at_ms >= min(AGAIN_MS * 2 ** (times - 1), AGAIN_MAX_MS)
