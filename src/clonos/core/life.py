"""One incarnation of one task: its identity and its state."""

from __future__ import annotations

from enum import Enum

from clonos.core.machine import Table
from clonos.core.messages import Activate, Restored
from clonos.core.plan import Plan
from clonos.core.sealed import Layer


class Phase(Enum):
    """The phases of a task's life in its slot."""

    RESTORING = "restoring"
    REPLAYING = "replaying"
    LIVE = "live"
    FINISHED = "finished"
    FENCED = "fenced"


class LifeEvent(Enum):
    """What happens to a life."""

    STARTED = "layers applied"
    REPLAYED = "log exhausted"
    FINISHED = "all ended, settled"
    FENCED = "fence of its own"


LIFE = Table(
    "life of a task in a slot",
    Phase.RESTORING,
    {
        (Phase.RESTORING, LifeEvent.STARTED): Phase.REPLAYING,
        (Phase.REPLAYING, LifeEvent.REPLAYED): Phase.LIVE,
        (Phase.LIVE, LifeEvent.FINISHED): Phase.FINISHED,
        **{(phase, LifeEvent.FENCED): Phase.FENCED for phase in Phase},
    },
)


class Life:
    """The identity of a life of a task, for all its parts.

    Parameters
    ----------
    copied
        The newest layer that a copy of the task had in memory, if any.

    Attributes
    ----------
    machine
        Its phase.
    generation
        The newest generation that it has heard of (availability counts resets by generations).
    restored
        The report that its state is there, and where the state came from.
    """

    def __init__(self, plan: Plan, activate: Activate, copied: Layer | None = None) -> None:
        self.plan = plan
        self.id = activate.task
        self.spec = plan.tasks[activate.task]
        self.incarnation = activate.incarnation
        self.generation = activate.generation
        name = f"{self.spec.name}, life {activate.incarnation.term}.{activate.incarnation.n}"
        self.machine = LIFE.machine(name)
        upto = copied.epoch if copied is not None else 0
        layers = activate.layers
        self.restored = Restored(
            self.id,
            self.incarnation,
            state_bytes=sum(ref.nbytes for ref in layers),
            store_bytes=sum(ref.nbytes for ref in layers if ref.epoch > upto),
        )

    @property
    def is_live(self) -> bool:
        """Whether it makes its own choices instead of replaying; true also when it is finished."""
        return self.machine.state in (Phase.LIVE, Phase.FINISHED)
