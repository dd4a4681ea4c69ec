"""What listeners hear, and that they cannot harm; no Spark."""

from __future__ import annotations

import io
import json
import runpy
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.cluster import watch
from clonos.cluster.listener import Listener
from clonos.cluster.progress import Observer
from clonos.cluster.watch import Post, Watch
from clonos.core import coordinator as co
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import LayerRef
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError
from clonos.operators.chain import ChainProgram
from clonos.testing.in_memory import InMemoryRun

WAIT_S = 10.0


class Hearing(Listener):
    """Keeps all that it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_started(self, started: Any) -> None:
        self.heard.append(("started", started))

    def on_progress(self, progress: Any) -> None:
        self.heard.append(("progress", progress))

    def on_recovery(self, recovery: Any) -> None:
        self.heard.append(("recovery", recovery))

    def on_terminated(self, terminated: Any) -> None:
        self.heard.append(("terminated", terminated))


def word_count() -> clonos.Job:
    job = clonos.Job("wordcount")
    texts = [("to be or",), ("not to be",)]
    lines = job.source(clonos.sources.from_batches([texts], schema="value string"), name="lines")
    words = lines.flat_map(lambda row: row.value.split(), schema="word string", name="words")
    counts = words.key_by("word").window(clonos.tumbling("1 second")).agg(n=clonos.count())
    counts.sink(clonos.sinks.collect(), name="out")
    return job


class Job:
    """As much of a running job as is watched."""

    def __init__(self) -> None:
        self.compiled = word_count().compile()
        self.plan = self.compiled.plan
        self.run_id = "wordcount-1"
        self.is_running = True
        self.warned: list[str] = []
        self.observer = Observer({t.id: t.name for t in self.plan.tasks})
        keeper = HouseKeeper(self.plan, lambda batch: b"", lambda content: None)
        self.host = SimpleNamespace(keeper=keeper)
        self.coordinator = co.Coordinator(self.plan, keeper, address="here")
        seat = SimpleNamespace(place=4, executor="1", pid=77)
        self.pool = SimpleNamespace(size=5, view=lambda slot: seat if slot is not None else None)
        self.consumers = SimpleNamespace(rows={"out": 3})
        self.spark = SimpleNamespace(sparkContext=SimpleNamespace(applicationId="app"))

    def warn(self, text: str) -> None:
        self.warned.append(text)


@pytest.fixture
def job() -> Job:
    return Job()


def watched(job: Job, *listeners: Listener) -> Watch:
    return Watch(job, listeners, 1.0)  # type: ignore[arg-type]


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
    listener = Hearing()
    seen = watched(job, listener)
    seen.started()
    job.coordinator.tasks[0].slot = 9
    job.coordinator.tasks[0].machine.state = co.TaskPhase.LIVE
    seen.tick(100.0)
    seen.tick(100.9)  # not due
    counters = report(50, batches_in=5, batches_out=4, entry_bytes=400, inflight_bytes=7)
    seen.heard(0, {**counters, "words: bad_records": 2, "latency_ms": 12})
    seen.heard(0, {**counters, "words: bad_records": 2, "latency_ms": 3})
    ref = LayerRef(0, 1, Incarnation(1, 0), 5, "0/1", 1000, 0)
    seen.epoch_began(100.95)
    job.host.keeper.layers[0] = (ref, ref)
    job.host.keeper.epoch = 1
    seen.noted(co.Note("floor", value=1), 101.0)
    seen.tick(102.0)
    seen.over(ClonosError("gone"), 103.0, is_complete=False)
    seen.join(WAIT_S)

    names = [name for name, _ in listener.heard]
    assert names == ["started", "progress", "progress", "progress", "terminated"]
    started, _, progress, last, ended = [event for _, event in listener.heard]
    assert (started.term, started.slots, started.application_id) == (1, 5, "app")
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
    assert progress.tasks[1].slot is None
    words = next(o for o in progress.operators if o.name == "words")
    assert (words.rows_in, words.rows_out, words.dropped) == (50, 200, {"bad_records": 2})
    floor = progress.checkpoint
    assert (floor.id, floor.age_s, floor.state_bytes) == (1, 1.0, 2000)
    assert floor.duration_ms == pytest.approx(50)
    assert (progress.number, progress.reports, progress.delivered) == (2, 2, {"out": 3})
    assert last.tasks[0].latency_ms is None
    assert (ended.error, ended.is_complete) == ("gone", False)
    assert [p.number for p in seen.recent] == [1, 2, 3]
    for _, event in listener.heard:
        assert json.loads(event.json)


def test_rates_and_counts_when_a_task_starts_over(job):
    seen = watched(job)
    now = 0.0
    shown = []
    # 400 rows; lost at 700, of which 200 had been heard of; replayed from 400 on; then on.
    for rows in (0, 400, 600, 400, 500, 700, 900):
        seen.heard(0, report(rows))
        seen.tick(now)
        shown.append((seen.recent[-1].tasks[0].rows_in, seen.recent[-1].tasks[0].rows_per_s))
        now += 2.0
    counts, rates = zip(*shown, strict=True)
    assert counts == (0, 400, 600, 600, 600, 700, 900)
    assert rates == (0.0, 200.0, 100.0, 0.0, 0.0, 50.0, 100.0)


def test_a_recovery_is_told_when_it_is_over(job):
    listener = Hearing()
    seen = watched(job, listener)
    life = Incarnation(1, 1)
    notes = [
        (5.0, co.Note("detected", 1, life)),
        (5.25, co.Note("fetched", 1, life, 9)),
        (5.5, co.Note("live", 1, life, 11)),
    ]
    for at_s, note in notes:
        job.observer.note(note, at_s)
        seen.noted(note, at_s)
    seen.noted(co.Note("live", 0, Incarnation(1, 0)), 6.0)  # began like that
    seen.over(None, 7.0, is_complete=True)
    seen.join(WAIT_S)
    (recovery,) = [event for name, event in listener.heard if name == "recovery"]
    assert recovery.milliseconds() == {"detected": 0.0, "fetched": 250.0, "live": 500.0}
    told = json.loads(recovery.json)
    assert (told["incarnation"], told["log"], told["task"]) == ("1.1", 9, job.plan.tasks[1].name)
    assert seen.recent[-1].recoveries == 1


def test_a_listener_that_raises_is_called_again_and_said_once(job):
    class Raising(Hearing):
        def on_progress(self, progress: Any) -> None:
            super().on_progress(progress)
            raise ValueError("no disk")

    raising, other = Raising(), Hearing()
    seen = watched(job, raising, other)
    for second in range(5):
        seen.tick(float(second))
    seen.over(None, 9.0, is_complete=True)
    seen.join(WAIT_S)
    assert len(raising.heard) == len(other.heard) == 7
    (warning,) = job.warned
    assert "Raising raised ValueError in on_progress: no disk" in warning


def test_a_listener_that_blocks_holds_up_nobody(job, monkeypatch):
    monkeypatch.setattr(watch, "EVENTS_MAX", 10)
    go_on = threading.Event()

    class Blocking(Hearing):
        def on_progress(self, progress: Any) -> None:
            go_on.wait(WAIT_S)
            super().on_progress(progress)

    blocking, other = Blocking(), Hearing()
    seen = watched(job, blocking, other)
    for second in range(50):
        seen.tick(float(second))
        until = time.monotonic() + WAIT_S
        while len(other.heard) <= second and time.monotonic() < until:
            time.sleep(0.001)
    seen.over(None, 60.0, is_complete=True)
    for post in seen._posts:
        if post.listener is other:
            post.join(WAIT_S)
    assert other.heard[-1][0] == "terminated"
    assert not blocking.heard
    assert job.warned == ["the listener Blocking is too slow: it misses events"]
    go_on.set()
    seen.join(WAIT_S)
    assert len(blocking.heard) < 50
    assert blocking.heard[-1][0] == "terminated"  # it is the oldest that it misses


def test_listeners_come_and_go(job):
    first, second = Hearing(), Hearing()
    seen = watched(job, first)
    seen.tick(0.0)
    seen.add(second)
    seen.remove(first)
    seen.tick(1.0)
    seen.over(None, 2.0, is_complete=True)
    seen.join(WAIT_S)
    assert [name for name, _ in second.heard] == ["progress", "progress", "terminated"]
    assert len(first.heard) <= 1


def test_nobody_listens_costs_no_thread(job):
    before = threading.active_count()
    Post(Hearing(), job.warn)
    watched(job).tick(0.0)
    assert threading.active_count() == before


def test_status(job):
    seen = watched(job)
    assert seen.status.message == "tasks: 2 waiting for a slot"
    assert not seen.status.is_recovering
    for state in job.coordinator.tasks.values():
        state.machine.state = co.TaskPhase.LIVE
    job.coordinator.tasks[1].machine.state = co.TaskPhase.REPLAYING
    job.coordinator.tasks[1].incarnation = Incarnation(1, 1)
    assert seen.status.message == "tasks: 1 live, 1 replaying"
    assert seen.status.is_recovering


def test_status_at_the_end(job):
    job.is_running = False
    assert watched(job).status.message == "ended"


def test_what_a_chain_counts():
    run = InMemoryRun(word_count().compile())
    run.run()
    counted = {}
    for code in run._compiled.codes:
        program = run._tasks[code.task.id].program
        assert isinstance(program, ChainProgram)
        counted.update(program.traffic)
        again = code.program()
        again.apply(bytes(program.delta()))
        assert again.traffic == program.traffic  # a restored task has counted what it is made of
    assert counted["words: rows_in"] == 2
    assert counted["words: rows_out"] == 6
    assert counted["out: rows_in"] == counted["out: rows_out"] == 4


def test_the_example_writes_lines_of_json(job):
    folder = Path(__file__).parents[2] / "examples" / "watching"
    example = runpy.run_path(str(folder / "json_lines.py"))
    out = io.StringIO()
    seen = watched(job, example["JsonLines"](out))
    seen.started()
    seen.tick(1.0)
    seen.over(None, 2.0, is_complete=True)
    seen.join(WAIT_S)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    events = ["started", "progress", "progress", "terminated"]
    assert [line["event"] for line in lines] == events
    assert lines[1]["told"]["tasks"][0]["phase"] == "waiting for a slot"
    assert lines[3]["told"]["is_complete"]
