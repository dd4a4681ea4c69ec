"""What is told of a job, made out of what its driver knows."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import clonos
from clonos.core import decisions as co
from clonos.core import notes
from clonos.core.coordinator import Coordinator
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import LayerRef
from clonos.core.placement import Slot
from clonos.core.plan import Incarnation
from clonos.core.roster import TaskPhase
from clonos.nodes import progress
from clonos.nodes.places import Seat
from clonos.nodes.progress import Chronicle
from clonos.nodes.settings import DriverSettings
from clonos.nodes.views import Sample
from clonos.transport.events import Away


def word_count() -> clonos.Job:
    job = clonos.Job("wordcount")
    texts = [("to be or",), ("not to be",)]
    lines = job.source(clonos.sources.from_batches([texts], schema="value string"), name="lines")
    words = lines.flat_map(lambda row: row.value.split(), schema="word string", name="words")
    counts = words.key_by("word").window(clonos.tumbling("1 second")).agg(n=clonos.count())
    counts.sink(clonos.sinks.collect(), name="out")
    return job


class Job:
    """A job with a slot, number 9, in place 4."""

    def __init__(self) -> None:
        compiled = word_count().compile()
        self.plan = compiled.plan
        self.keeper = HouseKeeper(self.plan, lambda batch: b"", lambda content: None)
        self.coordinator = Coordinator(self.plan, self.keeper, address="here")
        link: Any = None
        self.seats = {9: Seat(4, 77, "1", 7, link)}
        names = {c.task.id: [name for name, _ in c.operators] for c in compiled.codes}
        self.chronicle = Chronicle(
            DriverSettings("wordcount", "wordcount-1", "here", (), names),
            self.coordinator,
            lambda slot: self.seats.get(slot) if slot is not None else None,
            {"out": 3},
        )

    def heard(self, task: int, counters: dict[str, int], at_s: float = 0.0) -> None:
        self.chronicle.heard(Sample(at_s, task, counters), is_current=True)


@pytest.fixture
def job() -> Job:
    return Job()


def report(rows: int, **more: int) -> dict[str, int]:
    return {
        "rows": rows,
        "lines: rows_in": rows,
        "lines: rows_out": rows,
        "words: rows_in": rows,
        "words: rows_out": 4 * rows,
        "window_partial: rows_in": 4 * rows,
        "window_partial: rows_out": 3 * rows,
        **more,
    }


def test_a_progress_says_all_of_it(job):
    seen = job.chronicle
    job.coordinator.tasks[0].slot = 9
    job.coordinator.tasks[0].machine.state = TaskPhase.LIVE
    assert seen.is_due(100.0, 1.0)
    seen.progress(100.0, 0.0)
    assert not seen.is_due(100.9, 1.0)
    counters = report(50, batches_in=5, batches_out=4, entry_bytes=400, inflight_bytes=7)
    counters["position"] = 9
    job.heard(0, {**counters, "words: bad_records": 2, "latency_ms": 12})
    job.heard(0, {**counters, "words: bad_records": 2, "latency_ms": 3})
    ref = LayerRef(0, 1, Incarnation(1, 0), 5, "0/1", 1000, 0)
    seen.epoch_began(100.95)
    job.keeper.layers[0] = (ref, ref)
    for number, epoch in enumerate((-1, 0, 1)):  # a copy is empty, one is old
        job.coordinator.slots[number] = Slot(number, "", standbys={0: epoch})
    job.keeper.positions[0] = 5
    job.keeper.epoch = 1
    seen.noted(notes.Floor(1), 101.0)
    progress = seen.progress(102.0, 1.5)
    last = seen.progress(103.0, 2.5)

    task = progress.tasks[0]
    assert (task.phase, task.incarnation, task.slot, task.executor, task.pid) == (
        "live",
        "1.0",
        4,
        "1",
        77,
    )
    assert (task.rows_in, task.rows_out, task.batches_in, task.batches_out) == (50, 150, 5, 4)
    assert (task.rows_per_s, task.latency_ms, task.in_flight_bytes) == (0.0, 12, 7)
    assert (task.log_bytes_per_row, task.state_bytes) == (8.0, 2000)
    assert task.steps_to_replay == 4
    assert (task.standbys, task.current_standbys) == (2, 1)
    assert progress.tasks[1].slot is None
    words = next(o for o in progress.operators if o.name == "words")
    assert (words.rows_in, words.rows_out, words.dropped) == (50, 200, {"bad_records": 2})
    floor = progress.checkpoint
    assert (floor.id, floor.age_s, floor.state_bytes) == (1, 1.0, 2000)
    assert floor.duration_ms == pytest.approx(50)
    assert (progress.number, progress.reports, progress.delivered) == (2, 2, {"out": 3})
    assert progress.timestamp == "1970-01-01T00:00:01.500+00:00"
    assert last.tasks[0].latency_ms is None
    assert [p.number for p in seen.view(is_running=True).recent] == [1, 2, 3]
    assert json.loads(progress.json)
    seen.noted(notes.Floor(2), 104.02)  # within the turn that began at 104.0
    assert seen.progress(104.0, 3.5).checkpoint.age_s == 0.0


def test_rates_and_counts_when_a_task_starts_over(job):
    now = 0.0
    shown = []
    # 400 rows; lost at 700, of which 200 had been heard of; replayed from 400 on; then on.
    for rows in (0, 400, 600, 400, 500, 700, 900):
        job.heard(0, report(rows))
        task = job.chronicle.progress(now, 0.0).tasks[0]
        shown.append((task.rows_in, task.rows_per_s))
        now += 2.0
    counts, rates = zip(*shown, strict=True)
    assert counts == (0, 400, 600, 600, 600, 700, 900)
    assert rates == (0.0, 200.0, 100.0, 0.0, 0.0, 50.0, 100.0)


def test_who_cannot_be_reached_is_warned_of(job):
    channel = job.plan.tasks[0].outputs[0]
    note = notes.Unreachable(0, channel, "10.0.0.1 is silent")
    warning = job.chronicle.warning(note)
    names = [job.plan.tasks[t].name for t in (0, job.plan.channels[channel].receiver)]
    assert warning is not None
    assert warning.startswith(f"{names[0]} does not reach {names[1]}: 10.0.0.1 is silent. ")
    assert job.chronicle.warning(replace(note, why="")) is None, "it was told before"


def test_a_recovery_is_told_when_it_is_over(job):
    life = Incarnation(1, 1)
    seen = job.chronicle
    assert seen.noted(notes.Detected(1, life), 5.0) is None
    before = seen.view(is_running=True)
    assert seen.noted(notes.Fetched(1, life, 9), 5.25) is None
    recovery = seen.noted(notes.Live(1, life, 11), 5.5)
    assert seen.noted(notes.Live(0, Incarnation(1, 0), 0), 6.0) is None  # began like that
    assert recovery.milliseconds() == {"detected": 0.0, "fetched": 250.0, "live": 500.0}
    told = json.loads(recovery.json)
    assert (told["incarnation"], told["log"], told["task"]) == ("1.1", 9, job.plan.tasks[1].name)
    assert seen.view(is_running=True).recoveries == (recovery,)
    assert not before.recoveries[0].finished  # what was seen stays as it was
    assert seen.progress(7.0, 0.0).recoveries == 1


def test_the_newest_recoveries_are_remembered_and_all_are_counted(job, monkeypatch):
    """One under way is never forgotten, however long it takes."""
    monkeypatch.setattr(progress, "RECOVERIES_MAX", 3)
    seen = job.chronicle
    seen.noted(notes.Detected(0, Incarnation(1, 0)), 4.0)
    for n in range(5):
        seen.noted(notes.Detected(1, Incarnation(1, n)), 5.0 + n)
        seen.noted(notes.Live(1, Incarnation(1, n + 1), 11), 5.5 + n)
    known = seen.view(is_running=True).recoveries
    assert [(r.task, r.stages["detected"]) for r in known] == [(0, 4.0), (1, 8.0), (1, 9.0)]
    assert seen.noted(notes.Live(0, Incarnation(1, 1), 0), 11.0) is not None
    assert seen.view(is_running=True).recovered == seen.progress(12.0, 0.0).recoveries == 6


@pytest.mark.parametrize(
    ("came", "whole", "level"), [(0, 0, "start"), (0, 900, "standby"), (7, 900, "store")]
)
def test_where_state_came_from_is_told(job, came, whole, level):
    life, seen = Incarnation(1, 1), job.chronicle
    seen.noted(notes.Detected(1, life), 5.0)
    (before,) = seen.view(is_running=True).recoveries
    assert before.level is None
    seen.noted(notes.Restored(1, life, came, whole), 5.25)
    recovery = seen.noted(notes.Live(1, life, 11), 5.5)
    assert (recovery.level, recovery.store_bytes, recovery.state_bytes) == (level, came, whole)
    told = json.loads(recovery.json)
    assert (told["level"], told["store_bytes"], told["state_bytes"]) == (level, came, whole)


def test_status(job):
    assert job.chronicle.view(is_running=True).status.message == "tasks: 2 waiting for a slot"
    assert not job.chronicle.view(is_running=True).status.is_recovering
    for state in job.coordinator.tasks.values():
        state.machine.state = TaskPhase.LIVE
    job.coordinator.tasks[1].machine.state = TaskPhase.REPLAYING
    job.coordinator.tasks[1].incarnation = Incarnation(1, 1)
    status = job.chronicle.view(is_running=True).status
    assert status.message == "tasks: 1 live, 1 replaying"
    assert status.is_recovering
    assert job.chronicle.view(is_running=False).status.message == "ended"


def test_slots_and_rates_of_tasks(job):
    job.coordinator.handle(co.SlotReady(9, "there", "executor"), 0)
    job.coordinator.tasks[0].slot, job.coordinator.tasks[1].slot = None, 9
    job.heard(1, {"rows": 100, "latency_ms": 2}, 1.0)
    job.heard(1, {"rows": 300, "latency_ms": 5}, 3.0)
    view = job.chronicle.view(is_running=True)
    (slot,) = view.slots
    assert (slot.place, slot.pid, slot.runs) == (4, 77, (job.plan.tasks[1].name,))
    assert (view.tasks[1].slot, view.tasks[1].rows_per_s, view.tasks[1].latency_ms) == (4, 100, 5)
    assert view.tasks[0].slot is None


def test_dropped_rows_are_added_up(job):
    for task, at_s, count in ((0, 1.0, 1), (0, 2.0, 3), (1, 1.0, 4)):
        job.heard(task, {"a: bad_records": count, "rows": 9}, at_s)
    assert job.chronicle.view(is_running=True).dropped == {"a: bad_records": 7}


def test_little_memory_is_told_once_for_each_process(job):
    def heard(task: int, kept: int, left: int) -> Any:
        counters = {"memory_kept": kept, "memory_left": left}
        return job.chronicle.heard(Sample(0.0, task, report(1, **counters)), is_current=True)

    assert heard(0, 0, 0) is None  # nobody knows
    assert heard(0, 4_000_000_000, 1_000_000_000) is None
    warning = heard(0, 4_000_000_000, 990_000_000)
    assert warning.startswith(f"{job.plan.tasks[0].name}: its process keeps 4,000 MB of memory")
    assert "990 MB are left" in warning
    assert heard(0, 5_000_000_000, 0) is None
    assert all(heard(task, 5_000_000_000, 0) is None for task in job.plan.cell_of[0])


def told(job: Any, **counters: int) -> Any:
    """The warning that follows from a report of task 1, if any."""
    return job.chronicle.heard(Sample(0.0, 1, report(1, **counters)), is_current=True)


def test_a_store_that_takes_nothing_is_told_once_for_each_time(job):
    heard = partial(told, job)
    assert heard(store_away_s=9) is None
    warning = heard(store_away_s=10)
    assert warning.startswith(f"{job.plan.tasks[1].name}: the store ")
    assert "for 10 s" in warning
    assert heard(store_away_s=60) is None
    assert heard() is None  # it is back ...
    assert "for 12 s" in heard(store_away_s=12), "... and away once more"


def test_a_source_that_cannot_be_read_is_told_once_for_each_time(job):
    heard = partial(told, job)
    assert heard(source_away_s=9) is None
    warning = heard(source_away_s=10)
    assert warning.startswith(f"{job.plan.tasks[1].name}: its source, or a part of it, could not ")
    assert heard(source_away_s=60) is None
    assert heard() is None  # it is back ...
    assert "for 12 s" in heard(source_away_s=12), "... and away once more"


def test_a_service_that_answers_nothing_is_told_once_for_all_tasks(job):
    def heard(task: int, **away: int) -> Any:
        found = {name: Away(s, "ask", f"E: {name} is down") for name, s in away.items()}
        sample = Sample(3600.0, task, report(1), found)
        return job.chronicle.heard(sample, is_current=True)

    assert heard(1, model=9) is None
    warning = heard(1, model=10)
    assert warning.startswith(f"model in {job.plan.tasks[1].name}: ask has answered nothing for 10")
    assert "since 1970-01-01 00:59:50 UTC; its last error was E: model is down." in warning
    assert heard(1, model=60) is None
    assert heard(0, model=12) is None, "it is the same service"
    assert "bank is down" in heard(0, model=12, bank=12), "another one"
    assert heard(1) is None
    assert heard(1, model=12) is None, "another task has had no answer all the time"
    assert heard(1) is None
    assert heard(0) is None  # it is back ...
    assert "for 12 s" in heard(1, model=12), "... and away once more"


def test_services_that_fall_silent_together_are_all_told(job):
    away = {name: Away(10, "ask", "E") for name in ("model", "bank")}
    sample = Sample(0.0, 0, report(1), away)
    told = [job.chronicle.heard(sample, is_current=True) for _ in range(3)]
    assert [text and text.split()[0] for text in told] == ["model", "bank", None]


def test_rows_that_a_source_has_missed_are_told_once(job):
    heard = partial(told, job)
    warning = heard(missed_rows=1_200)
    assert "gone before they could be read (1,200 so far)" in warning
    assert heard(missed_rows=9_000) is None
    warning = heard(missed_rows=9_000, shrunk_parts=1)
    assert "ends before what was read of it" in warning
    assert heard(shrunk_parts=2) is None


def test_a_conversation_without_end_is_told_once(job):
    heard = partial(told, job)
    assert heard(**{"agent: most_answers": 999, "agent: calls": 5_000}) is None
    warning = heard(**{"agent: most_answers": 1_234})
    assert warning.startswith(f"agent in {job.plan.tasks[1].name}: a conversation has had 1,234 ")
    assert heard(**{"agent: most_answers": 2_000}) is None


def test_a_directory_that_takes_no_layers_is_told_once_for_each_time(job):
    heard = partial(told, job)
    assert heard(layer_waits_s=9) is None
    warning = heard(layer_waits_s=11)
    assert warning.startswith(f"{job.plan.tasks[1].name}: the checkpoint directory has not taken")
    assert "for 11 s" in warning
    assert heard(layer_waits_s=60) is None
    assert "the store that it writes to" in heard(layer_waits_s=61, store_away_s=10), "another one"
    assert heard() is None
    assert heard(layer_waits_s=12) is not None


@pytest.mark.parametrize(
    ("logs", "gaps", "says", "says_not"),
    [
        (True, False, "on_orphan='availability'", "guarantee"),
        (False, False, "guarantee='at_least_once'", "on_orphan"),
        (False, True, "guarantee='at_most_once'", "may be"),
    ],
)
def test_what_a_loss_means_depends_on_the_guarantee(job, logs, gaps, says, says_not):
    job.coordinator.plan = replace(job.plan, causal_log=logs, leaves_gaps=gaps)
    said = job.chronicle.warning(notes.Generation(2))
    assert said.endswith("generation 2")
    assert says in said
    assert says_not not in said


def test_a_disk_that_takes_nothing_is_told_once(job):
    def heard(refused: int) -> Any:
        sample = Sample(0.0, 0, report(1, refused_files=refused))
        return job.chronicle.heard(sample, is_current=True)

    assert heard(0) is None
    assert "local disk takes no files" in heard(1)
    assert heard(2) is None


def test_who_dies_again_and_again_outside_of_steps_is_told(job):
    said = job.chronicle.warning(notes.Outside(0, 4))
    assert said is not None
    assert said.startswith(f"{job.plan.tasks[0].name}: its process has died 5 times")
    assert "a call" in said
