"""The causal log as its holders keep it: append, read, cut, truncate.

Entry n of a task's log is what its n-th step asked of the world. A *holder* keeps the entries above
the task's floor; every process (task, house-keeper) has one :class:`LogBook` for all the logs it
holds. Entries are addressed by (task, incarnation, position), so an entry that a fenced life wrote
beyond the cut is never mistaken for the one that the next life wrote there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from clonos.core.messages import Run
from clonos.core.plan import Incarnation
from clonos.errors import ProtocolError

LOG_BYTES: Final = 256 << 20
"""Sources wait while a process holds more than this of logs: only floors remove log entries."""
ENTRY_BYTES: Final = 48
"""Roughly what an entry takes in memory in addition to its content, which is mostly a few bytes."""


class Log:
    """The held entries of one task: `base` + 1 ... `length`; below `base` lies the floor (or
    what the house-keeper is known to hold)."""

    __slots__ = ("base", "nbytes", "records", "starts", "writers")

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.records: list[bytes] = []
        self.nbytes = 0
        # writers[i] wrote the entries from starts[i] on, up to starts[i + 1]
        self.starts: list[int] = []
        self.writers: list[Incarnation] = []

    @property
    def length(self) -> int:
        return self.base + len(self.records)

    def writer(self, position: int) -> Incarnation | None:
        """The incarnation that wrote entry `position`, if it is held."""
        if not self.base < position <= self.length:
            return None
        return self.writers[bisect_right(self.starts, position) - 1]

    def extend(self, run: Run) -> None:
        """Append what is new in `run`. Entries that are held already are recognized by position."""
        if run.start > self.length + 1:
            if run.start - 1 > run.stable:
                raise ProtocolError(
                    f"gap in the log of task {run.task}: held up to {self.length}, "
                    f"got {run.start}, stable {run.stable}"
                )
            self.truncate(run.start - 1)
        fresh = run.records[self.length + 1 - run.start :]
        if not fresh:
            return
        if not self.writers or self.writers[-1] != run.incarnation:
            self.starts.append(self.length + 1)
            self.writers.append(run.incarnation)
        self.records.extend(fresh)
        self.nbytes += sum(map(len, fresh)) + ENTRY_BYTES * len(fresh)  # inlined: on the hot path

    def truncate(self, position: int) -> None:
        """Drop the entries up to `position`: a floor has passed them."""
        if position <= self.base:
            return
        self.nbytes -= size_of(self.records[: position - self.base])
        del self.records[: position - self.base]
        self.base = position
        keep = max(bisect_right(self.starts, position + 1) - 1, 0)
        del self.starts[:keep], self.writers[:keep]
        if not self.records:
            self.starts.clear()
            self.writers.clear()

    def cut(self, length: int) -> None:
        """Drop the entries after `length`: nothing that survives depends on them."""
        if length >= self.length:
            return
        kept = max(length - self.base, 0)
        self.nbytes -= size_of(self.records[kept:])
        del self.records[kept:]
        while self.starts and self.starts[-1] > self.length:
            self.starts.pop()
            self.writers.pop()

    def check(self) -> None:
        """Assertions over the whole state."""
        assert self.nbytes == size_of(self.records)
        assert len(self.starts) == len(self.writers)
        assert self.starts or not self.records
        if self.starts:
            assert self.starts[0] <= self.base + 1
            assert self.starts[-1] <= self.length
            assert all(one < other for one, other in pairwise(self.starts))
            assert all(one < other for one, other in pairwise(self.writers))

    def runs(self, task: int, start: int, stable: int = 0) -> Iterator[Run]:
        """The entries from `start` on, one run for each incarnation that wrote some of them."""
        position = max(start, self.base + 1)
        while position <= self.length:
            i = bisect_right(self.starts, position) - 1
            end = self.starts[i + 1] - 1 if i + 1 < len(self.starts) else self.length
            records = tuple(self.records[position - self.base - 1 : end - self.base])
            yield Run(task, self.writers[i], position, records, stable)
            position = end + 1


def size_of(records: Sequence[bytes]) -> int:
    """Roughly what entries take in memory."""
    return sum(map(len, records)) + ENTRY_BYTES * len(records)


PIECE_BYTES: Final = 1 << 20
"""Approximate size of the pieces in which logs travel: nothing waits long behind a piece, and even
a long log fits into messages."""


def in_pieces(runs: Sequence[Run], nbytes_max: int | None = None) -> list[tuple[Run, ...]]:
    """Return the same log entries in groups of limited size, each of at least one entry.

    Examples
    --------
    >>> run = Run(7, Incarnation(1, 0), 5, (b"aaa", b"bb", b"c"))
    >>> [[(r.start, r.records) for r in piece] for piece in in_pieces([run], 3)]
    [[(5, (b'aaa',))], [(6, (b'bb', b'c'))]]
    >>> in_pieces([])
    []
    """
    limit = PIECE_BYTES if nbytes_max is None else nbytes_max
    pieces: list[tuple[Run, ...]] = []
    piece: list[Run] = []
    size = 0
    for run in runs:
        first = 0
        for i, record in enumerate(run.records):
            if size and size + len(record) > limit:
                if i > first:
                    piece.append(_part(run, first, i))
                pieces.append(tuple(piece))
                piece, size, first = [], 0, i
            size += len(record)
        piece.append(_part(run, first, len(run.records)))
    if piece:
        pieces.append(tuple(piece))
    return pieces


def _part(run: Run, first: int, end: int) -> Run:
    records = run.records[first:end]
    return Run(run.task, run.incarnation, run.start + first, records, run.stable)


class LogBook:
    """All logs that one process holds. What may be held is not its concern (see
    :class:`~clonos.core.holder.Holder`).

    Examples
    --------
    >>> book = LogBook()
    >>> book.append(Run(7, Incarnation(1, 0), 1, (b"a", b"b")))
    >>> book.append(Run(7, Incarnation(1, 0), 2, (b"b", b"c")))  # an overlap
    >>> book.length(7)
    3
    >>> book.cut(7, 2)
    >>> book.length(7)
    2
    """

    def __init__(self) -> None:
        self._logs: dict[int, Log] = {}

    def length(self, task: int) -> int:
        log = self._logs.get(task)
        return log.length if log else 0

    def base(self, task: int) -> int:
        log = self._logs.get(task)
        return log.base if log else 0

    def lengths(self) -> dict[int, int]:
        return {task: log.length for task, log in self._logs.items()}

    def writer(self, task: int, position: int) -> Incarnation | None:
        log = self._logs.get(task)
        return log.writer(position) if log else None

    def record(self, task: int, position: int) -> bytes:
        """One held entry."""
        log = self._logs[task]
        return log.records[position - log.base - 1]

    def append(self, run: Run) -> None:
        """Hold what is new in `run`."""
        log = self._logs.get(run.task)
        if log is None:
            log = self._logs[run.task] = Log()
        log.extend(run)

    def begin_at(self, task: int, position: int) -> None:
        """Forget a task's log; the next entry to be held is the one after `position`."""
        self._logs[task] = Log(position)

    def cut(self, task: int, length: int) -> None:
        """Drop the entries after `length`."""
        if task in self._logs:
            self._logs[task].cut(length)

    def runs(self, task: int, start: int, stable: int = 0) -> list[Run]:
        log = self._logs.get(task)
        return list(log.runs(task, start, stable)) if log else []

    def truncate(self, task: int, position: int) -> None:
        """`position` is the task's floor now."""
        log = self._logs.get(task)
        if log is None:
            log = self._logs[task] = Log(position)
        log.truncate(position)

    @property
    def nbytes(self) -> int:
        return sum(log.nbytes for log in self._logs.values())

    def check(self) -> None:
        """Assertions over the whole state."""
        for log in self._logs.values():
            log.check()
