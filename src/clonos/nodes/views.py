"""What a driver's node publishes: immutable values that any thread may read.

Modelled on PySpark's ``StreamingQueryProgress``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from clonos.core.levels import STORE
from clonos.core.plan import Incarnation
from clonos.transport.events import Away

STAGES: Final = ("detected", "fenced", "fetched", "activated", "restored", "live")
"""Stages of a recovery, in order."""
PARTS: Final = ("fence", "logs", "slot", "restore", "replay")
"""The parts of a recovery, from one stage to the next."""


class AsJson:
    """A value that is also JSON, on one line."""

    @property
    def json(self) -> str:
        """All of it, as JSON."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]


@dataclass(frozen=True)
class OperatorProgress(AsJson):
    """One operator, in one task or in all its tasks together.

    ``rows_per_s``: rows that went into it since the progress before. ``dropped``: rows that it left
    out, by reason (``bad_records``, ``late_rows``). ``calls``: those that were answered; ``cost``:
    what they have cost, in the unit of ``cost=``; ``hits``: questions answered from memory instead;
    ``tokens``: how many the calls have used; ``unknown``: effects that the job went on without, as
    nobody knows whether they were made.
    """

    name: str
    rows_in: int
    rows_out: int
    rows_per_s: float
    dropped: Mapping[str, int]
    calls: int = 0
    cost: float = 0.0
    hits: int = 0
    tokens: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Spent(AsJson):
    """What an operator has spent on calls whose answers are in the log, in all runs with this
    checkpoint; ``cost`` is in the unit of ``cost=``. ``hits``: questions answered from memory
    (``cache_ttl=``) instead; these are no calls, and cost nothing. ``tokens``: as ``tokens=``
    counts them. ``unknown``: how many of the calls are effects that the job went on without
    (``on_unknown="on_error"``), as nobody knows whether they were made."""

    calls: int
    cost: float
    hits: int = 0
    tokens: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class TaskProgress(AsJson):
    """One task.

    Rows and batches are those of all steps that its state consists of, since the job first began:
    steps that are replayed, or repeated after a loss, count once, and counts never go down. While a
    task recovers they stand still. If a task dies with steps of which no other process has heard,
    counts may be ahead by the rows of these steps until the task has caught up.

    Attributes
    ----------
    phase
        ``"live"`` or ``"finished"``; after a loss, in this order, ``"fencing"``, ``"reading"``,
        ``"ready"``, ``"waiting for a slot"``, ``"restoring"`` and ``"replaying"``.
    incarnation
        Term and number of its life: ``"1.2"``.
    slot, executor, pid
        Where it runs; None while it does not run.
    rows_per_s
        Rows taken in since the progress before.
    latency_ms
        The longest time from the reading of a row at its source to the end of a step with it
        here, since the progress before; None if there was none.
    backlog_bytes
        Size of the items that its receivers have not taken yet.
    in_flight_bytes
        Size of the items that it keeps in memory in case its receivers need them again.
    spilled_bytes
        Size of those that it keeps on its local disk.
    log_bytes
        Size of all log entries that it holds, of its own log and others'.
    log_bytes_per_row
        Size of the entries of its own log per row, in its present life.
    steps_to_replay
        How many steps a recovery would replay: those since its floor.
    state_bytes
        Size of its state as stored, as of the newest checkpoint.
    standbys
        How many copies are filled.
    current_standbys
        How many of them have the newest checkpoint. Such a copy takes over with all of the state in
        memory.
    lag
        Messages in its partitions that it has not read yet, as of some seconds ago; None: unknown.
        Only Kafka tells.
    persistence
        Where its state is kept: ``"store"``, ``"local"``, ``"memory"``, or ``"auto"``.
    level
        Where its next layers are kept: with "auto" the level in use now, else the same as
        `persistence`.
    level_for_s
        For how many seconds this level has been in use; None: since this life of the task began.
    level_why
        Why this is not the strongest level; empty if it is.
    """

    name: str
    phase: str
    incarnation: str
    slot: int | None
    executor: str | None
    pid: int | None
    rows_in: int
    rows_out: int
    batches_in: int
    batches_out: int
    rows_per_s: float
    latency_ms: int | None
    backlog_bytes: int
    in_flight_bytes: int
    spilled_bytes: int
    log_bytes: int
    log_bytes_per_row: float | None
    steps_to_replay: int
    state_bytes: int
    standbys: int
    operators: tuple[OperatorProgress, ...]
    lag: int | None = None
    current_standbys: int = 0
    persistence: str = STORE
    level: str = STORE
    level_for_s: float | None = None
    level_why: str = ""


@dataclass(frozen=True)
class CheckpointProgress(AsJson):
    """The newest checkpoint that is complete (id 0: none yet).

    ``age_s`` is the time since it was completed, ``duration_ms`` from its marker to then; None
    if that was before this driver. ``hard_id`` is the newest checkpoint whose input is given up;
    with ``persistence="auto"`` it is older than `id` while the checkpoint directory is slow.
    """

    id: int
    age_s: float | None
    duration_ms: float | None
    state_bytes: int
    hard_id: int = 0


@dataclass(frozen=True)
class HistoryProgress(AsJson):
    """The history of a job: how many points it has, the time of the oldest (UTC, ISO 8601), and the
    size of all that is kept beyond the newest checkpoint."""

    points: int
    since: str | None
    kept_bytes: int


@dataclass(frozen=True)
class JobProgress(AsJson):
    """A job at one moment.

    Attributes
    ----------
    run_id
        Identifies this start of the job; also the job group of its Spark jobs.
    number
        1, 2, ...
    timestamp
        UTC, ISO 8601.
    delivered
        Rows delivered by each sink since the job was started, changes of its graph included.
    recoveries
        Tasks that were recovered in this run.
    generation
        How often availability was chosen over consistency.
    reports
        How many messages of slots this is made from, in this run: four per second and task.
    """

    name: str
    run_id: str
    number: int
    timestamp: str
    tasks: tuple[TaskProgress, ...]
    operators: tuple[OperatorProgress, ...]
    checkpoint: CheckpointProgress
    delivered: Mapping[str, int]
    recoveries: int
    generation: int
    reports: int
    history: HistoryProgress = field(default=HistoryProgress(0, None, 0))


@dataclass(frozen=True)
class JobStatus(AsJson):
    """A summary of a job's state."""

    message: str
    is_running: bool
    is_recovering: bool


@dataclass(frozen=True)
class Dataset:
    """What a source reads or a sink writes.

    ``operator``: its name in the job; ``kind``: such as "files", "kafka" or "parquet"; ``place``:
    where, without secrets (None: it has no name); ``columns``: names and Spark's types.
    """

    operator: str
    kind: str
    place: str | None
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Datasets:
    """What a job reads and writes."""

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()


@dataclass(frozen=True)
class JobStarted(AsJson):
    """A job begins. ``term``: how often it was started with this checkpoint; ``inputs``,
    ``outputs``: its sources and sinks."""

    name: str
    run_id: str
    term: int
    tasks: tuple[str, ...]
    slots: int
    application_id: str
    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()


@dataclass(frozen=True)
class JobTerminated(AsJson):
    """A job has ended. ``error``: in words, if it failed; ``is_complete``: all input was
    handled and all output delivered."""

    name: str
    run_id: str
    is_complete: bool
    error: str | None


@dataclass(frozen=True)
class LevelChanged(AsJson):
    """A task with ``persistence="auto"`` keeps its next layers at another level.

    ``level`` and ``before`` are ``"store"``, ``"local"`` or ``"memory"``. ``why`` says why it is
    not the strongest level; it is empty if it is.
    """

    task: str
    level: str
    before: str
    why: str


@dataclass(frozen=True)
class Recovery:
    """One recovery of one task, with the moment (s, monotonic) that each stage was reached.

    ``detected``: the control stream ended. ``fenced``: every live task downstream refuses the old
    life. ``fetched``: the longest prefix of the log is in the house-keeper. ``activated``: a slot
    was told to become the task. ``restored``: state and log are loaded there. ``live``: the log is
    replayed.

    Attributes
    ----------
    log_length
        How many entries of its log had survived.
    state_bytes
        Size of all layers from which its state was restored.
    store_bytes
        Size of those that its standby did not have in memory and that were read from where they are
        `kept`.
    kept
        ``"store"``, ``"local"`` or ``"memory"``.

    Examples
    --------
    >>> stages = {"detected": 1.0, "restored": 1.02}
    >>> recovery = Recovery(3, "count[1]", Incarnation(1, 2), stages, state_bytes=900)
    >>> recovery.level
    'standby'
    """

    task: int
    name: str
    incarnation: Incarnation
    stages: Mapping[str, float] = field(default_factory=dict)
    log_length: int = 0
    state_bytes: int = 0
    store_bytes: int = 0
    kept: str = STORE

    @property
    def finished(self) -> bool:
        return "live" in self.stages

    @property
    def level(self) -> str | None:
        """Where its state came from: ``"standby"`` if a standby had all of it in memory;
        ``"store"``, ``"local"`` or ``"memory"`` if some was read from the checkpoint store, from a
        machine's disk or from another process; ``"start"`` if there was no checkpoint yet. None: it
        is not restored yet.
        """
        if "restored" not in self.stages:
            return None
        if not self.state_bytes:
            return "start"
        return self.kept if self.store_bytes else "standby"

    def milliseconds(self) -> dict[str, float]:
        """Time of each stage after detection, in ms."""
        start = self.stages.get("detected", 0.0)
        return {stage: (at - start) * 1000 for stage, at in self.stages.items()}

    def parts(self) -> dict[str, tuple[float, float]]:
        """When each part began and ended, as far as it is over (s, monotonic).

        ``"fence"``, ``"logs"``, ``"slot"`` (waiting for one), ``"restore"``, ``"replay"``. A part
        that ended before the one before it took no time.
        """
        parts, last = {}, self.stages["detected"]
        for part, stage in zip(PARTS, STAGES[1:], strict=True):
            if stage in self.stages:
                end = max(last, self.stages[stage])
                parts[part], last = (last, end), end
        return parts

    @property
    def json(self) -> str:
        """All of it on one line; moments in ms after detection."""
        life = f"{self.incarnation.term}.{self.incarnation.n}"
        ms = {stage: round(at, 3) for stage, at in self.milliseconds().items()}
        told = {"task": self.name, "incarnation": life, "ms": ms, "log": self.log_length}
        sizes = {"state_bytes": self.state_bytes, "store_bytes": self.store_bytes}
        return json.dumps({**told, "level": self.level, **sizes})


@dataclass(frozen=True)
class Sample:
    """Statistics that a task sent at some time (s since the epoch); ``away``: services that answer
    nothing, by name."""

    at_s: float
    task: int
    counters: Mapping[str, int]
    away: Mapping[str, Away] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskView:
    """A task as it is now."""

    id: int
    name: str
    phase: str
    incarnation: Incarnation
    slot: int | None
    pid: int | None
    rows_per_s: float
    latency_ms: float


@dataclass(frozen=True)
class SlotView:
    """A slot as it is now. ``runs``: the names of its tasks; ``keeps``: the names of the tasks
    whose standbys here are filled up to some floor."""

    place: int
    pid: int
    executor: str
    executor_pid: int
    runs: tuple[str, ...]
    keeps: tuple[str, ...]


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job, for :meth:`RunningJob.on_event`.

    ``what``: the stages of a recovery ("detected" to "live"); "floor": the checkpoint `value` is
    complete; "standby": a copy of the task has reached checkpoint `value`; "orphan": a task has to
    go back with a failed one; "generation": rows may have been delivered twice from here on;
    "moving", for each task of a cell: it is fenced, to go on in another slot; then, for the first
    task, "moved" or "stayed", and `why` it has; "rival", for the first task of a slow cell: the
    cell is overtaken, and recovers. :mod:`clonos.core.notes` has all of them.
    """

    what: str
    task: str
    value: int
    at_s: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class DriverView:
    """A job as its driver sees it at one moment.

    Attributes
    ----------
    recent
        The newest progress reports, oldest first.
    recoveries
        The newest thousand of this run, in order of detection.
    recovered
        How many of this run are over.
    floor
        The newest checkpoint completed in this run; 0: none.
    generation
        The newest generation that began because a loss was forgiven; 0: none.
    orphans
        How many tasks had to go back because others failed.
    dropped
        Rows left out, by operator and reason.
    delivered
        Rows delivered since the job was started, by sink.
    bill
        What calls have cost, by operator.
    """

    tasks: tuple[TaskView, ...]
    slots: tuple[SlotView, ...]
    status: JobStatus
    recent: tuple[JobProgress, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    recovered: int = 0
    floor: int = 0
    generation: int = 0
    orphans: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    delivered: Mapping[str, int] = field(default_factory=dict)
    is_complete: bool = False
    bill: Mapping[str, Spent] = field(default_factory=dict)


News = JobStarted | JobProgress | Recovery | LevelChanged | JobTerminated
"""What listeners are told."""
