"""Jobs with a call that ends the process that makes it, each time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from clonos.core.calls import Request
from clonos.simulator.jobs.programs import AnyJob, Job


def with_lethal_call(job: Job, random: Random, *, executors: float = 0.0) -> Job:
    """The same job, in which the calls of a stage about one row kill. `executors`: how probable it
    is that they take along the executor."""
    asking = [n for n, stage in enumerate(job.stages) if stage.behaviour.in_flight]
    if not asking:
        return job
    stages = list(job.stages)
    number = random.choice(asking)
    row_id = random.choice(random.choice(list(job.sources.values())).rows)[0]
    behaviour = replace(
        stages[number].behaviour, lethal_id=row_id, kills_executor=random.random() < executors
    )
    stages[number] = replace(stages[number], behaviour=behaviour)
    return replace(job, stages=tuple(stages))


def lethal_row(job: AnyJob, task: int) -> int | None:
    """The id of the row about which a task must not ask, if there is one."""
    if not isinstance(job, Job):
        return None
    row_id = job.stages[job.stage_of[task]].behaviour.lethal_id
    return row_id if row_id >= 0 else None


def kills_executor(job: AnyJob, task: int) -> bool:
    """Whether such a call takes along the executor."""
    return isinstance(job, Job) and job.stages[job.stage_of[task]].behaviour.kills_executor


def is_lethal(job: AnyJob, task: int, request: Request) -> bool:
    """Whether the process ends that makes this call."""
    row_id = lethal_row(job, task)
    return row_id is not None and request.arguments[2] == row_id
