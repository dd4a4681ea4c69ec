"""What a task seals: its state changes, and where it stood. :mod:`clonos.core.layer` makes bytes of
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from clonos.core.content import Content
from clonos.core.messages import Dependencies, Item
from clonos.core.plan import Incarnation


class RoundsState(NamedTuple):
    """How far a task is with the probes of its loop: see :class:`clonos.core.loops.Rounds`."""

    sent: int
    quiet: int
    was_busy: bool
    came: dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Layer:
    """A task's state changes since the layer before, and where the task stood when it was sealed.

    ``epoch``: its number; without markers each task counts for itself. ``ins`` and ``outs``: per
    channel, number and running digest of the last item consumed or produced. ``ended``: the inputs
    that have ended; ``end_is_out``: all of them had ended once (availability: one may have started
    over since). ``generation``: the newest that was known then. ``delta``: the program's state
    changes. ``carried``: of each feedback channel, the items that the receiver's floor may lack,
    and the running digest before them. ``rounds``: how far the task is with the probes of its loop.
    """

    task: int
    incarnation: Incarnation
    epoch: int
    position: int
    ins: dict[int, tuple[int, int]]
    outs: dict[int, tuple[int, int]]
    ended: tuple[int, ...]
    dep: Dependencies
    clock_ms: int
    wake_ms: int | None
    source_rows: int
    source_ended: bool
    delta: bytes | Content
    end_is_out: bool = False
    generation: int = 0
    source_cut: bytes = b""
    carried: dict[int, tuple[int, tuple[Item, ...]]] = field(default_factory=dict)
    rounds: RoundsState | None = None
