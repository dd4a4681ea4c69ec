"""What can be seen of a running job: tasks, recoveries as timelines, samples over time."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from clonos.core.coordinator import Note
from clonos.core.plan import Incarnation

_LOGGER: Final = logging.getLogger("clonos")

SAMPLES_MAX: Final = 100_000
"""An hour of four samples a second for seven tasks; older ones go."""

STAGES: Final = ("detected", "fenced", "fetched", "activated", "restored", "live")


@dataclass
class Recovery:
    """One recovery of one task, with the moment (s, monotonic) that each stage was reached.

    ``detected``: the control stream ended. ``fenced``: every live holder refuses the old life.
    ``fetched``: the longest prefix of the log is in the house-keeper. ``activated``: a slot has
    been told. ``restored``: state and log are loaded there. ``live``: the log is replayed.
    """

    task: int
    name: str
    incarnation: Incarnation
    stages: dict[str, float] = field(default_factory=dict)
    log_length: int = 0

    @property
    def finished(self) -> bool:
        return "live" in self.stages

    def milliseconds(self) -> dict[str, float]:
        """Time of each stage after detection, in ms."""
        start = self.stages.get("detected", 0.0)
        return {stage: (at - start) * 1000 for stage, at in self.stages.items()}

    @property
    def json(self) -> str:
        """All of it on one line; moments in ms after detection."""
        life = f"{self.incarnation.term}.{self.incarnation.n}"
        ms = {stage: round(at, 3) for stage, at in self.milliseconds().items()}
        told = {"task": self.name, "incarnation": life, "ms": ms, "log": self.log_length}
        return json.dumps(told)


@dataclass(frozen=True)
class Sample:
    """What a task said of itself at a moment (s since the epoch)."""

    at_s: float
    task: int
    counters: Mapping[str, int]


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
    """A slot as it is now. ``runs``: a task's name; ``keeps``: the standbys that are
    filled up to some floor."""

    place: int
    pid: int
    executor: str
    executor_pid: int
    runs: str | None
    keeps: tuple[str, ...]


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job, for :meth:`RunningJob.on_event`.

    ``what``: the stages of a recovery ("detected" to "live"); "floor": the checkpoint `value` is
    complete; "standby": a copy of the task has reached checkpoint `value`; "orphan": a task has to
    go back with a failed one; "generation": rows may have been delivered twice from here on.
    """

    what: str
    task: str
    value: int
    at_s: float


class Observer:
    """Collects notes and samples; read by other threads."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._open: dict[int, Recovery] = {}
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._latest: dict[int, tuple[Sample, Sample]] = {}
        self.listeners: list[Callable[[JobEvent], Any]] = []
        self.recoveries: list[Recovery] = []
        self.floors = 0
        self.generation = 0
        self.orphans = 0

    def note(self, note: Note, now_s: float) -> None:
        """Take a note of the coordinator."""
        self._collect(note, now_s)
        event = JobEvent(note.what, self._names.get(note.task, ""), note.value, now_s)
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # a listener's mistake must not end the job
                _LOGGER.exception("a listener of the job raised at %s", event)

    def _collect(self, note: Note, now_s: float) -> None:
        with self._lock:
            if note.what == "floor":
                self.floors = note.value
            elif note.what == "generation":
                self.generation = note.value
            elif note.what == "orphan":
                self.orphans += 1
            elif note.what == "detected":
                self._begin(note, now_s)
            elif note.task in self._open and note.what in STAGES:
                recovery = self._open[note.task]
                recovery.incarnation = note.incarnation
                recovery.stages[note.what] = now_s
                if note.what == "fetched":
                    recovery.log_length = note.value
                if note.what == "live":
                    del self._open[note.task]

    def _begin(self, note: Note, now_s: float) -> None:
        name = self._names[note.task]
        recovery = Recovery(note.task, name, note.incarnation, {"detected": now_s})
        self._open[note.task] = recovery
        self.recoveries.append(recovery)

    def dropped(self) -> dict[str, int]:
        """Rows left out so far, by operator and reason, over all tasks."""
        with self._lock:
            latest = [pair[1].counters for pair in self._latest.values()]
        result: dict[str, int] = {}
        for counters in latest:
            for name, count in counters.items():
                if name.endswith((": bad_records", ": late_rows")):
                    result[name] = result.get(name, 0) + count
        return result

    def sample(self, sample: Sample) -> None:
        with self._lock:
            self._samples.append(sample)
            previous = self._latest.get(sample.task)
            before = previous[1] if previous else sample
            self._latest[sample.task] = (before, sample)

    def samples(self) -> list[Sample]:
        with self._lock:
            return list(self._samples)

    def rates(self, task: int) -> tuple[float, float]:
        """Rows per second and latency in ms of a task, as of its last two samples."""
        with self._lock:
            pair = self._latest.get(task)
        if pair is None:
            return 0.0, 0.0
        before, now = pair
        seconds = now.at_s - before.at_s
        rows = now.counters.get("rows", 0) - before.counters.get("rows", 0)
        rate = max(rows, 0) / seconds if seconds > 0 else 0.0
        return rate, float(now.counters.get("latency_ms", 0))
