"""The handle of a job, without a job behind it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, TimeoutError  # noqa: A004 - until Python 3.11
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.cluster import driver
from clonos.cluster.audience import JobAudience, Warnings
from clonos.core.plan import Incarnation
from clonos.errors import (
    CannotReplace,
    CannotUpgrade,
    NotEnded,
    OtherJob,
    OutputExists,
    StoreAway,
)
from clonos.nodes.events import StopAsked
from clonos.nodes.views import DriverView, JobStatus, TaskView

VIEW = DriverView(
    tasks=(TaskView(0, "source[0]", "live", Incarnation(1, 0), 0, 1, 0.0, 0.0),),
    slots=(),
    status=JobStatus("tasks: 1 live", is_running=True, is_recovering=False),
    delivered={"out": 1200},
)


@pytest.fixture
def running(monkeypatch):
    """It does not end, whatever it is told."""
    monkeypatch.setattr(driver, "STOP_S", 0.0)
    told: list[Any] = []
    directory = SimpleNamespace(hurry=lambda: None)
    setup = SimpleNamespace(inbox=SimpleNamespace(put=told.append), told=told, directory=directory)
    setup.node = SimpleNamespace(view=VIEW)
    monkeypatch.setattr(driver, "DriverSetup", lambda *_, **__: setup)
    monkeypatch.setattr(driver.RunningJob, "_is_driven_by", driven_by)
    return driver.RunningJob(job().compile(), None)


def driven_by(self: Any, setup: Any) -> None:
    self._setup, self.run_id, self.compiled = setup, "run", job().compile()
    self._loop = SimpleNamespace(over=threading.Event(), error=None, awaited="")


def job() -> clonos.Job:
    made = clonos.Job("stopped")
    made.source(clonos.sources.from_batches([], "n long")).sink(clonos.sinks.collect(), name="out")
    return made


def test_a_job_that_was_told_to_stop_does_not_begin_again_with_another_graph(running):
    assert not running.stop()
    with pytest.raises(CannotUpgrade, match="the job was told to stop"):
        running.upgrade(job())
    assert running._setup.told == [StopAsked(None)]


def test_who_waits_for_a_store_after_a_change_that_failed_can_be_stopped(running, monkeypatch):
    """The old graph waits, too, because nobody else runs the job."""
    waits = threading.Event()

    def begun(*_: Any, look: Any, upgrade: bool = False, goes_on: bool = False, **__: Any) -> Any:
        assert goes_on != upgrade
        if upgrade:
            running._loop.over.set()
            raise StoreAway("the journal is away")
        while not look(None):
            waits.set()

    running._setup.page, running._setup.compiled = None, job().compile()
    running._setup.audience = SimpleNamespace(join=lambda _: None)
    running._setup.keeper = SimpleNamespace(complete=False, is_settled=True)
    monkeypatch.setattr(driver, "Succession", lambda *_: ended())
    monkeypatch.setattr(driver, "DriverSetup", begun)
    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(running.upgrade, job())
        assert waits.wait(60)
        running.stop()
        with pytest.raises(CannotUpgrade, match="told to stop"):
            changed.result(60)
    with pytest.raises(StoreAway):
        running.wait(1)


def ended() -> Any:
    """A change whose first driver has ended."""
    return SimpleNamespace(
        require=lambda *_, **__: None,
        prepare=lambda *_, **__: None,
        give_up=lambda: None,
        look=lambda _: True,
        prepared=None,
        has_stopped=lambda: True,
    )


def test_what_leaves_a_job_without_a_driver_is_what_wait_says(running, monkeypatch):
    """The switch was made, and then the new graph could not begin."""

    def begun(*_: Any, upgrade: bool = False, **__: Any) -> Any:
        running._loop.over.set()
        raise OutputExists("the new sink's folder is taken") if upgrade else OtherJob("a new graph")

    running._setup.page, running._setup.compiled = None, job().compile()
    monkeypatch.setattr(driver, "Succession", lambda *_: ended())
    monkeypatch.setattr(driver, "DriverSetup", begun)
    with pytest.raises(OutputExists):
        running.upgrade(job())
    running._setup.audience = SimpleNamespace(join=lambda _: None)
    with pytest.raises(OutputExists, match="taken"):
        running.wait(1)


def changing(running: Any, monkeypatch: Any, begins: threading.Event, until: Any) -> Any:
    """A change in another thread, which lasts as long as it may."""

    def succeed(*_: Any) -> None:
        begins.set()
        assert until() is not False

    running._setup.compiled = job().compile()
    monkeypatch.setattr(running, "_succeed", succeed)
    return ThreadPoolExecutor(1).submit(running.upgrade, job())


def test_stop_reaches_a_job_that_is_being_changed(running, monkeypatch):
    """Sharing out its state may take minutes."""
    begins, told, commands = threading.Event(), threading.Event(), []

    def put(command: Any) -> None:
        commands.append(command)
        told.set()

    running._setup.inbox.put = put
    change = changing(running, monkeypatch, begins, lambda: told.wait(60))
    assert begins.wait(60)
    running.stop()
    change.result(60)
    assert commands == [StopAsked(None)], "once"


def test_who_wants_a_job_to_settle_asks_after_the_change(running, monkeypatch):
    """The change has it settle, too, so a question meanwhile would be ignored."""
    commands, begins, goes_on = running._setup.told, threading.Event(), threading.Event()
    change = changing(running, monkeypatch, begins, lambda: goes_on.wait(60))
    assert begins.wait(60)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(running.stop, settle="1 ms")
        with suppress(TimeoutError):
            stopped.result(0.2)
        before = list(commands)
        goes_on.set()
        stopped.result(60)
    change.result(60)
    assert (before, commands) == ([], [StopAsked(0.001)])


def test_who_waits_during_a_change_waits_no_longer_than_asked(running, monkeypatch):
    begins, goes_on = threading.Event(), threading.Event()
    change = changing(running, monkeypatch, begins, lambda: goes_on.wait(60))
    assert begins.wait(60)
    running._loop.over.set()  # the driver of the old graph has ended
    began_s = time.monotonic()
    with pytest.raises(NotEnded, match=r"has not ended within 0\.2 s, and goes on"):
        running.wait(0.2)
    assert time.monotonic() - began_s < 30
    goes_on.set()
    change.result(60)


def test_of_two_changes_at_once_neither_is_lost(running, monkeypatch):
    """The second one begins with what the first has come to."""
    made = clonos.Job("changed")
    rows = made.source(clonos.sources.from_batches([], "n long"), name="numbers", parallelism=1)
    rows.key_by("n").deduplicate(name="once").filter(bool, name="some").sink(
        clonos.sinks.collect(), name="out"
    )
    running.graph, running._setup.compiled = made.graph, made.compile()
    begins, goes_on = threading.Event(), threading.Event()

    def succeed(*_: Any) -> None:
        begins.set()
        goes_on.wait(60)

    monkeypatch.setattr(running, "_succeed", succeed)
    branch = SimpleNamespace(replaces={"some": callable})
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(running.adopt, branch)
        assert begins.wait(60)
        other = pool.submit(running.rescale, {"once": 3})
        with suppress(TimeoutError):
            other.result(0.2)  # it has looked at the graph, if it does not wait to be next
        goes_on.set()
        one.result(60)
        other.result(60)
    now = {vertex.name: vertex for vertex in running.graph.vertices}
    assert now["once"].parallelism == 3
    assert now["some"].operation.fn is callable


def test_a_job_that_was_tried_before_the_graph_changed_is_not_adopted(running, monkeypatch):
    """What was added since would be gone, and nobody would say so."""
    tried, now = job(), clonos.Job("stopped")
    rows = now.source(clonos.sources.from_batches([], "n long"))
    rows.sink(clonos.sinks.collect(), name="out")
    rows.sink(clonos.sinks.collect(), name="added")
    succeeded: list[Any] = []
    monkeypatch.setattr(running, "_succeed", lambda *given: succeeded.append(given))
    running._setup.compiled = now.compile()
    with pytest.raises(CannotReplace, match="has other"):
        running.adopt(SimpleNamespace(replaces=tried))
    assert not succeeded
    running._setup.compiled = tried.compile()
    running.adopt(SimpleNamespace(replaces=tried))
    assert succeeded


def test_who_has_begun_to_listen_goes_on_when_the_driver_is_another():
    def audience() -> JobAudience:
        seen: Any = SimpleNamespace(note=None, sample=None)
        return JobAudience(seen, Warnings(), [], SimpleNamespace())  # type: ignore[arg-type]

    before, after = audience(), audience()
    first, second = clonos.Listener(), clonos.Listener()
    before.add(first)
    before.add(second)
    before.remove(first)
    after.follow(before)
    assert [post.listener for post in after._posts] == [second]
