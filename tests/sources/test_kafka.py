"""Topics as a source: what is read, where, and what is read again."""

from __future__ import annotations

import logging
import re
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from clonos.core.events import SourceRows
from clonos.errors import BadSchema, DefinitionError, SourceError, WrongType
from clonos.kafka import Cluster, NotAgain
from clonos.sinks import kafka as kafka_sink
from clonos.sources import kafka as kafka_source
from clonos.sources import prefetch
from clonos.sources.kafka_cut import Cut, Span, forget, task_of
from clonos.sources.kafka_reader import KafkaReader
from clonos.sources.prefetch import PrefetchThread

LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)


def reader_of(
    kafka: Any, topics: Any, index: int = 0, parallelism: int = 1, **options: Any
) -> KafkaReader:
    given: dict[str, Any] = {"value": "bytes", "metadata": True, **options}
    reader: Any = kafka_source(kafka.servers, topics, **given).reader(index, parallelism)
    return reader  # type: ignore[no-any-return]


def opened(*args: Any, cut: bytes = b"", **options: Any) -> KafkaReader:
    reader = reader_of(*args, **options)
    reader.open(0, cut)
    return reader


def read(reader: KafkaReader, max_rows: int = 1000) -> pa.RecordBatch:
    """The next batch with rows."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        batch = reader.read(max_rows, 0.1)
        if batch is not None and batch.num_rows:
            return batch
    raise AssertionError("nothing came")


def read_rows(reader: KafkaReader, rows: int, max_rows: int = 1000) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < rows:
        batches.append(read(reader, max_rows))
    return batches


def values(*batches: pa.RecordBatch) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.fixture
def topic(kafka):
    return kafka.topic()


def fill(kafka: Any, topic: str, rows: int = 100, first: int = 0) -> list[bytes]:
    """So many messages in each partition."""
    made = []
    for partition in range(4):
        some = [b"%d/%d" % (partition, first + n) for n in range(rows)]
        kafka.produce(topic, *some, partition=partition)
        made += some
    return made


# --- how far it is -------------------------------------------------------------------------------


def test_how_much_was_not_read_is_known_also_while_nothing_is_read(kafka, topic):
    fill(kafka, topic, 100)
    reader = opened(kafka, topic)
    assert reader.look(is_idle=False) is None, "it has not begun"
    reader.read(1000, 0.1)  # where it begins
    taken = read(reader, 30).num_rows
    assert reader.look(is_idle=True) == 400 - taken
    fill(kafka, topic, 5, first=100)
    assert reader.look(is_idle=True) == 420 - taken
    batches = read_rows(reader, 420 - taken)
    assert sum(batch.num_rows for batch in batches) == 420 - taken
    assert reader.look(is_idle=False) == 0
    reader.close()


def test_offsets_are_committed_for_a_group_and_never_read(kafka, topic):
    from confluent_kafka import Consumer, TopicPartition

    fill(kafka, topic, 10)
    group = f"tools-{topic}"

    def committed() -> list[int]:
        tool = Consumer({"bootstrap.servers": kafka.servers, "group.id": group})
        found = tool.committed([TopicPartition(topic, p) for p in range(4)], timeout=30)
        tool.close()
        return [one.offset for one in found]

    reader = opened(kafka, topic, group=group)
    reader.read(1000, 0.1)
    read_rows(reader, 40)
    assert all(offset < 0 for offset in committed())
    reader.look(is_idle=False)
    until = time.monotonic() + 30
    while committed() != [10] * 4:
        assert time.monotonic() < until
    reader.close()
    fresh = opened(kafka, topic, group=group)
    fresh.read(1000, 0.1)
    assert len(values(*read_rows(fresh, 40))) == 40, "a job that is new begins where it says"
    fresh.close()


def test_a_task_that_takes_nothing_still_hears_how_far_behind_it_is(kafka, topic, monkeypatch):
    monkeypatch.setattr(prefetch, "LOOK_S", 0.05)
    fill(kafka, topic, 20)
    thread = PrefetchThread(
        reader_of(kafka, topic), lambda: None, batch_rows_max=10, linger_s=0.01, digests=False
    )
    thread.advance(0)
    taken = 0
    until = time.monotonic() + 30
    while not taken:  # and no more than what is ready
        assert time.monotonic() < until
        rows = thread.take()
        taken += rows.batch.rows if isinstance(rows, SourceRows) else 0
    kafka.produce(topic, *[b"more"] * 1000)
    while thread.counters.get("lag", 0) < 1000:
        assert time.monotonic() < until
        time.sleep(0.01)
    thread.close()


# --- what is read --------------------------------------------------------------------------------


def test_the_first_batch_has_no_rows_and_says_where_the_reader_begins(kafka, topic):
    kafka.produce(topic, b"a", b"b", partition=2)
    reader = opened(kafka, topic, start="latest")
    first = reader.read(10, 0.1)
    assert first is not None
    assert first.num_rows == 0
    assert Cut.decode(reader.cut).ends == {(topic, n): 2 * (n == 2) for n in range(4)}
    reader.close()


def test_all_messages_come_with_what_they_have_beside_their_value(kafka, topic):
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    kafka.produce(topic, (b"k", b"a"), b"b", (b"k", None), partition=1)
    reader = opened(kafka, topic)
    rows = [row for batch in read_rows(reader, 3) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"a", b"b", None]
    assert [row["key"] for row in rows] == [b"k", None, b"k"]
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert {(row["topic"], row["partition"]) for row in rows} == {(topic, 1)}
    assert all(before < row["timestamp"] < datetime.now(timezone.utc) for row in rows)
    reader.close()


def test_partitions_are_shared_out_and_each_is_in_order(kafka, topic):
    made = fill(kafka, topic)
    readers = [opened(kafka, topic, index, 3) for index in range(3)]
    mine = [[n for n in range(4) if task_of((topic, n), 3) == index] for index in range(3)]
    found = [
        values(*read_rows(reader, 100 * len(numbers), max_rows=70))
        for reader, numbers in zip(readers, mine, strict=True)
    ]
    assert sorted(value for some in found for value in some) == sorted(made)
    for some in found:
        for number in range(4):
            numbers = [int(v.split(b"/")[1]) for v in some if v.startswith(b"%d/" % number)]
            assert numbers in ([], list(range(100)))
    for reader in readers:
        reader.close()


def test_a_task_without_a_partition_waits(kafka, topic):
    index = next(i for i in range(9) if all(task_of((topic, n), 9) != i for n in range(4)))
    reader = opened(kafka, topic, index, 9)
    assert reader.read(10, 0.01).num_rows == 0  # type: ignore[union-attr]
    assert reader.cut
    assert reader.read(10, 0.01) is None
    reader.close()


def test_a_task_begins_where_it_is_told(kafka, topic):
    fill(kafka, topic, 5)
    reader = opened(kafka, topic, start={(topic, 0): 3, (topic, 1): 5})
    found = values(*read_rows(reader, 12))
    assert sorted(found)[:2] == [b"0/3", b"0/4"]
    assert sum(value.startswith((b"2/", b"3/")) for value in found) == 10
    reader.close()


def test_a_task_begins_at_a_time(kafka, topic):
    fill(kafka, topic, 5)
    now = datetime.now(timezone.utc)
    late = opened(kafka, topic, start=now + timedelta(hours=1))
    assert late.read(10, 0.1).num_rows == 0  # type: ignore[union-attr]
    assert set(Cut.decode(late.cut).ends.values()) == {5}
    late.close()
    if kafka.is_real:  # the mock keeps no times
        early = opened(kafka, topic, start=LONG_AGO)
        assert len(values(*read_rows(early, 20))) == 20
        early.close()


def test_a_message_that_comes_while_a_start_is_looked_for_is_read(kafka, topic):
    from confluent_kafka import OFFSET_BEGINNING

    class Busy:
        """A consumer; a message comes after each question for a time or for an end."""

        def __init__(self, consumer: Any) -> None:
            self._consumer = consumer
            self.came: list[bytes] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def offsets_for_times(self, asked: Any, **options: Any) -> Any:
            answers = self._consumer.offsets_for_times(asked, **options)
            if asked[0].offset != OFFSET_BEGINNING:
                self.came.append(b"%d" % len(self.came))
                kafka.produce(topic, self.came[-1], partition=1)
            return answers

    reader = opened(kafka, topic, start=datetime.now(timezone.utc))
    reader._consumer = busy = Busy(reader._consumer)
    assert reader.read(10, 0.1).num_rows == 0  # type: ignore[union-attr]
    kafka.produce(topic, b"last", partition=1)
    found: list[bytes] = []
    while b"last" not in found:
        found += values(read(reader))
    assert found == [*busy.came, b"last"]
    reader.close()


def test_partitions_that_appear_are_read_from_their_first_message_on(kafka, topic, monkeypatch):
    fill(kafka, topic, 5)
    there = [2]
    every = KafkaReader._partitions
    monkeypatch.setattr(
        KafkaReader, "_partitions", lambda self, topics, s: every(self, topics, s)[: there[0]]
    )
    monkeypatch.setattr("clonos.sources.kafka_reader.REFRESH_S", 0.0)
    reader = opened(kafka, topic, start="latest")
    assert reader.read(10, 0.1).num_rows == 0  # type: ignore[union-attr]
    kafka.produce(topic, b"new", partition=0)
    assert values(read(reader)) == [b"new"]
    there[0] = 4
    before = reader.cut
    batches = read_rows(reader, 10)
    assert sorted(values(*batches)) == [b"%d/%d" % (p, n) for p in (2, 3) for n in range(5)]
    reader.close()
    again = opened(kafka, topic, cut=before)
    kafka.produce(topic, b"later", partition=0)
    idle = {p: Span(end, end, 0) for p, end in Cut.decode(before).ends.items()}
    again.read_cut(Cut({**idle, (topic, 3): Span(0, 5, 5)}).encode())
    assert b"later" in values(*read_rows(again, 6))
    again.close()


def noted(reader: KafkaReader) -> bytes:
    """The cut of the batch without rows that says where it begins."""
    batch = reader.read(1000, 0.1)
    assert batch is not None
    assert batch.num_rows == 0
    return reader.cut


def test_a_topic_that_is_added_begins_where_the_source_says_and_stays_there(kafka, topic):
    added = kafka.topic()
    first = opened(kafka, topic, start="latest")
    noted(first)
    first.close()
    fill(kafka, topic, 1)
    fill(kafka, added, 1)
    both = opened(kafka, [topic, added], cut=first.cut, start="latest")
    begun = noted(both)
    both.close()
    new = fill(kafka, added, 1, first=1)
    again = opened(kafka, [topic, added], cut=first.cut, start="latest")
    assert again.read_cut(begun).num_rows == 0
    found = values(*read_rows(again, 8))
    assert sorted(found) == sorted([*new, *(b"%d/0" % p for p in range(4))])
    again.close()


def test_a_topic_of_which_a_task_had_no_partition_is_read_from_its_first_message(kafka, topic):
    fill(kafka, topic, 2)
    known = Cut({}, {topic: None}).encode()
    earlier = Cut({}).encode()  # of a version that did not say with which topics it had begun
    for cut in (known, earlier):
        reader = opened(kafka, topic, cut=cut, start="latest")
        assert len(values(*read_rows(reader, 8))) == 8
        reader.close()


def test_a_topic_that_is_not_named_any_more_is_neither_read_nor_forgotten(kafka, topic):
    gone = kafka.topic()
    first = opened(kafka, [topic, gone])
    cut = noted(first)
    first.close()
    fill(kafka, topic, 1)
    fill(kafka, gone, 1)
    reader = opened(kafka, topic, cut=cut)
    with pytest.raises(SourceError, match=f"has read {gone}, too") as caught:
        read(reader)
    assert "drop_state=" in caught.value.remedy
    reader.close()
    reader = opened(kafka, topic, cut=forget(cut, [gone]))
    assert set(read_rows(reader, 4)[0].column("topic").to_pylist()) == {topic}
    assert {t for t, _ in Cut.decode(reader.cut).spans} == {topic}
    reader.close()


# --- what is read again --------------------------------------------------------------------------


def test_cuts_are_read_again_exactly_and_then_what_follows(kafka, topic):
    made = fill(kafka, topic)
    first = opened(kafka, topic)
    given = [(first.read(10, 0.1), first.cut)]
    given.extend((read(first, 17), first.cut) for _ in range(8))
    first.close()
    again = opened(kafka, topic)
    replayed = [again.read_cut(cut) for _, cut in given]
    assert replayed == [batch for batch, _ in given]
    missing = len(made) - sum(batch.num_rows for batch in replayed)
    rest = read_rows(again, missing)
    assert sorted(values(*replayed, *rest)) == sorted(made)
    again.close()


def test_a_standby_goes_on_behind_any_cut(kafka, topic):
    made = fill(kafka, topic)
    first = opened(kafka, topic)
    before = read_rows(first, 150, max_rows=50)
    cut = first.cut
    first.close()
    standby = opened(kafka, topic)
    standby.open(0, cut)
    after = read_rows(standby, len(made) - sum(batch.num_rows for batch in before))
    assert sorted(values(*before, *after)) == sorted(made)
    standby.close()


@pytest.mark.parametrize(("bound", "most"), [("AHEAD_ROWS", 10), ("AHEAD_BYTES", 2000)])
def test_a_replay_with_one_partition_far_ahead_waits_for_the_others(
    kafka, topic, monkeypatch, bound, most
):
    monkeypatch.setattr(f"clonos.sources.kafka_ahead.{bound}", most)
    monkeypatch.setattr("clonos.sources.kafka_reader.FETCH_ROWS", 5)
    most_ahead = 0
    fetch = KafkaReader._fetch

    def watched(self: Any, wanted: Any) -> None:
        nonlocal most_ahead
        fetch(self, wanted)
        most_ahead = max(most_ahead, self._ahead.nbytes)

    monkeypatch.setattr(KafkaReader, "_fetch", watched)
    made = fill(kafka, topic, 200)
    reader = opened(kafka, topic)
    cuts = [
        Cut({(topic, n): Span(20 * i, 20 * (i + 1), 20) for n in range(4)}).encode()
        for i in range(10)
    ]
    found = [reader.read_cut(cut) for cut in cuts]
    assert sorted(values(*found)) == sorted(made)
    # The partition that is wanted never waits, and it has 20 messages to go, of 133 bytes or less.
    assert most_ahead < (4 * 10 + 2 * 20) * 133
    kafka.produce(topic, b"next", partition=3)
    assert values(read(reader)) == [b"next"]
    reader.close()


@pytest.mark.parametrize(
    ("span", "why"),
    [
        (Span(3, 9, 6), "2 of 6 messages"),  # there are five: the topic was made anew
        (Span(2, 5, 2), "there is none at 4|2 of 2"),
        (Span(1, 4, 1), "there is none at 3"),
    ],
)
def test_messages_that_are_gone_are_named(kafka, topic, span, why, monkeypatch):
    monkeypatch.setattr("clonos.sources.kafka_reader.END_S", 0.0)
    fill(kafka, topic, 5)
    start = Cut({(topic, n): Span(span.start, span.start, 0) for n in range(4)}).encode()
    reader = opened(kafka, topic, cut=start)
    idle = Cut.decode(start).spans
    with pytest.raises(SourceError, match=why) as caught:
        reader.read_cut(Cut({**idle, (topic, 1): span}).encode())
    assert f"{topic}[1]" in caught.value.what
    reader.close()


def test_a_position_that_is_gone_is_no_other_position(kafka, topic):
    fill(kafka, topic, 5)
    cut = Cut({(topic, n): Span(5 + 995 * (n == 1), 5 + 995 * (n == 1), 0) for n in range(4)})
    reader = opened(kafka, topic, cut=cut.encode())
    with pytest.raises(SourceError, match="are gone") as caught:
        read(reader)
    assert f"{topic}[1]" in caught.value.what
    reader.close()


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("GROUP_AUTHORIZATION_FAILED", False),  # no group is used
        ("_ALL_BROKERS_DOWN", False),
        ("NOT_LEADER_FOR_PARTITION", False),
        ("TOPIC_AUTHORIZATION_FAILED", True),
        ("_BAD_MSG", True),
    ],
)
def test_what_passes_by_itself_and_what_does_not(name, is_told):
    class Errant:
        """In place of a consumer: one error, and nothing behind it."""

        def poll(self, _: float) -> Any:
            error = confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name))
            return SimpleNamespace(error=lambda: error, topic=lambda: "t", partition=lambda: 3)

        def consume(self, *_: Any) -> list[Any]:
            return []

    confluent_kafka = pytest.importorskip("confluent_kafka")
    reader: Any = kafka_source("a:1", "t", value="text").reader(0, 1)
    reader._consumer = Errant()
    if is_told:
        with pytest.raises(SourceError, match=r"t\[3\] cannot be read"):
            reader._poll(10, 0.1)
    else:
        assert reader._poll(10, 0.1) == {}


def test_bytes_that_are_no_cut():
    with pytest.raises(SourceError, match="do not say where"):
        Cut.decode(b"\xc1")
    with pytest.raises(SourceError, match="do not say where"):
        Cut.decode(b"\x81\xa1a\x01")


# --- what is said --------------------------------------------------------------------------------


def test_a_topic_that_does_not_exist(kafka):
    reader = opened(kafka, "nobody-has-made-this-one")
    with pytest.raises(SourceError, match="no topic 'nobody-has-made-this-one'") as caught:
        reader.read(10, 0.1)
    assert "create the topic" in caught.value.remedy
    reader.close()


def test_a_cluster_that_does_not_answer(kafka, monkeypatch):
    monkeypatch.setattr("clonos.sources.kafka_reader.METADATA_S", 0.3)
    options = {"sasl.password": "secret", "log_level": 0}
    reader: Any = kafka_source("127.0.0.1:1", "t", value="text", options=options).reader(0, 1)
    reader.open(0)
    with pytest.raises(SourceError, match="does not answer") as caught:
        reader.read(10, 0.1)
    assert caught.value.where == "<Kafka at 127.0.0.1:1>"
    assert "secret" not in str(caught.value)
    reader.close()
    reader.close()


@pytest.mark.parametrize("name", ["bootstrap.servers", "auto.offset.reset", "enable.auto.commit"])
def test_options_that_are_not_the_users(name):
    with pytest.raises(WrongType, match=name):
        kafka_source("a:1", "t", value="text", options={name: "x"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"security.protocl": "SSL"}, "there is no option 'security.protocl' of librdkafka"),
        ({"security.protocol": "SSLX"}, "does not take the value of the option 'security.protoc"),
        ({"socket.timeout.ms": -5}, "does not take the value of the option 'socket.timeout.ms'"),
        ({"sasl.password": "secret", "error_cb": 5}, "expected error_cb"),
    ],
)
@pytest.mark.parametrize("define", [kafka_source, kafka_sink])
def test_what_librdkafka_does_not_take_is_named_where_it_is_said(define, options, said):
    with pytest.raises(WrongType, match=said) as caught:
        define("a:1", "t", value="text", options=options)
    assert "secret" not in str(caught.value)


def test_options_are_tried_without_the_files_of_executors():
    options = {"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}
    reader = kafka_source("a:1", "t", value="text", options=options).reader(0, 1)
    with pytest.raises(WrongType, match=r"does not take the options: .*ssl\.ca\.location"):
        reader.open(0)


def test_the_description_of_a_source_shows_no_secret():
    spec = kafka_source("a:1", "t", value="text", options={"sasl.password": "secret"})
    assert "secret" not in repr(spec)
    assert "secret" not in repr(Cluster("a:1", {"sasl.password": "secret"}))


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({}, BadSchema),
        ({"schema": "a string", "value": "text"}, BadSchema),
        ({"schema": "key string", "metadata": True}, BadSchema),
        ({"value": "avro"}, WrongType),
        ({"value": "text", "start": "yesterday"}, WrongType),
        ({"value": "text", "start": {("t", 0): "3"}}, WrongType),
        ({"value": "text", "start": {("t", -1): 3}}, WrongType),
    ],
)
def test_wrong_arguments(wrong, kind):
    with pytest.raises(kind) as caught:
        kafka_source("a:1", "t", **wrong)
    assert isinstance(caught.value, DefinitionError)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("start", "said", "remedy"),
    [
        ({("t", 0): 3, ("t", 1): -1}, r"1\): -1\}: an offset is never negative", "latest.* for -1"),
        ({("t", 0): -2}, r"0\): -2\}: an offset is never negative", "earliest.* for -2"),
        ({("ts", 0): 5}, "'ts' is none of the topics", "name t"),
    ],
)
def test_a_start_that_no_partition_has_is_refused_where_it_is_said(start, said, remedy):
    with pytest.raises(WrongType, match=said) as caught:
        kafka_source("a:1", "t", value="text", start=start)
    assert re.search(remedy, caught.value.remedy)


def test_librdkafka_does_not_repeat_itself_while_brokers_are_away():
    """It tries again many times a second, and says so each time."""
    once = NotAgain()

    def said(text: str, at_s: float) -> bool:
        return bool(once.filter(logging.makeLogRecord({"msg": text, "created": at_s})))

    assert said("refused (after 0ms)", 100.0)
    assert not said("refused (after 4ms)", 100.1)
    assert said("another error", 100.2)
    assert not said("refused (after 0ms)", 109.0)
    assert said("refused (after 0ms)", 110.0)
