"""Time is over, and a job is not: the error says how far it is, whether it goes on, what to do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.cluster.not_ended import goes_on
from clonos.cluster.runs import to_its_end
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError, NotEnded, OperatorError
from clonos.nodes.views import JobStatus, TaskView

LIVE = TaskView(0, "source[0]", "live", Incarnation(1, 0), 0, 1, 0.0, 0.0)


class Running:
    """A job that comes to an end as told, when it is told to stop."""

    def __init__(self, end: str = "stopped", checkpoint_dir: str | None = None) -> None:
        job = clonos.Job("counts", checkpoint_dir=checkpoint_dir)
        rows = job.source(clonos.sources.from_batches([], "n long"), name="source")
        rows.sink(clonos.sinks.collect(), name="out")
        self.compiled = job.compile()
        self.status = JobStatus("tasks: 1 live", is_running=True, is_recovering=False)
        self.delivered = {"out": 1200}
        self.is_running = True
        self.stops = 0
        self._end = end

    def tasks(self) -> list[TaskView]:
        return [LIVE if self.is_running else replace(LIVE, phase="finished")]

    def wait(self, timeout_s: float | None = None) -> Any:
        if self.is_running:
            raise goes_on(self, timeout_s or 0.0)
        if self._end == "failed":
            raise OperatorError("boom")
        return SimpleNamespace(is_complete=self._end == "complete")

    def stop(self) -> bool:
        self.stops += 1
        self.is_running = self._end == "hangs"
        return not self.is_running


def ended(running: Running, timeout_s: float | None = 5.0) -> Any:
    job: Any = running
    return to_its_end(job, timeout_s)


def late(running: Running) -> str:
    with pytest.raises(NotEnded) as caught:
        ended(running)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, ClonosError)
    assert running.stops == 1
    return str(caught.value)


def test_who_waits_hears_that_the_job_goes_on_and_how_far_it_is():
    said = str(goes_on(Running(), 0.5))
    assert said == (
        "counts: it has not ended within 0.5 s, and goes on (tasks: 1 live; rows delivered: 1,200 "
        "to out; sources that have not ended: source[0]). To do: wait again, or end it with "
        'running.stop(settle="30 seconds"). It ends by itself when all its sources have'
    )


def test_a_run_says_that_the_job_was_stopped_and_how_it_goes_on(tmp_path):
    said = late(Running(checkpoint_dir=str(tmp_path)))
    assert "had not ended after 5 s (tasks: 1 live; rows delivered: 1,200 to out" in said
    assert "and was stopped. To do: give it more time: the same command goes on" in said
    assert "without one it begins anew" in late(Running())
    assert "told to stop, and is still ending" in late(Running("hangs"))


def test_a_job_that_ends_while_it_is_stopped_has_its_own_end():
    assert ended(Running("complete")).is_complete
    with pytest.raises(OperatorError):
        ended(Running("failed"))


def test_a_wait_that_is_interrupted_stops_the_job():
    running = Running()

    def interrupted(timeout_s: float | None = None) -> Any:
        raise KeyboardInterrupt

    running.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        ended(running, None)
    assert running.stops == 1
