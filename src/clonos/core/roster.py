"""What the coordinator knows about tasks and slots, and what it decides in one call."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from clonos.core import messages as msg
from clonos.core.decisions import Action, Command, Fail
from clonos.core.housekeeper import HouseKeeper
from clonos.core.machine import Machine, Table
from clonos.core.placement import Slot
from clonos.core.plan import HOUSE_KEEPER, Cell, Incarnation, Plan


class TaskPhase(Enum):
    """The phases of a task, as the coordinator sees it."""

    FENCING = "fencing"
    READING = "reading"
    READY = "ready"
    WAITING = "waiting for a slot"
    RESTORING = "restoring"
    REPLAYING = "replaying"
    LIVE = "live"
    FINISHED = "finished"


class TaskEvent(Enum):
    """What happens to a task."""

    FAILED = "lost, orphaned or cut"
    ASKED = "answers in, somebody holds more"
    READ = "read"
    HELD = "answers in, the house-keeper holds most"
    RESOLVED = "ancestors resolved"
    ACTIVATED = "slot, ancestors resolved"
    RESTORED = "layers applied"
    REPLAYED = "log exhausted"
    FINISHED = "all ended, settled"


UNRESOLVED = frozenset({TaskPhase.FENCING, TaskPhase.READING, TaskPhase.READY})
ACTIVE = frozenset({TaskPhase.RESTORING, TaskPhase.REPLAYING, TaskPhase.LIVE, TaskPhase.FINISHED})
RUNNING = frozenset({TaskPhase.LIVE, TaskPhase.FINISHED})

RECOVERY = Table(
    "recovery of a task",
    TaskPhase.WAITING,
    {
        **{
            (phase, TaskEvent.FAILED): TaskPhase.FENCING
            for phase in TaskPhase
            if phase not in UNRESOLVED
        },
        (TaskPhase.FENCING, TaskEvent.ASKED): TaskPhase.READING,
        (TaskPhase.FENCING, TaskEvent.HELD): TaskPhase.READY,
        (TaskPhase.READING, TaskEvent.READ): TaskPhase.READY,
        # The holder that was read is gone: read the next longest prefix.
        (TaskPhase.READING, TaskEvent.ASKED): TaskPhase.READING,
        (TaskPhase.READING, TaskEvent.HELD): TaskPhase.READY,
        (TaskPhase.READY, TaskEvent.RESOLVED): TaskPhase.WAITING,
        (TaskPhase.WAITING, TaskEvent.ACTIVATED): TaskPhase.RESTORING,
        (TaskPhase.RESTORING, TaskEvent.RESTORED): TaskPhase.REPLAYING,
        (TaskPhase.REPLAYING, TaskEvent.REPLAYED): TaskPhase.LIVE,
        (TaskPhase.LIVE, TaskEvent.FINISHED): TaskPhase.FINISHED,
    },
)


@dataclass(slots=True)
class TaskState:
    """What the coordinator knows of one task.

    ``awaited`` and ``answers``: the holders that owe an answer to the current fence, and the
    answers of the others. ``read_from``: the holder whose prefix is read. ``since_ms``: since when
    the recovery waits for holders.
    """

    id: int
    incarnation: Incarnation
    machine: Machine[TaskPhase, TaskEvent]
    slot: int | None = None
    awaited: set[int] = field(default_factory=set)
    answers: dict[int, msg.FenceAnswer] = field(default_factory=dict)
    read_from: int = -1
    since_ms: int = 0

    @property
    def phase(self) -> TaskPhase:
        """The state of its recovery."""
        return self.machine.state


class Roster:
    """Tasks, slots and the house-keeper of one job, for all parts of the coordinator.

    Attributes
    ----------
    bound
        Tasks that can only live in slots of their own (they read a DataFrame's partition).
    do
        Takes an action that was decided.
    now_ms
        When the current call came.
    """

    def __init__(
        self,
        plan: Plan,
        keeper: HouseKeeper,
        address: str,
        term: int | None = None,
        bound: Collection[int] = (),
    ) -> None:
        self.plan = plan
        self.keeper = keeper
        self.address = address
        self.bound = frozenset(bound)
        self.term = keeper.term + 1 if term is None else term
        self.slots: dict[int, Slot] = {}
        self.tasks = {
            t.id: TaskState(t.id, Incarnation(self.term, 0), RECOVERY.machine(t.name))
            for t in plan.tasks
        }
        self.failed = False
        self.now_ms = 0
        self._actions: list[Action] = []
        self.do = self._actions.append

    def take_actions(self) -> list[Action]:
        """Return the decisions since the last call."""
        actions = self._actions.copy()
        self._actions.clear()
        return actions

    def command(self, task: int, command: msg.TaskCommand) -> None:
        """Send a message to a task, if it has a slot."""
        slot = self.tasks[task].slot
        if slot is not None and slot in self.slots:
            self.do(Command(slot, msg.ToTask(task, command)))

    def fail(self, error: str, message: str, task: int, *told: str) -> None:
        """The job cannot go on; `told`: where, remedy and trace, as far as they are known."""
        self.failed = True
        self.do(Fail(error, message, task, *told))

    def home(self, cell: Cell) -> int | None:
        """The slot in which a cell lives, if any of its tasks has one."""
        slots = (self.tasks[task].slot for task in cell)
        return next((slot for slot in slots if slot is not None), None)

    def homes(self) -> dict[Cell, int | None]:
        """Where each cell lives."""
        return {cell: self.home(cell) for cell in self.plan.cells}

    def taken(self) -> set[int]:
        """The slots in which tasks live."""
        return {t.slot for t in self.tasks.values() if t.slot is not None}

    def active(self) -> list[TaskState]:
        """Tasks that live in a slot."""
        return [t for t in self.tasks.values() if t.phase in ACTIVE]

    @property
    def all_run(self) -> bool:
        """Whether no task is down or recovering."""
        return all(t.phase in RUNNING for t in self.tasks.values())

    def peer(self, channel: int) -> msg.Peer:
        """Where a channel's receiver is now."""
        receiver = self.tasks[self.plan.channels[channel].receiver]
        assert receiver.slot is not None
        return msg.Peer(channel, receiver.incarnation, self.slots[receiver.slot].address)

    def peers_of(self, task: int) -> list[msg.Peer]:
        """Addresses of those receivers of a task that have a slot."""
        peers = []
        for channel in self.plan.tasks[task].outputs:
            receiver = self.plan.channels[channel].receiver
            if receiver == HOUSE_KEEPER:
                peers.append(msg.Peer(channel, self.keeper.incarnation, self.address))
            elif self.tasks[receiver].phase in ACTIVE:
                peers.append(self.peer(channel))
        return peers

    def check(self) -> None:
        """Assertions over the whole state."""
        for task in self.tasks.values():
            assert task.incarnation.term == self.term
            assert task.slot is None or task.slot in self.slots
            assert task.slot is not None or task.phase not in ACTIVE
