"""Slots that cannot reach each other, though the coordinator hears of both.

A firewall, a broken switch, a route that only one side knows: nobody has died, and yet a channel
leads nowhere. Who cannot connect complains. Complaints are gathered for a moment, because a machine
that is cut off is the far end of many of them; then the slot in most of them is given up, and what
ran there is placed where its neighbours can be reached. If that does not help, the job fails with
the addresses of both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

GATHER_MS: Final = 300
"""How long complaints are gathered before somebody is moved."""
MOVES_MAX: Final = 3
"""A task that has been moved so often in vain is not moved again."""
FORGET_MS: Final = 600_000
"""Networks are mended: after this time two executors may be neighbours again."""


class Complaint(NamedTuple):
    """Task `near` cannot reach task `far`: lives of both, their slots, and what the transport says."""

    near: int
    far: int
    lives: tuple[tuple[int, int], tuple[int, int]]
    near_slot: int
    far_slot: int
    why: str


class Reach:
    """What is known of who cannot reach whom.

    Parameters
    ----------
    gather_ms
        See :data:`GATHER_MS`.
    """

    def __init__(self, gather_ms: int = GATHER_MS) -> None:
        self._gather_ms = gather_ms
        self._open: list[Complaint] = []
        self._since_ms = 0
        self._apart: dict[frozenset[str], int] = {}  # groups, and since when
        self._moves: dict[int, list[int]] = {}  # of each task: when

    def complain(self, complaint: Complaint, groups: frozenset[str], now_ms: int) -> None:
        """Take a complaint; the two slots are in these groups."""
        if not self._open:
            self._since_ms = now_ms
        if complaint not in self._open:
            self._open.append(complaint)
        self._apart[groups] = now_ms

    def due(self, now_ms: int) -> list[Complaint]:
        """The complaints that have been gathered, when it is time to act on them."""
        if not self._open or now_ms - self._since_ms < self._gather_ms:
            return []
        due, self._open = self._open, []
        return due

    def may_move(self, task: int, now_ms: int) -> bool:
        """Count a move of `task`. False: it has been moved often enough."""
        moves = [at for at in self._moves.get(task, ()) if now_ms - at < FORGET_MS]
        self._moves[task] = [*moves, now_ms]
        return len(moves) < MOVES_MAX

    def shunned(self, neighbours: Iterable[str], now_ms: int) -> frozenset[str]:
        """The groups from which one of these groups cannot be reached."""
        near = set(neighbours)
        return frozenset(
            group
            for pair, since in self._apart.items()
            if now_ms - since < FORGET_MS and pair & near
            for group in (pair - near or pair)
        )


def to_give_up(complaints: Collection[Complaint]) -> list[int]:
    """The fewest slots, roughly, that are in all of these complaints: those in most of them first.

    Of two slots with nobody else to complain, the receiving one goes: its sender has its items.

    Examples
    --------
    >>> lives = ((1, 0), (1, 0))
    >>> to_give_up([Complaint(0, 1, lives, 10, 11, ""), Complaint(1, 2, lives, 11, 12, "")])
    [11]
    >>> to_give_up([Complaint(0, 1, lives, 10, 11, "")])
    [11]
    """
    left = list(complaints)
    result = []
    while left:
        votes = Counter(slot for c in left for slot in {c.near_slot, c.far_slot})
        far = Counter(c.far_slot for c in left)
        worst = max(votes, key=lambda slot: (votes[slot], far[slot], -slot))
        result.append(worst)
        left = [c for c in left if worst not in (c.near_slot, c.far_slot)]
    return result
