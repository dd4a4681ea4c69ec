"""The Kafka source when brokers answer with errors: which of them it outlives."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clonos.errors import SourceError
from clonos.sources import kafka as kafka_source
from tests.broken_kafka import FETCH, LIST_OFFSETS, METADATA, BrokenKafka


@pytest.fixture
def broken():
    kafka = BrokenKafka()
    kafka.topic("in", 2)
    return kafka


def fill(kafka: BrokenKafka, first: int, end: int) -> None:
    for n in range(first, end):
        kafka.producer.produce("in", b"%d" % n, partition=n % 2)
    assert kafka.producer.flush(10) == 0


def read(reader: Any, rows: int) -> list[int]:
    found: list[int] = []
    until = time.monotonic() + 30
    while len(found) < rows:
        assert time.monotonic() < until
        if (batch := reader.read(1000, 0.1)) is not None:
            found += map(int, batch.column("value").to_pylist())
    return sorted(found)


def opened(kafka: BrokenKafka, **options: Any) -> Any:
    """A reader that has begun: it knows where."""
    reader = kafka_source(kafka.servers, "in", value="bytes", **options).reader(0, 1)
    reader.open(0)
    assert reader.read(1000, 0.1).num_rows == 0  # type: ignore[union-attr]
    return reader


@pytest.mark.parametrize(
    "name",
    [
        "NOT_LEADER_FOR_PARTITION",
        "UNKNOWN_TOPIC_OR_PART",
        "REQUEST_TIMED_OUT",
        "KAFKA_STORAGE_ERROR",
        "FENCED_LEADER_EPOCH",
        "OFFSET_NOT_AVAILABLE",
        "BROKER_NOT_AVAILABLE",
    ],
)
def test_what_passes_is_outlived_and_each_message_comes_once(broken, name):
    fill(broken, 0, 20)
    reader = opened(broken)
    assert read(reader, 20) == list(range(20))
    broken.fail(FETCH, name, name, name)
    fill(broken, 20, 40)
    assert read(reader, 20) == list(range(20, 40))
    reader.close()


@pytest.mark.parametrize(
    ("request_kind", "name"),
    [
        (LIST_OFFSETS, "NOT_LEADER_FOR_PARTITION"),
        (LIST_OFFSETS, "KAFKA_STORAGE_ERROR"),
        (LIST_OFFSETS, "OFFSET_NOT_AVAILABLE"),
        (METADATA, "LEADER_NOT_AVAILABLE"),
    ],
)
@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_new_job_waits_for_a_leader(broken, request_kind, name, start, times):
    fill(broken, 0, 20)
    broken.fail(request_kind, *[name] * times)
    reader = opened(broken, start=start)
    fill(broken, 20, 30)
    expected = list(range(30) if start == "earliest" else range(20, 30))
    assert read(reader, len(expected)) == expected
    reader.close()


@pytest.mark.parametrize(
    ("request_kind", "name", "said"),
    [
        (FETCH, "TOPIC_AUTHORIZATION_FAILED", "cannot be read"),
        (FETCH, "OFFSET_OUT_OF_RANGE", "are gone"),
        (LIST_OFFSETS, "TOPIC_AUTHORIZATION_FAILED", "does not answer"),
    ],
)
def test_what_does_not_pass_is_named(broken, request_kind, name, said):
    fill(broken, 0, 20)
    broken.fail(request_kind, name, name)
    with pytest.raises(SourceError, match=said):
        read(opened(broken), 20)
