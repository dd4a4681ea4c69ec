"""The two ends of a channel: what a receiver has of it, what a sender owes it.

One handshake serves replay and deduplication: on (re)connection the receiver says what it
has (:class:`Hello`), the sender continues from there out of its in-flight log. A recovered
receiver thereby asks for replay; a recovered sender learns what to recompute without sending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from clonos.core.inflight import InFlightLog
from clonos.core.log import LogBook
from clonos.core.messages import Credit, Data, Dependencies, Hello, Item, Run
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan
from clonos.errors import ProtocolError

CREDIT_ITEMS = 16
"""A receiver reports progress every so many items: rarely enough to cost nothing."""
CREDIT_BYTES = 256 << 10
"""... or bytes: a few large items must not exhaust what a sender may have under way."""


class Verdict(Enum):
    """What became of something received."""

    TAKEN = "taken"
    HELD = "held"
    REFUSED = "refused"


class Inbound:
    """The receiving end of a channel.

    Attributes
    ----------
    next_seq, chain
        What is expected next, and the running digest before it.
    consumed, consumed_chain
        Number and running digest of the last item a step has taken.
    consumed_dep
        What that item depends on (nothing that can be lost, if a layer already contains it).
    queue
        Received (log entries stored), not yet taken.
    reset_at
        Availability: we start over with what the sender makes after this step of its own.
    """

    def __init__(self, plan: Plan, spec: ChannelSpec, consumed: int, chain: int) -> None:
        self.spec = spec
        self.logs = plan.forwarded_logs(spec)
        self.conn: int | None = None
        self.greeted = False
        self.reset_at: int | None = None
        self.consumed = consumed
        self.consumed_chain = chain
        self.consumed_dep: Dependencies = {}
        self.queue: deque[Item] = deque()
        self.aligned = False
        self.ended = False
        self._held: deque[Data] = deque()
        self._next_seq = consumed + 1
        self._chain = chain
        self._credited = consumed
        self._uncredited_bytes = 0
        self._relaxed = True

    def open(self, conn: int) -> None:
        """A new stream replaces whatever was there."""
        self.conn = conn
        self.greeted = False
        self._held.clear()

    def close(self) -> None:
        self.conn = None
        self.greeted = False
        self._held.clear()

    def hello(self, incarnation: Incarnation, book: LogBook) -> Hello:
        self.greeted = True
        self._credited = self.consumed
        self._relaxed = True
        return Hello(
            self.spec.id,
            incarnation,
            self._next_seq,
            self._chain,
            {task: book.length(task) for task in self.logs},
            self.reset_at,
        )

    def take(self, data: Data, book: LogBook) -> Verdict:
        """Store the delta *before* the item may be processed (log before effect)."""
        if self._held:
            self._held.append(data)
            return Verdict.HELD
        if any(book.must_wait(run) for run in data.runs):
            self._held.append(data)
            return Verdict.HELD
        if any(book.refuses(run) for run in data.runs):
            return Verdict.REFUSED
        for run in data.runs:
            book.append(run)
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

    def release_held(self, book: LogBook) -> Verdict:
        """A fence was resolved: what waited for it can be judged now."""
        held, self._held = self._held, deque()
        result = Verdict.TAKEN
        for data in held:
            result = self.take(data, book)
            if result is Verdict.REFUSED:
                self._held.clear()
                break
        return result

    def drop_orphans(self, lost: Callable[[Dependencies], bool]) -> bool:
        """Forget received items that depend on a lost log entry, and all that came after."""
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
        """Availability: the sender makes something else after its step `position`; wait for its
        welcome, or that of a later life.

        If it has sent END, that was not the last one.
        """
        self.reset_at = position if self.reset_at is None else min(self.reset_at, position)
        self.ended = False
        self.queue.clear()
        self._held.clear()

    def restart(self, last_seq: int, chain: int) -> None:
        """Availability: the sender continues behind `last_seq`."""
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
        self._uncredited_bytes += sum(i.batch.nbytes for i in items if i.batch is not None)
        return items

    def credit(self, *, relaxed: bool, force: bool = False) -> Credit | None:
        """Progress worth telling the sender."""
        if not self.greeted or self.reset_at is not None:  # the old numbers mean nothing any more
            return None
        due = (
            self.consumed - self._credited >= CREDIT_ITEMS or self._uncredited_bytes >= CREDIT_BYTES
        )
        if not (due or force or relaxed != self._relaxed):
            return None
        self._credited = self.consumed
        self._uncredited_bytes = 0
        self._relaxed = relaxed
        return Credit(self.spec.id, self.consumed, relaxed)


class Outbound:
    """The sending end of a channel.

    Attributes
    ----------
    log
        The in-flight log: the queue itself.
    relaxed
        The receiver replays, aligns or is away: what is unsent does not count as backlog.
    settled
        World channels: outputs up to this one have their effect, durably.
    unanswered
        Of a receiver that starts over (availability): what it said, until we are live and can
        tell it where we continue. Void with its connection: who comes next may have all of it.
    """

    def __init__(self, plan: Plan, spec: ChannelSpec, last: int, chain: int) -> None:
        self.spec = spec
        self.logs = plan.forwarded_logs(spec)
        self.to_world = spec.receiver == HOUSE_KEEPER
        self.carries_items = not self.to_world or plan.tasks[spec.sender].is_sink
        self.log = InFlightLog(last, chain)
        self.attempt = 0
        self.address: str | None = None
        self.peer = Incarnation(0, 0)
        self.connected = False
        self.broken = False
        self.relaxed = True
        self.released = last
        self.settled = last
        self.unanswered: Hello | None = None
        self._shared: dict[int, int] = {}

    def down(self) -> None:
        self.connected = False
        self.relaxed = True
        self.unanswered = None

    def greet(self, hello: Hello) -> None:
        """The receiver has said what it has: continue from there."""
        self.connected = True
        self.relaxed = not self.to_world
        self._shared = dict(hello.lengths)
        if self.carries_items:
            self.log.resume(hello.next_seq, hello.chain)

    def restart(self, hello: Hello, last: int) -> None:
        """Availability: the receiver continues behind item `last`, whatever it had."""
        self.connected = True
        self.relaxed = not self.to_world
        self.unanswered = None
        self._shared = dict(hello.lengths)
        self.log.renumber(last)

    def delta(self, book: LogBook, stable: dict[int, int]) -> tuple[Run, ...]:
        """What the receiver does not hold yet of the logs that travel along this channel."""
        runs: list[Run] = []
        for task in self.logs:
            length = book.length(task)
            known = max(self._shared.get(task, 0), stable.get(task, 0))
            if length > known:
                legal = max(stable.get(task, 0), book.base(task))
                runs.extend(book.runs(task, known + 1, legal))
                self._shared[task] = length
        return tuple(runs)

    def lags(self, book: LogBook, stable: dict[int, int]) -> bool:
        """Whether the receiver lacks log entries that no batch has taken along yet."""
        return any(
            book.length(t) > max(self._shared.get(t, 0), stable.get(t, 0)) for t in self.logs
        )

    def cut(self, task: int, length: int) -> None:
        """`task` writes its log anew after `length`: what was shared of it beyond is void."""
        if self._shared.get(task, 0) > length:
            self._shared[task] = length
