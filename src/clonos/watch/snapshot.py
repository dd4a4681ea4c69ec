"""Everything that is shown of a job at one moment, as plain values that can be sent as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Final, TypedDict

from clonos.core.plan import HOUSE_KEEPER, Plan
from clonos.nodes.views import PARTS, DriverView, JobProgress, Recovery, TaskProgress, TaskView

RECOVERIES_MAX: Final = 12
"""How many of the newest recoveries are shown."""
WARNINGS_MAX: Final = 5


class Chain(TypedDict):
    """Operators that share tasks. ``depth``: the largest number of chains before it."""

    name: str
    depth: int
    operators: Sequence[str]
    reads: Sequence[str]
    tasks: Sequence[str]


class Task(TypedDict):
    """One task; ``held_bytes``: logs and sent rows that it keeps in memory for others."""

    name: str
    phase: str
    incarnation: str
    slot: int | None
    pid: int | None
    executor: str | None
    rows_per_s: float
    rows_in: int
    rows_out: int
    latency_ms: float | None
    backlog_bytes: int
    held_bytes: int
    log_bytes: int
    state_bytes: int
    level: str
    steps_to_replay: int
    standbys: int


class Slot(TypedDict):
    """One process."""

    place: int
    pid: int
    executor: str
    runs: Sequence[str]
    keeps: Sequence[str]


class Healing(TypedDict):
    """A recovery; ``ms``: the duration of each part; ``ago_s``: how long ago the task was lost."""

    task: str
    incarnation: str
    ms: Mapping[str, float]
    is_over: bool
    ago_s: float
    log: int


class Checkpoint(TypedDict):
    """The newest checkpoint."""

    id: int
    age_s: float | None
    duration_ms: float | None
    state_bytes: int


class Past(TypedDict):
    """What is kept of it: points, since when (UTC, ISO 8601), and what all takes."""

    points: int
    since: str | None
    nbytes: int


class Trial(TypedDict):
    """A branch, or a canary."""

    what: str
    is_running: bool
    said: Sequence[str]


class Snapshot(TypedDict):
    """A job.

    ``calls``: the number of answered calls; ``costs``: their cost by operator, in the unit of its
    ``cost=``.
    """

    name: str
    run_id: str
    term: int
    status: str
    is_running: bool
    is_recovering: bool
    is_complete: bool
    chains: Sequence[Chain]
    tasks: Sequence[Task]
    slots: Sequence[Slot]
    recoveries: Sequence[Healing]
    recovered: int
    checkpoint: Checkpoint
    delivered: Mapping[str, int]
    dropped: Mapping[str, int]
    calls: int
    costs: Mapping[str, float]
    rates: Sequence[float]
    generation: int
    past: Past
    trials: Sequence[Trial]
    warnings: Sequence[str]


def snapshot(
    name: str,
    run_id: str,
    term: int,
    plan: Plan,
    operators: Mapping[int, Sequence[str]],
    view: DriverView,
    warnings: Sequence[str],
    now_s: float,
    trials: Sequence[Trial] = (),
) -> Snapshot:
    """Make a snapshot of a view.

    Parameters
    ----------
    operators
        By task, the names of its operators.
    now_s
        The time of the driver's clock, by which recoveries are timed.
    trials
        Its branches and canaries.
    """
    newest = view.recent[-1] if view.recent else None
    told = {task.name: task for task in newest.tasks} if newest else {}
    sources = {task.name for task in plan.tasks if task.is_source}
    return Snapshot(
        name=name,
        run_id=run_id,
        term=term,
        status=view.status.message,
        is_running=view.status.is_running,
        is_recovering=view.status.is_recovering,
        is_complete=view.is_complete,
        chains=_chains(plan, operators),
        tasks=[_task(task, told.get(task.name)) for task in view.tasks],
        slots=[
            Slot(place=s.place, pid=s.pid, executor=s.executor, runs=s.runs, keeps=s.keeps)
            for s in view.slots
        ],
        recoveries=[_healing(r, now_s) for r in view.recoveries[-RECOVERIES_MAX:]],
        recovered=view.recovered,
        checkpoint=_checkpoint(newest),
        delivered=view.delivered,
        dropped=view.dropped,
        calls=sum(spent.calls for spent in view.bill.values()),
        costs={name: spent.cost for name, spent in view.bill.items()},
        rates=[_rate(progress, sources) for progress in view.recent],
        generation=newest.generation if newest else 0,
        past=_past(newest),
        trials=trials,
        warnings=list(warnings[-WARNINGS_MAX:]),
    )


def _chains(plan: Plan, operators: Mapping[int, Sequence[str]]) -> list[Chain]:
    """The chains in the order of the plan."""
    tasks: dict[str, list[int]] = {}
    for task in plan.tasks:
        tasks.setdefault(task.operator, []).append(task.id)
    reads: dict[str, dict[str, None]] = {name: {} for name in tasks}
    for channel in plan.channels:
        if channel.receiver != HOUSE_KEEPER:
            sender = plan.tasks[channel.sender].operator
            reads[plan.tasks[channel.receiver].operator][sender] = None
    forward = {name: set(senders) for name, senders in reads.items()}
    for back in (channel for channel in plan.channels if channel.is_feedback):
        sender = plan.tasks[back.sender].operator
        forward[plan.tasks[back.receiver].operator].discard(sender)
    depths: dict[str, int] = {}
    for name in TopologicalSorter(forward).static_order():
        depths[name] = max((depths[before] + 1 for before in forward[name]), default=0)
    return [
        Chain(
            name=name,
            depth=depths[name],
            operators=list(operators[ids[0]]),
            reads=list(reads[name]),
            tasks=[plan.tasks[i].name for i in ids],
        )
        for name, ids in tasks.items()
    ]


def _task(task: TaskView, told: TaskProgress | None) -> Task:
    return Task(
        name=task.name,
        phase=task.phase,
        incarnation=f"{task.incarnation.term}.{task.incarnation.n}",
        slot=task.slot,
        pid=task.pid,
        executor=told.executor if told else None,
        rows_per_s=task.rows_per_s,
        rows_in=told.rows_in if told else 0,
        rows_out=told.rows_out if told else 0,
        latency_ms=told.latency_ms if told else None,
        backlog_bytes=told.backlog_bytes if told else 0,
        held_bytes=told.in_flight_bytes + told.log_bytes if told else 0,
        log_bytes=told.log_bytes if told else 0,
        state_bytes=told.state_bytes if told else 0,
        level=told.level if told and told.level_why else "",
        steps_to_replay=told.steps_to_replay if told else 0,
        standbys=told.standbys if told else 0,
    )


def _healing(recovery: Recovery, now_s: float) -> Healing:
    """A recovery, including its present part up to now."""
    parts, lost_s = recovery.parts(), recovery.stages["detected"]
    ms = {name: round((end - begin) * 1000, 3) for name, (begin, end) in parts.items()}
    if not recovery.finished:
        last_s = max([lost_s, *(end for _, end in parts.values())])
        going_on = next(name for name in PARTS if name not in parts)
        ms[going_on] = round(max(0.0, now_s - last_s) * 1000, 3)
    return Healing(
        task=recovery.name,
        incarnation=f"{recovery.incarnation.term}.{recovery.incarnation.n}",
        ms=ms,
        is_over=recovery.finished,
        ago_s=now_s - lost_s,
        log=recovery.log_length,
    )


def _checkpoint(newest: JobProgress | None) -> Checkpoint:
    if newest is None:
        return Checkpoint(id=0, age_s=None, duration_ms=None, state_bytes=0)
    told = newest.checkpoint
    return Checkpoint(
        id=told.id, age_s=told.age_s, duration_ms=told.duration_ms, state_bytes=told.state_bytes
    )


def _past(newest: JobProgress | None) -> Past:
    if newest is None:
        return Past(points=0, since=None, nbytes=0)
    told = newest.history
    return Past(points=told.points, since=told.since, nbytes=told.kept_bytes)


def _rate(progress: JobProgress, sources: set[str]) -> float:
    return sum(task.rows_per_s for task in progress.tasks if task.name in sources)
