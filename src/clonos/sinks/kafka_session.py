"""Producers of the Kafka sink, and what librdkafka's errors mean for it.

There are three kinds of errors: the operation may be retried; the transaction must be aborted and
its group written again; or the producer is unusable. In each case a new session can find out what
happened, because it takes the id and reads the mark. Only errors that would occur again end the
job.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from clonos.errors import ClonosError, RowRefused, SinkFailed, StoreAway
from clonos.kafka import METADATA_S, Cluster, driver, edges, error_of, is_away
from clonos.sinks.kafka_messages import Message
from clonos.sinks.kafka_transactions import MARKS
from clonos.sinks.lanes import Lane, Output

TRANSACTION_S: Final = 20.0
"""Brokers abort a transaction whose producer, frozen or gone, has been silent for this long. Until
then the open transaction hides later marks from other lanes."""
ANSWER_S: Final = 60.0
"""How long a commit or the reading of a mark may take before the session is opened anew."""

_POLL_S: Final = 0.1
_FENCED: Final = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
_BEGIN_AGAIN: Final = {
    "_FATAL",  # this producer is unusable; the next one learns why
    "_GAPLESS_GUARANTEE",
    "_MSG_TIMED_OUT",
    "_PURGE_INFLIGHT",
    "_PURGE_QUEUE",
    "_STATE",  # the transaction has failed in the meantime
    "CONCURRENT_TRANSACTIONS",
    "INVALID_PRODUCER_ID_MAPPING",
    "INVALID_TXN_STATE",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "TRANSACTION_COORDINATOR_FENCED",
    "UNKNOWN_PRODUCER_ID",
}
_REFUSED: Final = {"MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "INVALID_TIMESTAMP"}

OURS: Final = ("transactional.id", "transaction.timeout.ms", "enable.idempotence", "acks")
"""Options that users must not set."""

USUAL: Final = {"linger.ms": 1, "partitioner": "murmur2_random"}
"""Options that users may set. The partitioner is that of Java's producers."""


@dataclass(frozen=True)
class Topic:
    """The target topic, and how to reach it."""

    cluster: Cluster
    name: str

    @property
    def place(self) -> str:
        """The topic's name in errors."""
        return f"topic {self.name} of {self.cluster!r}"

    def producer(self, **ours: Any) -> Any:
        """A producer that keeps the order and, while it lives, writes each message once."""
        ours = {"enable.idempotence": True, **ours}
        settings = {**USUAL, **self.cluster.settings(ours)}
        return self.cluster.client(driver().Producer, settings)

    def consumer(self, isolation: str) -> Any:
        """A consumer without partitions that creates no topics."""
        ours = {
            "group.id": "clonos",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
        }
        return self.cluster.client(driver().Consumer, self.cluster.settings(ours))

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate librdkafka's errors to errors of sinks."""
        try:
            yield
        except driver().KafkaException as exception:
            raise self.error(error_of(exception)) from None
        except SystemError:
            # confluent_kafka raises a fatal error while librdkafka reports messages to us. What
            # comes out of that is an exception of the interpreter, which does not say what it was.
            raise StoreAway("the producer has become unusable", where=self.place) from None

    def error(self, error: Any) -> ClonosError:
        """Translate one error of librdkafka."""
        if error.name() in _FENCED:
            return StoreAway("another session has taken the lane's id", where=self.place)
        is_passing = error.name() in _BEGIN_AGAIN or is_away(error) or error.txn_requires_abort()
        kind = StoreAway if is_passing else SinkFailed
        return kind(
            f"cannot write: {error.str()}",
            where=self.place,
            remedy="check that every executor reaches the brokers and may write to the topic, in "
            "transactions with ids that begin with the job's name",
        )

    def refused(self, error: Any, value: bytes | str | None) -> RowRefused:
        """The error of a message that would be refused again."""
        shown = value if isinstance(value, str) else repr(value)
        return RowRefused(
            f"{error.str()}. The message is {shown[:1000]}",
            where=self.place,
            remedy="nothing of its transaction was written. Filter such rows before the sink, or "
            "raise message.max.bytes here and max.message.bytes of the topic, and start the job "
            "again with the same checkpoint_dir",
        )


class Sender:
    """Sends messages, and keeps the first error reported."""

    def __init__(self, topic: Topic, producer: Any) -> None:
        self._topic, self.producer = topic, producer
        self._failed: ClonosError | None = None

    def send(self, topic: str, message: Message, headers: Any = None) -> None:
        """Send one message, as soon as there is room for it."""
        given: dict[str, Any] = {"on_delivery": self._delivered}
        if headers is not None:
            given["headers"] = headers
        while True:
            try:
                self.producer.produce(topic, message.value, message.key, **given)
            except BufferError:
                with self._topic.translated():
                    self.producer.poll(_POLL_S)
                self.raise_failed()
                continue
            except driver().KafkaException as exception:
                raise self._error(error_of(exception), message.value) from None
            return

    def raise_failed(self) -> None:
        """Raise the reported error, if there is one."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and (self._failed is None or error.name() in _REFUSED):
            self._failed = self._error(error, message.value())

    def _error(self, error: Any, value: bytes | str | None) -> ClonosError:
        if error.name() in _REFUSED:
            return self._topic.refused(error, value)
        return self._topic.error(error)


class KafkaSession:
    """A :class:`~clonos.sinks.kafka_transactions.Session` that uses librdkafka."""

    def __init__(self, topic: Topic, lane: Lane) -> None:
        self._topic, self._lane = topic, lane
        self._producer = topic.producer(
            **{
                "transactional.id": lane.name,
                "transaction.timeout.ms": int(TRANSACTION_S * 1000),
            }
        )
        self._sender = Sender(topic, self._producer)

    def take(self) -> None:
        with self._topic.translated():
            self._patiently(self._producer.init_transactions)

    def begin(self) -> None:
        with self._topic.translated():
            self._producer.begin_transaction()

    def send(self, message: Message) -> None:
        self._sender.send(self._topic.name, message)

    def send_mark(self, mark: bytes) -> None:
        self._sender.send(MARKS, Message(self._lane.name, mark))

    def commit(self) -> None:
        with self._topic.translated():
            self._producer.flush(ANSWER_S)
            self._sender.raise_failed()  # the commit would report only that something has failed
            self._patiently(self._producer.commit_transaction)
            self._sender.raise_failed()

    def close(self) -> None:
        with contextlib.suppress(driver().KafkaException, SystemError):
            self._producer.abort_transaction(_POLL_S)

    def _patiently(self, step: Any) -> None:
        """Retry a step while that is possible; the producer remembers how far it came."""
        until = time.monotonic() + ANSWER_S
        while True:
            try:
                step(max(until - time.monotonic(), _POLL_S))
            except driver().KafkaException as exception:
                if not error_of(exception).retriable() or time.monotonic() > until:
                    raise
            else:
                return

    def last_mark(self) -> bytes | None:
        """See :meth:`Session.last_mark`.

        It reads up to the *present* end of the topic: committed marks may be hidden for a moment
        behind open transactions of other lanes.
        """
        with self._topic.translated():
            ends = self._ends()
            consumer = self._topic.consumer("read_committed")
            try:
                return self._newest(consumer, ends)
            finally:
                consumer.close()

    def _ends(self) -> dict[int, tuple[int, int]]:
        """The offsets of the first and the next message of each partition of marks."""
        consumer = self._topic.consumer("read_uncommitted")
        try:
            places = [(MARKS, number) for number in partitions_of(consumer, MARKS, self._topic)]
            return {n: ends for (_, n), ends in edges(consumer, places, METADATA_S).items()}
        finally:
            consumer.close()

    def _newest(self, consumer: Any, ends: dict[int, tuple[int, int]]) -> bytes | None:
        kafka = driver()
        consumer.assign([kafka.TopicPartition(MARKS, n, first) for n, (first, _) in ends.items()])
        left = {n for n, (first, end) in ends.items() if first < end}
        newest: bytes | None = None
        until = time.monotonic() + ANSWER_S
        name = self._lane.name.encode()
        while left:
            for message in consumer.consume(1000, _POLL_S):
                error, number = message.error(), message.partition()
                if error is not None and error.name() != "_PARTITION_EOF":
                    if not is_away(error):
                        raise kafka.KafkaException(error)
                    continue
                if message.offset() + (error is None) >= ends[number][1]:
                    left.discard(number)
                if error is None and message.key() == name:
                    newest = message.value()
            if time.monotonic() > until:
                raise StoreAway("the marks cannot be read to their end", where=self._topic.place)
        return newest


class PlainWriter:
    """A :class:`~clonos.sinks.lanes.OutputWriter` without transactions: at least once.

    A header of each message has its name, by which readers can drop repetitions.
    """

    def __init__(self, topic: Topic, lane: Lane, messages: Any) -> None:
        self._topic, self._lane, self._messages = topic, lane, messages
        self._sender: Sender | None = None

    def write(self, outputs: Sequence[Output]) -> None:
        if self._sender is None:
            self._sender = Sender(self._topic, self._topic.producer())
        try:
            for (generation, seq), batch in outputs:
                for n, message in enumerate(self._messages(batch)):
                    name = f"{self._lane.name}/{generation}/{seq}/{n}"
                    self._sender.send(self._topic.name, message, [("clonos-key", name.encode())])
            with self._topic.translated():
                left = self._sender.producer.flush(ANSWER_S)
            if left:
                raise StoreAway("brokers do not answer", where=self._topic.place)
            self._sender.raise_failed()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.producer.purge()


def partitions_of(consumer: Any, name: str, topic: Topic) -> list[int]:
    """The numbers of a topic's partitions; none if it does not exist."""
    found = consumer.list_topics(name, timeout=METADATA_S).topics[name]
    if found.error is None:
        return sorted(found.partitions)
    if found.error.name() == "UNKNOWN_TOPIC_OR_PART":
        return []
    raise topic.error(found.error)
