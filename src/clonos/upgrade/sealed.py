"""First layers of tasks, and how they are named after an upgrade or a rewind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clonos.core.plan import Incarnation, TaskSpec
from clonos.core.sealed import Layer

NUMBERS_APART: Final = 1 << 40
"""More calls than any operator makes after a point. An operator whose numbers begin after this may
repeat calls from before a rewind."""


@dataclass(frozen=True)
class Discarded:
    """Everything made since the point of a rewind; its names must not be used again.

    ``position``: beyond the end of every log; ``lanes``: by channel out of the job, number and
    digest of the last output.
    """

    position: int
    lanes: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Sealed:
    """The names of new layers: their maker, floor and generation.

    ``discarded``: None, except in a rewind.
    """

    maker: Incarnation
    epoch: int
    generation: int
    discarded: Discarded | None = None


def beginning(task: TaskSpec) -> Layer:
    """The empty layer with which a task begins."""
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
