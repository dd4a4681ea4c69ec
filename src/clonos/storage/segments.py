"""The segments of a table: their positions, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple


class Position(NamedTuple):
    """How far a task's output goes; compared in this order.

    For a query, the numbers are those of the batch and of the file in it.
    """

    generation: int
    seq: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The inverse of ``str``."""
        generation, _, seq = text.partition("-")
        return cls(int(generation), int(seq))


START: Final = Position(-1, -1)
"""Before the first segment."""

Positions = Mapping[int, Position]
"""Per task; one that is missing is at :data:`START`."""


class Segment(NamedTuple):
    """One file of a table."""

    task: int
    position: Position
    rows: int
    nbytes: int
    mtime_s: float
    path: str


def newest(segments: Iterable[Segment]) -> dict[int, Position]:
    """By task, the position of its last segment; the segments of each task must be in order."""
    return {segment.task: segment.position for segment in segments}
