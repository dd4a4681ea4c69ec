"""Planned moves: cells are asked to move, executors to leave, and participants sometimes die."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from clonos.core import decisions as co
from clonos.core import notes
from clonos.core.coordinator import Coordinator
from clonos.nodes import events
from clonos.simulator.checks.violations import require

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster
    from clonos.simulator.runs.coverage import Coverage

STAGES: Final = notes.Moving | notes.Fenced | notes.Fetched | notes.Activated | notes.Restored
"""Stages of a move at which a participant dies."""
ASKED: Final = 12
"""How many moves are requested."""
KILLS: Final = 3
"""How many processes are killed on purpose."""
SLOW_MS: Final = 4.0
"""How much longer each turn of a process takes that is to be overtaken."""


class Movers:
    """Requests moves until faults are over.

    Parameters
    ----------
    rivals
        Draws the tasks that become slow and are overtaken; None: no tasks.

    Attributes
    ----------
    moved
        How many cells have moved.
    overtaken
        How many cells began to be overtaken.
    has_failures
        Whether anything was recovered for another reason than a move.
    """

    def __init__(
        self,
        cluster: Cluster,
        random: Random,
        renewals: Random,
        *,
        deadly: bool,
        rivals: Random | None = None,
    ) -> None:
        self.cluster, self.random = cluster, random
        self.moved, self.overtaken, self.has_failures = 0, 0, False
        self._rivals = rivals
        self._overtaking: notes.Rival | None = None
        self._heard_of: Coordinator | None = None
        self._kills = KILLS if deadly else 0
        cluster.on_note.append(self._noted)
        for _ in range(ASKED):
            cluster.scheduler.at(3.0 + random.random() * cluster.heals_at, self._ask)
        if random.random() < 0.4:
            at = 3.0 + random.random() * cluster.heals_at
            cluster.scheduler.at(at, self._leave, f"executor{random.randrange(3)}")
        for _ in range(renewals.choice((0, 2))):
            at = 3.0 + renewals.random() * cluster.heals_at
            cluster.scheduler.at(at, self._renew, renewals)

    def _is_running(self) -> bool:
        return self.cluster.driver.alive and self.cluster.outcome.state == "running"

    def _ask(self) -> None:
        if self._is_running():
            task = self.random.randrange(len(self.cluster.job.plan.tasks))
            if self._rivals is not None and self._rivals.random() < 0.7:
                self._overtake(task, self._rivals)
                return
            self.cluster.trace(f"task {task} is asked to move")
            self.cluster.driver.post(co.MoveAsked(task))

    def _overtake(self, task: int, random: Random) -> None:
        """A task's process is slow, or only taken to be; sooner or later that shows."""
        slot = self.cluster.slot_of(task)
        if slot is not None and random.random() < 0.7:
            self.cluster.slow[slot.number] = SLOW_MS
            self.cluster.scheduler.after(40.0, self._speed_up, slot.number)
        self.cluster.trace(f"task {task} is to be overtaken")
        self.cluster.driver.post(co.MoveAsked(task, overtakes=True))

    def _speed_up(self, slot: int) -> None:
        self.cluster.slow.pop(slot, None)

    def _leave(self, group: str) -> None:
        if self._is_running():
            self.cluster.trace(f"{group} is about to leave")
            ends = self.random.random() < 0.5
            self.cluster.driver.post(co.Leaving(group, ends=ends))
            if self.cluster.options.has_machines:
                self.cluster.leaving.add(group)
                if not ends and self.cluster.options.groups > 1:  # else all would end
                    self.cluster.scheduler.after(100 * self.random.random(), self._left, group)

    def _left(self, group: str) -> None:
        """An executor ends, whether its slots are empty or not."""
        for slot in self.cluster.alive():
            if slot.group == group:
                self.cluster.kill(slot, "its executor has left")

    def _renew(self, random: Random) -> None:
        seats = list(self.cluster.driver.node.places.seats.values()) if self._is_running() else []
        if seats:
            self.cluster.trace("slots that run nothing are to start anew")
            self.cluster.driver.post(events.RenewalAsked(random.choice(seats).pid))

    def _noted(self, note: notes.Note) -> None:
        self.moved += isinstance(note, notes.Moved)
        self.has_failures |= isinstance(note, notes.Detected | notes.Orphan)
        self._look_at_rivals(note)
        may_kill = self._kills and self.cluster.scheduler.now <= self.cluster.heals_at
        if isinstance(note, STAGES) and may_kill and self.random.random() < 0.15:
            self._kills -= 1
            self.cluster.scheduler.after(self.random.choice((0.0, 0.5, 3.0)), self._kill, note.task)

    def _look_at_rivals(self, note: notes.Note) -> None:
        coordinator = self.cluster.driver.coordinator
        if coordinator is not self._heard_of:  # a new driver: what the dead one had begun is over
            self._heard_of, self._overtaking = coordinator, None
        if isinstance(note, notes.Rival):
            self._overtaking, self.overtaken = note, self.overtaken + 1
        elif isinstance(note, notes.Moved | notes.Stayed) and self._overtaking is not None:
            rival, self._overtaking = self._overtaking, None
            rival_wins(rival, note, coordinator)

    def add_to(self, coverage: Coverage) -> None:
        """Count what has moved, and what began to be overtaken."""
        coverage["moved", "running"] = self.moved
        if self._rivals is not None:
            coverage["overtaken", "running"] = self.overtaken

    def _kill(self, task: int) -> None:
        """Kill the slot that a task moves from, the one it moves to, any other, or the driver."""
        if not self._is_running():
            return
        who = self.random.choice(("task", "task", "any", "any", "driver"))
        if who == "driver":
            self.has_failures = True
            self.cluster.kill_driver()
            return
        slot = self.cluster.slot_of(task) if who == "task" else None
        if slots := [slot] if slot is not None else self.cluster.alive():
            self.cluster.kill(self.random.choice(slots), "killed while something moves")


def rival_wins(
    rival: notes.Rival, end: notes.Moved | notes.Stayed, coordinator: Coordinator
) -> None:
    """An overtaken task goes on where its rival is, unless the rival is gone. Otherwise it was
    fenced for nothing."""
    has_won = isinstance(end, notes.Moved) or rival.target not in coordinator.slots
    what = f"task {rival.task} was overtaken by slot {rival.target}, and {end.what} at last"
    require(end.task == rival.task and has_won, "rivals", what)
