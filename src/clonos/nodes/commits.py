"""Commit groups: what the driver decides is durable before anybody hears of it.

Everything that a turn decides (journal records, credits, outputs, commands) is one *group*. It is
closed at the end of the turn and released as a whole when it is durable. One group is written at a
time; meanwhile, decisions of further turns gather for the next. Credits are computed when a group
is closed: if computed when it is durable, they would vouch for what came after it.

Nobody knows what a failed write has left behind. So a broken journal is begun anew, with a snapshot
and the outputs of the group that failed; until that has succeeded, nothing is released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from clonos.core.decisions import Action
from clonos.core.events import Action as Reaction
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.machine import Table
from clonos.errors import ClonosError
from clonos.nodes.history import HistoryAct
from clonos.nodes.layers import Delete, Unused
from clonos.nodes.ports import Journal, Outputs

ROTATE_BYTES: Final = 64 << 20
"""A journal is rewritten at the first floor after it has grown to this size ..."""
FLOORLESS: Final = 2
"""... or at this many times that size without a floor, which may be hours away. (It is better to
wait for a floor, because it shortens the logs.)"""
OUTPUT_BYTES: Final = 64 << 20
"""Delivered output that takes this much memory is put into files. While they cannot be written,
nothing is released."""
VOUCH_S: Final = 0.1
"""After this much silence, an empty group vouches for the last one."""
PROVE_S: Final = 1.0
"""If the lock has to be proven, and nothing was written for this long, something is."""
AGAIN_S: Final = 1.0
"""Time between two attempts to rewrite a broken journal, or to write files of outputs."""


Act = Action | Unused | Delete | HistoryAct
"""What the driver does once the decision is durable."""


class State(Enum):
    """The states of the journal."""

    OPEN = "open"
    WRITING = "writing"
    BROKEN = "broken"


class Change(Enum):
    """What happens to the journal."""

    WRITE = "a group is written"
    COMMIT = "durable"
    FAIL = "failed"


JOURNAL: Final = Table(
    "journal",
    State.OPEN,
    {
        (State.OPEN, Change.WRITE): State.WRITING,
        (State.WRITING, Change.COMMIT): State.OPEN,
        (State.WRITING, Change.FAIL): State.BROKEN,
        (State.BROKEN, Change.WRITE): State.WRITING,
    },
)


@dataclass(frozen=True, slots=True)
class Group:
    """What is made durable, and released, as one."""

    records: list[bytes]
    reactions: list[Reaction]
    outputs: list[Deliver]
    actions: list[Act]

    def followed_by(self, other: Group) -> Group:
        """Both as one group."""
        return Group(
            self.records + other.records,
            self.reactions + other.reactions,
            self.outputs + other.outputs,
            self.actions + other.actions,
        )


_NOTHING: Final = Group([], [], [], [])


class Commits:
    """Groups on their way into the journal.

    Parameters
    ----------
    let_out
        Called with every group once it is durable, in order.
    stuck
        Called with the reason, again and again, while nothing can be released.

    Attributes
    ----------
    proven_s
        By `clock`, when the newest successful write began; the journal's lock was ours then.
    """

    def __init__(
        self,
        keeper: HouseKeeper,
        journal: Journal,
        outputs: Outputs,
        let_out: Callable[[Group], None],
        stuck: Callable[[ClonosError], None],
        rotate_bytes: int = ROTATE_BYTES,
        output_bytes: int = OUTPUT_BYTES,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._keeper, self._journal, self._outputs = keeper, journal, outputs
        self._let_out, self._stuck = let_out, stuck
        self._rotate_bytes, self._output_bytes = rotate_bytes, output_bytes
        self._machine = JOURNAL.machine("journal")
        self._group = _NOTHING  # being written, or the one that could not be
        self._wants_rotation = False
        self._head_bytes = 0  # size of the newest snapshot
        self._again_s = self._room_s = 0.0
        self._vouch_s: float | None = None  # when
        self._clock, self._began_s, self.proven_s = clock, -inf, -inf
        self._wants_proof = False

    @property
    def state(self) -> State:
        return self._machine.state

    def after_floor(self) -> None:
        """Logs were truncated: a snapshot is small now, unless the history is large."""
        self._wants_rotation |= self._journal.nbytes >= self._limit

    @property
    def _limit(self) -> int:
        return max(self._rotate_bytes, 2 * self._head_bytes)

    @property
    def must_wait(self) -> bool:
        """Whether groups may have to wait: for the journal, or for files of outputs."""
        return self.state is not State.OPEN or self._is_full

    @property
    def _is_full(self) -> bool:
        return self._outputs.nbytes >= self._output_bytes

    def _has_room(self, now_s: float) -> bool:
        """Make room in memory for the output of this group, if there is too little."""
        if not self._is_full:
            return True
        if now_s < self._room_s:
            return False
        if (error := self._outputs.flush()) is not None:
            self._room_s = now_s + AGAIN_S
            self._stuck(error)
        return error is None

    def end_turn(self, actions: list[Act], now_s: float) -> bool:
        """Close a group with these actions; False: they have to wait for the next turn."""
        if self.state is State.WRITING or (self.state is State.BROKEN and now_s < self._again_s):
            return False
        if not self._has_room(now_s):
            return False
        self._wants_rotation |= self._journal.nbytes >= FLOORLESS * self._limit
        records = self._keeper.take_records()
        group = self._group.followed_by(Group(records, *self._keeper.committed(), actions))
        self._group = _NOTHING
        if self.state is State.BROKEN or (self._wants_rotation and now_s >= self._again_s):
            self._rotate(group, now_s)
        elif group.records:
            self._vouch_s = now_s + VOUCH_S
            self._write(group, self._journal.append)
        elif self._wants_proof:
            self._wants_proof = False
            self._write(group, lambda _: self._journal.prove(), ())
        elif self._vouch_s is not None and now_s >= self._vouch_s:
            self._vouch_s = None
            self._write(group, self._journal.append)
        else:
            self._let_out(group)
        return True

    def prove(self) -> None:
        """Have something written soon, if nothing was for a while."""
        self._wants_proof = self._clock() - self.proven_s > PROVE_S

    def _rotate(self, group: Group, now_s: float) -> None:
        """The old segment goes, with the contents of outputs, which must be in files by now. Those
        of `group` are not, so the new segment has them."""
        self._again_s = now_s + AGAIN_S
        if self._outputs.flush() is None:
            self._wants_rotation = False
            head = self._keeper.snapshot(group.records)
            self._head_bytes = sum(map(len, head))
            self._write(group, self._journal.rotate, head)
        elif self.state is State.BROKEN:
            self._group = group
        else:
            self._write(group, self._journal.append)

    def _write(
        self,
        group: Group,
        write: Callable[[Sequence[bytes]], bool],
        records: Sequence[bytes] | None = None,
    ) -> None:
        self._machine.on(Change.WRITE)
        # A group that only vouches writes nothing if another has.
        is_proof = bool(group.records) or records is not None
        self._group, self._began_s = group, self._clock() if is_proof else -inf
        if write(group.records if records is None else records):
            self.committed()

    def committed(self) -> None:
        """The group that was written is durable."""
        self._machine.on(Change.COMMIT)
        self.proven_s = max(self.proven_s, self._began_s)
        group, self._group = self._group, _NOTHING
        self._let_out(group)

    def failed(self, now_s: float) -> None:
        """The write has failed, or nobody knows. The journal is begun anew at once."""
        self._machine.on(Change.FAIL)
        self._again_s = max(self._again_s, now_s)

    def conclude(self, now_s: float) -> ClonosError | None:
        """Nothing more will come: move all outputs into files, and shorten the journal."""
        assert self.state is State.OPEN
        if (error := self._outputs.flush()) is not None:
            return error
        self._wants_rotation, self._again_s = True, now_s
        self.end_turn([], now_s)
        return None

    def check(self) -> None:
        """Assertions over the whole state."""
        assert (self.state is State.OPEN) <= (self._group is _NOTHING)
