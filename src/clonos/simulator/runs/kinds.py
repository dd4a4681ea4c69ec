"""Kinds of simulations: everything that a seed does not decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final, NamedTuple

from clonos.simulator.runs.sizes import LARGE, SMALL, Size, size_of


class Kind(NamedTuple):
    """The kind of a simulation: everything that is not left to the seed.

    Attributes
    ----------
    harsh
        More failures, of tasks together with the holders of their logs, and slow links.
    availability
        What happens to orphans, if the seed is not to decide (harsh: they roll back).
    edge
        A chain whose links to the house-keeper are slow, and break.
    disk
        Disks fail, and machines die with unsynced data; if not given, in every eighth seed.
    overlap
        Tasks fail while others recover, upstream, downstream and elsewhere.
    history
        The job keeps a history, unless it has no logs, and somebody reads it.
    spill
        Everything retained for receivers goes to local disks, which sometimes fail.
    loops
        The job has loops.
    upgrade
        A job of Arrow operators settles, and goes on with another plan, twice.
    live
        The same, but slots wait for the next driver, and a job that does not settle in time
        goes on.
    logs
        Logs exceed their limit, and no periodic checkpoint comes; half of these seeds have no
        faults.
    moves, rivals
        Cells are asked to move, or most are overtaken; every second seed has no other faults.
    rewind
        A job goes back to points of its past, and on from there.
    canary
        Changed code follows the log of a job.
    wire
        Channels are bytes on simulated sockets, between the planes of production.
    gaps
        The job promises at most once.
    implied
        Tasks whose steps follow from their input are implied.
    arrow
        A real job of Arrow operators; if not given, in every 50th seed.
    large
        All simulations are large; otherwise most are small.
    levels
        Slots keep layers, in memory and on their disks; each task has a level of its own. In half
        of these seeds cells move and executors leave; in some, two executors share a machine.
    calls
        Every job has calls, about half of the jobs effects; unless they are to be large, all
        simulations are small.
    """

    harsh: bool = False
    availability: bool | None = None
    edge: bool = False
    disk: bool | None = None
    overlap: bool = False
    history: bool = False
    spill: bool = False
    loops: bool = False
    upgrade: bool = False
    live: bool = False
    logs: bool = False
    moves: bool = False
    rivals: bool = False
    rewind: bool = False
    canary: bool = False
    wire: bool = False
    gaps: bool = False
    implied: bool = False
    arrow: bool | None = None
    large: bool = False
    levels: bool = False
    calls: bool = False

    def flags(self) -> str:
        """The flags of ``clonos sim`` for this kind."""
        return "".join(f" --{name}" for name, value in self._asdict().items() if value)

    def size_of(self, seed: int) -> Size:
        """How large a simulation is."""
        if self.large:
            return LARGE
        if self.calls:
            return SMALL
        return size_of(seed, is_harsh=self.harsh or self.edge or self.overlap)


AS_THE_SEED_SAYS = Kind()
_ORDINARY = (
    *("rivals", "harsh", "edge", "overlap", "disk", "history", "spill"),
    *("moves", "gaps", "implied", "levels", "wire", "arrow"),
)
_SLOW = "loops", "upgrade", "live", "logs", "rewind"
EVERY: Final = (
    (AS_THE_SEED_SAYS, 80),
    (Kind(calls=True), 60),
    *((Kind(**{name: True}), 20) for name in _ORDINARY),
    *((Kind(**{name: True}), 4) for name in _SLOW),
    (Kind(canary=True), 2),
)
"""Every kind, and how many seeds of it follow each other before the next one's turn. Those that
take long have few."""


def in_turn(
    kinds: Sequence[tuple[Kind, int]], first: int, seeds: int
) -> Iterator[tuple[Kind, range]]:
    """Share `seeds` out among `kinds`, again and again in their order.

    Examples
    --------
    >>> calls = Kind(calls=True)
    >>> [list(part) for _, part in in_turn([(AS_THE_SEED_SAYS, 2), (calls, 1)], 10, 5)]
    [[10, 11], [12], [13, 14]]
    """
    end, shares = first + seeds, cycle(kinds)
    while first < end:
        kind, share = next(shares)
        yield kind, range(first, min(first + share, end))
        first += share
