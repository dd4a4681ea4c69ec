"""The cut of a Kafka source: a task's position in its partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import msgpack

from clonos.errors import SourceError
from clonos.kafka import Partition

_ID: Final = -1
"""Where a cut has a topic's id; the numbers of partitions are not negative."""


@dataclass(frozen=True)
class Span:
    """A number of messages of a partition, from `start` on, all before `end`.

    There may be fewer than ``end - start``, because transactions leave markers and compaction
    leaves holes. The last message is at ``end - 1``.
    """

    start: int
    end: int
    rows: int


@dataclass
class Cut:
    """The messages of a batch, and thereby where the next batch begins.

    Attributes
    ----------
    spans
        By partition, in the order of the batch's rows. Every partition that the task reads is
        included, even without messages in this batch.
    ids
        By topic, the checksum of the id that the cluster gave it, or None if that is not known. A
        topic that was deleted and created again has another id. Every topic with which the task has
        begun is included, even without partitions of it. Earlier versions recorded none.

    Examples
    --------
    >>> cut = Cut({("a", 0): Span(5, 9, 4), ("a", 2): Span(7, 7, 0)})
    >>> len(cut.encode()), Cut.decode(cut.encode()) == cut
    (11, True)
    >>> cut = Cut(cut.spans, {"a": 4_000_000_000})
    >>> len(cut.encode()), Cut.decode(cut.encode()) == cut
    (17, True)
    """

    spans: dict[Partition, Span] = field(default_factory=dict)
    ids: dict[str, int | None] = field(default_factory=dict)

    @property
    def ends(self) -> dict[Partition, int]:
        """The next message of each partition."""
        return {partition: span.end for partition, span in self.spans.items()}

    def encode(self) -> bytes:
        """Encode in as few bytes as possible, because each of the task's log entries has a cut."""
        topics: dict[str, dict[int, Any]] = {t: {_ID: number} for t, number in self.ids.items()}
        for (topic, number), span in self.spans.items():
            is_idle = span.start == span.end
            said = span.end if is_idle else (span.start, span.end, span.rows)
            topics.setdefault(topic, {})[number] = said
        packed: bytes = msgpack.packb(topics)
        return packed

    @classmethod
    def decode(cls, data: bytes) -> Cut:
        """Inverse of :meth:`encode`.

        Raises
        ------
        SourceError
            The bytes are not a Kafka cut.
        """
        try:
            topics = msgpack.unpackb(data, strict_map_key=False)
            ids = {topic: numbers[_ID] for topic, numbers in topics.items() if _ID in numbers}
            return cls(dict(_spans(topics)), ids)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise SourceError(
                f"{len(data)} bytes do not say where in a topic they lie: {error}",
                remedy="check that the source of this name was a Kafka source when the job began",
            ) from error


def _spans(topics: Mapping[str, Mapping[int, Any]]) -> Iterator[tuple[Partition, Span]]:
    for topic, numbers in topics.items():
        for number, said in numbers.items():
            if number == _ID:
                continue
            span = Span(said, said, 0) if isinstance(said, int) else Span(*said)
            yield (topic, number), span


def forget(data: bytes, topics: Collection[str]) -> bytes:
    """A cut without these topics; empty if nothing is left."""
    cut = Cut.decode(data)
    spans = {p: span for p, span in cut.spans.items() if p[0] not in topics}
    ids = {topic: number for topic, number in cut.ids.items() if topic not in topics}
    return Cut(spans, ids).encode() if spans or ids else b""


def task_of(partition: Partition, parallelism: int) -> int:
    """The task that reads a partition. New topics and partitions never move existing ones.

    Examples
    --------
    >>> sorted(task_of(("orders", n), 2) for n in range(4))
    [0, 0, 1, 1]
    """
    topic, number = partition
    return (crc32(topic.encode()) + number) % parallelism
