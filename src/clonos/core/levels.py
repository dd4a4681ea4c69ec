"""How safe a layer is kept, and what is said about layers that are in no checkpoint store.

=========  ==========================================================================
level      a layer is in
=========  ==========================================================================
"memory"   the memories of the task's process and of those of its standbys
"local"    the local disks of the machines of the task and of a standby
"store"    the checkpoint store, which all processes reach
=========  ==========================================================================

At the first two levels it is the *slots* that keep layers, and the coordinator who knows which slot
has which (:mod:`clonos.core.holdings`). Whoever is to have a layer fetches it from one who has it.

A task of level "auto" has layers of any level (:mod:`clonos.core.dial`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from clonos.core.plan import Incarnation

MEMORY: Final = "memory"
LOCAL: Final = "local"
STORE: Final = "store"
LEVELS: Final = (MEMORY, LOCAL, STORE)
"""The weakest first."""
AUTO: Final = "auto"
CHOICES: Final = (MEMORY, LOCAL, AUTO, STORE)
"""The settings of a task, the weakest first. "auto" may lose only time, so it is stronger than the
levels that may lose state."""

SHELF: Final = -2
"""The channel on which slots hand each other layers: it is in no plan, and between any two."""


def strictest(levels: Iterable[str]) -> str:
    """The one of these that survives most; without any, the strictest of all.

    Examples
    --------
    >>> strictest(["local", "memory"])
    'local'
    """
    return max(levels, key=CHOICES.index, default=STORE)


def weakest(levels: Iterable[str]) -> str:
    """The weakest of these; without any, the strongest level.

    Examples
    --------
    >>> weakest(["local", "memory", "store"])
    'memory'
    """
    return min(levels, key=LEVELS.index, default=STORE)


@dataclass(frozen=True, slots=True)
class LayerRef:
    """Where a sealed layer is kept, of which life of the task, and the digest of what is in it."""

    task: int
    epoch: int
    incarnation: Incarnation
    position: int
    path: str
    nbytes: int
    digest: int
    level: str = STORE

    @property
    def named(self) -> dict[str, Any]:
        """Its fields by name: a journal outlives the version that wrote it."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of(cls, named: dict[str, Any]) -> LayerRef:
        """Inverse of :attr:`named`."""
        return cls(**{**named, "incarnation": Incarnation(*named["incarnation"])})


# --- coordinator to slot --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep these layers of `task`, all that count of it; the newest Hold of a task is the one that
    is meant. What is not there yet, the slots at these addresses may have (none: do not ask). If it
    says the same as the one before, the coordinator asks what is there.

    ``life``: the task's newest one. What earlier ones have sealed here counts only if it is named.
    ``tidies``: other layers of earlier lives on this machine's disk go. Processes that were killed
    have left them, and nobody has heard of them.
    """

    task: int
    life: Incarnation
    layers: tuple[LayerRef, ...]
    sources: tuple[str, ...]
    tidies: bool = False


@dataclass(frozen=True, slots=True)
class Discard:
    """Nobody needs these layers of `task` here any more, nor what lives before `life` have sealed
    here."""

    task: int
    life: Incarnation
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class MergeLayers:
    """Make one layer of these, which are here, and keep it under this path and at this level.

    ``is_base``: the first of them is the task's first.
    """

    task: int
    layers: tuple[LayerRef, ...]
    is_base: bool
    level: str
    path: str


# --- slot to coordinator --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """Layers of `task` that were not here when a :class:`Hold` named them, or not known to be."""

    task: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lacks:
    """Layers of `task` that a :class:`Hold` has named, and that are not here, or cannot be read any
    more. They are fetched."""

    task: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayersMerged:
    """A :class:`MergeLayers` is done; None: it cannot be, now."""

    task: int
    replaced: tuple[LayerRef, ...]
    merged: LayerRef | None


@dataclass(frozen=True, slots=True)
class LevelInUse:
    """The level of the next layers of `task`, and why it is not the strongest (empty: it is)."""

    task: int
    incarnation: Incarnation
    level: str
    why: str


# --- slot to slot ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayersHere:
    """Who was connected to says so: it may be asked now."""


@dataclass(frozen=True, slots=True)
class LayerWanted:
    """Send what is in this layer, from this byte on."""

    ref: LayerRef
    start: int


@dataclass(frozen=True, slots=True)
class LayerPart:
    """A part of a layer, of `nbytes` in all; -1: it is not here."""

    path: str
    start: int
    nbytes: int
    content: bytes
