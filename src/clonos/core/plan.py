"""The running graph as pure data: tasks, channels, cells, and how far logs travel.

A *cell* is a set of tasks that share a slot, so they are placed together and die together. The task
is still the unit of log, state and recovery. A plan is made once per job by :mod:`clonos.graph` and
is the same on every process. Tasks and channels are small integers, so that a dependency vector on
a batch costs a few bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from clonos.errors import BadGraph

HOUSE_KEEPER: Final = -1
"""The receiver of every channel that leads out of the job (see :mod:`clonos.core.housekeeper`)."""

FULL_DEPTH: Final = 1_000_000
"""Determinant sharing depth "full": log bodies travel all the way to the sinks."""


class Incarnation(NamedTuple):
    """The n-th life of a task under a coordinator's term; compared in this order."""

    term: int
    n: int


NOBODY: Final = Incarnation(0, 0)
"""Before all lives."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One parallel instance of a chain of operators.

    ``is_source``: fed by a reader instead of channels. ``is_gated``: what it sends to other tasks
    waits until the house-keeper holds the log entries that made it (sources that cannot replay put
    their content there). ``sink``: the name of the sink, if its last operator is one; then its last
    channel leads to the house-keeper. ``writes_itself``: a sink whose outputs take effect where it
    runs, after the house-keeper has acknowledged them. ``has_effects``: some of its calls are
    effects, which are made when the house-keeper holds the log entries that led to them;
    ``is_recognised``: services recognise all of these when they are made again. ``cell``:
    which tasks share its slot, those with the same number; None: it has its own. ``is_implied``:
    all that it does follows from the items of its only input, taken one by one, so nobody but
    itself needs its log. ``level``: how safely its layers are kept (:mod:`clonos.core.levels`).
    ``leaves_out``: it goes on without a record that is proved to kill the process.
    ``waits_for_time``: its rows wait for watermarks, so it takes first what is behind in event time
    (:meth:`clonos.core.inbounds.Inbounds.choose`).
    """

    id: int
    name: str
    operator: str
    index: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_source: bool = False
    sink: str | None = None
    is_gated: bool = False
    writes_itself: bool = False
    has_effects: bool = False
    is_recognised: bool = False
    cell: int | None = None
    is_implied: bool = False
    level: str = "store"
    leaves_out: bool = False
    waits_for_time: bool = False

    @property
    def is_sink(self) -> bool:
        """Whether its output leaves the job."""
        return self.sink is not None


Cell = tuple[int, ...]
"""The tasks of a cell, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """FIFO from one task to one downstream task (or to the house-keeper).

    ``is_feedback``: it leads back, and so closes a loop (:mod:`clonos.core.loops`).
    """

    id: int
    sender: int
    receiver: int
    port: int = 0
    is_feedback: bool = False


@dataclass(frozen=True)
class Plan:
    """Tasks and channels of a job, with the settings that are the same for every task.

    Parameters
    ----------
    tasks, channels
        Indexed by their ids.
    sharing_depth
        DSD: 0 (bodies go to the house-keeper only), 1, ..., :data:`FULL_DEPTH`.
    causal_log
        False switches the log off: at least once, or at most once.
    leaves_gaps
        At most once, without a log: a task that dies begins empty, and nothing is sent to it again.
    has_markers
        Layers are sealed at markers, on which tasks align; False: each task seals by its own timer.
    """

    tasks: tuple[TaskSpec, ...]
    channels: tuple[ChannelSpec, ...]
    sharing_depth: int = 1
    causal_log: bool = True
    job_seed: int = 0
    has_markers: bool = True
    leaves_gaps: bool = False

    def __post_init__(self) -> None:
        """Raise `BadGraph` if the plan has loops that cannot be run."""
        require_sound(self)

    @cached_property
    def chooses_levels(self) -> bool:
        """Whether the levels of some tasks are chosen while the job runs."""
        return any(task.level == "auto" for task in self.tasks)

    @cached_property
    def loops(self) -> dict[int, frozenset[int]]:
        """Of each task in a loop: all tasks that it reaches and that reach it."""
        if not any(channel.is_feedback for channel in self.channels):
            return {}
        reach = self.distances
        circular = {task for task, near in self._downstream.items() if task in near}
        result = {}
        for task in reach:
            loop = frozenset(other for other in reach[task] if task in reach[other])
            if len(loop) > 1 or task in circular:
                result[task] = loop
        return result

    @cached_property
    def makers(self) -> tuple[int, ...]:
        """For each channel, the task whose log says which items were made: the sender or, if the
        sender is implied, the nearest task above it that is not.
        """
        result = []
        for channel in self.channels:
            sender = self.tasks[channel.sender]
            while sender.is_implied:
                sender = self.tasks[self.channels[sender.inputs[0]].sender]
            result.append(sender.id)
        return tuple(result)

    def is_within_loop(self, channel: int) -> bool:
        """Whether both ends of a channel are in one loop."""
        spec = self.channels[channel]
        return spec.receiver in self.loops.get(spec.sender, ())

    @cached_property
    def has_effects(self) -> bool:
        """Whether some task makes effects."""
        return any(task.has_effects for task in self.tasks)

    @cached_property
    def needs_mandates(self) -> bool:
        """Whether some effect would be made twice if two drivers ran the job."""
        return any(task.has_effects and not task.is_recognised for task in self.tasks)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All cells."""
        found: dict[tuple[str, int], list[int]] = {}
        for task in self.tasks:
            key = ("task", task.id) if task.cell is None else ("cell", task.cell)
            found.setdefault(key, []).append(task.id)
        return tuple(map(tuple, found.values()))

    @cached_property
    def cell_of(self) -> dict[int, Cell]:
        """The cell of each task."""
        return {task: cell for cell in self.cells for task in cell}

    @cached_property
    def _downstream(self) -> dict[int, list[int]]:
        result: dict[int, list[int]] = {task.id: [] for task in self.tasks}
        for channel in self.channels:
            if channel.receiver != HOUSE_KEEPER:
                result[channel.sender].append(channel.receiver)
        return result

    @cached_property
    def distances(self) -> dict[int, dict[int, int]]:
        """For each task, the tasks whose logs can reach it, and over how many hops (itself: 0).

        Hops are counted from cell to cell: log entries shared within a cell die with it. All tasks
        of a cell are equally far away.
        """
        result: dict[int, dict[int, int]] = {task.id: {} for task in self.tasks}
        for origin in self._downstream:
            reached = _hops(self._downstream, origin)
            nearby: dict[Cell, set[Cell]] = {}
            for task in reached:
                near = nearby.setdefault(self.cell_of[task], set())
                near.update(self.cell_of[there] for there in self._downstream[task])
            hops = _hops(nearby, self.cell_of[origin])
            for task in reached:
                result[task][origin] = hops[self.cell_of[task]]
        return result

    def _carried(self, task: int) -> dict[int, int]:
        """The tasks whose log bodies come to a task (its own included), and from how far. Logs of
        implied tasks stay where they are written."""
        senders = [self.channels[channel].sender for channel in self.tasks[task].inputs]
        return {
            origin: hops
            for origin, hops in self.distances[task].items()
            if not self.tasks[origin].is_implied
            and (
                origin == task
                or any(
                    self.distances[s].get(origin, FULL_DEPTH) < self.sharing_depth for s in senders
                )
            )
        }

    def forwarded_logs(self, channel: ChannelSpec) -> tuple[int, ...]:
        """The tasks whose log bodies the sender of `channel` passes on along it.

        A log travels on until as many cells have it as the sharing depth says, not counting its
        own.
        """
        if not self.causal_log:
            return ()
        held = self._carried(channel.sender)
        if channel.receiver != HOUSE_KEEPER:  # a log never comes back to the task that writes it
            near = (t for t, hops in held.items() if hops < self.sharing_depth)
            return tuple(t for t in near if t != channel.receiver)
        sender = self.tasks[channel.sender]
        if sender.is_sink or sender.has_effects:
            return tuple(held)
        boundary = tuple(t for t, hops in held.items() if hops == self.sharing_depth)
        return tuple(sorted({*boundary, sender.id} if sender.is_gated else boundary))


def require_sound(plan: Plan) -> None:
    """Raise `BadGraph` unless each cycle has a feedback channel, and each feedback channel is in a
    cycle that rows enter from outside.
    """
    if circle := _without_feedback(plan):
        raise BadGraph(
            f"{_names(plan, circle)} are in a cycle that has no feedback edge, or behind one",
            remedy="close the loop with job.feedback(...)",
        )
    _require_implied(plan)
    feedback = [channel for channel in plan.channels if channel.is_feedback]
    for channel in feedback:
        ends = _names(plan, (channel.sender, channel.receiver))
        loop = plan.loops.get(channel.sender, frozenset())
        if channel.receiver not in loop:
            raise BadGraph(
                f"the feedback edge between {ends} closes no loop",
                remedy="feed back rows that derive from the stream itself, or use union()",
            )
        if not any(plan.channels[c].sender not in loop for t in loop for c in plan.tasks[t].inputs):
            raise BadGraph(
                f"no rows come into the loop of {_names(plan, sorted(loop))}",
                remedy="unite its feedback with a stream that has a source",
            )
    if feedback and not plan.causal_log:
        raise BadGraph(
            "a loop needs the causal log",
            where=_names(plan, (feedback[0].sender,)),
            remedy="leave guarantee at 'exactly_once'",
        )


def _require_implied(plan: Plan) -> None:
    """Everything that an implied task does must follow from one channel, with a logging task above
    it."""
    for task in plan.tasks:
        if task.is_implied and (
            task.is_source
            or task.has_effects
            or len(task.inputs) != 1
            or task.id in plan.loops
            or not plan.causal_log
        ):
            raise BadGraph(
                "its log is left out, but its behaviour does not follow from one input",
                where=task.operator,
                remedy="leave log at 'everything'",
            )


def _without_feedback(plan: Plan) -> list[int]:
    """The tasks that are in or downstream of a cycle without a feedback channel."""
    before = {task.id: 0 for task in plan.tasks}
    behind: dict[int, list[int]] = {task.id: [] for task in plan.tasks}
    for channel in plan.channels:
        if not channel.is_feedback and channel.receiver != HOUSE_KEEPER:
            before[channel.receiver] += 1
            behind[channel.sender].append(channel.receiver)
    free = [task for task, count in before.items() if not count]
    while free:
        for task in behind[free.pop()]:
            before[task] -= 1
            if not before[task]:
                free.append(task)
    return [task for task, count in before.items() if count]


def _names(plan: Plan, tasks: Iterable[int]) -> str:
    return ", ".join(dict.fromkeys(repr(plan.tasks[task].operator) for task in tasks))


Node = TypeVar("Node", bound=Hashable)


def _hops(nearby: Mapping[Node, Iterable[Node]], origin: Node) -> dict[Node, int]:
    """The distance to each node that can be reached."""
    seen = {origin: 0}
    queue = deque([origin])
    while queue:
        here = queue.popleft()
        for there in nearby[here]:
            if there not in seen:
                seen[there] = seen[here] + 1
                queue.append(there)
    return seen
