"""The metrics of a job, computed from a progress event, for all exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple

from clonos.nodes.views import JobProgress, OperatorProgress, TaskProgress

Labels = Mapping[str, str]
Values = Iterable[tuple[Labels, float]]


class Metric(NamedTuple):
    """One metric.

    ``name``: with dots; ``unit``: "rows", "bytes", "seconds", or "" for plain numbers; ``kind``: a
    counter never goes down while the job keeps its checkpoint.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    values: Callable[[JobProgress], Values]


def _tasks(value: Callable[[TaskProgress], float | None]) -> Callable[[JobProgress], Values]:
    def values(progress: JobProgress) -> Iterator[tuple[Labels, float]]:
        for task in progress.tasks:
            if (found := value(task)) is not None:
                yield {"task": task.name}, found

    return values


def _operators(value: Callable[[OperatorProgress], float]) -> Callable[[JobProgress], Values]:
    return lambda progress: [({"operator": o.name}, value(o)) for o in progress.operators]


def _spent(value: Callable[[OperatorProgress], float]) -> Callable[[JobProgress], Values]:
    return lambda p: [({"operator": o.name}, value(o)) for o in p.operators if o.calls or o.hits]


def _dropped(progress: JobProgress) -> Values:
    for operator in progress.operators:
        for reason, rows in operator.dropped.items():
            yield {"operator": operator.name, "reason": reason}, rows


def _delivered(progress: JobProgress) -> Values:
    return [({"sink": sink}, rows) for sink, rows in progress.delivered.items()]


def _job(value: Callable[[JobProgress], float | None]) -> Callable[[JobProgress], Values]:
    def values(progress: JobProgress) -> Values:
        found = value(progress)
        return [] if found is None else [({}, found)]

    return values


def _completed_at(progress: JobProgress) -> float | None:
    """When the newest checkpoint completed; s since the epoch."""
    age_s = progress.checkpoint.age_s
    if age_s is None:
        return None
    return datetime.fromisoformat(progress.timestamp).timestamp() - age_s


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _is_up(task: TaskProgress) -> float:
    return float(task.phase in {"live", "finished"})


def values_of(metric: Metric, newest: Iterable[JobProgress]) -> list[tuple[Labels, float]]:
    """The values of a metric in all jobs, with their labels."""
    return [
        ({"job": progress.name, **labels}, value)
        for progress in newest
        for labels, value in metric.values(progress)
    ]


METRICS: Final = (
    Metric("operator.rows_in", "counter", "rows", "Rows that an operator has taken.",
           _operators(lambda o: o.rows_in)),
    Metric("operator.rows_out", "counter", "rows", "Rows that an operator has made.",
           _operators(lambda o: o.rows_out)),
    Metric("operator.dropped", "counter", "rows", "Rows left out: bad records, late rows.",
           _dropped),
    Metric("operator.calls", "counter", "", "Calls whose outcome is in the log.",
           _spent(lambda o: o.calls)),
    Metric("operator.cost", "counter", "", "What they have cost, in the unit of cost=.",
           _spent(lambda o: o.cost)),
    Metric("operator.hits", "counter", "", "Questions that a remembered answer has answered.",
           _spent(lambda o: o.hits)),
    Metric("operator.tokens", "counter", "", "Tokens that they have taken, as tokens= counts them.",
           _spent(lambda o: o.tokens)),
    Metric("operator.unknown", "counter", "",
           "Effects that the job went on without, as nobody knows whether they were made.",
           _spent(lambda o: o.unknown)),
    Metric("sink.delivered", "counter", "rows", "Rows delivered since the job was started.",
           _delivered),
    Metric("task.up", "gauge", "", "1 if a task is live or finished, 0 while it recovers.",
           _tasks(_is_up)),
    Metric("task.latency", "gauge", "seconds",
           "Longest time from reading a row to the end of a step with it, recently.",
           _tasks(lambda t: _seconds(t.latency_ms))),
    Metric("task.backlog", "gauge", "bytes", "Output that a task's receivers have not taken yet.",
           _tasks(lambda t: t.backlog_bytes)),
    Metric("task.lag", "gauge", "", "Messages that a source has not read yet (Kafka).",
           _tasks(lambda t: t.lag)),
    Metric("task.in_flight", "gauge", "bytes", "Output kept for receivers, in memory.",
           _tasks(lambda t: t.in_flight_bytes)),
    Metric("task.spilled", "gauge", "bytes", "Output kept for receivers, on the local disk.",
           _tasks(lambda t: t.spilled_bytes)),
    Metric("task.log", "gauge", "bytes", "Log entries that a task holds, its own and others'.",
           _tasks(lambda t: t.log_bytes)),
    Metric("task.state", "gauge", "bytes", "Stored state, as of the newest checkpoint.",
           _tasks(lambda t: t.state_bytes)),
    Metric("task.steps_to_replay", "gauge", "", "Steps that a recovery would repeat.",
           _tasks(lambda t: t.steps_to_replay)),
    Metric("task.standbys", "gauge", "", "Filled standbys.", _tasks(lambda t: t.standbys)),
    Metric("checkpoint.number", "gauge", "", "Number of the newest checkpoint; 0: none yet.",
           _job(lambda p: p.checkpoint.id)),
    Metric("checkpoint.completed_timestamp", "gauge", "seconds",
           "Time of the newest checkpoint, since the epoch.", _job(_completed_at)),
    Metric("checkpoint.duration", "gauge", "seconds", "How long the newest checkpoint took.",
           _job(lambda p: _seconds(p.checkpoint.duration_ms))),
    Metric("recoveries", "counter", "", "Tasks that were recovered in this run of the job.",
           _job(lambda p: p.recoveries)),
    Metric("generation", "gauge", "", "How often a loss was forgiven, so that rows may come twice.",
           _job(lambda p: p.generation)),
)  # fmt: skip
