"""The handle of a job, without a job behind it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.cluster import driver
from clonos.cluster.audience import JobAudience, Warnings
from clonos.errors import CannotUpgrade, OtherJob
from clonos.nodes.events import StopAsked
from clonos.sinks.errors import OutputExists


@pytest.fixture
def running(monkeypatch):
    """It does not end, whatever it is told."""
    monkeypatch.setattr(driver, "STOP_S", 0.0)
    told: list[Any] = []
    setup = SimpleNamespace(inbox=SimpleNamespace(put=told.append), told=told)
    monkeypatch.setattr(driver, "DriverSetup", lambda *_, **__: setup)
    monkeypatch.setattr(driver.RunningJob, "_is_driven_by", driven_by)
    return driver.RunningJob(job().compile(), None)


def driven_by(self: Any, setup: Any) -> None:
    self._setup, self.run_id = setup, "run"
    self._loop = SimpleNamespace(over=threading.Event(), error=None)


def job() -> clonos.Job:
    made = clonos.Job("stopped")
    made.source(clonos.sources.from_batches([], "n long")).sink(clonos.sinks.collect(), name="out")
    return made


def test_a_job_that_was_told_to_stop_does_not_begin_again_with_another_graph(running):
    assert not running.stop()
    with pytest.raises(CannotUpgrade, match="the job was told to stop"):
        running.upgrade(job())
    assert running._setup.told == [StopAsked(None)]


def test_what_leaves_a_job_without_a_driver_is_what_wait_says(running, monkeypatch):
    """The switch was made, and then the new graph could not begin."""
    succession = SimpleNamespace(
        require=lambda *_: None,
        prepare=lambda *_: None,
        give_up=lambda: None,
        look=lambda _: True,
        has_stopped=lambda: True,
    )

    def begun(*_: Any, upgrade: bool, **__: Any) -> Any:
        running._loop.over.set()
        raise OutputExists("the new sink's folder is taken") if upgrade else OtherJob("a new graph")

    running._setup.page, running._setup.compiled = None, job().compile()
    monkeypatch.setattr(driver, "Succession", lambda *_: succession)
    monkeypatch.setattr(driver, "DriverSetup", begun)
    with pytest.raises(OutputExists):
        running.upgrade(job())
    running._setup.audience = SimpleNamespace(join=lambda _: None)
    with pytest.raises(OutputExists, match="taken"):
        running.wait(1)


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
