"""Messages of Kafka topics, by partition and offset.

The engine assigns partitions to tasks; there is no consumer group. A batch has the messages of each
partition together, in the order of their offsets, and its cut records which they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from clonos.columns.instants import to_ms
from clonos.errors import ProtocolError, SourceError, WrongType
from clonos.extras import imported
from clonos.kafka import (
    LOG,
    METADATA_S,
    Cluster,
    Partition,
    driver,
    edges,
    error_of,
    is_away,
    shown,
)
from clonos.sources.kafka_ahead import Ahead
from clonos.sources.kafka_cut import Cut, Span, forget, task_of
from clonos.sources.messages import METADATA, message_schema
from clonos.sources.outage import Outage
from clonos.sources.readers import CutReader

Start = str | datetime | Mapping[Partition, int]

REFRESH_S: Final = 10.0
"""How often the reader looks for new partitions."""
FETCH_ROWS: Final = 100
"""So many messages are taken at a time, at most, before it is looked how many are ahead."""
END_S: Final = 30.0
"""A partition that ends before the position already read may have a new leader that must catch up.
After this time the messages count as lost."""

_POLL_S: Final = 0.25
_REFRESH_WAIT_S: Final = 1.0
_US_PER_MS: Final = 1000

OURS: Final = {
    "auto.offset.reset": "error",  # a position that is gone is an error, never another position
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
"""The guarantees depend on these settings, so users must not change them."""

USUAL: Final = {
    "group.id": "clonos",  # librdkafka wants a name; nothing is committed under it
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,  # brokers answer at once when there is something
    "fetch.queue.backoff.ms": 5,
    "allow.auto.create.topics": False,
}
"""Defaults that users may override."""


@dataclass(frozen=True)
class Topics:
    """The topics to read from a cluster.

    Parameters
    ----------
    start
        Where a new task begins: "earliest", "latest", a time, or offsets by partition. Partitions
        that have no offset, or appear later, are read from their first message.
    refresh_s
        See :data:`REFRESH_S`.
    group
        The group under which offsets are committed, for other tools; the engine never reads them.
    """

    cluster: Cluster
    names: tuple[str, ...]
    start: Start = "earliest"
    has_metadata: bool = False
    refresh_s: float = REFRESH_S
    group: str | None = None

    @property
    def place(self) -> str:
        """Topics and cluster for messages, without secrets."""
        return f"{', '.join(self.names)} of {self.cluster!r}"

    def consumer(self, tell: Callable[[Any], object]) -> Any:
        """A new consumer without partitions.

        Parameters
        ----------
        tell
            Called when brokers cannot be reached. librdkafka reconnects by itself; errors that it
            cannot repair come in place of a message.
        """
        named = {} if self.group is None else {"group.id": self.group}
        settings = {**USUAL, **self.cluster.settings(OURS), **named}
        return self.cluster.client(driver().Consumer, {**settings, "error_cb": tell})

    forget = staticmethod(forget)

    def admin(self) -> Any:
        """A new client that can ask for the ids of topics; a consumer cannot."""
        kind = imported("confluent_kafka.admin", extra="kafka", where="kafka").AdminClient
        return self.cluster.client(kind, self.cluster.settings({}))


def require_start(start: object, names: Sequence[str]) -> None:
    """Raise `WrongType` if a job that reads these topics cannot begin there."""
    is_good = start in ("earliest", "latest") if isinstance(start, str) else False
    if isinstance(start, datetime):
        is_good = to_ms(start) >= 0
    elif isinstance(start, Mapping):
        is_good = all(
            isinstance(place, tuple) and [*map(type, place)] == [str, int] and type(at) is int
            for place, at in start.items()
        )
    if not is_good:
        raise WrongType(
            f"start={start!r}",
            where="kafka",
            remedy='say "earliest", "latest", a datetime, or {("topic", 0): 42}',
        )
    if isinstance(start, Mapping):
        _require_offsets(start, names)


def _require_offsets(start: Mapping[Partition, int], names: Sequence[str]) -> None:
    for partition, offset in start.items():
        topic, number = partition
        if topic not in names:
            what, remedy = f"{topic!r} is none of the topics", f"name {', '.join(names)}"
        elif number < 0:
            what, remedy = "there is no such partition", "number partitions from 0 on"
        elif offset < 0:  # Spark means the end by -1 and the beginning by -2; librdkafka has others
            what = "an offset is never negative"
            remedy = 'say start="latest" for -1, start="earliest" for -2, or a datetime'
        else:
            continue
        raise WrongType(f"start={{{partition}: {offset}}}: {what}", where="kafka", remedy=remedy)


class KafkaReader(CutReader):
    """One task's partitions of some topics."""

    def __init__(self, topics: Topics, task_index: int, parallelism: int) -> None:
        self._topics = topics
        self._index, self._parallelism = task_index, parallelism
        self.schema = message_schema(metadata=topics.has_metadata)
        self._consumer: Any = None
        self._admin: Any = None
        self._ends: dict[Partition, int] = {}  # next offsets to deliver
        self._ids: dict[str, int | None] = {}  # of the topics with which it has begun
        self._is_assigned = self._is_checked = False
        self._outage = Outage(repr(topics.cluster), sleep=lambda _: None)
        self._ahead = Ahead()
        self._paused: set[Partition] = set()
        self._known_ends: dict[Partition, int] = {}  # ends as last reported
        self._refresh_at = 0.0
        self._complaint = ""  # the last one of librdkafka's

    # --- the reader ------------------------------------------------------------------------------

    def open(self, rows_consumed: int, cut: bytes = b"") -> None:
        """See :meth:`CutReader.open`; nothing is fetched before the first read."""
        del rows_consumed
        self.cut = cut
        at = Cut.decode(cut) if cut else Cut()
        # Earlier versions did not say with which topics they had begun: with all of them.
        self._ends, self._ids = at.ends, at.ids or dict.fromkeys(self._topics.names if cut else ())
        if self._consumer is None:
            self._consumer = self._topics.consumer(self._hear)
        elif self._is_assigned:
            self._consumer.unassign()
        self._is_assigned = self._is_checked = False
        self._ahead, self._refresh_at = Ahead(), 0.0

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        if new := [topic for topic in self._topics.names if topic not in self._ids]:
            return self._begin(new)
        if not self._refresh():
            time.sleep(max_wait_s)
            return None
        self._assign()
        taken = self._take_ahead(max_rows) or self._poll(max_rows, max_wait_s)
        return self._batch(taken) if taken else None

    def read_cut(self, cut: bytes) -> pa.RecordBatch:
        """See :meth:`CutReader.read_cut`."""
        to = Cut.decode(cut)
        spans = to.spans
        if any(self._ends.get(p, span.start) != span.start for p, span in spans.items()):
            raise ProtocolError("cuts are read out of order", remedy="report this as a bug")
        self._place({p: span.start for p, span in spans.items() if p not in self._ends})
        self._ids = {**(self._ids or dict.fromkeys(self._topics.names)), **to.ids}
        self._check()
        self._assign()
        taken = {p: self._exactly(p, span) for p, span in spans.items() if span.rows}
        batch = self._batch(taken)
        self.cut = cut  # it may not know an id that is known now
        return batch

    def look(self, *, is_idle: bool) -> int | None:
        """See :meth:`CutReader.look`; also commits offsets for the group."""
        if not self._is_assigned:
            return None
        self._tell_group()
        lag = 0
        try:
            for partition, end in self._ends.items():
                place = driver().TopicPartition(*partition)
                # Brokers report the end of a partition with each fetch.
                known = {"timeout": _REFRESH_WAIT_S} if is_idle else {"cached": True}
                _, newest = self._consumer.get_watermark_offsets(place, **known)
                if newest < 0:  # nothing was fetched yet
                    return None
                lag += max(newest - end, 0)
        except driver().KafkaException:
            return None  # brokers are away
        return lag

    def _tell_group(self) -> None:
        if self._topics.group is not None:
            at = [driver().TopicPartition(*p, end) for p, end in self._ends.items()]
            try:
                self._consumer.commit(offsets=at, asynchronous=True)
            except driver().KafkaException as exception:
                LOG.warning("offsets of %s: %s", self._topics.group, error_of(exception).str())

    def close(self) -> None:
        """See :meth:`Reader.close`."""
        consumer, self._consumer, self._admin = self._consumer, None, None
        if consumer is not None:
            consumer.close()

    # --- partitions ------------------------------------------------------------------------------

    def _begin(self, topics: Sequence[str]) -> pa.RecordBatch | None:
        """Choose where to begin with these; the cut of an empty batch logs it before anything is
        read."""
        until = time.monotonic() + METADATA_S
        while True:
            try:
                starts = self._starts(self._partitions(topics, METADATA_S))
                break
            except driver().KafkaException as exception:
                error = error_of(exception)
                if is_away(error) and time.monotonic() < until:  # a leader is elected, say
                    time.sleep(_POLL_S)
                    continue
                told = [error.str(), self._complaint]
                raise self._failed("; ".join(["it does not answer", *filter(None, told)])) from None
        self._ids = {**self._ids, **self._ids_of(topics)}
        self._place(starts)
        if not self.cut:
            self._is_checked = True
            self._refresh_at = time.monotonic() + self._topics.refresh_s
        return self._batch({})

    def _partitions(self, topics: Sequence[str], timeout_s: float) -> list[Partition]:
        """The partitions of this task, sorted."""
        found = []
        for topic in topics:
            metadata = self._consumer.list_topics(topic, timeout=timeout_s).topics[topic]
            if metadata.error is not None:
                if is_away(metadata.error) and metadata.error.name() != "UNKNOWN_TOPIC_OR_PART":
                    raise driver().KafkaException(metadata.error)
                raise self._failed(
                    f"there is no topic {topic!r} for this job: {metadata.error.str()}",
                    "create the topic, or check that the job may read it",
                )
            found += [(topic, number) for number in metadata.partitions]
        return sorted(p for p in found if task_of(p, self._parallelism) == self._index)

    def _ids_of(self, topics: Sequence[str]) -> dict[str, int | None]:
        """The ids of topics, as cuts have them; None where the cluster does not say."""
        found: dict[str, int | None] = dict.fromkeys(topics)
        kafka = driver()
        try:
            cluster = self._consumer.list_topics(topics[0], timeout=_REFRESH_WAIT_S)
            if cluster.controller_id not in cluster.brokers:  # who would have to be asked
                return found
            self._admin = self._admin or self._topics.admin()
            asked = self._admin.describe_topics(
                kafka.TopicCollection(list(topics)), request_timeout=_REFRESH_WAIT_S
            )
        except kafka.KafkaException:
            return found
        for topic, answer in asked.items():
            with suppress(kafka.KafkaException):
                named = answer.result().topic_id
                if named is not None and (
                    named.get_most_significant_bits() or named.get_least_significant_bits()
                ):  # brokers before 2.8 have no ids
                    found[topic] = crc32(str(named).encode())
        return found

    def _check(self) -> None:
        """Raise if the topics are not those in which it has positions; once after each opening."""
        if self._is_checked:
            return
        self._is_checked = True
        for topic, found in self._ids_of(self._topics.names).items():
            known = self._ids.get(topic)
            if known is not None and found not in {None, known}:
                raise self._failed(
                    f"the topic {topic!r} was deleted and created again, or this is another "
                    "cluster: the job's offsets mean nothing there, and what it had not read is "
                    "gone",
                    "start the job afresh, with another checkpoint_dir; or read the new topic in a "
                    "source of another name (upgrade=True, drop_state=)",
                )
            if topic in self._ids:
                self._ids[topic] = known if found is None else found

    def _starts(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        start = self._topics.start
        if isinstance(start, datetime):
            return self._at(partitions, to_ms(start))
        if isinstance(start, str):
            found = self._edges(partitions)
            return {p: found[p][start == "latest"] for p in partitions}
        first = self._edges([p for p in partitions if p not in start])
        return {p: start[p] if p in start else first[p][0] for p in partitions}

    def _at(self, partitions: Sequence[Partition], start_ms: int) -> dict[Partition, int]:
        """The first message at or after that time; the end of the partition if there is none."""
        # First the ends: a message that comes before the second answer lies behind them.
        ends = self._edges(partitions)
        asked = [driver().TopicPartition(*p, start_ms) for p in partitions]
        answers = self._consumer.offsets_for_times(asked, timeout=METADATA_S) if asked else []
        found = {}
        for answer in answers:
            if answer.error is not None:
                raise driver().KafkaException(answer.error)
            found[answer.topic, answer.partition] = answer.offset
        return {p: found[p] if found[p] >= 0 else ends[p][1] for p in partitions}

    def _edges(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        return edges(self._consumer, partitions, METADATA_S)

    def _refresh(self) -> bool:
        """Look for new partitions now and then; they are read from their first message. False:
        nothing may be read yet, because brokers are away and topics may be others by now."""
        now = time.monotonic()
        if now < self._refresh_at:
            return self._is_checked
        self._require_named()
        self._refresh_at = now + self._topics.refresh_s
        try:
            found = self._partitions(self._topics.names, _REFRESH_WAIT_S)
            new = self._edges([p for p in found if p not in self._ends])
        except driver().KafkaException as exception:
            self._outage.wait(error_of(exception).str())
            self._refresh_at = now + (self._topics.refresh_s / 2 if self._is_checked else _POLL_S)
            return self._is_checked
        except SourceError as error:  # it was deleted, and may be created again
            self._outage.wait(error.what)
            self._check()
            return True
        self._outage.over()
        self._is_checked = False
        self._check()
        self._place({p: first for p, (first, _) in new.items()})
        return True

    def _require_named(self) -> None:
        """Raise if it has positions in a topic that it is not to read."""
        topics = {topic for topic, _ in self._ends} | self._ids.keys()
        if others := sorted(topics - set(self._topics.names)):
            raise self._failed(
                f"the job has read {', '.join(others)}, too, and the source does not name that",
                "name it again; or let the job settle with it, and start it with upgrade=True and "
                "drop_state=",
            )

    def _place(self, new: Mapping[Partition, int]) -> None:
        if new:
            self._ends = dict(sorted({**self._ends, **new}.items()))
            self._is_assigned = False

    def _assign(self) -> None:
        """Begin to fetch, from the next offsets."""
        if self._is_assigned:
            return
        self._ahead, self._known_ends, self._paused = Ahead(), {}, set()
        at = [driver().TopicPartition(*p, end) for p, end in self._ends.items()]
        self._consumer.assign(at)
        self._is_assigned = True

    # --- messages --------------------------------------------------------------------------------

    def _poll(self, max_rows: int, max_wait_s: float) -> dict[Partition, list[Any]]:
        """The available messages, at most `max_rows`; waits only if there are none."""
        first = self._consumer.poll(max_wait_s)
        if first is None:
            return {}
        messages = [first]
        if max_rows > 1:
            messages += self._consumer.consume(max_rows - 1, 0)
        found: dict[Partition, list[Any]] = {}
        for message in messages:
            if (error := message.error()) is not None:
                self._judge(error, message)
                continue
            partition = (message.topic(), message.partition())
            known = found.get(partition)
            if known is None:
                known = found[partition] = []
            known.append(message)
        return found

    def _judge(self, error: Any, message: Any) -> None:
        """Handle an error that came in place of a message."""
        if error.name() == "_PARTITION_EOF" or (is_away(error) and not error.fatal()):
            return
        partition = (message.topic() or ", ".join(self._topics.names), message.partition() or 0)
        if error.name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
            self._is_checked = False
            self._check()  # it may be another topic
            raise self._lost(partition, error.str())
        raise self._failed(f"partition {shown(partition)} cannot be read: {error.str()}")

    def _take_ahead(self, max_rows: int) -> dict[Partition, list[Any]]:
        """Messages that a replay has fetched but not used."""
        taken = self._ahead.take(max_rows)
        if not taken and self._paused:
            self._go_on(self._paused)
        return taken

    def _exactly(self, partition: Partition, span: Span) -> list[Any]:
        """The messages of a span, which were read before."""
        taken: list[Any] = []
        until = time.monotonic() + END_S
        while len(taken) < span.rows:
            first = self._ahead.first(partition)
            if first is not None and first.offset() < span.end:
                taken.append(self._ahead.pop(partition))
                continue
            end = self._known_ends.get(partition)
            is_short = end is not None and (end >= span.end or time.monotonic() > until)
            if first is not None or is_short:
                raise self._lost(partition, f"{len(taken)} of {span.rows} messages are there")
            self._go_on({partition} & self._paused)
            self._fetch(partition)
        if taken and taken[-1].offset() != span.end - 1:
            raise self._lost(partition, f"there is none at {span.end - 1}")
        return taken

    def _fetch(self, wanted: Partition) -> None:
        """Wait a little, and add the messages that come to those that are ahead."""
        message = self._consumer.poll(_POLL_S)
        if message is None:
            return
        for one in (message, *self._consumer.consume(FETCH_ROWS, 0)):
            partition = (one.topic(), one.partition())
            error = one.error()
            if error is None:
                self._ahead.add(partition, one)
            elif error.name() == "_PARTITION_EOF":
                self._known_ends[partition] = one.offset()
            else:
                self._judge(error, one)
        if new := self._ahead.full(wanted) - self._paused:
            self._consumer.pause([driver().TopicPartition(*p) for p in new])
            self._paused |= new

    def _go_on(self, partitions: Iterable[Partition]) -> None:
        chosen = set(partitions)
        if chosen:
            self._consumer.resume([driver().TopicPartition(*p) for p in chosen])
            self._paused -= chosen

    def _batch(self, taken: Mapping[Partition, Sequence[Any]]) -> pa.RecordBatch:
        """The messages as columns; also moves the next offsets behind them."""
        spans = {}
        messages: list[Any] = []
        for partition, start in self._ends.items():
            rows = taken.get(partition, ())
            end = rows[-1].offset() + 1 if rows else start
            spans[partition] = Span(start, end, len(rows))
            messages += rows
        cut = Cut(spans, self._ids)
        self._ends, self.cut = cut.ends, cut.encode()
        return pa.RecordBatch.from_arrays(self._columns(messages), schema=self.schema)

    def _columns(self, messages: Sequence[Any]) -> list[pa.Array]:
        columns = [pa.array([m.value() for m in messages], pa.binary())]
        if self._topics.has_metadata:
            key, topic, partition, offset, timestamp = (field.type for field in METADATA)
            columns += [
                pa.array([m.key() for m in messages], key),
                pa.array([m.topic() for m in messages], topic),
                pa.array([m.partition() for m in messages], partition),
                pa.array([m.offset() for m in messages], offset),
                pa.array([_time_us(m.timestamp()) for m in messages], pa.int64()).cast(timestamp),
            ]
        return columns

    # --- errors ----------------------------------------------------------------------------------

    def _hear(self, error: Any) -> None:
        self._complaint = error.str()

    def _lost(self, partition: Partition, why: str) -> SourceError:
        return self._failed(
            f"messages of partition {shown(partition)} that are needed again are gone ({why})",
            "keep messages longer than a job may stand still, and do not compact a topic that it "
            "reads; or start the job afresh, with another checkpoint_dir",
        )

    def _failed(self, what: str, remedy: str = "") -> SourceError:
        return SourceError(
            what,
            where=repr(self._topics.cluster),
            remedy=remedy or "check that all executors reach the brokers and may read the topics",
        )


def _time_us(timestamp: tuple[int, int]) -> int | None:
    kind, at_ms = timestamp
    return at_ms * _US_PER_MS if kind else None
