"""How safely a layer is kept, and the messages about layers that are in no checkpoint store.

=========  ==========================================================================
level      a layer is in
=========  ==========================================================================
"memory"   the memories of the task's process and of those of its standbys
"local"    the local disks of the machines of the task and of a standby
"store"    the checkpoint store, which all processes reach
=========  ==========================================================================

At the first two levels *slots* keep the layers, and the coordinator knows which slot has which
(:mod:`clonos.core.holdings`). A slot that should have a layer fetches it from a slot that has it.

The layers of a task with the level "auto" may be at any of them (:mod:`clonos.core.dial`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from clonos.core.plan import Incarnation

MEMORY: Final = "memory"
LOCAL: Final = "local"
STORE: Final = "store"
LEVELS: Final = (MEMORY, LOCAL, STORE)
"""The weakest first."""
AUTO: Final = "auto"
CHOICES: Final = (MEMORY, LOCAL, AUTO, STORE)
"""The settings of a task, the weakest first. With "auto" only time can be lost, so it is stronger
than the levels at which state can be lost."""

SHELF: Final = -2
"""The channel on which any two slots hand each other layers. It is in no plan."""


def strictest(levels: Iterable[str]) -> str:
    """The strongest of these settings; without any, the strongest of all.

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
    """Where a sealed layer is kept, which life of the task it is from, and its digest."""

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
        return dict(zip(_NAMES, _values(self), strict=True))

    @classmethod
    def of(cls, named: dict[str, Any]) -> LayerRef:
        """Inverse of :attr:`named`."""
        return cls(**{**named, "incarnation": Incarnation(*named["incarnation"])})


_NAMES: Final = tuple(field.name for field in fields(LayerRef))
_values: Final = attrgetter(*_NAMES)


# --- coordinator to slot --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep these layers of `task`: no others count. The newest Hold of a task replaces earlier
    ones. Layers that are not here yet may be at the ``sources`` (none: do not fetch).

    ``life``: the task's newest one. Layers that earlier lives have sealed here count only if named.
    ``tidies``: delete all other layers of earlier lives on this machine's disk. Killed processes
    have left them, and nobody else knows of them.
    ``asks``: look again for those that are known to be here, too, and say which are.
    """

    task: int
    life: Incarnation
    layers: tuple[LayerRef, ...]
    sources: tuple[str, ...]
    tidies: bool = False
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete these layers of `task` here, and those that lives before `life` have sealed here."""

    task: int
    life: Incarnation
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class MergeLayers:
    """Merge these layers, which are here, into one, and keep it under this path and at this level.

    ``is_base``: the first of them is the task's first layer.
    """

    task: int
    layers: tuple[LayerRef, ...]
    is_base: bool
    level: str
    path: str


LayerCommand = Hold | Discard | MergeLayers


# --- slot to coordinator --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """Layers of `task` that are here now, since a :class:`Hold` has named them. They may count no
    more when this comes."""

    task: int
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class Lacks:
    """Layers of `task` that a :class:`Hold` has named and that are not here, or cannot be read. The
    slot fetches them."""

    task: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayersMerged:
    """A :class:`MergeLayers` is done; None: it has failed for now."""

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
    """The slot that was connected to is ready to be asked."""


@dataclass(frozen=True, slots=True)
class LayerWanted:
    """Send the content of this layer, from this byte on."""

    ref: LayerRef
    start: int


@dataclass(frozen=True, slots=True)
class LayerPart:
    """A part of a layer, of `nbytes` in all; -1: it is not here."""

    path: str
    start: int
    nbytes: int
    content: bytes
