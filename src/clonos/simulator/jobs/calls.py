"""Jobs in which rows wait for calls, or for effects."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from clonos.simulator.jobs.programs import Behaviour, Job


def with_calls(job: Job, random: Random, *, always: bool = False) -> Job:
    """The same job, in which rows wait for calls in some stages; `always`: in each that can."""

    def changed(behaviour: Behaviour) -> Behaviour:
        if behaviour.waits_for_watermark or behaviour.timer_ms:
            return behaviour
        if not always and random.random() < 0.4:
            return behaviour
        in_flight = random.choice((1, 2, 5, 20))
        return replace(behaviour, in_flight=in_flight, ordered=random.random() < 0.5)

    stages = tuple(replace(stage, behaviour=changed(stage.behaviour)) for stage in job.stages)
    return replace(job, stages=stages)


def with_effects(job: Job, random: Random) -> Job:
    """The same job, in which some of these calls are effects."""
    stages = tuple(
        replace(stage, behaviour=replace(stage.behaviour, has_effects=True))
        if stage.behaviour.in_flight and random.random() < 0.7
        else stage
        for stage in job.stages
    )
    tasks = tuple(
        replace(task, has_effects=stages[job.stage_of[task.id]].behaviour.has_effects)
        for task in job.plan.tasks
    )
    return replace(job, stages=stages, plan=replace(job.plan, tasks=tasks))
