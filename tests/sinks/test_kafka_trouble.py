"""The Kafka sink when brokers answer with errors: which of them it outlives."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from clonos.errors import RowRefused, SinkFailed, StoreAway
from clonos.sinks import kafka as kafka_sink
from clonos.sinks.kafka_transactions import MARKS
from clonos.sinks.lanes import Lane, Output, OutputKey
from tests.broken_kafka import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    LIST_OFFSETS,
    PRODUCE,
    BrokenKafka,
)


@pytest.fixture
def broken():
    kafka = BrokenKafka()
    for name in ("out", MARKS):
        kafka.topic(name)
    return kafka


def outputs(*seqs: int) -> list[Output]:
    return [Output(OutputKey(0, n), pa.RecordBatch.from_pydict({"id": [n]})) for n in seqs]


def write(writer: Any, *seqs: int) -> None:
    """As the job does: what passes by itself is tried again."""
    until = time.monotonic() + 30
    while True:
        try:
            writer.write(outputs(*seqs))
        except StoreAway:
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            return


def ids(kafka: BrokenKafka) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": kafka.servers, "group.id": "test", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition("out", 0, 0)])
    found: list[int] = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(json.loads(message.value() or b"")["id"])
    consumer.close()
    return found


UNUSABLE = ["INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"]
"""The producer is unusable then: another life has taken its id, or so brokers say."""
PASSING = {
    PRODUCE: [
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "THROTTLING_QUOTA_EXCEEDED",
        "CONCURRENT_TRANSACTIONS",
        "TRANSACTION_COORDINATOR_FENCED",
        "INVALID_PRODUCER_ID_MAPPING",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        *UNUSABLE,
    ],
    ADD_PARTITIONS_TO_TXN: ["INVALID_TXN_STATE", "KAFKA_STORAGE_ERROR", *UNUSABLE],
    END_TXN: ["INVALID_TXN_STATE", "NOT_ENOUGH_REPLICAS", *UNUSABLE],
}


@pytest.mark.parametrize(
    ("request_kind", "name"), [(kind, name) for kind, names in PASSING.items() for name in names]
)
def test_what_passes_is_outlived_and_each_row_is_there(broken, request_kind, name):
    writer: Any = kafka_sink(broken.servers, "out").store.writer(Lane("run", "out", 0, 1))  # type: ignore[union-attr]
    write(writer, 1)
    broken.fail(request_kind, name, name)
    write(writer, 1, 2, 3)
    write(writer, 3, 4)
    writer.close()
    found = ids(broken)  # the mock does not hide what was aborted
    assert set(found) == {1, 2, 3, 4}
    assert found[-1] == 4
    later: Any = kafka_sink(broken.servers, "out").store.writer(Lane("run", "out", 0, 2))  # type: ignore[union-attr]
    later.write(outputs(1, 2, 3, 4))
    later.close()
    assert ids(broken) == found


@pytest.mark.parametrize("name", ["NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE"])
def test_a_mark_is_found_though_brokers_do_not_say_at_once_where_it_is(broken, name):
    first: Any = kafka_sink(broken.servers, "out").store.writer(Lane("run", "out", 0, 1))  # type: ignore[union-attr]
    write(first, 1, 2)
    first.close()
    second: Any = kafka_sink(broken.servers, "out").store.writer(Lane("run", "out", 0, 2))  # type: ignore[union-attr]
    broken.fail(LIST_OFFSETS, name)
    write(second, 1, 2, 3)
    second.close()
    assert ids(broken) == [1, 2, 3]


@pytest.mark.parametrize("name", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "NETWORK_EXCEPTION"])
def test_without_transactions_what_passes_is_outlived_too(broken, name):
    sink: Any = kafka_sink(broken.servers, "out", transactions=False)
    writer = sink.store.writer(Lane("run", "out", 0, 1))
    write(writer, 1)
    broken.fail(PRODUCE, name, name)
    write(writer, 2, 3)
    writer.close()
    assert set(ids(broken)) == {1, 2, 3}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MSG_SIZE_TOO_LARGE", RowRefused),
        ("POLICY_VIOLATION", SinkFailed),
        ("TOPIC_AUTHORIZATION_FAILED", SinkFailed),
    ],
)
def test_what_does_not_pass_is_named(broken, name, kind):
    writer: Any = kafka_sink(broken.servers, "out").store.writer(Lane("run", "out", 0, 1))  # type: ignore[union-attr]
    write(writer, 1)
    broken.fail(PRODUCE, name, name)
    with pytest.raises(SinkFailed) as caught:
        write(writer, 2)
    assert type(caught.value) is kind
    writer.close()
