"""First layers: where a task begins, and how those of another plan, or another time, are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clonos.core.messages import Layer
from clonos.core.plan import Incarnation, TaskSpec

NUMBERS_APART: Final = 1 << 40
"""More calls than an operator has asked since any point: who begins behind so many may be asked
what was asked before the job went back in time."""


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


def beginning(task: TaskSpec) -> Layer:
    """Where a task begins."""
    return Layer(
        task=task.id,
        incarnation=Incarnation(0, 0),
        epoch=0,
        position=0,
        ins=dict.fromkeys(task.inputs, (0, 0)),
        outs=dict.fromkeys(task.outputs, (0, 0)),
        ended=(),
        dep={},
        clock_ms=0,
        wake_ms=None,
        source_rows=0,
        source_ended=False,
        delta=b"",
    )
