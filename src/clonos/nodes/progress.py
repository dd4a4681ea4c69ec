"""Builds progress reports from what the driver knows anyway.

Slots send their task's statistics four times a second, listeners or not
(:class:`~clonos.transport.events.TaskStatistics`); the driver's coordinator and house-keeper know
everything else. So no other messages are needed, and nothing is computed per row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime, timezone
from typing import Final

from clonos.core import notes
from clonos.core.coordinator import Coordinator
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import AUTO, STORE
from clonos.core.plan import HOUSE_KEEPER
from clonos.core.roster import TaskPhase
from clonos.core.watch import LIVES
from clonos.nodes.alarms import Alarms
from clonos.nodes.places import Seat
from clonos.nodes.settings import DriverSettings
from clonos.nodes.views import (
    CheckpointProgress,
    DriverView,
    HistoryProgress,
    JobProgress,
    JobStatus,
    LevelChanged,
    OperatorProgress,
    Recovery,
    Sample,
    SlotView,
    Spent,
    TaskProgress,
    TaskView,
)

RECOVERIES_MAX: Final = 1000
"""How many recoveries are remembered."""
RECENT_MAX: Final = 100
"""Progress reports kept, as by a streaming query."""
MICROS: Final = 1_000_000
"""Slots report costs in millionths of their unit."""
REASONS: Final = ("bad_records", "late_rows")
_SPENT: Final = ("calls", "micros", "hits", "tokens", "unknown")


@dataclass
class _Counted:
    """What one task has reported."""

    now: Mapping[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    latency_ms: int = 0
    told: dict[str, int] = field(default_factory=dict)  # as of the last progress
    samples: tuple[Sample, Sample] | None = None  # the last two

    def take(self, counters: Mapping[str, int]) -> None:
        self.now = counters
        self.latency_ms = max(self.latency_ms, counters.get("latency_ms", 0))
        for name, count in counters.items():
            if count > self.most.get(name, -1):
                self.most[name] = count

    @property
    def rates(self) -> tuple[float, float]:
        """Rows per second and latency in ms, as of the last two samples."""
        if self.samples is None:
            return 0.0, 0.0
        before, now = self.samples
        seconds = now.at_s - before.at_s
        rows = now.counters.get("rows", 0) - before.counters.get("rows", 0)
        rate = max(rows, 0) / seconds if seconds > 0 else 0.0
        return rate, float(now.counters.get("latency_ms", 0))


class Chronicle:
    """What is reported about one run of a job.

    Parameters
    ----------
    seat
        Returns the process of a slot.
    delivered
        Rows delivered so far, by sink.
    """

    def __init__(
        self,
        settings: DriverSettings,
        coordinator: Coordinator,
        seat: Callable[[int | None], Seat | None],
        delivered: Mapping[str, int],
    ) -> None:
        self._name, self._run_id = settings.name, settings.run_id
        self._operators = settings.operators
        self._coordinator, self._seat, self._delivered = coordinator, seat, delivered
        self._names = tuple(t.name for t in coordinator.plan.tasks)
        self._tasks = {t.id: _Counted() for t in coordinator.plan.tasks}
        self._began_s: float | None = None
        self._floor_s: float | None = None
        self._floor_took_s: float | None = None
        self._looked_s: float | None = None
        self._reports = self._number = 0
        self._recent: deque[JobProgress] = deque(maxlen=RECENT_MAX)
        self._recoveries: dict[int, Recovery] = {}  # by number
        self._recovered = 0
        self._levels: dict[int, tuple[notes.Level, float]] = {}  # the last change, and when
        self._weaker = set[int]()  # tasks about which a warning was given
        self._alarms = Alarms(coordinator.plan)
        self._begun = 0
        self._open: dict[int, int] = {}  # by task: number of its recovery
        self._floor = self._orphans = 0

    # --- what the driver tells ------------------------------------------------------------------

    def heard(self, sample: Sample, *, is_current: bool) -> str | None:
        """A life of a task has sent its statistics. Return a warning: each only once, or once for
        each outage."""
        counted = self._tasks[sample.task]
        if is_current:
            self._reports += 1
            counted.take(sample.counters)
            if self._coordinator.keeper.complete:  # the last ones come when slots end
                self.keep_counts()
        counted.samples = (counted.samples[1] if counted.samples else sample, sample)
        return self._alarms.heard(sample)

    def epoch_began(self, now_s: float) -> None:
        self._began_s = now_s

    def warning(self, note: notes.Note) -> str | None:
        """The warning for a note of the coordinator, if any."""
        match note:
            case notes.Generation(number):
                return f"job {self._name!r}: {self._loss()}; it goes on in generation {number}"
            case notes.Back(epoch):
                return (
                    f"job {self._name!r}: layers that were not yet in the checkpoint directory are "
                    "lost, with all processes and disks that had them; all tasks go back to the "
                    f"newest checkpoint in the directory (number {epoch}). No row is lost or "
                    "delivered twice"
                )
            case notes.OfTask():
                return self._warning(note, self._names[note.task])
        return None

    def _warning(self, note: notes.OfTask, name: str) -> str | None:
        """The same, of what is about the task of this name."""
        match note:
            case notes.Outside(deaths=deaths):
                return (
                    f"{name}: its process has died {deaths + 1} times in a row, outside of its "
                    "steps and soon after it was started. If nobody kills it, it may be the open() "
                    "of a function, or a call, that ends the process (in native code, or by "
                    "os._exit). To find a call, those that are open are made one at a time for "
                    "now. The executor's log says how the process has ended"
                )
            case notes.Together(deaths=deaths):
                return (
                    f"{name}: its executor has died {deaths + 1} times in a row, soon after the "
                    "task was started. If nobody kills it, it may be a call that ends it (by too "
                    "much memory, or in native code). To find it, the calls that are open are made "
                    "one at a time for now. The executor's log says how it has ended"
                )
            case notes.Call():
                proof = "other calls were under way, too, so this proves nothing"
                if note.is_alone:
                    proof = (
                        f"nothing else was asked there. This is proof {note.proofs} of {LIVES} "
                        "that the call ends it; then the call has an error, and is not made again"
                    )
                return (
                    f"{name}: its executor has died while this call was made: {note.call}; {proof}"
                )
            case notes.Unreachable(channel=channel, why=why) if why:
                receiver = self._coordinator.plan.channels[channel].receiver
                far = "the driver" if receiver == HOUSE_KEEPER else self._names[receiver]
                return (
                    f"{name} does not reach {far}: {why}. While that lasts, tasks move to where "
                    "they reach each other, and some executors may have none. Is there a firewall "
                    "between them? docs/deploy.md says which ports it must let through"
                )
            case notes.Level(task, level, why) if why and task not in self._weaker:
                self._weaker.add(task)  # only the first one about a task's level
                return (
                    f"{name}: {why}; its state is kept at {level!r}, too, until the directory "
                    "keeps up again. No row is lost, but logs grow, and input is kept. Is the "
                    "directory full, slow or away? A longer checkpoint_interval writes less"
                )
        return None

    def _loss(self) -> str:
        """What a failure means for the rows of a job that goes on in another generation."""
        plan = self._coordinator.plan
        if plan.leaves_gaps:
            return (
                "a failure took what its tasks knew and had not delivered "
                "(guarantee='at_most_once'): they begin empty, and no row is delivered twice"
            )
        if not plan.causal_log:
            return (
                "a failure took what was done since the last checkpoint "
                "(guarantee='at_least_once'): it is done again, and rows may be delivered twice"
            )
        return (
            "a failure took log entries that no other process held; on_orphan='availability': rows "
            "may have been delivered twice"
        )

    def noted(self, note: notes.Note, now_s: float) -> Recovery | LevelChanged | None:
        """Take a note of the coordinator; return the news for listeners, if any."""
        match note:
            case notes.Level(task, level, why):
                before = self._level(task)
                self._levels[task] = note, now_s
                return LevelChanged(self._names[task], level, before, why)
            case notes.Floor(epoch):
                self._floor, self._floor_s = epoch, now_s
                self._floor_took_s = now_s - self._began_s if self._began_s is not None else None
            case notes.Orphan():
                self._orphans += 1
            case notes.Detected(task, life):
                self._begun = number = self._open[task] = self._begun + 1
                level = self._level(task)
                self._levels.pop(task, None)  # the next life begins with the strongest
                stages = {note.what: now_s}
                recovery = Recovery(task, self._names[task], life, stages, kept=level)
                self._recoveries[number] = recovery
                self._forget_oldest()
            case notes.Stage(task) if task in self._open:
                return self._stage(note, now_s)
        return None

    def _forget_oldest(self) -> None:
        over = self._recoveries.keys() - self._open.values()
        if over and len(self._recoveries) > RECOVERIES_MAX:
            del self._recoveries[min(over)]

    def _stage(self, note: notes.Stage, now_s: float) -> Recovery | None:
        number = self._open[note.task]
        before = self._recoveries[number]
        stages = {**before.stages, note.what: now_s}
        recovery = replace(before, incarnation=note.incarnation, stages=stages)
        match note:
            case notes.Fetched(length=length):
                recovery = replace(recovery, log_length=length)
            case notes.Restored(store_bytes=came, state_bytes=whole):
                recovery = replace(recovery, store_bytes=came, state_bytes=whole)
        self._recoveries[number] = recovery
        if not isinstance(note, notes.Live):
            return None
        del self._open[note.task]
        self._recovered += 1
        return recovery

    def _level(self, task: int) -> str:
        """The level at which the next layers of a task are kept."""
        level = self._coordinator.plan.tasks[task].level
        chosen = self._levels[task][0].level if task in self._levels else STORE
        return chosen if level == AUTO else level

    # --- a progress -----------------------------------------------------------------------------

    def is_due(self, now_s: float, interval_s: float) -> bool:
        """Whether a progress report is due."""
        return self._looked_s is None or now_s >= self._looked_s + interval_s

    def progress(self, now_s: float, wall_s: float) -> JobProgress:
        """Return a report on the time since the last one."""
        seconds = now_s - self._looked_s if self._looked_s is not None else 0.0
        self._looked_s = now_s
        self._number += 1
        copies: dict[int, list[int]] = {task: [] for task in self._tasks}
        for slot in self._coordinator.slots.values():
            for task, epoch in slot.standbys.items():
                if epoch >= 0:
                    copies[task].append(epoch)
        tasks = tuple(self._task(task, seconds, copies[task], now_s) for task in self._tasks)
        keeper = self._coordinator.keeper
        progress = JobProgress(
            name=self._name,
            run_id=self._run_id,
            number=self._number,
            timestamp=_timestamp(wall_s),
            tasks=tasks,
            operators=_together(tasks),
            checkpoint=CheckpointProgress(
                keeper.epoch,
                # A floor may be noted after the turn has begun that makes this report.
                max(now_s - self._floor_s, 0.0) if self._floor_s is not None else None,
                self._floor_took_s * 1000 if self._floor_took_s is not None else None,
                sum(task.state_bytes for task in tasks),
                keeper.hard.epoch,
            ),
            delivered=dict(self._delivered),
            recoveries=self._recovered,
            generation=keeper.forgiven,
            reports=self._reports,
            history=_history(keeper),
        )
        self._recent.append(progress)
        return progress

    def _task(self, task: int, seconds: float, copies: Sequence[int], now_s: float) -> TaskProgress:
        counted, state = self._tasks[task], self._coordinator.tasks[task]
        seat = self._seat(state.slot)
        now, most = counted.now, counted.most
        operators = tuple(_operator(name, counted, seconds) for name in self._operators[task])
        latency_ms, counted.latency_ms = counted.latency_ms, 0
        floor = self._coordinator.keeper.positions[task]
        layers = self._coordinator.keeper.layers[task]
        newest = layers[-1].epoch if layers else 0
        rows, entry_bytes = now.get("rows", 0), now.get("entry_bytes", 0)
        return TaskProgress(
            name=self._names[task],
            phase=state.phase.value,
            incarnation=f"{state.incarnation.term}.{state.incarnation.n}",
            slot=seat.place if seat else None,
            executor=seat.executor if seat else None,
            pid=seat.pid if seat else None,
            rows_in=operators[0].rows_in if operators else 0,
            rows_out=operators[-1].rows_out if operators else 0,
            batches_in=most.get("batches_in", 0),
            batches_out=most.get("batches_out", 0),
            rows_per_s=operators[0].rows_per_s if operators else 0.0,
            latency_ms=latency_ms or None,
            backlog_bytes=now.get("backlog_bytes", 0),
            in_flight_bytes=now.get("inflight_bytes", 0),
            spilled_bytes=now.get("spilled_bytes", 0),
            log_bytes=now.get("log_bytes", 0),
            log_bytes_per_row=entry_bytes / rows if rows else None,
            steps_to_replay=max(now.get("position", 0) - floor, 0),
            state_bytes=sum(ref.nbytes for ref in layers),
            standbys=len(copies),
            current_standbys=sum(epoch >= newest for epoch in copies),
            operators=operators,
            lag=now.get("lag"),
            persistence=self._coordinator.plan.tasks[task].level,
            level=self._level(task),
            level_for_s=now_s - self._levels[task][1] if task in self._levels else None,
            level_why=self._levels[task][0].why if task in self._levels else "",
        )

    # --- a view ---------------------------------------------------------------------------------

    def view(self, *, is_running: bool) -> DriverView:
        """Return an immutable view for other threads."""
        states = list(self._coordinator.tasks.values())
        bill, dropped = self._counts()
        return DriverView(
            tasks=tuple(self._task_view(state.id) for state in states),
            slots=self._slot_views(),
            status=self._status() if is_running else JobStatus("ended", False, False),
            recent=tuple(self._recent),
            recoveries=tuple(self._recoveries.values()),
            recovered=self._recovered,
            floor=self._floor,
            generation=self._coordinator.keeper.forgiven,
            orphans=self._orphans,
            dropped=dropped,
            bill=bill,
            delivered=dict(self._delivered),
            is_complete=self._coordinator.keeper.complete,
        )

    def _task_view(self, task: int) -> TaskView:
        state = self._coordinator.tasks[task]
        seat = self._seat(state.slot)
        return TaskView(
            task,
            self._names[task],
            state.phase.value,
            state.incarnation,
            seat.place if seat else None,
            seat.pid if seat else None,
            *self._tasks[task].rates,
        )

    def _slot_views(self) -> tuple[SlotView, ...]:
        tasks = self._coordinator.tasks.values()
        views = []
        for slot in self._coordinator.slots.values():
            seat = self._seat(slot.id)
            if seat is None:
                continue
            views.append(
                SlotView(
                    seat.place,
                    seat.pid,
                    seat.executor,
                    seat.executor_pid,
                    tuple(self._names[t.id] for t in tasks if t.slot == slot.id),
                    tuple(self._names[t] for t, epoch in slot.standbys.items() if epoch >= 0),
                )
            )
        return tuple(views)

    def _status(self) -> JobStatus:
        states = self._coordinator.tasks.values()
        counts: dict[str, int] = {}
        for state in states:
            counts[state.phase.value] = counts.get(state.phase.value, 0) + 1
        message = ", ".join(f"{count} {phase}" for phase, count in counts.items())
        up = (TaskPhase.LIVE, TaskPhase.FINISHED)
        is_recovering = any(s.phase not in up and s.incarnation.n > 0 for s in states)
        return JobStatus(f"tasks: {message}", is_running=True, is_recovering=is_recovering)

    def _bill(self) -> dict[str, Spent]:
        found: dict[str, list[int]] = {}
        for task, counted in self._tasks.items():
            for name in self._operators[task]:
                each = [counted.most.get(f"{name}: {what}", 0) for what in _SPENT]
                if any(each):
                    before = found.get(name, [0] * len(each))
                    found[name] = [a + b for a, b in zip(before, each, strict=True)]
        return {
            name: Spent(calls, micros / MICROS, *others)
            for name, (calls, micros, *others) in found.items()
        }

    def keep_counts(self) -> None:
        """Let the journal keep bill and dropped rows: of a job that is complete, the state in which
        they are counted is gone."""
        bill = {name: list(astuple(spent)) for name, spent in self._bill().items()}
        dropped = self._dropped()
        if bill or dropped:
            self._coordinator.keeper.count({"bill": bill, "dropped": dropped})

    def _counts(self) -> tuple[dict[str, Spent], dict[str, int]]:
        """Bill and dropped rows; of a job that was complete before this run, those of then."""
        bill, dropped, keeper = self._bill(), self._dropped(), self._coordinator.keeper
        if keeper.complete and keeper.counted and not (bill or dropped):
            bill = {name: Spent(*each) for name, each in keeper.counted["bill"].items()}
            dropped = keeper.counted["dropped"]
        return bill, dropped

    def _dropped(self) -> dict[str, int]:
        result: dict[str, int] = {}
        for counted in self._tasks.values():
            newest = counted.samples[1].counters if counted.samples else {}
            for name, count in newest.items():
                if name.endswith((": bad_records", ": late_rows")):
                    result[name] = result.get(name, 0) + count
        return result


def _operator(name: str, counted: _Counted, seconds: float) -> OperatorProgress:
    key = f"{name}: rows_in"
    rows = counted.most.get(key, 0)
    fresh = rows - counted.told.get(key, rows)  # the first value was counted by another run
    if key in counted.most:
        counted.told[key] = rows
    return OperatorProgress(
        name,
        rows,
        counted.most.get(f"{name}: rows_out", 0),
        fresh / seconds if seconds > 0 else 0.0,
        {r: count for r in REASONS if (count := counted.most.get(f"{name}: {r}", 0))},
        counted.most.get(f"{name}: calls", 0),
        counted.most.get(f"{name}: micros", 0) / MICROS,
        counted.most.get(f"{name}: hits", 0),
        counted.most.get(f"{name}: tokens", 0),
        counted.most.get(f"{name}: unknown", 0),
    )


def _timestamp(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, timezone.utc).isoformat(timespec="milliseconds")


def _history(keeper: HouseKeeper) -> HistoryProgress:
    history = keeper.history
    since = _timestamp(history.points[0].at_ms / 1000) if history.points else None
    return HistoryProgress(len(history.points), since, history.kept_bytes)


def _together(tasks: Sequence[TaskProgress]) -> tuple[OperatorProgress, ...]:
    """Each operator once, summed over its tasks."""
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
                sum_.calls + one.calls,
                round(sum_.cost + one.cost, 6),
                sum_.hits + one.hits,
                sum_.tokens + one.tokens,
                sum_.unknown + one.unknown,
            )
    return tuple(found.values())
