"""The coordinator's events (from its host), and its actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clonos.core import messages as msg
from clonos.core.levels import LayerRef
from clonos.core.notes import Note

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotReady:
    """A slot has registered. ``group``: its executor; ``bound``: the only task it can run;
    ``disk``: the name of its local disk, the same for all slots with that disk; ``copies``: the
    epoch that each copy has reached which it has already (-1: it is still empty)."""

    slot: int
    address: str
    group: str = ""
    bound: int | None = None
    disk: str = ""
    copies: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlotLost:
    """A slot's control stream has ended, or (no `is_death`) we have given the slot up.

    ``is_heard``: whether all that it said has come; of a slot that has died it may still be on its
    way.
    """

    slot: int
    is_death: bool = True
    is_heard: bool = True


@dataclass(frozen=True, slots=True)
class Reported:
    """A message from a slot."""

    slot: int
    report: msg.Report


@dataclass(frozen=True, slots=True)
class MoveAsked:
    """Move the cell of `task` to another slot. ``overtakes``: without asking the cell to yield."""

    task: int
    overtakes: bool = False


@dataclass(frozen=True, slots=True)
class Leaving:
    """The slots of this executor are about to go: tasks there move away, and no others come.

    ``ends``: the executor ends when nothing runs there any more, so its idle slots must end.
    """

    group: str
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Compacted:
    """Some of a task's layers were merged into one."""

    merged: LayerRef
    replaced: tuple[LayerRef, ...]


# --- actions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A command to a slot."""

    slot: int
    command: msg.Command


@dataclass(frozen=True, slots=True)
class Expel:
    """End a slot that does not answer."""

    slot: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The job cannot go on. The texts are those of a :class:`~clonos.errors.ClonosError`."""

    error: str
    message: str
    task: int = -1
    where: str = ""
    remedy: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """All output is delivered."""


Event = SlotReady | SlotLost | Reported | Compacted | MoveAsked | Leaving
Action = Command | Expel | Note | Fail | Done
