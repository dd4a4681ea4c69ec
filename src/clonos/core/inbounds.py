"""The receiving side of a process: its ends of channels, and who may send on them.

A task and the house-keeper receive in the same way; they differ in when they greet, what they
credit and what they do with what came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import attrgetter

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.channels import Inbound, Link, Verdict
from clonos.core.determinants import Order
from clonos.core.fences import Trust, depends_on_lost
from clonos.core.gaps import MISSED
from clonos.core.holder import Holder
from clonos.core.messages import Item, Kind
from clonos.core.plan import Incarnation, Plan, TaskSpec
from clonos.core.sealed import Layer
from clonos.errors import Divergence

COALESCE_BATCHES = 64
"""Batches of a channel handled as one, at most: bounds the latency of a step."""
COALESCE_BYTES = 4 << 20
"""The same in bytes."""
COALESCE_ROWS = 4096
"""The same in rows: what costs Python per row must not hold up fences and markers."""

QUEUE_MAX = 16
"""A source waits while a task of its process has more of its items to take: that task needs the
time, and batches of a backlog become larger."""
QUEUE_AHEAD = 2
"""The same if these items are ahead in event time, and the task waits for that. A marker behind
them has them all taken."""

_REACHED = attrgetter("reached_ms")


class Inbounds:
    """The receiving ends of one process.

    Parameters
    ----------
    ends
        The receiving ends of its channels.
    holder
        What the process holds: log entries that come with an item are stored there first.
    do
        Takes actions.
    is_implied
        Whether each step takes exactly one item, so that no log has to say how many.
    waits_for_time
        Whether the input that is behind in event time goes first.

    Attributes
    ----------
    epoch
        The newest sealed epoch. Feedback items that were made in a later epoch are not taken yet.
    rows_max
        Batches are handled as one up to this many rows.
    """

    def __init__(
        self,
        ends: Iterable[Inbound],
        holder: Holder,
        do: Callable[[ev.Action], None],
        *,
        is_implied: bool = False,
        waits_for_time: bool = False,
    ) -> None:
        self.ends = {end.spec.id: end for end in ends}
        self._forward = [end for end in self.ends.values() if not end.spec.is_feedback]
        self._in_turn = [end for end in self.ends.values() if self._may_be_taken(end)]
        self.epoch, self.rows_max = 0, COALESCE_ROWS
        self._book = holder.book
        self._fences = holder.fences
        self._holder = holder
        self._do = do
        self._is_implied = is_implied
        self._waits_for_time = waits_for_time

    @classmethod
    def restored(
        cls,
        plan: Plan,
        spec: TaskSpec,
        floor: Layer | None,
        holder: Holder,
        do: Callable[[ev.Action], None],
    ) -> Inbounds:
        """The receiving ends of a task that begins with the layer `floor`."""
        ins, ended = (floor.ins, floor.ended) if floor is not None else ({}, ())
        ends = [
            Inbound(plan, plan.channels[c], *ins.get(c, (0, 0)), ended=c in ended)
            for c in spec.inputs
        ]
        for end in ends:
            if plan.leaves_gaps:
                end.start_over(MISSED)
        return cls(ends, holder, do, is_implied=spec.is_implied, waits_for_time=spec.waits_for_time)

    def opened(self, event: ev.Opened) -> bool:
        """A sender connects. Return whether it may: a fenced life may not."""
        end = self.ends[event.channel]
        if self._fences.refuses(end.spec.sender, event.incarnation):
            self._do(ev.Refuse(event.conn))
            return False
        self.refuse(end)
        end.open(event.conn)
        return True

    def can_greet(self, end: Inbound) -> bool:
        """Whether a sender waits for our hello and we can give it.

        While a log is being cut we cannot: what we say we hold of it would be wrong on arrival.
        """
        logs = (end.spec.sender, end.maker, *end.logs)
        return end.link.state is Link.OPEN and not self._holder.is_being_cut(logs)

    def greet(self, end: Inbound, incarnation: Incarnation) -> None:
        """Tell the sender what we have."""
        assert end.conn is not None
        self._do(ev.Reply(end.conn, end.hello(incarnation, self._book)))

    def received(self, event: ev.Received) -> Verdict | None:
        """Take what came; None: nothing was stored."""
        end, data = self.ends[event.channel], event.data
        if event.conn != end.conn or end.link.state is Link.OPEN:
            return None
        if isinstance(data, msg.Welcome):
            end.restart(data.next_seq - 1, data.chain)
            return None
        if end.reset_at is not None:
            return None  # sent before the sender knew that we start over
        verdict = end.take(data, self._holder)
        if verdict is Verdict.REFUSED:
            self.refuse(end)
        return verdict

    def available(self, end: Inbound) -> int:
        """How many items of a channel the next step may take as one."""
        if end.aligned or (self._is_implied and self._fences.pending(end.maker)):
            return 0
        count = size = rows = 0
        for item in end.queue:
            if end.waits_behind and item.epoch > self.epoch:
                break
            if self._fences.judge(item.dep) is not Trust.VALID:
                break
            if item.kind is not Kind.BATCH:
                return count or 1
            size += item.batch.nbytes if item.batch else 0
            rows += item.batch.rows if item.batch else 0
            full = size > COALESCE_BYTES or rows > self.rows_max or count >= COALESCE_BATCHES
            if count and full:
                break
            count += 1
            if item.watermark is not None:
                break  # rows that follow a watermark may be late by it
            if self._is_implied:
                break
        return count

    def choose(self, held: Collection[int] = ()) -> tuple[Order | None, list[Item]]:
        """Take what there is on the next channel that has something; those in `held` are skipped.

        Channels take turns. If rows wait for the watermark, the channel that is behind goes first:
        the watermark is that of the slowest, so rows of the others would only make the state
        larger. They stay in their channels, and credit slows their senders down (Flink:
        watermark alignment).
        """
        ends = self._in_turn
        if self._waits_for_time and len(ends) > 1:
            ends = sorted(ends, key=_REACHED)
        for end in ends:
            count = self.available(end) if end.spec.id not in held else 0
            if count:
                self._in_turn.remove(end)
                self._in_turn.append(end)
                items = end.consume(count)
                made = items[-1].dep[end.maker]
                return Order(end.spec.id, count, made.position, *made.incarnation), items
        return None, []

    def has_room(self, channel: int) -> bool:
        """Whether a sender in the same process should make more items for a channel."""
        end = self.ends[channel]
        count = len(end.queue)
        if not self._waits_for_time or count <= QUEUE_AHEAD:
            return count <= QUEUE_MAX
        is_behind = end.will_reach_ms <= min(other.will_reach_ms for other in self._in_turn)
        return is_behind and count <= QUEUE_MAX

    def retake(self, cause: Order, task: str) -> list[Item]:
        """Take what a logged step took, once it has come and can be trusted (until then
        nothing)."""
        end = self.ends[cause.channel]
        if len(end.queue) < cause.taken:
            return []
        if any(self._fences.judge(end.queue[i].dep) is not Trust.VALID for i in range(cause.taken)):
            return []
        items = end.consume(cause.taken)
        made = items[-1].dep[end.maker].position
        if made != cause.position:
            raise Divergence(
                f"an item made at {cause.position} of channel {cause.channel} was taken; now it "
                f"was made at {made}",
                where=task,
            )
        return items

    @property
    def have_ended(self) -> bool:
        """Whether END was taken on every input."""
        return all(end.ended for end in self.ends.values())

    @property
    def forward_have_ended(self) -> bool:
        """Whether END was taken on every input but feedback: markers wait only for these."""
        return all(end.ended for end in self._forward)

    @property
    def ended(self) -> tuple[int, ...]:
        """The channels on which END was taken."""
        return tuple(channel for channel, end in self.ends.items() if end.ended)

    def end_feedback(self) -> tuple[int, ...]:
        """The loop is over: only probes and markers may follow, and nobody needs these. Return the
        feedback channels that had not ended before."""
        now = [end for end in self.ends.values() if end.spec.is_feedback and not end.ended]
        for end in now:
            end.end()
        self._in_turn = [end for end in self._in_turn if self._may_be_taken(end)]
        return tuple(end.spec.id for end in now)

    @staticmethod
    def _may_be_taken(end: Inbound) -> bool:
        return not (end.spec.is_feedback and end.ended)

    def next_epoch(self) -> None:
        """The epoch is sealed: items behind its markers may be taken."""
        for end in self.ends.values():
            end.aligned = False

    def aligned_epoch(self, epoch: int) -> int:
        """`epoch` if its marker (or END) has come on every input, else 0."""
        ends = self._forward
        some = any(end.aligned for end in ends)
        return epoch if some and all(end.aligned or end.ended for end in ends) else 0

    def closed(self, event: ev.InputClosed) -> None:
        """A stream has ended."""
        end = self.ends[event.channel]
        if event.conn == end.conn:
            end.close()

    def refuse(self, end: Inbound) -> None:
        """Hear no more of this stream."""
        if end.conn is not None:
            self._do(ev.Refuse(end.conn))
            end.close()

    def refuse_from(self, task: int) -> None:
        """`task` is fenced: hear no more of the life that sends."""
        for end in self.ends.values():
            if end.spec.sender == task:
                self.refuse(end)

    def judge(self, end: Inbound, cut: msg.Resolve) -> None:
        """A log was cut: forget items that depend on the lost part, start over if some were taken
        (availability), and take or refuse the data that waited for the cut.
        """

        def lost(dep: msg.Dependencies) -> bool:
            mine = dep if cut.reset else self._fences.clamp(dep)
            return depends_on_lost(cut.task, cut.incarnation, cut.length, mine)

        from_lost = end.spec.sender == cut.task
        # A receiver with gaps counts missed items as taken, and depends on none of them.
        if cut.reset and from_lost and (end.has_gaps or lost(end.consumed_dep)):
            end.start_over(cut.length)
        elif (from_lost or not cut.reset) and end.drop_orphans(lost):
            self.refuse(end)
        if cut.reset:
            end.consumed_dep = self._fences.clamp(end.consumed_dep)
        if end.release_held(self._holder) is Verdict.REFUSED:
            self.refuse(end)

    def check(self) -> None:
        """Assertions over the whole state."""
        for end in self.ends.values():
            end.check()
