"""What has happened, as the coordinator tells it: the driver follows, and people see it.

Listeners of a job know a note by the name of its class, in lower case; so these names are part of
what users see (:class:`~clonos.nodes.views.JobEvent`).
"""

from __future__ import annotations

from dataclasses import dataclass

from clonos.core.plan import Incarnation


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth showing."""

    @property
    def what(self) -> str:
        """The word by which listeners know this kind of note."""
        return type(self).__name__.lower()


@dataclass(frozen=True, slots=True)
class OfTask(Note):
    """It is about a task; if a cell moves, about its first one."""

    task: int


# --- a recovery -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage(OfTask):
    """A recovery has come so far, and so has the first life of a task."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Detected(Stage):
    """A life is over; it is named, not the next one."""


@dataclass(frozen=True, slots=True)
class Fenced(Stage):
    """Everybody refuses the lives before this one."""


@dataclass(frozen=True, slots=True)
class Fetched(Stage):
    """The log is here, and cut to what is consistent."""

    length: int


@dataclass(frozen=True, slots=True)
class Activated(Stage):
    """A slot is told to run it."""


@dataclass(frozen=True, slots=True)
class Restored(Stage):
    """The state is here: how much of it was read, and how large it is."""

    store_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Live(Stage):
    """The log is replayed."""

    position: int


@dataclass(frozen=True, slots=True)
class Orphan(OfTask):
    """It depends on lost entries of other logs, and recovers for that reason."""


@dataclass(frozen=True, slots=True)
class Unreadable(OfTask):
    """It cannot read what it has spilled of this channel, and recovers for that reason."""

    channel: int


@dataclass(frozen=True, slots=True)
class Generation(Note):
    """A loss is forgiven; another generation of outputs begins."""

    number: int


# --- checkpoints ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Floor(Note):
    """The floors of this epoch are complete."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Hard(Note):
    """The floors of this epoch are hard."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Back(Note):
    """Newer layers are lost: all tasks go back to the hard floors of this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Standby(OfTask):
    """A copy of the task has reached this epoch (-1: it cannot be filled)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Level(OfTask):
    """Where the task's next layers are kept, and why that is not the strongest level."""

    level: str
    why: str


# --- moves ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moving(OfTask):
    """A life rests, and is over: the next one is in another slot. ``hands_over``: it goes on where
    this one rests."""

    incarnation: Incarnation
    hands_over: bool = False


@dataclass(frozen=True, slots=True)
class Rival(OfTask):
    """A slow cell is overtaken, by a copy in this slot."""

    target: int


@dataclass(frozen=True, slots=True)
class Moved(OfTask):
    """The cell is in this slot."""

    target: int


@dataclass(frozen=True, slots=True)
class Stayed(OfTask):
    """The cell has not moved. ``target``: the slot where it was to go, if one was found."""

    why: str
    target: int | None = None


# --- what is wrong ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unreachable(OfTask):
    """The receiver of this channel cannot be reached. ``why``: once for each pair of executors."""

    channel: int
    why: str


@dataclass(frozen=True, slots=True)
class Outside(OfTask):
    """Its process dies again and again outside of steps. ``deaths``: in a row, but one."""

    deaths: int


@dataclass(frozen=True, slots=True)
class Together(OfTask):
    """Its executor dies again and again. ``deaths``: in a row, but one."""

    deaths: int


@dataclass(frozen=True, slots=True)
class Call(OfTask):
    """Its executor has died while this call was under way, and was it the only one there?"""

    call: str
    proofs: int
    is_alone: bool
