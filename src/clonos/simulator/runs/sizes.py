"""The size of a simulation: small ones are quick and find most faults, but not all."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple


class Size(NamedTuple):
    """The ranges from which a seed draws its numbers; by default, those of a large simulation.

    Attributes
    ----------
    tasks, rows
        For a job of any shape: fewest and most tasks; fewest and most rows of each source.
    chain_rows
        Rows of each source of a job of a fixed shape.
    arrow_rows
        Fewest and most rows of each source of a job of Arrow operators.
    begins_ms, lasts_ms
        When faults begin, and for how long they strike.
    strikes
        The largest number of faults ...
    harsh_strikes
        ... and the exact number in harsh simulations.
    epochs_ms
        The intervals of checkpoints.
    disk_floors
        How many checkpoints follow the last fault of a disk.
    turns_ms
        The shortest time that a turn takes; events that come meanwhile share the next turn.
    """

    tasks: tuple[int, int] = (3, 9)
    rows: tuple[int, int] = (8, 50)
    chain_rows: int = 40
    arrow_rows: tuple[int, int] = (8, 30)
    begins_ms: tuple[float, ...] = (3.0, 3.0, 100.0, 200.0)
    lasts_ms: tuple[float, ...] = (30.0, 80.0, 200.0)
    strikes: int = 8
    harsh_strikes: int = 12
    epochs_ms: tuple[float, ...] = (5.0, 5.0, 10.0, 25.0, 60.0, 1000.0)
    disk_floors: int = 20
    turns_ms: tuple[float, ...] = (0.0,)


LARGE: Final = Size()
MEDIUM: Final = Size(
    tasks=(3, 6),
    rows=(6, 20),
    chain_rows=20,
    arrow_rows=(6, 20),
    begins_ms=(3.0, 3.0, 30.0, 80.0),
    lasts_ms=(20.0, 50.0, 100.0),
    strikes=8,
    harsh_strikes=12,
    epochs_ms=(5.0, 10.0, 25.0, 60.0, 200.0),
    disk_floors=12,
    turns_ms=(0.0, 0.3, 1.0),
)
SMALL: Final = Size(
    tasks=(2, 4),
    rows=(3, 12),
    chain_rows=10,
    arrow_rows=(3, 12),
    begins_ms=(3.0, 3.0, 15.0, 40.0),
    lasts_ms=(15.0, 30.0, 60.0),
    strikes=6,
    harsh_strikes=8,
    epochs_ms=(5.0, 10.0, 25.0, 60.0),
    disk_floors=8,
    turns_ms=(0.0, 0.3, 1.0, 1.0),
)


SHARES: Final = (0.65, 0.25)
"""The shares of small and of medium seeds; the rest are large."""
HARSH_SHARES: Final = (0.2, 0.5)
"""The same for harsh seeds: whole neighbourhoods must die several times, with time between."""


def size_of(seed: int, *, is_harsh: bool) -> Size:
    """Most seeds are small, some are large. Drawn separately, so that a large seed does the same if
    all are asked to be large."""
    drawn = Random(f"size {seed}").random()
    small, medium = HARSH_SHARES if is_harsh else SHARES
    return SMALL if drawn < small else MEDIUM if drawn < small + medium else LARGE
