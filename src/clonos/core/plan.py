"""The running graph as pure data: tasks, the channels between them, and how far logs travel.

A plan is made once per job by :mod:`clonos.graph` and is the same on every process. Tasks and
channels are small integers, so that a dependency vector on a batch costs a few bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

HOUSE_KEEPER: Final = -1
"""The receiver of every channel that leads out of the job (see :mod:`clonos.core.housekeeper`)."""

FULL_DEPTH: Final = 1_000_000
"""Determinant sharing depth "full": log bodies travel all the way to the sinks."""


class Incarnation(NamedTuple):
    """The n-th life of a task under a coordinator's term; compared in this order."""

    term: int
    n: int


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One parallel instance of a chain of operators.

    ``is_source``: fed by a reader instead of channels. ``is_gated``: what it sends to other tasks
    waits until the house-keeper holds the log entries that made it (sources that cannot replay
    put their content there). ``sink``: the name of the sink that its last operator is; its last
    channel leads to the house-keeper then. ``writes_itself``: a sink whose outputs take effect
    where it runs, after the house-keeper has acknowledged them.
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

    @property
    def is_sink(self) -> bool:
        """Whether its output leaves the job."""
        return self.sink is not None


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """FIFO from one task to one downstream task (or to the house-keeper)."""

    id: int
    sender: int
    receiver: int
    port: int = 0


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
        False switches the log off: at-least-once, for comparison.
    """

    tasks: tuple[TaskSpec, ...]
    channels: tuple[ChannelSpec, ...]
    sharing_depth: int = 1
    causal_log: bool = True
    job_seed: int = 0

    @cached_property
    def distances(self) -> dict[int, dict[int, int]]:
        """For each task, the tasks whose logs can reach it, with the number of hops (itself: 0)."""
        downstream: dict[int, list[int]] = {task.id: [] for task in self.tasks}
        for channel in self.channels:
            if channel.receiver != HOUSE_KEEPER:
                downstream[channel.sender].append(channel.receiver)
        result: dict[int, dict[int, int]] = {task.id: {} for task in self.tasks}
        for origin in downstream:
            seen = {origin: 0}
            queue = deque([origin])
            while queue:
                here = queue.popleft()
                for there in downstream[here]:
                    if there not in seen:
                        seen[there] = seen[here] + 1
                        queue.append(there)
            for task_id, hops in seen.items():
                result[task_id][origin] = hops
        return result

    def forwarded_logs(self, channel: ChannelSpec) -> tuple[int, ...]:
        """The tasks whose log bodies the sender of `channel` passes on along it."""
        if not self.causal_log:
            return ()
        held = self.distances[channel.sender]
        if channel.receiver != HOUSE_KEEPER:
            return tuple(t for t, hops in held.items() if hops + 1 <= self.sharing_depth)
        sender = self.tasks[channel.sender]
        if sender.is_sink:
            return tuple(t for t, hops in held.items() if hops <= self.sharing_depth)
        boundary = tuple(t for t, hops in held.items() if hops == self.sharing_depth)
        return tuple(sorted({*boundary, sender.id} if sender.is_gated else boundary))
