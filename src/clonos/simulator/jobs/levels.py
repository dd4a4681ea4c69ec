"""Jobs whose tasks keep their layers in different places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from clonos.core import layer as layer_module
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


def room_for_copies(options: Options, cells: int, random: Random) -> None:
    """Machines that stay, and enough slots for all copies; otherwise no floor could move."""
    options.has_machines = True
    options.standbys = random.choice((0, 1, 1, 1, 2))
    options.slots = cells + options.standbys + random.choice((0, 1, 2))
    options.bound = frozenset()


@contextmanager
def merged_early(chain_max: int) -> Iterator[None]:
    """Merge layers at shorter chains than production does."""
    before = layer_module.CHAIN_MAX
    layer_module.CHAIN_MAX = chain_max  # type: ignore[misc]  # it is final for all others
    try:
        yield
    finally:
        layer_module.CHAIN_MAX = before  # type: ignore[misc]
