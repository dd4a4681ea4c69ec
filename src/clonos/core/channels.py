"""The two ends of a channel: what the receiver has, and what the sender owes.

One handshake serves replay and deduplication: on (re)connection the receiver says what it
has (:class:`Hello`), the sender continues from there out of its in-flight log. A recovered
receiver thereby asks for replay; a recovered sender learns what to recompute without sending.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from clonos.core.holder import Holder
from clonos.core.inflight import InFlightLog
from clonos.core.log import LogBook
from clonos.core.machine import Table
from clonos.core.messages import Credit, Data, Dependencies, Hello, Item, Kind, Run
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan
from clonos.errors import ProtocolError

CREDIT_ITEMS = 16
"""A receiver reports progress once per this many items: rarely enough to cost nothing."""
CREDIT_BYTES = 256 << 10
"""The same in bytes: a few large items must not exhaust what a sender may have in flight."""


class Verdict(Enum):
    """What became of received data."""

    TAKEN = "taken"
    HELD = "held"
    REFUSED = "refused"


class Link(Enum):
    """States of the stream at the receiving end of a channel."""

    AWAY = "away"
    OPEN = "open"
    GREETED = "greeted"
    HOLDING = "holding"


class LinkEvent(Enum):
    """What happens to the stream."""

    OPENED = "opened"
    GREETED = "greeted"
    HELD = "entries of a pending fence"
    RELEASED = "resolved"
    CLOSED = "closed"


INBOUND_LINK = Table(
    "receiving end of a channel: its stream",
    Link.AWAY,
    {
        (Link.AWAY, LinkEvent.OPENED): Link.OPEN,
        (Link.OPEN, LinkEvent.OPENED): Link.OPEN,
        (Link.GREETED, LinkEvent.OPENED): Link.OPEN,
        (Link.HOLDING, LinkEvent.OPENED): Link.OPEN,
        (Link.OPEN, LinkEvent.GREETED): Link.GREETED,
        (Link.GREETED, LinkEvent.HELD): Link.HOLDING,
        (Link.HOLDING, LinkEvent.RELEASED): Link.GREETED,
        (Link.OPEN, LinkEvent.CLOSED): Link.AWAY,
        (Link.GREETED, LinkEvent.CLOSED): Link.AWAY,
        (Link.HOLDING, LinkEvent.CLOSED): Link.AWAY,
    },
)


class Items(Enum):
    """States of the items that come in on a channel."""

    FLOWING = "flowing"
    ENDED = "ended"
    STARTING_OVER = "starting over"


class ItemsEvent(Enum):
    """What happens to the items."""

    END = "END taken"
    RESET = "a taken item is lost"
    WELCOME = "Welcome"


INBOUND_ITEMS = Table(
    "receiving end of a channel: its items",
    Items.FLOWING,
    {
        (Items.FLOWING, ItemsEvent.END): Items.ENDED,
        (Items.FLOWING, ItemsEvent.RESET): Items.STARTING_OVER,
        (Items.ENDED, ItemsEvent.RESET): Items.STARTING_OVER,
        (Items.STARTING_OVER, ItemsEvent.RESET): Items.STARTING_OVER,
        (Items.STARTING_OVER, ItemsEvent.WELCOME): Items.FLOWING,
    },
)


class Inbound:
    """The receiving end of a channel.

    Attributes
    ----------
    maker
        The task whose log says which items were made.
    link, items
        The state of its stream, and of what comes in on it.
    next_seq, chain
        What is expected next, and the running digest before it.
    consumed, consumed_chain
        Number and running digest of the last item a step has taken.
    consumed_dep
        What the taken items depend on; empty if a layer contains them already, so nothing can be
        lost.
    reached_ms
        The last watermark that this life has taken; infinite if END was taken.
    queue
        Items that were received (their log entries are stored) and not yet taken.
    has_gaps
        At most once: items that an earlier life has missed are not sent again.
    aligned
        A marker was taken, and its epoch is not yet sealed.
    waits_behind
        Feedback brings no markers: what its sender made behind a marker waits until the receiver
        has sealed at that marker.
    reset_at
        Availability: the channel starts over with what the sender makes after this one of its
        steps.
    told_relaxed
        What the sender was told last: whether we replay or align, so that it need not wait for us.
    """

    def __init__(
        self, plan: Plan, spec: ChannelSpec, consumed: int, chain: int, *, ended: bool = False
    ) -> None:
        self.spec = spec
        self.maker = plan.makers[spec.id]
        self.logs = plan.forwarded_logs(spec)
        self.has_gaps = plan.leaves_gaps
        name = f"channel {spec.id}, receiving"
        self.link = INBOUND_LINK.machine(f"{name}, stream")
        self.items = INBOUND_ITEMS.machine(f"{name}, items", Items.ENDED if ended else None)
        self.conn: int | None = None
        self.reset_at: int | None = None
        self.consumed = consumed
        self.consumed_chain = chain
        self.consumed_dep: Dependencies = {}
        self.reached_ms = math.inf if ended else -math.inf
        self.queue: deque[Item] = deque()
        self.aligned = False
        self.waits_behind = spec.is_feedback and plan.has_markers
        self._held: deque[Data] = deque()
        self._next_seq = consumed + 1
        self._chain = chain
        self._credited = consumed
        self._uncredited_bytes = 0
        self.told_relaxed = True

    @property
    def ended(self) -> bool:
        """Whether END was taken, and nothing before it was lost."""
        return self.items.state is Items.ENDED

    @property
    def will_reach_ms(self) -> float:
        """The last watermark that came, as far as the newest item tells."""
        return _event_time(self.queue[-1], self.reached_ms) if self.queue else self.reached_ms

    @property
    def greeted(self) -> bool:
        """Whether the sender knows what we have, and so continues after it."""
        return self.link.state in (Link.GREETED, Link.HOLDING)

    def open(self, conn: int) -> None:
        """A new stream replaces whatever was there."""
        self.link.on(LinkEvent.OPENED)
        self.conn = conn
        self._held.clear()

    def close(self) -> None:
        """The stream is gone; what waited on it will be sent again."""
        self.link.on(LinkEvent.CLOSED)
        self.conn = None
        self._held.clear()

    def end(self) -> None:
        """END was taken."""
        self.items.on(ItemsEvent.END)

    def hello(self, incarnation: Incarnation, book: LogBook) -> Hello:
        """Return what we have, and so what we need."""
        self.link.on(LinkEvent.GREETED)
        self._credited = self.consumed
        self.told_relaxed = True
        return Hello(
            self.spec.id,
            incarnation,
            self._next_seq,
            self._chain,
            {task: book.length(task) for task in self.logs},
            self.reset_at,
        )

    def take(self, data: Data, holder: Holder) -> Verdict:
        """Store the delta *before* the item may be processed (log before effect)."""
        if self.link.state is Link.HOLDING:
            self._held.append(data)
            return Verdict.HELD
        fences = holder.fences
        if not all(fences.is_open(run.task) for run in data.runs):
            if any(fences.must_wait(run) for run in data.runs):
                self.link.on(LinkEvent.HELD)
                self._held.append(data)
                return Verdict.HELD
            if any(fences.forbids(run) for run in data.runs):
                return Verdict.REFUSED
        for run in data.runs:
            holder.book.append(run)
        if data.item is not None:
            self._enqueue(data.item)
        return Verdict.TAKEN

    def _enqueue(self, item: Item) -> None:
        if item.seq < self._next_seq:
            return
        if item.seq > self._next_seq:
            raise ProtocolError(
                f"channel {self.spec.id}: item {item.seq} came where {self._next_seq} was due"
            )
        self._next_seq += 1
        self._chain = item.chain
        self.queue.append(item)

    def release_held(self, holder: Holder) -> Verdict:
        """A fence was resolved: what waited for it can be judged now."""
        if self.link.state is not Link.HOLDING:
            return Verdict.TAKEN
        self.link.on(LinkEvent.RELEASED)
        held, self._held = self._held, deque()
        result = Verdict.TAKEN
        for data in held:
            result = self.take(data, holder)
            if result is Verdict.REFUSED:
                break
        return result

    def drop_orphans(self, lost: Callable[[Dependencies], bool]) -> bool:
        """Forget received items that depend on a lost log entry, and all later items."""
        for i, item in enumerate(self.queue):
            if lost(item.dep):
                dropped = [self.queue.pop() for _ in range(len(self.queue) - i)]
                self._next_seq = dropped[-1].seq
                self._chain = self.queue[-1].chain if self.queue else self.consumed_chain
                return True
        return False

    def forget_queue(self) -> None:
        """Ask again for what was received and not taken (a hello must not vouch for it)."""
        self.queue.clear()
        self._next_seq, self._chain = self.consumed + 1, self.consumed_chain

    def start_over(self, position: int) -> None:
        """Availability: the sender takes other steps after `position`. Wait for its welcome, or
        that of its next life.

        If it has sent END, that END is void, too.
        """
        self.items.on(ItemsEvent.RESET)
        self.reset_at = position if self.reset_at is None else min(self.reset_at, position)
        self.reached_ms = -math.inf
        self.queue.clear()
        self._held.clear()

    def restart(self, last_seq: int, chain: int) -> None:
        """Availability: the sender continues behind `last_seq`."""
        self.items.on(ItemsEvent.WELCOME)
        self.queue.clear()
        self.reset_at = None
        self._next_seq, self._chain = last_seq + 1, chain
        self.consumed, self.consumed_chain = last_seq, chain
        self._credited = last_seq

    def consume(self, count: int) -> list[Item]:
        items = [self.queue.popleft() for _ in range(count)]
        self.consumed = items[-1].seq
        self.consumed_chain = items[-1].chain
        self.consumed_dep = items[-1].dep
        self.reached_ms = _event_time(items[-1], self.reached_ms)
        self._uncredited_bytes += sum(i.batch.nbytes for i in items if i.batch is not None)
        return items

    def credit(self, *, relaxed: bool, force: bool = False) -> Credit | None:
        """Progress worth reporting to the sender."""
        if not self.greeted or self.items.state is Items.STARTING_OVER:
            return None  # nobody listens, or the old numbers mean nothing any more
        due = (
            self.consumed - self._credited >= CREDIT_ITEMS or self._uncredited_bytes >= CREDIT_BYTES
        )
        if not (due or force or relaxed != self.told_relaxed):
            return None
        self._credited = self.consumed
        self._uncredited_bytes = 0
        self.told_relaxed = relaxed
        return Credit(self.spec.id, self.consumed, relaxed)

    def check(self) -> None:
        """Assertions over the whole state."""
        assert (self.conn is None) == (self.link.state is Link.AWAY)
        assert bool(self._held) == (self.link.state is Link.HOLDING)
        assert (self.reset_at is not None) == (self.items.state is Items.STARTING_OVER)
        assert not (self.aligned and self.ended)
        if self.reset_at is None:
            assert self.consumed + len(self.queue) + 1 == self._next_seq
            assert self._chain == (self.queue[-1].chain if self.queue else self.consumed_chain)
            assert self._credited <= self.consumed


def _event_time(item: Item, before: float) -> float:
    """How far event time has come with an item; `before`: if the item says nothing."""
    if item.kind is Kind.END:
        return math.inf
    told = item.value if item.kind is Kind.WATERMARK else item.watermark
    return before if told is None else told


class Call(Enum):
    """States of the stream at the sending end of a channel."""

    UNKNOWN = "unknown"
    DIALLING = "dialling"
    ASKED = "asked to start over"
    CONNECTED = "connected"
    BROKEN = "broken"


class CallEvent(Enum):
    """What happens to the stream."""

    DIALLED = "dialled"
    HELLO = "Hello"
    HELLO_RESET = "Hello with reset"
    WELCOME = "live, Welcome"
    CLOSED = "closed"
    HUNG_UP = "fence of the receiver"


OUTBOUND = Table(
    "sending end of a channel",
    Call.UNKNOWN,
    {
        **{(state, CallEvent.DIALLED): Call.DIALLING for state in Call},
        (Call.DIALLING, CallEvent.HELLO): Call.CONNECTED,
        (Call.DIALLING, CallEvent.HELLO_RESET): Call.ASKED,
        (Call.ASKED, CallEvent.WELCOME): Call.CONNECTED,
        (Call.DIALLING, CallEvent.CLOSED): Call.BROKEN,
        (Call.ASKED, CallEvent.CLOSED): Call.BROKEN,
        (Call.CONNECTED, CallEvent.CLOSED): Call.BROKEN,
        **{(state, CallEvent.HUNG_UP): Call.UNKNOWN for state in Call},
    },
)


class Outbound:
    """The sending end of a channel.

    Attributes
    ----------
    log
        The in-flight log: the queue itself.
    maker
        See :class:`Inbound`.
    call
        The state of its stream.
    attempt, address, peer
        Number of the newest stream, its address, and the incarnation of the receiver there.
    asked
        Availability: the hello of a receiver that starts over, kept until we are live and can tell
        it where we continue. It is void when the connection ends: the next hello may ask for
        something else.
    relaxed
        The receiver replays, aligns or is away: what is unsent does not count as backlog.
    released, settled
        Channels out of the job: up to which output effects are allowed; up to which they are
        durable.
    """

    def __init__(
        self,
        plan: Plan,
        spec: ChannelSpec,
        last: int,
        chain: int,
        *,
        carried: tuple[int, Sequence[Item]] | None = None,
    ) -> None:
        self.spec = spec
        self.maker = plan.makers[spec.id]
        self.logs = plan.forwarded_logs(spec)
        self.to_world = spec.receiver == HOUSE_KEEPER
        self.carries_items = not self.to_world or plan.tasks[spec.sender].is_sink
        self.log = InFlightLog(last, chain)
        if carried is not None:
            self.log.restore(*carried)
        self.call = OUTBOUND.machine(f"channel {spec.id}, sending")
        self.attempt = 0
        self.address = ""
        self.peer = Incarnation(0, 0)
        self.asked: Hello | None = None
        self.relaxed = True
        self.released = last
        self.settled = last
        self._shared: dict[int, int] = {}

    @property
    def connected(self) -> bool:
        """Whether the receiver has said what it has."""
        return self.call.state is Call.CONNECTED

    def dial(self) -> None:
        """A new stream to the receiver's address replaces the one before, if any."""
        self._down(CallEvent.DIALLED)
        self.attempt += 1

    def hang_up(self) -> None:
        """The receiver is gone; the address of the next one is unknown."""
        self._down(CallEvent.HUNG_UP)
        self.attempt += 1

    def closed(self) -> None:
        """The stream is gone."""
        self._down(CallEvent.CLOSED)

    def _down(self, event: CallEvent) -> None:
        self.call.on(event)
        self.relaxed = True
        self.asked = None

    def greet(self, hello: Hello) -> None:
        """The receiver has reported what it has: continue from there."""
        self.call.on(CallEvent.HELLO)
        self._up(hello)
        if self.carries_items:
            self.log.resume(hello.next_seq, hello.chain)

    def ask(self, hello: Hello) -> None:
        """Availability: the receiver starts over; it has to wait until we are live."""
        self.call.on(CallEvent.HELLO_RESET)
        self.asked = hello

    def welcome(self, hello: Hello, last: int) -> None:
        """Availability: the receiver continues behind item `last`, whatever it had."""
        self.call.on(CallEvent.WELCOME)
        self.asked = None
        self._up(hello)
        self.log.renumber(last)

    def _up(self, hello: Hello) -> None:
        self.relaxed = not self.to_world
        self._shared = dict(hello.lengths)

    def delta(self, book: LogBook, stable: dict[int, int]) -> tuple[Run, ...]:
        """The entries that the receiver lacks, of the logs that travel along this channel."""
        runs: list[Run] = []
        for task in self.logs:
            length = book.length(task)
            held, known = stable.get(task, 0), self._shared.get(task, 0)
            if length > known and length > held:
                known = max(known, held)
                legal = max(stable.get(task, 0), book.base(task))
                runs.extend(book.runs(task, known + 1, legal))
                self._shared[task] = length
        return tuple(runs)

    def lags(self, book: LogBook, stable: dict[int, int]) -> bool:
        """Whether the receiver lacks log entries that no batch has taken along yet."""
        shared = self._shared
        for task in self.logs:
            length = book.length(task)
            if length > shared.get(task, 0) and length > stable.get(task, 0):
                return True
        return False

    def cut(self, task: int, length: int) -> None:
        """`task` rewrites its log after entry `length`: later entries that were shared are void."""
        if self._shared.get(task, 0) > length:
            self._shared[task] = length

    def check(self) -> None:
        """Assertions over the whole state."""
        assert self.connected or self.relaxed
        assert self.log.first <= self.log.cursor or not self.connected
        assert (self.asked is not None) == (self.call.state is Call.ASKED)
        assert self.settled <= max(self.released, self.log.processed)
        self.log.check()
