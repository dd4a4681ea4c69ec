"""The Kafka source when brokers answer with errors: which of them it outlives."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from clonos.errors import SourceError
from clonos.sources import kafka as kafka_source
from clonos.sources.kafka_cut import Cut, Span
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


def reader_at(kafka: BrokenKafka, cut: bytes, **options: Any) -> Any:
    reader: Any = kafka_source(kafka.servers, "in", value="bytes", **options).reader(0, 1)
    reader.open(0, cut)
    return reader


def opened(kafka: BrokenKafka, **options: Any) -> Any:
    """A reader that has begun: it knows where."""
    reader = reader_at(kafka, b"", **options)
    assert reader.read(1000, 0.1).num_rows == 0
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


def looks_always(reader: Any) -> None:
    """It looks for partitions with each read."""
    reader._topics, reader._refresh_at = replace(reader._topics, refresh_s=0.0), 0.0


AGAIN = "the topic 'in' was deleted and created again, or this is another cluster"


@pytest.mark.parametrize("rows", [0, 10, 60])
def test_a_topic_that_was_made_again_while_the_job_stood_still_is_another_topic(broken, rows):
    fill(broken, 0, 20)
    reader = opened(broken)
    assert read(reader, 20) == list(range(20))
    reader.close()
    broken.again("in", 2)
    fill(broken, 0, rows)  # fewer than the job has read, or more
    with pytest.raises(SourceError, match=AGAIN):
        read(reader_at(broken, reader.cut), 1)


def test_a_replay_notices_that_the_topic_was_made_again(broken):
    fill(broken, 0, 1)
    reader = opened(broken)
    before = reader.cut
    assert read(reader, 1) == [0]
    reader.close()
    broken.again("in", 2)
    fill(broken, 100, 120)
    again = reader_at(broken, before)
    with pytest.raises(SourceError, match=AGAIN):
        again.read_cut(reader.cut)


@pytest.mark.parametrize("rows", [2, 60])
def test_a_running_job_notices_that_the_topic_was_made_again(broken, rows):
    fill(broken, 0, 20)
    reader = opened(broken)
    looks_always(reader)
    assert read(reader, 20) == list(range(20))
    broken.again("in", 2)
    fill(broken, 0, rows)
    with pytest.raises(SourceError, match=AGAIN):
        read(reader, 1000)


def test_a_topic_is_the_same_for_all_lives_of_a_job(broken):
    fill(broken, 0, 1)
    reader = opened(broken)
    begun = reader.cut
    assert read(reader, 1) == [0]
    (known,) = Cut.decode(reader.cut).ids.values()
    assert known is not None
    fill(broken, 1, 10)
    again = reader_at(broken, begun)
    again.read_cut(reader.cut)
    assert read(again, 9) == list(range(1, 10))
    for one in (reader, again):
        one.close()


def test_the_id_of_a_topic_that_was_not_known_is_learned(broken):
    """The job was begun by an earlier clonos, or the controller was away."""
    fill(broken, 0, 20)
    spans = {("in", n): Span(5, 5, 0) for n in range(2)}
    for unknown in ({}, {"in": None}):
        reader = reader_at(broken, Cut(dict(spans), dict(unknown)).encode())
        assert read(reader, 10) == list(range(10, 20))
        assert Cut.decode(reader.cut).ids["in"] is not None
        reader.close()


def away_once(reader: Any) -> None:
    """The next time that it looks for partitions, there is no answer."""
    kafka = pytest.importorskip("confluent_kafka")
    look = reader._partitions

    def fail(*_: object) -> None:
        reader._partitions = look
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError.LEADER_NOT_AVAILABLE))

    reader._partitions = fail


def test_nothing_is_read_before_it_is_known_to_be_the_same_topic(broken):
    fill(broken, 0, 20)
    reader = opened(broken)
    assert read(reader, 20) == list(range(20))
    reader.close()
    broken.again("in", 2)
    fill(broken, 0, 60)
    again = reader_at(broken, reader.cut)
    away_once(again)
    assert again.read(1000, 0.0) is None
    assert not again._is_assigned
    with pytest.raises(SourceError, match=AGAIN):
        read(again, 1)


def test_how_long_brokers_are_away_is_known(broken):
    fill(broken, 0, 20)
    reader = opened(broken)
    looks_always(reader)
    assert read(reader, 20) == list(range(20))
    assert reader.away_s == 0
    away_once(reader)
    reader.read(10, 0.0)
    assert reader.away_s > 0
    while reader.away_s:
        reader.read(10, 0.01)
    reader.close()
