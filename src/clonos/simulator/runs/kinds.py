"""Kinds of simulations: what a seed does not decide."""

from __future__ import annotations

from typing import NamedTuple

from clonos.simulator.runs.sizes import LARGE, Size, size_of


class Kind(NamedTuple):
    """Which kind of simulations: what is not left to the seed.

    Attributes
    ----------
    harsh
        More failures, of tasks together with those who hold their logs, and slow links.
    availability
        What happens to orphans, if the seed shall not say (harsh: they roll back).
    edge
        A chain whose links to the house-keeper are slow, and break.
    disk
        Disks fail, and machines die with what was not synced; without it, in every eighth seed.
    overlap
        Tasks fail while others recover, upstream, downstream and elsewhere.
    history
        The job keeps its past, unless it has no logs, and somebody reads it.
    spill
        All that is kept for receivers goes to local disks, which fail at times.
    loops
        Rows go round.
    upgrade
        A job of Arrow operators settles, and goes on with another plan, twice.
    live
        The same; slots wait for the next driver, and who does not settle in time goes on.
    logs
        Logs are longer than they may be, and no checkpoint comes by itself; half of these seeds are
        without faults.
    moves, rivals
        Cells are asked to move, or most are overtaken; in every second seed, nothing else goes
        wrong.
    rewind
        A job goes back to points of its past, and on from there.
    canary
        Changed code follows the log of a job.
    wire
        Channels are bytes on simulated sockets, between the planes of production.
    gaps
        The job promises at most once.
    implied
        Tasks whose steps follow from their input leave out their logs.
    arrow
        A real job of Arrow operators; if it is not said, in every 50th seed.
    large
        All simulations are large; else most are small, and some of these large.
    levels
        Slots keep layers, in memory and on their disks; each task has a level of its own.
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

    def flags(self) -> str:
        """As ``clonos sim`` wants them."""
        return "".join(f" --{name}" for name, value in self._asdict().items() if value)

    def size_of(self, seed: int) -> Size:
        """How large a simulation is."""
        is_harsh = self.harsh or self.edge or self.overlap
        return LARGE if self.large else size_of(seed, is_harsh=is_harsh)


AS_THE_SEED_SAYS = Kind()
