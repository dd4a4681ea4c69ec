"""A canary says how far it has come, and why it has ended."""

from __future__ import annotations

import itertools
import threading
import time
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.branch.follow import Report
from clonos.cluster import canary as module
from clonos.cluster.canary import Canary
from clonos.errors import AsideFailed, CannotReplace, CannotUpgrade, ClonosError, OtherJob


class Job:
    """A running job. The process of its canary goes on when it is asked to change."""

    is_running = True

    def __init__(self, refusal: ClonosError | None = None) -> None:
        self.refusal, self.changes = refusal, 0
        self.has_changed = threading.Event()

    def adopt(self, branch: Any, *, within: Any = None) -> None:
        self.changes += 1
        self.has_changed.set()
        if self.changes == 1:
            branch._thread.join()
        if self.refusal is not None:
            raise self.refusal


def canary(*said: Any) -> Canary:
    """One whose process says this, and ends."""

    def reports() -> Any:
        for one in said:
            if isinstance(one, Exception):
                raise one
            yield one

    nothing = SimpleNamespace(said=reports, close=lambda: None, ask_to_end=lambda: None)
    made = Canary(SimpleNamespace(is_running=True), nothing, {})  # type: ignore[arg-type]
    made._thread.join()
    return made


def test_one_that_has_ended_has_caught_up():
    """The job was stopped or is complete: the canary has taken all steps, and no more will come."""
    began_s = time.monotonic()
    canary(Report(steps=8, looks=1)).catch_up()
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("error", [AsideFailed("has ended"), ModuleNotFoundError("fraud")])
def test_one_that_has_failed_says_why(error):
    found = canary(Report(steps=8, looks=1), error)
    with pytest.raises(AsideFailed, match=r"has ended|fraud"):
        found.catch_up()
    assert not found.is_running


def follows(job: Job) -> Canary:
    """One that finds that the job was changed: it has another driver."""

    def reports() -> Any:
        looks = itertools.count(1)
        while not job.has_changed.wait(0.001):
            yield Report(looks=next(looks))
        raise OtherJob("the job has another graph, or other functions")

    nothing = SimpleNamespace(said=reports, close=lambda: None, ask_to_end=lambda: None)
    return Canary(job, nothing, {})  # type: ignore[arg-type]


def test_one_that_is_adopted_has_not_failed():
    job = Job()
    found = follows(job)
    found.adopt()
    assert (found.error, job.changes) == (None, 1)
    with pytest.raises(CannotReplace, match="adopted already"):
        found.adopt()
    assert job.changes == 1


def test_two_threads_that_adopt_it_change_the_job_once():
    job = Job()
    found, told = follows(job), SimpleQueue[Exception | None]()

    def adopt() -> None:
        try:
            found.adopt()
        except CannotReplace as error:
            told.put(error)
        else:
            told.put(None)

    threads = [threading.Thread(target=adopt) for _ in range(2)]
    for thread in threads:
        thread.start()
    said = {str(told.get(timeout=60)) for _ in threads}
    assert "None" in said
    assert any("adopted already" in one for one in said)
    assert job.changes == 1


def test_one_that_ends_while_it_is_adopted_in_vain_says_why():
    """The job goes on as it was, with another driver. Nobody follows it any more."""
    job = Job(CannotUpgrade("its calls are open"))
    found = follows(job)
    with pytest.raises(CannotUpgrade):
        found.adopt()
    assert not found.is_running
    assert isinstance(found.error, OtherJob)
    with pytest.raises(CannotReplace, match="another graph"):
        found.adopt()
    assert job.changes == 1


def test_code_that_kills_its_process_is_not_put_in_place():
    job = Job()
    found = canary(Report(looks=1), AsideFailed("has ended with exit code -11"))
    found._running = job
    with pytest.raises(CannotReplace, match="exit code -11"):
        found.adopt()
    found.adopt(anyway=True)
    assert job.changes == 1


def test_one_that_looks_rarely_has_time_to_catch_up(monkeypatch):
    monkeypatch.setattr(module, "CATCH_UP_S", 0.1)
    job, found = Job(), list[float]()
    nothing = SimpleNamespace(said=lambda: iter(()), close=lambda: None, ask_to_end=lambda: None)
    made = Canary(job, nothing, {}, every_s=30.0)  # type: ignore[arg-type]
    monkeypatch.setattr(made, "catch_up", found.append)
    made.adopt()
    assert found == [pytest.approx(0.1 + 3 * 30)]
