"""Jobs to look at, without running them: a plan, and a view as a driver publishes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import clonos
from clonos.core.plan import Incarnation
from clonos.nodes.views import (
    CheckpointProgress,
    DriverView,
    JobProgress,
    JobStatus,
    Recovery,
    SlotView,
    TaskProgress,
    TaskView,
)
from clonos.watch.snapshot import Snapshot, snapshot

NOW_S = 1_000.0
STAGES = {"detected": 0.0, "fenced": 0.006, "fetched": 0.009, "activated": 0.011,
          "restored": 0.019, "live": 0.048}  # fmt: skip


def compiled(parallelism: int = 2, name: str = "fraud", operator: str = "score") -> Any:
    job = clonos.Job(name, parallelism=parallelism)
    schema = "user string, cents long"
    source = clonos.sources.from_batches([], schema)
    rows = job.source(source, name="payments").filter(lambda row: row.cents > 0, name="positive")
    scored = rows.map(lambda row: row, schema, name=operator)
    users = scored.key_by("user").last(3, name="last of user", total=clonos.sum("cents"))
    users.sink(clonos.sinks.collect(), name="alerts")
    shops = scored.key_by("cents").last(1, biggest=clonos.max("cents"), name="new amounts")
    shops.sink(clonos.sinks.collect(), name="audit")
    return job.compile()


def recovery(task: int, name: str, ago_s: float, upto: str = "live", slower: float = 1.0):
    began = NOW_S - ago_s
    stages = {s: began + slower * at for s, at in STAGES.items() if at <= STAGES[upto]}
    return Recovery(task, name, Incarnation(1, 2), stages, 57)


def view(job: Any, *, away: dict[int, str] | None = None, recoveries: tuple[Recovery, ...] = ()):
    away = away or {}
    tasks, told = [], []
    for task in job.plan.tasks:
        phase = away.get(task.id, "live")
        slot = None if phase in {"fencing", "reading"} else task.index
        rate = 0.0 if task.id in away else 10_000.0 + 137 * task.id
        life = Incarnation(1, 1 + (task.id in away))
        tasks.append(TaskView(task.id, task.name, phase, life, slot, 4100 + task.index, rate, 4.0))
        told.append(
            TaskProgress(
                task.name, phase, "1.1", slot, "driver", 4100 + task.index, 3_600_000 + task.id,
                3_500_000, 120_000, 118_000, rate, 6 + task.id % 5, 12_000, 410_000, 0, 96_000, 1.7,
                240, 5_300_000 + 1_000 * task.id, 1, (),
            )
        )  # fmt: skip
    slots = [
        SlotView(
            place, 4100 + place, "driver", 4000,
            tuple(t.name for t in job.plan.tasks if t.index == place and t.id not in away), (),
        )
        for place in range(max(t.index for t in job.plan.tasks) + 1)
    ]  # fmt: skip
    keeps = tuple(t.name for t in job.plan.tasks[:3])
    slots.append(SlotView(len(slots), 4190, "driver", 4000, (), keeps))
    recent = tuple(
        JobProgress(
            job.name, "fraud-1", n, "1970-01-01",
            tuple(replace(t, rows_per_s=t.rows_per_s / (5 if n in {31, 32} else 1)) for t in told),
            (),
            CheckpointProgress(41 + n, 0.4, 31.0, 42_000_000), {"alerts": 1_204, "audit": 88_310},
            len(recoveries), 0, 4 * n,
        )
        for n in range(60)
    )  # fmt: skip
    status = JobStatus(f"tasks: {len(tasks) - len(away)} live", True, bool(away))
    return DriverView(
        tuple(tasks), tuple(slots), status, recent, recoveries,
        recovered=sum(recovery.finished for recovery in recoveries),
        delivered={"alerts": 1_204, "audit": 88_310},
    )  # fmt: skip


def shown(job: Any, *, warnings: tuple[str, ...] = (), **how: Any) -> Snapshot:
    operators = {code.task.id: [name for name, _ in code.operators] for code in job.codes}
    seen = view(job, **how)
    return snapshot(job.name, "fraud-1", 1, job.plan, operators, seen, warnings, NOW_S)


def recovering(parallelism: int = 2, **names: Any) -> Snapshot:
    job = compiled(parallelism, **names)
    tasks = job.plan.tasks
    lost = tasks[parallelism]
    return shown(
        job,
        away={lost.id: "replaying", tasks[0].id: "fencing"},
        recoveries=(
            recovery(1, tasks[1].name, 300.0, slower=1.3),
            recovery(lost.id, lost.name, 61.0, slower=0.8),
            recovery(0, tasks[0].name, 0.004, upto="detected"),
            recovery(lost.id, lost.name, 0.037, upto="restored"),
        ),
    )
