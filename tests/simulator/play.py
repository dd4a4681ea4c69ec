"""Scripts: a small job in the simulator, and what happens to it, one thing after the other."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from clonos.core import notes
from clonos.core.roster import TaskPhase
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job
from clonos.simulator.processes.cluster import Cluster, Options

PLAIN = Behaviour()
SEEDS = range(3)
_N = TypeVar("_N", bound=notes.Note)


def source(name="source", parallelism=1, **options):
    return Stage(name, parallelism, (), options.pop("behaviour", PLAIN), **options)


def stage(name, *reads, parallelism=1, behaviour=PLAIN):
    return Stage(name, parallelism, reads, behaviour)


def sink(*reads, name="sink", parallelism=1, behaviour=PLAIN, **options):
    return Stage(name, parallelism, reads, behaviour, is_sink=True, **options)


class Play:
    """A cluster, its script, and what must hold at the end."""

    def __init__(self, stages, seed, *, depth=1, rows=60, cells=(), marked=True, **options):
        self.job = build_job(stages, sharing_depth=depth, rows=rows)
        self.job = replace(self.job, plan=replace(self.job.plan, has_markers=marked))
        tasks = self.job.plan.tasks
        made = [stages[self.job.stage_of[t.id]].behaviour.has_effects for t in tasks]
        tasks = tuple(replace(t, has_effects=is_so) for t, is_so in zip(tasks, made, strict=True))
        if cells:
            tasks = tuple(replace(t, cell=cells[t.id]) for t in tasks)
        self.job = replace(self.job, plan=replace(self.job.plan, tasks=tasks))
        settings = {"slots": 2 * len(tasks), "epoch_ms": 15.0, "standbys": 1, "floors_at_end": 2}
        self.cluster = Cluster(self.job, Options(**{**settings, **options}), Random(seed))
        self.cluster.heals_at = float("inf")  # sources do not end before the script does
        self.notes: list[notes.Note] = []
        self.cluster.on_note.append(self.notes.append)
        self.cluster.start()

    @property
    def coordinator(self):
        return self.cluster.driver.coordinator

    @property
    def checkpoints(self):
        return self.coordinator.checkpoints

    @property
    def keeper(self):
        return self.cluster.driver.keeper

    def slot(self, task) -> Any:
        return self.cluster.slot_of(task)

    def machine(self, task) -> Any:
        slot = self.slot(task)
        return slot.machine_of(task) if slot else None

    def until(self, condition):
        self.cluster.run_until(condition)

    def all_live(self):
        self.until(lambda: all(t.phase is TaskPhase.LIVE for t in self.coordinator.tasks.values()))

    def at(self, task, position):
        self.until(lambda: (m := self.machine(task)) and m.position >= position)

    def kill(self, *tasks):
        for slot in [self.slot(task) for task in tasks]:
            assert slot is not None
            self.cluster.kill(slot, "script")

    def noted(self, kind: type[_N], task: int | None = None) -> list[_N]:
        """The notes of this kind, perhaps only those about one task."""
        found = [note for note in self.notes if isinstance(note, kind)]
        return [
            n for n in found if task is None or (isinstance(n, notes.OfTask) and n.task == task)
        ]

    def acked(self):
        return {t for t, of_task in self.checkpoints.sealed.items() if of_task}

    def finish(self):
        self.cluster.heals_at = self.cluster.scheduler.now
        outcome = self.cluster.run(self.cluster.scheduler.now + 30_000)
        assert outcome.state == "done", outcome
        self.cluster.recorder.check_end(self.cluster.service)
        return self


CHAIN = (source(), stage("first", 0), stage("second", 1), sink(2))
"""Tasks 0 -> 1 -> 2 -> 3."""
