"""Jobs whose tasks keep their layers in different places."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from clonos.core.levels import AUTO, LEVELS, LOCAL, STORE
from clonos.simulator.jobs.programs import Job
from clonos.simulator.processes.cluster import Options


def with_levels(job: Job, random: Random, standbys: int) -> Job:
    """The same job with a level for each task; without standbys, none is "memory"."""
    few = (LOCAL, STORE) if not standbys else LEVELS
    allowed = random.choice((few, few, few[:1], few[-2:]))
    tasks = tuple(replace(task, level=random.choice(allowed)) for task in job.plan.tasks)
    return replace(job, plan=replace(job.plan, tasks=tasks))


def with_dials(job: Job, options: Options, random: Random) -> Job:
    """The same job, but some or all tasks have a dial, and the store is sometimes slow."""
    is_all = random.random() < 0.7
    tasks = tuple(
        replace(task, level=AUTO) if is_all or random.random() < 0.5 else task
        for task in job.plan.tasks
    )
    options.availability = False
    options.store_ms = random.choice((4.0, 20.0, 100.0))
    options.late_ms = random.choice((5.0, 20.0, 80.0))
    options.quiet_ms = random.choice((20.0, 100.0))
    return replace(job, plan=replace(job.plan, tasks=tasks))


def keeping_layers(job: Job, options: Options, seed: int, random: Random, *, moves: bool) -> Job:
    """The same job, whose slots keep layers. `moves`: some slots are free for cells that move."""
    room_for_copies(options, len(job.plan.cells), random)
    options.slots += 2 * moves
    options.merges_overlap = False
    drawn = Random(f"machines {seed}")
    if drawn.random() < 0.4:
        shared_machines(options, drawn)
    job = with_levels(job, random, options.standbys)
    if seed % 2 and job.plan.causal_log:
        job = with_dials(job, options, Random(f"dials {seed}"))
    return job


def room_for_copies(options: Options, cells: int, random: Random) -> None:
    """Machines that stay, and enough slots for all copies; otherwise no floor could move."""
    options.has_machines = True
    options.standbys = random.choice((0, 1, 1, 1, 2))
    options.slots = cells + options.standbys + random.choice((0, 1, 2))
    options.bound = frozenset()


def shared_machines(options: Options, random: Random) -> None:
    """Two executors on each machine, which share its disk. With some luck, the copies of a task
    find room on another machine."""
    options.executors_each = 2
    options.groups = random.choice((2, 3, 4, 6))
    options.slots += random.choice((0, 1, 2))
