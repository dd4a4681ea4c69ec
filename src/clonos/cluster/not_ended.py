"""What is said when time is over and a job is not: how far it is, and what to do."""

from __future__ import annotations

from typing import Any, Protocol

from clonos.core.roster import TaskPhase
from clonos.errors import NotEnded
from clonos.nodes.views import JobStatus, TaskView


class Unfinished(Protocol):
    """What is asked of a job that has not ended."""

    compiled: Any

    @property
    def status(self) -> JobStatus: ...
    @property
    def delivered(self) -> dict[str, int]: ...
    def tasks(self) -> list[TaskView]: ...


def goes_on(running: Unfinished, timeout_s: float) -> NotEnded:
    """The error of a wait."""
    return NotEnded(
        f"it has not ended within {timeout_s:g} s, and goes on ({so_far(running)})",
        where=running.compiled.name,
        remedy='wait again, or end it with running.stop(settle="30 seconds"). It ends by itself '
        "when all its sources have",
    )


def stopped(running: Unfinished, timeout_s: float, how_far: str, *, has_ended: bool) -> NotEnded:
    """The error of a run, which was stopped.

    Parameters
    ----------
    how_far
        How far it was by then, as :func:`so_far` says it.
    has_ended
        Whether it has ended since.
    """
    state = "was stopped" if has_ended else "was told to stop, and is still ending"
    folder = running.compiled.options.checkpoint_dir
    again = (
        "the same command goes on where it stopped"
        if folder
        else "give it a checkpoint_dir, too, and the same command goes on where it stopped; "
        "without one it begins anew"
    )
    return NotEnded(
        f"it had not ended after {timeout_s:g} s ({how_far}), and {state}",
        where=running.compiled.name,
        remedy=f"give it more time: {again}. If its input never ends, use job.start(spark)",
    )


def so_far(running: Unfinished) -> str:
    """How far a job is, for people."""
    over = {task.id for task in running.tasks() if task.phase == TaskPhase.FINISHED.value}
    plan = running.compiled.plan
    sources = [task.name for task in plan.tasks if task.is_source and task.id not in over]
    rows = [f"{count:,} to {sink}" for sink, count in running.delivered.items()]
    said = [
        running.status.message,
        f"rows delivered: {', '.join(rows) or 'none'}",
        *([f"sources that have not ended: {', '.join(sources)}"] if sources else []),
    ]
    return "; ".join(said)
