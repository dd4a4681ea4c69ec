"""One deliberate mistake: which functions are replaced, and which invariant must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any

from clonos.simulator.runs.kinds import AS_THE_SEED_SAYS, Kind

Patch = tuple[Any, str, Callable[[Any], Any]]
"""Owner and name of a function, and a function that turns it into the wrong one."""


@dataclass(frozen=True)
class Mutation:
    """The mistake, the invariant that must find it, and the kind of seeds."""

    breaks: str
    patches: tuple[Patch, ...]
    kind: Kind = AS_THE_SEED_SAYS

    @contextmanager
    def active(self) -> Iterator[None]:
        originals = [getattr_static(owner, name) for owner, name, _ in self.patches]
        for owner, name, make in self.patches:
            setattr(owner, name, make(getattr(owner, name)))
        try:
            yield
        finally:
            for (owner, name, _), original in zip(self.patches, originals, strict=True):
                setattr(owner, name, original)


def mutation(breaks: str, *patches: Patch, kind: Kind = AS_THE_SEED_SAYS) -> Mutation:
    """Make a mutation of some functions."""
    return Mutation(breaks, patches, kind)


HARSH = Kind(harsh=True)
EDGE = Kind(edge=True)
DISK = Kind(disk=True)
OVERLAP = Kind(overlap=True)
HISTORY = Kind(history=True)
LOST_HISTORY = Kind(history=True, disk=True)
SPILL = Kind(spill=True)
LOOPS = Kind(loops=True)
UPGRADE = Kind(upgrade=True)
LIVE = Kind(live=True)
REWIND = Kind(rewind=True)
CANARY = Kind(canary=True)
LOGS = Kind(logs=True)
MOVES = Kind(moves=True)
RIVALS = Kind(rivals=True)
ARROW = Kind(arrow=True)
WIRE = Kind(wire=True)
GAPS = Kind(gaps=True)
IMPLIED = Kind(implied=True)
LEVELS = Kind(levels=True)
FORGIVING_EDGE = Kind(edge=True, availability=True)
