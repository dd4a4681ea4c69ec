"""A Kafka topic as a sink's store: checked by the driver, written by the tasks."""

from __future__ import annotations

import contextlib
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from clonos.errors import SinkFailed
from clonos.kafka import METADATA_S, driver, error_of, is_away
from clonos.sinks.kafka_messages import Format
from clonos.sinks.kafka_session import KafkaSession, PlainWriter, Topic, partitions_of
from clonos.sinks.kafka_transactions import MARKS, KafkaTransactions
from clonos.sinks.lanes import Lane, OutputWriter
from clonos.sinks.transactions import TransactionalWriter

MARKS_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),  # small: each new life reads what is not compacted yet
    "min.cleanable.dirty.ratio": "0.1",
}
"""Settings of the topic of marks, if the driver creates it."""


@dataclass(frozen=True)
class KafkaStore:
    """A :class:`~clonos.sinks.spec.Store`.

    Parameters
    ----------
    has_transactions
        Whether rows are written in transactions; if not, messages may be repeated.
    """

    topic: Topic
    format: Format
    has_transactions: bool = True

    @property
    def place(self) -> str | None:
        return None  # several sinks may share a topic, because each lane has its own mark

    @property
    def transactions(self) -> KafkaTransactions:
        """The transactions of lanes."""
        return KafkaTransactions(partial(KafkaSession, self.topic), self.format)

    def check(self, schema: pa.Schema) -> None:
        self.format.check(schema)

    def claim(self, lane: Lane, tasks: int) -> KafkaClaim:
        return KafkaClaim(self)

    def writer(self, lane: Lane) -> OutputWriter:
        if not self.has_transactions:
            return PlainWriter(self.topic, lane, self.format.messages)
        return TransactionalWriter(self.transactions, lane)


class KafkaClaim:
    """A :class:`~clonos.sinks.spec.Claim` that claims nothing, because topics are shared. It checks
    that the topics exist."""

    is_fresh = False

    def __init__(self, store: KafkaStore) -> None:
        self._store = store

    def begin(self, schema: pa.Schema, *, is_new: bool, is_added: bool = False) -> None:
        del is_added  # topics are shared
        topic = self._store.topic
        try:
            consumer = topic.consumer("read_committed")
            try:
                if not partitions_of(consumer, topic.name, topic):
                    raise SinkFailed(
                        "the topic does not exist", where=topic.place, remedy="create it"
                    )
                if self._store.has_transactions:
                    self._require_marks(consumer, is_new=is_new)
            finally:
                consumer.close()
        except driver().KafkaException as exception:
            error = error_of(exception)
            said = f"the cluster does not answer: {error.str()}"
            raise SinkFailed(
                said,
                where=topic.place,
                remedy="check that the driver and all executors reach the brokers",
            ) from (ConnectionError(said) if is_away(error) else None)

    def require(self, schema: pa.Schema) -> None:
        """Nothing to check: messages may have any columns."""

    def _require_marks(self, consumer: Any, *, is_new: bool) -> None:
        """Check the topic of marks: it must be compacted, never delete messages by age."""
        topic, why = self._store.topic, ""
        if not partitions_of(consumer, MARKS, topic):
            why = self._create() if is_new else "it was there when the job began"
            if not why:
                return
        elif "compact" in self._policy():
            return
        else:
            why = "it does not keep the newest message of each key"
        settings = " ".join(f"--config {name}={value}" for name, value in MARKS_CONFIG.items())
        raise SinkFailed(
            f"there is no topic {MARKS} for marks: {why}",
            where=repr(topic.cluster),
            remedy=f"kafka-topics.sh --create --topic {MARKS} --partitions 1 {settings}"
            if is_new
            else "put it back, or start the job afresh, with another checkpoint_dir",
        )

    def _create(self) -> str:
        """Create the topic of marks; returns why that failed, if it did."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self._store.topic.cluster.settings({}))
        new = NewTopic(MARKS, num_partitions=1, replication_factor=-1, config=MARKS_CONFIG)
        try:
            admin.create_topics([new], operation_timeout=METADATA_S)[MARKS].result(METADATA_S)
        except driver().KafkaException as exception:
            error = error_of(exception)
            return "" if error.name() == "TOPIC_ALREADY_EXISTS" else str(error.str())
        except futures.TimeoutError:
            return "creating it takes too long"
        return ""

    def _policy(self) -> str:
        """The topic's cleanup policy; "compact" is assumed if the user may not read it."""
        from confluent_kafka.admin import AdminClient, ConfigResource

        admin = AdminClient(self._store.topic.cluster.settings({}))
        resource = ConfigResource(ConfigResource.Type.TOPIC, MARKS)
        with contextlib.suppress(driver().KafkaException, futures.TimeoutError):
            asked = admin.describe_configs([resource], request_timeout=METADATA_S)
            return str(asked[resource].result(METADATA_S)["cleanup.policy"].value)
        return "compact"

    def widen(self) -> None:
        """Nothing is claimed."""

    def check(self) -> None:
        """Nothing is claimed."""

    def withdraw(self) -> None:
        """Nothing was claimed."""

    def end(self) -> None:
        """Nothing to do: marks stay, because the job may be started again."""
