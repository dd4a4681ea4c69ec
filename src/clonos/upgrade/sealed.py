"""How the first layers of another plan, or of another time, are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clonos.core.plan import Incarnation


@dataclass(frozen=True)
class Discarded:
    """What was made since the point that a job goes back to, and whose names must not come again.

    ``position``: longer than any log; ``lanes``: by channel out of the job, number and digest of
    the last output.
    """

    position: int
    lanes: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Sealed:
    """How the new layers are named: who makes them, and of which floor and generation they are.

    ``discarded``: None, unless the job goes back to a point of its past.
    """

    maker: Incarnation
    epoch: int
    generation: int
    discarded: Discarded | None = None
