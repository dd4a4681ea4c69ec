"""Blame: which rows, if any, the deaths of a task are put down to.

Processes die of many things, and only one of them is a record that kills whoever reads it. So a
death alone accuses nobody. After a death of unknown cause the next life of the task is *watched*:
it announces its first live steps before each begins. A death within an announced step makes the
rows of that step *suspect*, and a life that meets suspect rows tries them first, in a process of
its own (:mod:`clonos.core.watch`). What dies there is poison; what survives is cleared.

Rows are known by their numbers. If no other process has the log of a task's last steps, its next
life takes its input in other pieces, so the same record may have another number in each life. After
a few deaths within announced steps, a watched life therefore tries all rows that it takes.

A process may also die outside of its steps: in a call that it makes for a row, say. Or it dies of
that call within a step that a copy survives. A call may have an effect, so nobody tries it in
another process. If that happens again and again, it is told, and from then on calls are made one at
a time, each of them announced, until those that earlier lives have left open are over. Deaths
within the same call count as deaths within the same rows do where a trial is inconclusive. Calls
are known by what they ask. But processes are also killed from outside, and most such kills hit a
call that takes long. So once a call is suspect, each life makes no call at first, for longer than
one has ever taken to kill. Who dies meanwhile was killed by something else, and no call is suspect
any more.

If whole executors die, many calls are open each time, in all of their slots. So such a death counts
against a call only if no other was made there. The tasks that are suspect take turns in being the
first to make a call.

If a trial is inconclusive (it hangs), deaths are counted after all, but only those within a step
that takes the same rows, not those of a whole executor, and none from before a copy has survived
these rows. A trial may also be wrong: a record may kill the slot's process together with the
trial's, or only the slot's. Such a record is blamed after very many deaths.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.machine import Machine, Table
from clonos.core.placement import Slot
from clonos.core.roster import ACTIVE, Roster, TaskPhase, TaskState
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
TOGETHER_MANY: Final = 4
"""The same, if they die with their executors, which happens for other reasons more often."""
HOLD_MS: Final = 1000
"""Where a call is suspect, none is made for at least so long at first."""
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
    """What is known about one task.

    ``within``: the announced step that is under way; ``calling``: the only call that the slot
    makes, since ``since_ms``; ``takes_ms``: after how long lives have died within a call, at most.
    ``deaths``, ``outside``, ``together``: how many deaths within announced steps, outside of them
    (or within one that a copy has survived), and outside of them with the executor, have counted
    since the task was last clear. ``is_held``: its life was told to make no calls at first.
    """

    def __init__(self, task: TaskState) -> None:
        self.machine: Machine[Suspicion, Clue] = BLAME.machine(task.machine.of)
        self.within: msg.Announced | None = None
        self.calling: msg.Announced | None = None
        self.suspects: list[Suspect] = []
        self.deaths = self.outside = self.together = self.since_ms = self.takes_ms = 0
        self.is_held = False

    @property
    def calls(self) -> list[Suspect]:
        """The calls that are suspect."""
        return [suspect for suspect in self.suspects if suspect.rows.is_call]

    def clear(self) -> None:
        """Nothing is suspect."""
        self.suspects.clear()
        self.calling = None
        self.deaths = self.outside = self.together = self.takes_ms = 0


@dataclass(slots=True)
class _Death:
    """Deaths in an executor, together: when the last one was, of which tasks, and for each task
    against which rows or which call it counts; None: it was outside of steps.

    Of all of them: ``is_executor``: there were several; ``calls``: what was made; ``held``: whose
    calls were held back; ``is_within``: one was within a step; ``is_told``: users know.
    """

    at_ms: int
    tasks: frozenset[int] = frozenset()
    counted: list[tuple[int, Rows | None]] = field(default_factory=list)
    is_executor: bool = False
    calls: dict[int, msg.Announced] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    is_within: bool = False
    is_told: bool = False


class Blame:
    """What is known about the deaths of all tasks of a job."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._cases = {task.id: _Case(task) for task in roster.tasks.values()}
        self._deaths: dict[str, _Death] = {}  # the latest, by executor
        self._turn = 0

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
            if report.is_cleared:
                case.suspects = [_cleared(suspect, report.rows) for suspect in case.suspects]
        elif not report.is_cleared:
            self._survive(case)  # no step is under way when a slot makes such a call
            case.calling, case.since_ms, case.is_held = report, self._roster.now_ms, False
        else:
            case.calling = None
            self._suspect(case, [s for s in case.suspects if s.rows != report.rows])

    def survived(self, slot: int, report: msg.Survived) -> None:
        """A watched life has survived the step that it announced."""
        if not self._is_current(slot, report):
            return
        case = self._cases[report.task]
        self._survive(case)
        if not report.left:
            case.machine.on(Clue.ENOUGH)
            case.clear()

    def _survive(self, case: _Case) -> None:
        """The announced step, if any, is over."""
        done, case.within = case.within, None
        if done is not None:
            rest = ((suspect, suspect.rows.after(done.rows)) for suspect in case.suspects)
            self._suspect(case, [s._replace(rows=rows) for s, rows in rest if rows is not None])

    def _suspect(self, case: _Case, suspects: list[Suspect]) -> None:
        """These rows and calls are still suspect."""
        case.suspects = suspects
        if case.machine.state is Suspicion.SUSPECT and not suspects:
            case.machine.on(Clue.SURVIVED)

    def _is_current(self, slot: int, report: msg.Announced | msg.Survived) -> bool:
        task = self._roster.tasks[report.task]
        return report.incarnation == task.incarnation and task.slot == slot

    def lost(self, slot: Slot, *, is_death: bool, is_heard: bool = True) -> None:
        """A slot is gone. `is_death`: it has not been given up by us, or cancelled. `is_heard`: no
        call was made of which we have not heard."""
        self.tick()
        tasks = frozenset(t.id for t in self._roster.tasks.values() if t.slot == slot.id)
        death = self._death(slot, tasks) if is_death else _Death(0)
        for task in sorted(tasks):
            case = self._cases[task]
            within, case.within = case.within, None
            calling, case.calling = case.calling, None
            is_held, case.is_held = case.is_held, False
            if not is_death or self._roster.tasks[task].phase not in ACTIVE:
                continue
            if within is not None and (calling is None or not within.is_cleared):
                self._died_within(task, within, death)
                if calling is not None and not death.is_executor:
                    self._perhaps_calling(task, calling, death)
            elif calling is not None:
                self._died_calling(task, calling, death)
            else:
                self._died_outside(task, death)
                is_live = self._roster.tasks[task].phase is TaskPhase.LIVE
                if is_held and is_heard and is_live:
                    death.held.add(task)  # else its slot may have been dead when it was chosen

    def _died_within(self, task: int, within: msg.Announced, death: _Death) -> None:
        case = self._cases[task]
        case.machine.on(Clue.DIED_WITHIN)
        counts = not (death.is_executor or within.is_cleared)
        case.suspects = _with(case.suspects, within.rows, int(counts))
        case.deaths += counts
        death.is_within = True
        if counts:
            death.counted.append((task, within.rows))
        elif within.is_cleared:  # a copy has taken the step and lives: perhaps it was a call
            self._count_outside(task, death)

    def _perhaps_calling(self, task: int, calling: msg.Announced, death: _Death) -> None:
        """A life died within a step: if its call has killed before, perhaps it was that again. (If
        the step kills each time, it does so while calls are held back.)"""
        case = self._cases[task]
        if any(suspect.rows == calling.rows for suspect in case.calls):
            case.suspects = _with(case.suspects, calling.rows, 1)
            death.counted.append((task, calling.rows))

    def _died_calling(self, task: int, calling: msg.Announced, death: _Death) -> None:
        case, counts = self._cases[task], not death.is_executor
        case.machine.on(Clue.DIED_WITHIN)
        case.suspects = _with(case.suspects, calling.rows, int(counts), lives=int(counts))
        death.calls[task] = calling
        takes_ms = self._roster.now_ms - case.since_ms
        case.takes_ms = max(case.takes_ms, takes_ms, HOLD_MS // 2)
        if counts:
            death.counted.append((task, calling.rows))

    def _died_outside(self, task: int, death: _Death) -> None:
        case = self._cases[task]
        is_watched = case.machine.state is not Suspicion.CLEAR
        case.machine.on(Clue.DIED)
        if is_watched:
            self._count_outside(task, death)

    def _count_outside(self, task: int, death: _Death) -> None:
        case = self._cases[task]
        if death.is_executor:
            self._died_together(task, death)
            return
        death.counted.append((task, None))
        case.outside += 1
        if case.outside == OUTSIDE_MANY and not death.is_told:
            death.is_told = True
            self._roster.do(notes.Outside(task, case.outside))

    def _died_together(self, task: int, death: _Death) -> None:
        case = self._cases[task]
        case.together += 1
        if case.together == TOGETHER_MANY and not death.is_told:
            death.is_told = True
            self._roster.do(notes.Together(task, case.together))

    def _death(self, slot: Slot, tasks: frozenset[int]) -> _Death:
        """A death in the slot's executor. If the executor has died, the death of its first slot no
        longer counts.

        Two lives of the same task died one after the other, not together.
        """
        now_ms, last = self._roster.now_ms, self._deaths.get(slot.group)
        if not slot.group or last is None or tasks & last.tasks:
            if last is not None:
                self._weigh_one(last)
            self._deaths[slot.group] = _Death(now_ms, tasks)
            return self._deaths[slot.group]
        for task, rows in last.counted:
            case = self._cases[task]
            if rows is None:
                case.outside -= 1
                self._died_together(task, last)
                continue
            is_call = rows.is_call
            case.suspects = _with(case.suspects, rows, -1, lives=-int(is_call))
            case.deaths -= not is_call
        self._turn += not last.is_executor
        last.at_ms, last.tasks, last.counted = now_ms, last.tasks | tasks, []
        last.is_executor = True
        return last

    def tick(self) -> None:
        """Time passes. Executors that have died: who else was in them is known by now."""
        now_ms = self._roster.now_ms
        over = {g: d for g, d in self._deaths.items() if now_ms - d.at_ms > TOGETHER_MS}
        for group, death in over.items():
            del self._deaths[group]
            self._weigh_one(death)

    def _weigh_one(self, death: _Death) -> None:
        if death.is_within:
            return
        for task, calling in death.calls.items() if death.is_executor else ():
            case, is_alone = self._cases[task], len(death.calls) == 1
            if is_alone:
                case.suspects = _with(case.suspects, calling.rows, 0)
            lives = max((s.lives for s in case.calls if s.rows == calling.rows), default=0)
            self._roster.do(notes.Call(task, calling.shown, lives, is_alone))
        if not death.calls:  # whatever it was, these calls were held back
            for task in death.held:
                case = self._cases[task]
                case.takes_ms = 0
                self._suspect(case, [s for s in case.suspects if not s.rows.is_call])

    # --- what follows ---------------------------------------------------------------------------

    def next_life(self, task: int) -> tuple[int, tuple[Suspect, ...]]:
        """How many steps the next life of a task announces, and what it has to try first."""
        self.tick()
        plan = self._roster.plan
        if plan.leaves_gaps and plan.tasks[task].inputs:  # no life meets the same rows again
            return 0, ()
        case = self._cases[task]
        case.within = case.calling = None  # left by a life that was fenced in its slot
        steps = 0 if case.machine.state is Suspicion.CLEAR else WATCHED_STEPS
        everything = (ALL,) if steps and case.deaths >= WITHIN_MANY else ()
        is_search = case.outside >= OUTSIDE_MANY or case.together >= TOGETHER_MANY
        hold_ms = self._hold_ms(task)
        calls = (ONE_BY_ONE._replace(hold_ms=hold_ms),) if steps and is_search else ()
        case.is_held = bool(calls) and hold_ms > 0
        return steps, (*case.suspects, *everything, *calls)

    def _hold_ms(self, task: int) -> int:
        """How long the next life of a task makes no calls, so that those of another task can be
        seen to kill without it; 0: no executor has died of calls."""
        takes_ms = max((c.takes_ms for c in self._cases.values() if c.calls), default=0)
        if takes_ms == 0:
            return 0
        cell_of = self._roster.plan.cell_of  # tasks of one slot make one call at a time anyway
        suspect = list(dict.fromkeys(cell_of[n] for n, case in self._cases.items() if case.calls))
        first, cell = self._turn % len(suspect), cell_of[task]
        order = [*suspect[first:], *suspect[:first]]
        place = order.index(cell) if cell in order else len(order)
        return 2 * takes_ms * (1 + place)


def _cleared(suspect: Suspect, rows: Rows) -> Suspect:
    """`suspect` after a copy has survived `rows`: what lives have died of was something else.

    Examples
    --------
    >>> _cleared(Suspect(Rows(7, 4, 9), 3, 3), Rows(7, 1, 9))
    Suspect(rows=Rows(channel=7, first=4, last=9), deaths=0, lives=3, hold_ms=0)
    >>> _cleared(Suspect(Rows(7, 4, 9), 3, 3), Rows(7, 1, 8))
    Suspect(rows=Rows(channel=7, first=4, last=9), deaths=3, lives=3, hold_ms=0)
    """
    return suspect if suspect.rows.after(rows) is not None else suspect._replace(deaths=0)


def _with(suspects: list[Suspect], rows: Rows, deaths: int, lives: int = 1) -> list[Suspect]:
    """`suspects` after `deaths` more deaths that count within `rows`, and `lives` more lives.

    Examples
    --------
    >>> _with([Suspect(Rows(7, 1, 9), 1, 1)], Rows(7, 4, 20), 1)
    [Suspect(rows=Rows(channel=7, first=4, last=9), deaths=2, lives=2, hold_ms=0)]
    """
    common = [suspect.rows.common(rows) for suspect in suspects]
    if not any(common):
        return [*suspects, Suspect(rows, max(deaths, 0), lives)][-SUSPECTS_MAX:]
    return [
        s if part is None else Suspect(part, max(s.deaths + deaths, 0), s.lives + lives)
        for s, part in zip(suspects, common, strict=True)
    ]
