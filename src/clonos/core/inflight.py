"""The in-flight log of a channel: its items above the receiver's floor. It *is* the output queue.

A cursor says which item goes next; a reconnected receiver moves it back (replay), a recovered
sender regenerates items below it (deduplication, checked by the running digest). Nothing is
ever dropped but what the floor has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from clonos.core.digest import chain
from clonos.core.messages import Dependencies, Item, Kind
from clonos.core.program import Batch
from clonos.errors import Divergence, ProtocolError


class InFlightLog:
    """Items `first` ... `last` of one channel.

    Attributes
    ----------
    cursor
        Number of the next item to send.
    processed
        The receiver is done with items up to this one (it may still ask for them again, until
        its floor passes them).
    """

    __slots__ = (
        "_base_chain",
        "_expected",
        "_items",
        "_nbytes",
        "_sizes",
        "chain",
        "cursor",
        "last",
        "processed",
    )

    def __init__(self, last: int = 0, last_chain: int = 0) -> None:
        self.last = last
        self.chain = last_chain
        self.cursor = last + 1
        self.processed = last
        self._items: deque[Item] = deque()
        self._base_chain = last_chain  # running digest before the first item kept
        self._sizes = 0
        self._nbytes = 0  # of the items not yet processed
        self._expected: tuple[int, int] | None = None

    @property
    def first(self) -> int:
        return self.last + 1 - len(self._items)

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the items that the receiver has not done with."""
        return self._nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all items kept."""
        return self._sizes

    @property
    def is_verified(self) -> bool:
        """Whether all that the receiver knew when it was connected has been made again."""
        return self._expected is None

    def append(
        self,
        kind: Kind,
        epoch: int,
        value: int,
        batch: Batch | None,
        dep: Dependencies,
        born_ms: int = 0,
        watermark: int | None = None,
    ) -> Item:
        """Number a new item and keep it. Raises `Divergence` if the receiver knows another one."""
        self.last += 1
        self.chain = chain(self.chain, kind, value, batch.digest if batch else 0, watermark)
        item = Item(self.last, kind, epoch, value, batch, dep, self.chain, born_ms, watermark)
        self._items.append(item)
        size = batch.nbytes if batch else 0
        self._sizes += size
        if self.last > self.processed:
            self._nbytes += size
        if self._expected is not None and self._expected[0] == self.last:
            self._verify(self.chain)
        return item

    def _verify(self, regenerated: int) -> None:
        assert self._expected is not None
        seq, known = self._expected
        self._expected = None
        if regenerated != known:
            raise Divergence(
                f"the first {seq} items regenerated for a channel differ from those delivered "
                "before the failure",
                remedy="move randomness, time and calls into ctx.random, ctx.clock and ctx.call; "
                "check for iteration over sets or global state",
            )

    def resume(self, next_seq: int, known_chain: int) -> None:
        """The receiver has the items before `next_seq`; their running digest is `known_chain`."""
        if next_seq < self.first:
            raise ProtocolError(
                f"item {next_seq} was asked for, but only {self.first} and later are kept"
            )
        self.cursor = next_seq
        self._expected = (next_seq - 1, known_chain)
        if next_seq == self.first:
            self._verify(self._base_chain)
        elif next_seq - 1 <= self.last:
            self._verify(self.item(next_seq - 1).chain)
        self.acknowledge(next_seq - 1, rewind=True)

    def acknowledge(self, processed: int, *, rewind: bool = False) -> None:
        """The receiver is done with the items up to `processed` (which may lie ahead of us)."""
        if rewind and processed < self.processed:
            self.processed = processed
            self._nbytes = sum(i.batch.nbytes for i in self._items if i.batch and i.seq > processed)
            return
        for seq in range(max(self.processed + 1, self.first), min(processed, self.last) + 1):
            batch = self.item(seq).batch
            if batch:
                self._nbytes -= batch.nbytes
        self.processed = max(self.processed, processed)

    def item(self, seq: int) -> Item:
        return self._items[seq - self.first]

    def unsent(self) -> Iterator[Item]:
        """Items from the cursor on, moving it."""
        while self.cursor <= self.last:
            item = self.item(self.cursor)
            self.cursor += 1
            yield item

    def made_until(self, task: int, position: int) -> tuple[int, int]:
        """Number and digest of the last item that `task` made in its first `position` steps."""
        for item in reversed(self._items):
            if item.dep[task].position <= position:
                return item.seq, item.chain
        return self.first - 1, self._base_chain

    def renumber(self, last: int) -> None:
        """Availability: the receiver continues behind item `last`, whatever it had."""
        self.cursor = last + 1
        self._expected = None
        self.processed = last
        self._nbytes = sum(i.batch.nbytes for i in self._items if i.batch and i.seq > last)

    def truncate(self, seq: int) -> None:
        """The receiver's floor has passed item `seq`."""
        while self._items and self._items[0].seq <= seq:
            item = self._items.popleft()
            self._base_chain = item.chain
            size = item.batch.nbytes if item.batch else 0
            self._sizes -= size
            if item.seq > self.processed:
                self._nbytes -= size

    def check(self) -> None:
        """Assertions over the whole state."""
        sizes = [(i.seq > self.processed, i.batch.nbytes if i.batch else 0) for i in self._items]
        assert self._sizes == sum(size for _, size in sizes)
        assert self._nbytes == sum(size for is_backlog, size in sizes if is_backlog)
        assert self.chain == (self._items[-1].chain if self._items else self._base_chain)
        assert self._expected is None or self._expected[0] > self.last
