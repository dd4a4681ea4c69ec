"""Whether the tasks of a job without markers have come to rest, as they say themselves.

With markers, an epoch that begins after the sources have stopped shows it. Without them, a job that
should settle asks its tasks, again and again, to seal what is new or to say that nothing is. The
house-keeper cannot tell: it may not have heard yet of a task's newest steps.
"""

from __future__ import annotations

from clonos.core import messages as msg
from clonos.core.roster import Roster, TaskState


class Rest:
    """What tasks have said since the job was last told to settle.

    Parameters
    ----------
    each_ms
        How often they are asked.
    """

    def __init__(self, roster: Roster, each_ms: int) -> None:
        self._roster, self._each_ms = roster, each_ms
        self._asked_ms: int | None = None
        self._number = 0  # how often the job was told to settle
        self._said: dict[int, msg.Resting] = {}  # by task

    def begin(self) -> None:
        """What was said until now does not count, nor does what is still on its way: sources were
        taking rows."""
        self._asked_ms = None
        self._number += 1
        self._said.clear()

    def ask(self) -> None:
        """Ask all tasks, if it is time."""
        now_ms = self._roster.now_ms
        if self._asked_ms is None or now_ms - self._asked_ms >= self._each_ms:
            self._asked_ms = now_ms
            for task in self._roster.active():
                self._roster.command(task.id, msg.SealLayer(number=self._number))

    def said(self, _: int, report: msg.Resting) -> None:
        """All that a task has done is in its layers."""
        life = self._roster.tasks[report.task].incarnation
        if (report.incarnation, report.number) == (life, self._number):
            self._said[report.task] = report

    def forget(self, task: TaskState) -> None:
        """A life is over, perhaps with steps that no log has: the next one is asked again."""
        self._said.pop(task.id, None)

    @property
    def is_below_floors(self) -> bool:
        """Whether every task has said so, and its floor is there."""
        positions, said = self._roster.keeper.positions, self._said
        return said.keys() == positions.keys() and all(
            report.position <= positions[task] for task, report in said.items()
        )

    def open_calls(self, task: int) -> int | None:
        """How many calls are open in a task's floor; None: it has not said."""
        report = self._said.get(task)
        is_there = report is not None and report.position == self._roster.keeper.positions[task]
        return report.open_calls if report is not None and is_there else None
