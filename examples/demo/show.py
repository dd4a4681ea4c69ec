"""From what a running job says of itself to what the demo shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import clonos
from examples.demo import plot, timeline
from examples.demo.kills import Kill

_NAMES: Final = {
    "fenced": "fenced",
    "fetched": "log fetched",
    "restored": "restored",
    "live": "replayed",
}


def recovery(stages: clonos.Recovery, kills: Sequence[Kill]) -> timeline.Recovery:
    """A recovery as consecutive phases, from the kill (if it was ours) to live."""
    detected = stages.stages["detected"]
    cause = [k for k in kills if k.at_s <= detected + 0.05 and stages.name in k.tasks]
    phases = []
    if cause:
        phases.append(timeline.Phase("detected", max(0.0, (detected - cause[-1].at_s) * 1000)))
    before = detected
    for stage, name in _NAMES.items():
        if stage in stages.stages:
            at = stages.stages[stage]
            phases.append(timeline.Phase(name, max(0.0, (at - before) * 1000)))
            before = max(before, at)
    life = f"{stages.incarnation.term}.{stages.incarnation.n}"
    return timeline.Recovery(stages.name, "killed" if cause else "lost", life, tuple(phases))


def progress(job: clonos.RunningJob, kills: Sequence[Kill], title: str) -> timeline.Progress:
    """The job at this moment."""
    tasks = [
        timeline.TaskLine(
            task.name,
            task.phase,
            f"{task.incarnation.term}.{task.incarnation.n}",
            task.rows_per_s,
            task.latency_ms,
            f"{task.slot} (pid {task.pid})" if task.pid else "-",
        )
        for task in job.tasks()
    ]
    standbys = [
        timeline.StandbyLine(name, f"slot {slot.place}", job.observer.floors)
        for slot in job.slots()
        for name in slot.keeps
    ]
    recoveries = [recovery(r, kills) for r in job.observer.recoveries if r.finished]
    return timeline.Progress(tasks, standbys, recoveries, title)


def steps(
    job: clonos.RunningJob, operator: str, samples: Sequence[Any], start_s: float
) -> list[plot.Sample]:
    """Throughput and latency of an operator's tasks together, in steps of a quarter second."""
    step = 0.25
    ids = {t.id for t in job.plan.tasks if t.operator == operator}
    rows: dict[int, float] = {}
    latency: dict[int, float] = {}
    last: dict[int, tuple[float, int]] = {}
    for sample in samples:
        if sample.task not in ids:
            continue
        bucket = int((sample.at_s - start_s) / step)
        count = sample.counters.get("rows", 0)
        before = last.get(sample.task)
        last[sample.task] = (sample.at_s, count)
        if before is not None:
            # A new life counts from zero again.
            fresh = count - before[1] if count >= before[1] else count
            rows[bucket] = rows.get(bucket, 0.0) + fresh / step
        late = float(sample.counters.get("latency_ms", 0))
        latency[bucket] = max(latency.get(bucket, 0.0), late)
    if not rows:
        return []
    return [
        plot.Sample(b * step, rows.get(b, 0.0), latency.get(b))
        for b in range(max(0, min(rows)), max(rows) + 1)
    ]
