"""Slots that cannot reach each other, though the coordinator hears of both.

A firewall, a broken switch, a route that only one side knows: nobody has died, and yet a channel
leads nowhere. Who cannot connect complains. Complaints are gathered for a moment, because a machine
that is cut off is at one end of many of them; then the slot in most of them is given up, and what
ran there is placed where its neighbours can be reached. If that does not help, the job fails with
the addresses of both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

from clonos.core import messages as msg
from clonos.core.decisions import Note
from clonos.core.plan import HOUSE_KEEPER, Cell
from clonos.core.roster import ACTIVE, Roster

GATHER_MS: Final = 300
"""How long complaints are gathered before a task is moved."""
MOVES_MAX: Final = 3
"""A task that was moved this often in vain is not moved again."""
FORGET_MS: Final = 600_000
"""Networks get repaired: after this time executors may be neighbours again."""
HELPED: Final = 100
"""A move has helped if nobody complains for so many times as complaints are gathered (30 s): who
cannot connect complains again and again."""


class Complaint(NamedTuple):
    """Two slots between which a channel does not come about; `far` is None if that is the driver's
    process."""

    near: int
    far: int | None
    why: str


class Reach:
    """What is known of who cannot reach whom.

    Parameters
    ----------
    gather_ms
        See :data:`GATHER_MS`.
    """

    def __init__(self, roster: Roster, gather_ms: int = GATHER_MS) -> None:
        self._roster = roster
        self._gather_ms = gather_ms
        self._complaints: list[Complaint] = []
        self._since_ms = 0
        self._apart: dict[frozenset[str], int] = {}  # pairs of executors, and since when
        self._moves: dict[int, list[int]] = {}  # of each task: when, in vain but for the last

    def complained(self, slot: int, report: msg.Unreachable) -> None:
        """A task cannot connect to a receiver of its output."""
        roster = self._roster
        task, receiver = roster.tasks[report.task], roster.plan.channels[report.channel].receiver
        if report.incarnation != task.incarnation or task.slot != slot:
            return
        far: int | None = None
        if receiver != HOUSE_KEEPER:
            peer = roster.tasks[receiver]
            if report.peer != peer.incarnation or peer.phase not in ACTIVE or peer.slot is None:
                return  # it was given up meanwhile
            far = peer.slot
            pair = frozenset((roster.slots[slot].group, roster.slots[far].group))
            self._apart[pair] = roster.now_ms
        if not self._complaints:
            self._since_ms = roster.now_ms
        self._complaints.append(Complaint(slot, far, report.why))
        roster.do(Note("unreachable", task.id, task.incarnation, report.channel))

    def due(self) -> list[int]:
        """The slots to give up now."""
        roster = self._roster
        if not self._complaints or roster.now_ms - self._since_ms < self._gather_ms:
            return []
        complaints, self._complaints = self._complaints, []
        slots = set(roster.slots)
        given_up = to_give_up([c for c in complaints if {c.near, c.far} - {None} <= slots])
        for task in roster.tasks.values():
            if task.slot in given_up and not self._may_move(task.id):
                (why, *_) = [c.why for c in complaints if task.slot in (c.near, c.far)]
                roster.fail("CannotConnect", f"{why} (moved {MOVES_MAX} times)", task.id)
                return []
        return given_up

    def _may_move(self, task: int) -> bool:
        now_ms = self._roster.now_ms
        moves = self._moves.setdefault(task, [])
        if moves and now_ms - moves[-1] >= HELPED * self._gather_ms:
            moves.clear()
        moves.append(now_ms)
        return len(moves) <= MOVES_MAX

    def shunned(self, cell: Cell) -> frozenset[str]:
        """Executors from which a neighbour of `cell` could not be reached."""
        roster, plan = self._roster, self._roster.plan
        near: set[int] = set()
        for task in cell:
            near |= {plan.channels[c].sender for c in plan.tasks[task].inputs}
            near |= {plan.channels[c].receiver for c in plan.tasks[task].outputs}
        homes = {roster.tasks[t].slot for t in near - {HOUSE_KEEPER, *cell}}
        groups = {slot.group for slot in roster.slots.values() if slot.id in homes}
        fresh = [p for p, since in self._apart.items() if roster.now_ms - since < FORGET_MS]
        return frozenset(g for pair in fresh if pair & groups for g in (pair - groups or pair))


def to_give_up(complaints: Collection[Complaint]) -> list[int]:
    """Few slots that are in all of these complaints together: those in most of them first.

    Of two slots that nobody else complains of, the receiving one goes: its sender still has what it
    sent.

    Examples
    --------
    >>> to_give_up([Complaint(10, 11, ""), Complaint(11, 12, ""), Complaint(13, None, "")])
    [11, 13]
    >>> to_give_up([Complaint(10, 11, "")])
    [11]
    """
    left = [{c.near, c.far} - {None} for c in complaints]
    receiving = Counter(c.far for c in complaints)
    result: list[int] = []
    while left:
        votes = Counter(slot for slots in left for slot in slots if slot is not None)
        worst = max(votes, key=lambda slot: (votes[slot], receiving[slot], -slot))
        result.append(worst)
        left = [slots for slots in left if worst not in slots]
    return result
