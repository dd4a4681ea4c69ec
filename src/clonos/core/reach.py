"""Slots that cannot reach each other although the coordinator hears from both.

A firewall, a broken switch, a route that only one side knows: nobody has died, and yet a channel
leads nowhere. A task that cannot connect complains, again and again. Complaints are gathered for a
moment, because a machine that is cut off is at one end of many of them. Then the slot that most of
them name is given up, and its tasks are placed where they can reach their neighbours. If that does
not help, the next attempt comes later.

Networks fail and come back. So a task that reaches its receiver says so, too: an outage that heals
costs only time, however many there are. A job fails, with the addresses of both ends, only if
several moves did not help and the channel has never been connected, or has been away for very long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.pauses import doubled
from clonos.core.plan import HOUSE_KEEPER, Cell, Incarnation
from clonos.core.roster import ACTIVE, Roster, TaskPhase

GATHER_MS: Final = 300
"""How long complaints are gathered before a task is moved."""
MOVES_MIN: Final = 3
"""How many moves are tried for a channel before the job gives up."""
NEVER: Final = 100
"""A channel that was never connected fails the job after this many gathering times (30 s). The
pause between two moves for a channel is never longer, either."""
GONE: Final = 2_000
"""A channel that was connected before fails the job after this many (10 min)."""
FORGET_MS: Final = 600_000
"""Networks get repaired: after this time executors may be neighbours again."""


class Complaint(NamedTuple):
    """Two slots between which a channel cannot be connected. ``far``: None if it is the driver's
    process."""

    near: int
    far: int | None
    why: str
    channel: int


@dataclass(slots=True)
class Outage:
    """A channel cannot be connected: since when, and what was tried."""

    since_ms: int
    moves: int = 0
    moved_ms: int = 0


class Reach:
    """Which slots cannot reach which.

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
        self._outages: dict[int, Outage] = {}  # by channel
        self._reached: set[int] = set()  # channels that were ever connected
        self._told: set[frozenset[str]] = set()  # pairs of executors

    def complained(self, slot: int, report: msg.Unreachable) -> None:
        """A task cannot connect to a receiver of its output."""
        roster = self._roster
        task = roster.tasks[report.task]
        if report.incarnation != task.incarnation or task.slot != slot:
            return
        if not self._is_there(report.channel, report.peer):
            return  # the receiver was given up meanwhile
        far = self._far(report.channel)
        if report.is_silent and not self._may_answer(far):
            return
        pair = self._pair(slot, far)
        if far is not None:
            self._apart[pair] = roster.now_ms
        if not self._complaints:
            self._since_ms = roster.now_ms
        self._outages.setdefault(report.channel, Outage(roster.now_ms))
        self._complaints.append(Complaint(slot, far, report.why, report.channel))
        why = "" if pair in self._told else report.why
        self._told.add(pair)
        roster.do(notes.Unreachable(task.id, report.channel, why))

    def reached(self, slot: int, report: msg.Reached) -> None:
        """A task has connected to receivers of its output."""
        task = self._roster.tasks[report.task]
        if report.incarnation != task.incarnation or task.slot != slot:
            return
        for channel, peer in report.peers.items():
            self._reached.add(channel)
            if not self._is_there(channel, peer):
                continue
            self._outages.pop(channel, None)
            far = self._far(channel)
            if far is not None:
                self._apart.pop(self._pair(slot, far), None)

    def _is_there(self, channel: int, life: Incarnation) -> bool:
        """Whether the receiver of a channel is alive, and in this life."""
        receiver = self._roster.plan.channels[channel].receiver
        if receiver == HOUSE_KEEPER:
            return True
        peer = self._roster.tasks[receiver]
        return life == peer.incarnation and peer.phase in ACTIVE and peer.slot is not None

    def _may_answer(self, slot: int | None) -> bool:
        """Whether a slot restores none of its tasks: while it does, it answers nobody. (The driver
        has just answered.)"""
        phases = {task.phase for task in self._roster.tasks.values() if task.slot == slot}
        return slot is not None and TaskPhase.RESTORING not in phases

    def _far(self, channel: int) -> int | None:
        receiver = self._roster.plan.channels[channel].receiver
        return None if receiver == HOUSE_KEEPER else self._roster.tasks[receiver].slot

    def _pair(self, near: int, far: int | None) -> frozenset[str]:
        """The executors of two slots, or of one and the driver."""
        return frozenset(self._roster.slots[s].group for s in (near, far) if s is not None)

    def due(self) -> list[int]:
        """The slots to give up now."""
        roster = self._roster
        if not self._complaints or roster.now_ms - self._since_ms < self._gather_ms:
            return []
        complaints, self._complaints = self._complaints, []
        slots = set(roster.slots)
        current = [
            complaint
            for complaint in complaints
            if {complaint.near, complaint.far} - {None} <= slots
            and self._may_move(complaint.channel)
        ]
        hopeless = next((c for c in current if self._is_hopeless(c.channel)), None)
        if hopeless is not None:
            self._despair(hopeless)
            return []
        for channel in {complaint.channel for complaint in current}:
            outage = self._outages[channel]
            outage.moves, outage.moved_ms = outage.moves + 1, roster.now_ms
        return to_give_up(current)

    def _may_move(self, channel: int) -> bool:
        """Whether a channel is still away and the last move for it was long enough ago. That move
        may not have helped, and other tasks have to recover from it."""
        outage = self._outages.get(channel)
        if outage is None:
            return False
        longest = NEVER * self._gather_ms
        pause = doubled(self._gather_ms, outage.moves, longest) if outage.moves else 0
        return self._roster.now_ms - outage.moved_ms >= pause

    def _is_hopeless(self, channel: int) -> bool:
        outage = self._outages[channel]
        limit_ms = (GONE if channel in self._reached else NEVER) * self._gather_ms
        lasts_ms = self._roster.now_ms - outage.since_ms
        return outage.moves >= MOVES_MIN and lasts_ms >= limit_ms

    def _despair(self, complaint: Complaint) -> None:
        outage, roster = self._outages[complaint.channel], self._roster
        lasts_s = (roster.now_ms - outage.since_ms) / 1000
        tried = f"(moved {outage.moves} times in {lasts_s:.0f} s)"
        sender = roster.plan.channels[complaint.channel].sender
        roster.fail("CannotConnect", f"{complaint.why} {tried}", sender)

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
    """A few slots that together cover all of these complaints: those named most often first.

    If two slots only complain of each other, the receiving one goes: its sender still has what it
    sent.

    Examples
    --------
    >>> to_give_up([Complaint(10, 11, "", 0), Complaint(11, 12, "", 1), Complaint(13, None, "", 2)])
    [11, 13]
    >>> to_give_up([Complaint(10, 11, "", 0)])
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
