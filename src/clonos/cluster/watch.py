"""Makes what listeners hear out of what the driver knows anyway.

Slots tell how their task is doing four times a second, listeners or not
(:class:`~clonos.transport.events.TaskStatistics`); everything else here is known to the driver's
coordinator and house-keeper. So nothing is sent for it, and nothing is computed per row.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from clonos.cluster.listener import (
    CheckpointProgress,
    JobProgress,
    JobStarted,
    JobStatus,
    JobTerminated,
    Listener,
    OperatorProgress,
    TaskProgress,
)
from clonos.core.coordinator import Note, TaskPhase
from clonos.errors import ClonosError

if TYPE_CHECKING:
    from clonos.cluster.driver import RunningJob

_LOGGER: Final = logging.getLogger("clonos")

EVENTS_MAX: Final = 1000
"""A listener that has not heard so many events misses the oldest of them."""
RECENT_MAX: Final = 100
"""So many progresses are kept, as by a streaming query."""
REASONS: Final = ("bad_records", "late_rows")
TRAFFIC: Final = (": rows_in", ": rows_out")
"""Counters of operators, of which only the newest are kept."""


class Post:
    """Brings events to one listener, in a thread of its own; nobody waits for it.

    Parameters
    ----------
    warn
        Told once if the listener raises and once if it is too slow.
    """

    def __init__(self, listener: Listener, warn: Callable[[str], Any]) -> None:
        self.listener = listener
        self.lost = 0
        self._warn = warn
        self._events: deque[tuple[str, Any]] = deque()
        self._news = threading.Condition()
        self._closed = self._has_raised = False
        self._thread: threading.Thread | None = None

    def put(self, method: str, event: Any) -> None:
        """Have a method of the listener called, later."""
        with self._news:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="clonos-listener", daemon=True
                )
                self._thread.start()
            self._events.append((method, event))
            if is_full := len(self._events) > EVENTS_MAX:
                self._events.popleft()
                self.lost += 1
            self._news.notify()
        if is_full and self.lost == 1:
            self._warn(f"the listener {self._name} is too slow: it misses events")

    def close(self) -> None:
        """Nothing more will come."""
        with self._news:
            self._closed = True
            self._news.notify()

    def join(self, timeout_s: float) -> None:
        """Wait until it has heard everything, if that does not take longer."""
        if self._thread not in {None, threading.current_thread()}:
            self._thread.join(timeout_s)

    @property
    def _name(self) -> str:
        return type(self.listener).__name__

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._events:
                    if self._closed:
                        return
                    self._news.wait()
                method, event = self._events.popleft()
            try:
                getattr(self.listener, method)(event)
            except Exception as error:
                if not self._has_raised:
                    self._has_raised = True
                    _LOGGER.debug("%s.%s raised", self._name, method, exc_info=error)
                    self._warn(
                        f"the listener {self._name} raised {type(error).__name__} in {method}: "
                        f"{error} (said once)"
                    )


@dataclass
class _Counted:
    """What one task has said of itself."""

    now: Mapping[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    latency_ms: int = 0
    told: dict[str, int] = field(default_factory=dict)  # as of the last progress
    per_s: dict[str, float] = field(default_factory=dict)

    def take(self, counters: Mapping[str, int]) -> None:
        self.now = counters
        self.latency_ms = max(self.latency_ms, counters.get("latency_ms", 0))
        for name, count in counters.items():
            if count > self.most.get(name, -1):
                self.most[name] = count


class Watch:
    """The progress of one job, and its listeners. All but properties belongs to the driver's loop.

    Parameters
    ----------
    interval_s
        Time from one progress to the next.
    """

    def __init__(self, job: RunningJob, listeners: Sequence[Listener], interval_s: float) -> None:
        self._job = job
        self._interval_s = interval_s
        self._posts = [Post(listener, job.warn) for listener in listeners]
        self._tasks = {t.id: _Counted() for t in job.plan.tasks}
        self._operators = {c.task.id: [name for name, _ in c.operators] for c in job.compiled.codes}
        self._began_s: float | None = None
        self._floor_s: float | None = None
        self._floor_took_s: float | None = None
        self._looked_s: float | None = None
        self._reports = self._number = 0
        self.recent: deque[JobProgress] = deque(maxlen=RECENT_MAX)

    # --- what the driver tells ------------------------------------------------------------------

    def add(self, listener: Listener) -> None:
        """One more, who hears what comes from now on."""
        self._posts.append(Post(listener, self._job.warn))

    def remove(self, listener: Listener) -> None:
        """It hears no more; what it has been sent it still gets."""
        for post in [p for p in self._posts if p.listener is listener]:
            self._posts.remove(post)
            post.close()

    def started(self) -> None:
        job = self._job
        names = tuple(t.name for t in job.plan.tasks)
        application = str(job.spark.sparkContext.applicationId)
        self._put(
            "on_started",
            JobStarted(
                job.compiled.name,
                job.run_id,
                job.coordinator.term,
                names,
                job.pool.size,
                application,
            ),
        )

    def heard(self, task: int, counters: Mapping[str, int]) -> None:
        """A task has said how it is doing."""
        self._reports += 1
        self._tasks[task].take(counters)

    def epoch_began(self, now_s: float) -> None:
        self._began_s = now_s

    def noted(self, note: Note, now_s: float) -> None:
        """The coordinator has said what happened."""
        if note.what == "floor":
            self._floor_s = now_s
            self._floor_took_s = now_s - self._began_s if self._began_s is not None else None
        elif note.what == "live":
            for recovery in reversed(self._job.observer.recoveries):
                if (recovery.task, recovery.incarnation) == (note.task, note.incarnation):
                    told = replace(recovery, stages=dict(recovery.stages))
                    self._put("on_recovery", told)
                    break

    def tick(self, now_s: float) -> None:
        """Make a progress if it is time for one."""
        if self._looked_s is None or now_s >= self._looked_s + self._interval_s:
            self._look(now_s)

    def over(self, error: ClonosError | None, now_s: float, *, is_complete: bool) -> None:
        """The job has ended: one last progress, and the word."""
        self._look(now_s)
        name = self._job.compiled.name
        told = JobTerminated(name, self._job.run_id, is_complete, str(error) if error else None)
        self._put("on_terminated", told)
        for post in self._posts:
            post.close()

    def join(self, timeout_s: float) -> None:
        """Let listeners hear the end."""
        until = time.monotonic() + timeout_s
        for post in list(self._posts):
            post.join(max(0.0, until - time.monotonic()))

    def _put(self, method: str, event: Any) -> None:
        for post in list(self._posts):
            post.put(method, event)

    # --- a progress -----------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        job = self._job
        seconds = now_s - self._looked_s if self._looked_s is not None else 0.0
        self._looked_s = now_s
        self._number += 1
        standbys: dict[int, int] = dict.fromkeys(self._tasks, 0)
        for slot in job.coordinator.slots.values():
            for task, epoch in slot.standbys.items():
                standbys[task] += epoch >= 0
        tasks = tuple(self._task(t, seconds, standbys[t]) for t in self._tasks)
        keeper = job.host.keeper
        progress = JobProgress(
            name=job.compiled.name,
            run_id=job.run_id,
            number=self._number,
            timestamp=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            tasks=tasks,
            operators=_together(tasks),
            checkpoint=CheckpointProgress(
                keeper.epoch,
                now_s - self._floor_s if self._floor_s is not None else None,
                self._floor_took_s * 1000 if self._floor_took_s is not None else None,
                sum(task.state_bytes for task in tasks),
            ),
            delivered=dict(job.consumers.rows),
            recoveries=sum(r.finished for r in job.observer.recoveries),
            generation=keeper.generation,
            reports=self._reports,
        )
        self.recent.append(progress)
        self._put("on_progress", progress)

    def _task(self, task: int, seconds: float, standbys: int) -> TaskProgress:
        job, counted = self._job, self._tasks[task]
        state = job.coordinator.tasks[task]
        seat = job.pool.view(state.slot)
        now, most = counted.now, counted.most
        names = self._operators[task]
        operators = tuple(_operator(name, counted, seconds) for name in names)
        latency_ms, counted.latency_ms = counted.latency_ms, 0
        rows, entry_bytes = now.get("rows", 0), now.get("entry_bytes", 0)
        return TaskProgress(
            name=job.plan.tasks[task].name,
            phase=state.phase.value,
            incarnation=f"{state.incarnation.term}.{state.incarnation.n}",
            slot=seat.place if seat else None,
            executor=seat.executor if seat else None,
            pid=seat.pid if seat else None,
            rows_in=operators[0].rows_in,
            rows_out=operators[-1].rows_out,
            batches_in=most.get("batches_in", 0),
            batches_out=most.get("batches_out", 0),
            rows_per_s=operators[0].rows_per_s,
            latency_ms=latency_ms or None,
            backlog_bytes=now.get("backlog_bytes", 0),
            in_flight_bytes=now.get("inflight_bytes", 0),
            log_bytes=now.get("log_bytes", 0),
            log_bytes_per_row=entry_bytes / rows if rows else None,
            state_bytes=sum(ref.nbytes for ref in job.host.keeper.layers[task]),
            standbys=standbys,
            operators=operators,
        )

    @property
    def status(self) -> JobStatus:
        """In short how the job is."""
        job = self._job
        if not job.is_running:
            return JobStatus("ended", is_running=False, is_recovering=False)
        states = list(job.coordinator.tasks.values())
        counts: dict[str, int] = {}
        for state in states:
            counts[state.phase.value] = counts.get(state.phase.value, 0) + 1
        message = ", ".join(f"{count} {phase}" for phase, count in counts.items())
        up = (TaskPhase.LIVE, TaskPhase.FINISHED)
        is_recovering = any(s.phase not in up and s.incarnation.n > 0 for s in states)
        return JobStatus(f"tasks: {message}", is_running=True, is_recovering=is_recovering)


def _operator(name: str, counted: _Counted, seconds: float) -> OperatorProgress:
    key = f"{name}: rows_in"
    rows = counted.most.get(key, 0)
    fresh = rows - counted.told.get(key, rows)  # what it begins with, another run has counted
    if key in counted.most:
        counted.told[key] = rows
    return OperatorProgress(
        name,
        rows,
        counted.most.get(f"{name}: rows_out", 0),
        fresh / seconds if seconds > 0 else 0.0,
        {r: count for r in REASONS if (count := counted.most.get(f"{name}: {r}", 0))},
    )


def _together(tasks: Sequence[TaskProgress]) -> tuple[OperatorProgress, ...]:
    """Every operator once: the sums over its tasks."""
    found: dict[str, OperatorProgress] = {}
    for task in tasks:
        for one in task.operators:
            sum_ = found.get(one.name, OperatorProgress(one.name, 0, 0, 0.0, {}))
            dropped = dict(sum_.dropped)
            for reason, count in one.dropped.items():
                dropped[reason] = dropped.get(reason, 0) + count
            found[one.name] = OperatorProgress(
                one.name,
                sum_.rows_in + one.rows_in,
                sum_.rows_out + one.rows_out,
                sum_.rows_per_s + one.rows_per_s,
                dropped,
            )
    return tuple(found.values())
