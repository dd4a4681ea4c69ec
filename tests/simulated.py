"""Jobs of Arrow operators in the simulated cluster, where their processes are killed."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa

import clonos
from clonos.core.history import Keep
from clonos.core.messages import Kind
from clonos.simulator.jobs.arrow import ArrowJob
from clonos.simulator.processes.cluster import Cluster
from clonos.simulator.runs.seeds import random_options, simulate_job


def delivered(
    job: clonos.Job, seed: int, random: Random, *, rows_at_once: int
) -> tuple[pa.Table, int]:
    """What its sink has delivered, and how many processes died."""
    arrow = ArrowJob(job.compile())
    options = random_options(random, arrow)
    options.availability = False
    options.rows_at_once = rows_at_once
    result, cluster = simulate_job(seed, arrow, options, random)
    assert result.verdict == "ok", f"{job.name}, seed {seed}: {result.failure}"
    sinks = {code.task.id: code.sink for code in arrow.compiled.codes if code.sink is not None}
    batches = [
        payload
        for task in sinks
        for kind, payload, _ in cluster.recorder.output(task)
        if kind == Kind.BATCH
    ]
    (schema,) = {sink.schema for sink in sinks.values()}
    return pa.Table.from_batches(batches, schema), cluster.deaths


def with_history(job: ArrowJob, seed: int, random: Random, **how: Any) -> Cluster:
    """The cluster that has run a job, and has kept everything; `how`: its options."""
    options = random_options(random, job)
    options.epoch_ms, options.floors_at_end, options.availability = 20.0, 4, False
    options.keep = Keep(ms=1 << 40, every_ms=40)
    for name, value in how.items():
        setattr(options, name, value)
    result, cluster = simulate_job(seed, job, options, random)
    assert not result.failure, result.failure
    return cluster
