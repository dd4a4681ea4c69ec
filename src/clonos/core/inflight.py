"""The in-flight log of a channel: its items above the receiver's floor. It *is* the output queue.

A cursor says which item goes next; a reconnected receiver moves it back (replay), a recovered
sender regenerates items below it (deduplication, checked by the running digest). Items are dropped
only when the receiver's floor has passed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clonos.core.digest import chain
from clonos.core.messages import Dependencies, Item, Kind
from clonos.core.program import Batch
from clonos.core.spilled import FILE_BYTES, KEPT_BYTES, ON_DISK, Spilled
from clonos.errors import Divergence, ProtocolError

INFLIGHT_BYTES: Final = 256 << 20
"""A process that keeps more than this in memory for its receivers (one is away, or replays) writes
the oldest of it to its local disk; sources wait while it keeps twice as much."""


class InFlightLog:
    """Items `first` ... `last` of one channel.

    Attributes
    ----------
    cursor
        Number of the next item to send.
    processed
        The receiver is done with items up to this one (it may still ask for them again, until
        its floor passes them).
    nbytes, backlog_bytes
        Bytes of all items kept, and of those that the receiver has not processed.
    spilled
        The oldest items, whose batches are on the local disk.
    """

    __slots__ = (
        "_base_chain",
        "_expected",
        "_items",
        "backlog_bytes",
        "chain",
        "cursor",
        "last",
        "nbytes",
        "processed",
        "spilled",
    )

    def __init__(self, last: int = 0, last_chain: int = 0) -> None:
        self.last = last
        self.chain = last_chain
        self.cursor = last + 1
        self.processed = last
        self._items: deque[Item] = deque()
        self._base_chain = last_chain  # running digest before the first item kept
        self.nbytes = self.backlog_bytes = 0
        self._expected: tuple[int, int] | None = None
        self.spilled = Spilled()

    def restore(self, base_chain: int, items: Sequence[Item]) -> None:
        """Begin with items that a layer carries: the receiver's floor may lack them."""
        self._items.extend(items)
        self._base_chain = base_chain
        self.nbytes = sum(item.batch.nbytes for item in items if item.batch)
        self.cursor = self.first
        self._go_back(self.first - 1)

    @property
    def carried(self) -> tuple[int, tuple[Item, ...]]:
        """What :meth:`restore` needs."""
        return self._base_chain, tuple(self._items)

    @property
    def first(self) -> int:
        return self.last + 1 - len(self._items)

    @property
    def held_bytes(self) -> int:
        """Bytes of all items in memory."""
        files = self.spilled.files
        of_items = KEPT_BYTES * (files[-1].last + 1 - self.first) if files else 0
        return self.nbytes - self.spilled.nbytes + max(of_items, 0)

    @property
    def is_verified(self) -> bool:
        """Whether all items that the receiver had when it connected have been made again."""
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
        """Number a new item and keep it. Raises `Divergence` if the receiver has another one."""
        self.last += 1
        self.chain = chain(self.chain, kind, value, batch.digest if batch else 0, watermark)
        item = Item(self.last, kind, epoch, value, batch, dep, self.chain, born_ms, watermark)
        self._items.append(item)
        size = batch.nbytes if batch else 0
        self.nbytes += size
        if self.last > self.processed:
            self.backlog_bytes += size
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
                "check for iteration over sets or global state; if you have changed a function, "
                "start the job as it was, and end it with stop(settle=...) first",
            )

    def expect_nothing(self) -> None:
        """What the receiver had may be void: nothing is compared before its next hello."""
        self._expected = None

    def resume(self, next_seq: int, known_chain: int) -> None:
        """The receiver has the items before `next_seq`; their running digest is `known_chain`."""
        if next_seq < self.first:
            raise ProtocolError(
                f"item {next_seq} was asked for, but only {self.first} and later are kept"
            )
        self.cursor = next_seq
        self.spilled.rewind()
        self._expected = (next_seq - 1, known_chain)
        if next_seq == self.first:
            self._verify(self._base_chain)
        elif next_seq - 1 <= self.last:
            self._verify(self.item(next_seq - 1).chain)
        if next_seq <= self.processed:
            self._go_back(next_seq - 1)
        else:
            self.acknowledge(next_seq - 1)

    def _go_back(self, processed: int) -> None:
        """The receiver has processed no more than this."""
        self.processed = processed
        self.backlog_bytes = sum(
            i.batch.nbytes for i in self._items if i.batch and i.seq > processed
        )

    def acknowledge(self, processed: int) -> None:
        """The receiver has processed the items up to `processed`, some of which we may yet have to
        make."""
        for seq in range(max(self.processed + 1, self.first), min(processed, self.last) + 1):
            batch = self.item(seq).batch
            if batch:
                self.backlog_bytes -= batch.nbytes
        self.processed = max(self.processed, processed)

    def item(self, seq: int) -> Item:
        return self._items[seq - self.first]

    def made_until(self, task: int, position: int) -> tuple[int, int]:
        """Number and digest of the last item that `task` made in its first `position` steps."""
        for item in reversed(self._items):
            if item.dep[task].position <= position:
                return item.seq, item.chain
        return self.first - 1, self._base_chain

    @property
    def sent(self) -> int:
        """Number of the last item that was sent to any life of the receiver, not counting END,
        which each life is sent anew."""
        has_end = bool(self._items) and self._items[-1].kind is Kind.END
        return min(self.cursor - 1, self.last - has_end)

    @property
    def sent_chain(self) -> int:
        """The running digest up to `sent`."""
        return self.item(self.sent).chain if self.sent >= self.first else self._base_chain

    def renumber(self, last: int) -> None:
        """Availability: the receiver continues behind item `last`, whatever it had."""
        self.cursor = last + 1
        self.spilled.rewind()
        self._expected = None
        self._go_back(last)

    # --- on the disk --------------------------------------------------------------------------

    def spill(self, upto: int) -> tuple[int, list[Batch]] | None:
        """Choose the oldest batches in memory, up to item `upto`, for a file. Return its number and
        its batches, or None if there is nothing to write."""
        spilled = self.spilled
        if spilled.is_writing:
            return None
        since = max(spilled.files[-1].last + 1 if spilled.files else 1, self.first)
        items, batches, size = list[Item](), list[Batch](), 0
        for seq in range(since, min(upto, self.last) + 1):
            item = self.item(seq)
            if item.batch is not None:
                size += item.batch.nbytes
                if batches and size > FILE_BYTES:
                    break
                batches.append(item.batch)
            items.append(item)
        return (spilled.begin(items), batches) if batches else None

    def wrote(self, number: int, *, is_written: bool) -> bool:
        """A file was written, or could not be. False: nobody needs it any more."""
        file = self.spilled.find(number)
        assert file is not None
        if not is_written or file.last < self.first:
            self.spilled.files.remove(file)
            return False
        file.is_written = True
        for seq in range(max(file.first, self.first), file.last + 1):
            item = self.item(seq)
            if item.batch is not None:
                self.spilled.nbytes += item.batch.nbytes
                self._items[seq - self.first] = replace(
                    item, batch=item.batch._replace(payload=ON_DISK)
                )
        return True

    def read_back(self, number: int, batches: list[Batch]) -> bool:
        """The batches of a file were read. False: they are not those that were written."""
        file = self.spilled.find(number)
        if file is None:
            return True  # the floor has passed it
        first = max(file.first, self.first)
        kept = [i for i in (self.item(s) for s in range(first, file.last + 1)) if i.batch]
        came = batches[len(batches) - len(kept) :]
        if [i.batch.digest for i in kept if i.batch] != [batch.digest for batch in came]:
            return False
        self.spilled.came(number, {i.seq: b for i, b in zip(kept, came, strict=True)}, self.cursor)
        return True

    def complete(self, item: Item) -> Item | None:
        """The item with its batch, to be sent; None: the batch has to be read back first."""
        if item.batch is None or item.batch.payload is not ON_DISK:
            return item
        batch = self.spilled.loaded.pop(item.seq, None)
        return None if batch is None else replace(item, batch=batch)

    def truncate(self, seq: int) -> list[int]:
        """The receiver's floor has passed item `seq`. Return the files that nobody needs any
        more."""
        while self._items and self._items[0].seq <= seq:
            item = self._items.popleft()
            self._base_chain = item.chain
            size = item.batch.nbytes if item.batch else 0
            self.nbytes -= size
            if item.seq > self.processed:
                self.backlog_bytes -= size
            if item.batch and item.batch.payload is ON_DISK:
                self.spilled.nbytes -= size
        return self.spilled.truncate(seq) if self.spilled.files else []

    def check(self) -> None:
        """Assertions over the whole state."""
        sizes = [(i.seq > self.processed, i.batch.nbytes if i.batch else 0) for i in self._items]
        assert self.nbytes == sum(size for _, size in sizes)
        assert self.backlog_bytes == sum(size for is_backlog, size in sizes if is_backlog)
        assert self.chain == (self._items[-1].chain if self._items else self._base_chain)
        assert self._expected is None or self._expected[0] > self.last
        on_disk = [i.batch.nbytes for i in self._items if i.batch and i.batch.payload is ON_DISK]
        assert self.spilled.nbytes == sum(on_disk)
