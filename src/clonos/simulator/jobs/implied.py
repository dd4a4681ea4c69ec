"""Jobs with implied tasks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from clonos.core.plan import TaskSpec
from clonos.simulator.jobs.programs import Behaviour, Job


def asks_nothing(behaviour: Behaviour) -> bool:
    """Whether everything that a stage does follows from its rows."""
    asks = behaviour.clock or behaviour.call_every or behaviour.timer_ms or behaviour.in_flight
    return not asks


def with_implied(job: Job, random: Random) -> Job:
    """The same job, but some stages no longer ask the world for anything. Tasks that can do without
    a log are implied."""
    stages = tuple(
        replace(stage, behaviour=_without_questions(stage.behaviour))
        if random.random() < 0.6
        else stage
        for stage in job.stages
    )

    def is_implied(task: TaskSpec) -> bool:
        is_inner = len(task.inputs) == 1 and not task.is_source and not task.has_effects
        is_alone = task.id not in job.plan.loops
        return is_inner and is_alone and asks_nothing(stages[job.stage_of[task.id]].behaviour)

    tasks = tuple(replace(task, is_implied=is_implied(task)) for task in job.plan.tasks)
    return replace(job, stages=stages, plan=replace(job.plan, tasks=tasks))


def _without_questions(behaviour: Behaviour) -> Behaviour:
    return replace(behaviour, clock=False, call_every=0, timer_ms=0, in_flight=0)
