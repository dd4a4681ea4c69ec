"""Messages that a replay of a Kafka source has fetched, and has not been asked for yet."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from clonos.kafka import Partition

AHEAD_ROWS: Final = 65_536
AHEAD_BYTES: Final = 16 << 20
"""A partition with so many messages here waits; all with any wait while they have so many bytes
together. The one whose messages are next never waits."""
_MESSAGE_BYTES: Final = 128
"""What a message takes beside its key and value, about."""


class Ahead:
    """See the module.

    Attributes
    ----------
    nbytes
        How much memory they take, about.

    Examples
    --------
    >>> class Message(bytes):
    ...     key = lambda self: None
    >>> ahead = Ahead()
    >>> for n in range(3):
    ...     ahead.add(("t", n % 2), Message(9 << 20))
    >>> ahead.nbytes >> 20, ahead.full(("t", 0))
    (27, {('t', 1)})
    >>> {partition: len(some) for partition, some in ahead.take(2).items()}
    {('t', 0): 2}
    >>> ahead.nbytes >> 20, ahead.full(("t", 0))
    (9, set())
    """

    def __init__(self) -> None:
        self._waiting: dict[Partition, deque[Any]] = {}
        self.nbytes = 0

    def add(self, partition: Partition, message: Any) -> None:
        """A message was fetched, the next of its partition."""
        self._waiting.setdefault(partition, deque()).append(message)
        self.nbytes += _nbytes(message)

    def first(self, partition: Partition) -> Any:
        """The next message of a partition; None: it is not here."""
        waiting = self._waiting.get(partition)
        return waiting[0] if waiting else None

    def pop(self, partition: Partition) -> Any:
        """Take the next message of a partition."""
        message = self._waiting[partition].popleft()
        self.nbytes -= _nbytes(message)
        return message

    def take(self, rows: int) -> dict[Partition, list[Any]]:
        """Take the first `rows` messages, partition after partition."""
        taken: dict[Partition, list[Any]] = {}
        for partition, waiting in self._waiting.items():
            if some := [self.pop(partition) for _ in range(min(len(waiting), rows))]:
                taken[partition] = some
                rows -= len(some)
        return taken

    def full(self, wanted: Partition) -> set[Partition]:
        """The partitions of which no more should be fetched for now."""
        least = 1 if self.nbytes >= AHEAD_BYTES else AHEAD_ROWS
        return {p for p, waiting in self._waiting.items() if len(waiting) >= least} - {wanted}


def _nbytes(message: Any) -> int:
    return _MESSAGE_BYTES + len(message) + len(message.key() or b"")
