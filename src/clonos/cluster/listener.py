"""What a running job says of itself, as values, and who wants to hear it.

Modelled on PySpark's ``StreamingQueryListener`` and ``StreamingQueryProgress``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from clonos.cluster.progress import Recovery


class Told:
    """A value that is also JSON, on one line."""

    @property
    def json(self) -> str:
        """All of it, as JSON."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]


@dataclass(frozen=True)
class OperatorProgress(Told):
    """One operator, in one task or in all its tasks together.

    ``rows_per_s``: rows that went into it since the progress before. ``dropped``: rows that it
    left out, by reason (``bad_records``, ``late_rows``).
    """

    name: str
    rows_in: int
    rows_out: int
    rows_per_s: float
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class TaskProgress(Told):
    """One task.

    Rows and batches are those of the steps that its state consists of, since the job's very
    beginning: what is replayed, or done again after a loss, is counted once, and counts never go
    down. While a task recovers they stand still. If steps were lost with a task before anybody
    had heard of their output, counts may be ahead by their rows until the task is there again.

    Attributes
    ----------
    phase
        ``"live"``, ``"replaying"``, ``"restoring"``, ``"fencing"``, ``"waiting for a slot"`` or
        ``"finished"``.
    incarnation
        Term and number of its life: ``"1.2"``.
    slot, executor, pid
        Where it runs; None while it runs nowhere.
    rows_per_s
        Rows taken in since the progress before.
    latency_ms
        The longest time from the reading of a row at its source to the end of a step with it
        here, since the progress before; None if there was none.
    backlog_bytes
        What its receivers have not taken yet.
    in_flight_bytes
        What it keeps in case its receivers need it again.
    log_bytes
        Entries of all logs that it holds, its own and others'.
    log_bytes_per_row
        Size of its own log's entries over the rows they are about, in its present life.
    state_bytes
        What is stored of it, as of the newest checkpoint.
    standbys
        How many copies are filled.
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
    log_bytes: int
    log_bytes_per_row: float | None
    state_bytes: int
    standbys: int
    operators: tuple[OperatorProgress, ...]


@dataclass(frozen=True)
class CheckpointProgress(Told):
    """The newest checkpoint that is complete (id 0: none yet).

    ``age_s`` is the time since it was completed, ``duration_ms`` from its marker to then; None
    if that was before this driver.
    """

    id: int
    age_s: float | None
    duration_ms: float | None
    state_bytes: int


@dataclass(frozen=True)
class JobProgress(Told):
    """A job at a moment.

    Attributes
    ----------
    run_id
        Of this start of the job; also the job group of its Spark jobs.
    number
        1, 2, ...
    timestamp
        UTC, ISO 8601.
    delivered
        Rows delivered by each sink in this run.
    recoveries
        Tasks that were recovered in this run.
    generation
        How often availability was chosen over consistency.
    reports
        Messages of the slots that all this was made of, in this run: four a second and task.
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


@dataclass(frozen=True)
class JobStatus(Told):
    """In short how a job is."""

    message: str
    is_running: bool
    is_recovering: bool


@dataclass(frozen=True)
class JobStarted(Told):
    """A job begins. ``term``: how often it was started with its checkpoint."""

    name: str
    run_id: str
    term: int
    tasks: tuple[str, ...]
    slots: int
    application_id: str


@dataclass(frozen=True)
class JobTerminated(Told):
    """A job has ended. ``error``: in words, if it failed; ``is_complete``: all input was
    handled and all output delivered."""

    name: str
    run_id: str
    is_complete: bool
    error: str | None


class Listener:
    """Hears of a job; override what is of interest, as with PySpark's ``StreamingQueryListener``.

    Each listener has a thread and a bounded queue of its own: if it is slow it misses the oldest
    events, if it raises it is called again with the next one, and the job is warned once of
    either. Neither ever waits for it.

    Examples
    --------
    Every progress as a line of JSON:

    >>> class Lines(Listener):
    ...     def on_progress(self, progress):
    ...         print(progress.json)
    ...     def on_recovery(self, recovery):
    ...         print(recovery.json)
    >>> running = job.start(spark, listeners=[Lines()])  # doctest: +SKIP
    >>> from clonos.core.plan import Incarnation
    >>> stages = {"detected": 7.0, "fenced": 7.002, "live": 7.04}
    >>> Lines().on_recovery(Recovery(3, "count[1]", Incarnation(1, 2), stages, 57))
    {"task": "count[1]", "incarnation": "1.2", "ms": {"detected": 0.0, ... "live": 40.0}, "log": 57}
    """

    def on_started(self, started: JobStarted) -> None:
        """The job begins; its slots are being asked for."""

    def on_progress(self, progress: JobProgress) -> None:
        """How it is doing, once a second (``progress_s``)."""

    def on_recovery(self, recovery: Recovery) -> None:
        """A task is live again after it was lost: when each stage was reached.

        A recovery that another failure broke off is not told, the next one of the task is.
        """

    def on_terminated(self, terminated: JobTerminated) -> None:
        """It is over, for whatever reason; the last thing that is told."""
