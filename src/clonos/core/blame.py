"""Blame: which rows, if any, the deaths of a task are put down to.

Processes die of many things, and only one of them is a record that kills whoever reads it. So a
death alone accuses nobody. After a death of unknown cause the next life of the task is *watched*:
it announces its first live steps before each begins. A death within an announced step makes the
rows of that step *suspect*, and a life that meets suspect rows tries them first, in a process of
its own (:mod:`clonos.core.watch`). What dies there is poison; what survives is cleared.

Rows are known by their numbers. If no other process has the log of a task's last steps, its next
life takes its input in other pieces, so the same record may have another number in each life. After
a few deaths within announced steps, a watched life therefore tries all rows that it takes.

A process may also die outside of its steps: in a call that it makes for a row, say. A call may have
an effect, so nobody tries it in another process. If that happens again and again, it is told, and
from then on calls are made one at a time, each of them announced, until those that earlier lives
have left open are over. Deaths within the same call count as deaths within the same rows do where a
trial is inconclusive. Calls are known by what they ask.

If a trial is inconclusive (it hangs), deaths are counted after all, but only those within a step
that takes the same rows, and not those of a whole executor. A trial may also be wrong: a record may
kill the slot's process together with the trial's, or only the slot's. Such a record is blamed after
very many deaths.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from clonos.core import messages as msg
from clonos.core.decisions import Note
from clonos.core.machine import Machine, Table
from clonos.core.placement import Slot
from clonos.core.roster import ACTIVE, Roster, TaskState
from clonos.core.suspects import ALL, ONE_BY_ONE, Rows, Suspect

WATCHED_STEPS: Final = 64
"""Live steps that are announced after a death of unknown cause: what killed one life is among the
first things that the next one does."""
SUSPECTS_MAX: Final = 8
"""How many suspect rows of a task are remembered: the newest."""
WITHIN_MANY: Final = 4
"""After this many deaths within announced steps, whatever their rows, all rows are tried."""
OUTSIDE_MANY: Final = 2
"""If so many watched lives in a row die outside of their steps, it is told, and calls are made one
at a time."""
TOGETHER_MS: Final = 1000
"""If slots of one executor die within this time of each other, the executor has died."""


class Suspicion(Enum):
    """How suspect the rows of a task are."""

    CLEAR = "clear"
    WATCHED = "watched"
    SUSPECT = "suspect"


class Clue(Enum):
    """What is learnt about the rows of a task."""

    DIED = "unknown death"
    DIED_WITHIN = "death within an announced step"
    SURVIVED = "all suspect rows taken"
    ENOUGH = "64 steps"


BLAME: Final = Table(
    "blame",
    Suspicion.CLEAR,
    {
        **{(state, Clue.DIED): state for state in Suspicion},
        (Suspicion.CLEAR, Clue.DIED): Suspicion.WATCHED,
        (Suspicion.WATCHED, Clue.DIED_WITHIN): Suspicion.SUSPECT,
        (Suspicion.SUSPECT, Clue.DIED_WITHIN): Suspicion.SUSPECT,
        (Suspicion.SUSPECT, Clue.SURVIVED): Suspicion.WATCHED,
        (Suspicion.WATCHED, Clue.ENOUGH): Suspicion.CLEAR,
        (Suspicion.SUSPECT, Clue.ENOUGH): Suspicion.CLEAR,
    },
)


class _Case:
    """What is known about one task. ``within``: the announced step that is under way; ``deaths``,
    ``outside``: how many deaths within announced steps, and outside of them, have counted since
    the task was last clear. ``calling``: the only call that the slot makes."""

    def __init__(self, task: TaskState) -> None:
        self.machine: Machine[Suspicion, Clue] = BLAME.machine(task.machine.of)
        self.within: msg.Announced | None = None
        self.calling: msg.Announced | None = None
        self.suspects: list[Suspect] = []
        self.deaths = self.outside = 0


class _Death(NamedTuple):
    """The last death in an executor: when, of which tasks, and against which rows or which call it
    counts, by task; None: it was outside of steps."""

    at_ms: int
    tasks: frozenset[int]
    counted: dict[int, Rows | None]


class Blame:
    """What is known about the deaths of all tasks of a job."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._cases = {task.id: _Case(task) for task in roster.tasks.values()}
        self._deaths: dict[str, _Death] = {}  # the latest, by executor

    def machines(self) -> Iterable[Machine[Suspicion, Clue]]:
        """Its state machines, for reports of errors."""
        return (case.machine for case in self._cases.values())

    # --- what is learnt -------------------------------------------------------------------------

    def announced(self, slot: int, report: msg.Announced) -> None:
        """A watched life is about to take a step, or to make a call; or that call is over."""
        if not self._is_current(slot, report):
            return
        case = self._cases[report.task]
        if not report.rows.is_call:
            case.within = report
        elif not report.is_cleared:
            case.calling = report
        else:
            case.calling = None
            self._suspect(case, [s for s in case.suspects if s.rows != report.rows])

    def survived(self, slot: int, report: msg.Survived) -> None:
        """A watched life has survived the step that it announced."""
        if not self._is_current(slot, report):
            return
        case = self._cases[report.task]
        done, case.within = case.within, None
        if done is not None:
            rest = ((suspect, suspect.rows.after(done.rows)) for suspect in case.suspects)
            self._suspect(case, [s._replace(rows=rows) for s, rows in rest if rows is not None])
        if not report.left:
            case.machine.on(Clue.ENOUGH)
            case.suspects.clear()
            case.calling = None
            case.deaths = case.outside = 0

    def _suspect(self, case: _Case, suspects: list[Suspect]) -> None:
        """These rows and calls are still suspect."""
        case.suspects = suspects
        if case.machine.state is Suspicion.SUSPECT and not suspects:
            case.machine.on(Clue.SURVIVED)

    def _is_current(self, slot: int, report: msg.Announced | msg.Survived) -> bool:
        task = self._roster.tasks[report.task]
        return report.incarnation == task.incarnation and task.slot == slot

    def lost(self, slot: Slot, *, is_death: bool) -> None:
        """A slot is gone. `is_death`: it has not been given up by us, or cancelled."""
        now_ms = self._roster.now_ms
        self._deaths = {g: d for g, d in self._deaths.items() if now_ms - d.at_ms <= TOGETHER_MS}
        tasks = frozenset(t.id for t in self._roster.tasks.values() if t.slot == slot.id)
        is_executor = is_death and self._has_died_with_others(slot, tasks)
        counted: dict[int, Rows | None] = {}
        for task in sorted(tasks):
            case = self._cases[task]
            within, case.within = case.within, None
            calling, case.calling = case.calling, None
            if not is_death or self._roster.tasks[task].phase not in ACTIVE:
                continue
            if calling is not None and (within is None or within.is_cleared):
                case.machine.on(Clue.DIED_WITHIN)
                case.suspects = _with(case.suspects, calling.rows, int(not is_executor))
                if not is_executor:
                    counted[task] = calling.rows
                continue
            if within is None:
                is_watched = case.machine.state is not Suspicion.CLEAR
                case.machine.on(Clue.DIED)
                if is_watched and not is_executor:
                    self._died_outside(task, case)
                    counted[task] = None
                continue
            case.machine.on(Clue.DIED_WITHIN)
            counts = not (is_executor or within.is_cleared)
            case.suspects = _with(case.suspects, within.rows, int(counts))
            case.deaths += counts
            if counts:
                counted[task] = within.rows
        if is_death:
            self._deaths[slot.group] = _Death(now_ms, tasks, counted)

    def _died_outside(self, task: int, case: _Case) -> None:
        case.outside += 1
        if case.outside == OUTSIDE_MANY:
            self._roster.do(Note("outside", task, value=case.outside))

    def _has_died_with_others(self, slot: Slot, tasks: frozenset[int]) -> bool:
        """Whether the slot's executor has died. If so, the death of its first slot no longer
        counts.

        Two lives of the same task died one after the other, not together.
        """
        last = self._deaths.get(slot.group)
        if not slot.group or last is None or (tasks and tasks == last.tasks):
            return False
        for task, rows in last.counted.items():
            case = self._cases[task]
            if rows is None:
                case.outside -= 1
                continue
            case.suspects = _with(case.suspects, rows, -1, lives=0)
            case.deaths -= not rows.is_call
        return True

    # --- what follows ---------------------------------------------------------------------------

    def next_life(self, task: int) -> tuple[int, tuple[Suspect, ...]]:
        """How many steps the next life of a task announces, and what it has to try first."""
        plan = self._roster.plan
        if plan.leaves_gaps and plan.tasks[task].inputs:  # no life meets the same rows again
            return 0, ()
        case = self._cases[task]
        case.within = case.calling = None  # left by a life that was fenced in its slot
        steps = 0 if case.machine.state is Suspicion.CLEAR else WATCHED_STEPS
        everything = (ALL,) if steps and case.deaths >= WITHIN_MANY else ()
        calls = (ONE_BY_ONE,) if steps and case.outside >= OUTSIDE_MANY else ()
        return steps, (*case.suspects, *everything, *calls)


def _with(suspects: list[Suspect], rows: Rows, deaths: int, lives: int = 1) -> list[Suspect]:
    """`suspects` after `deaths` more deaths that count within `rows`, and `lives` more lives.

    Examples
    --------
    >>> _with([Suspect(Rows(7, 1, 9), 1, 1)], Rows(7, 4, 20), 1)
    [Suspect(rows=Rows(channel=7, first=4, last=9), deaths=2, lives=2)]
    """
    common = [suspect.rows.common(rows) for suspect in suspects]
    if not any(common):
        return [*suspects, Suspect(rows, max(deaths, 0), lives)][-SUSPECTS_MAX:]
    return [
        s if part is None else Suspect(part, max(s.deaths + deaths, 0), s.lives + lives)
        for s, part in zip(suspects, common, strict=True)
    ]
