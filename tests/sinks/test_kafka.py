"""Topics as a sink: what is decided, on a broker that fences; what is sent, on a cluster."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from clonos.errors import (
    ClonosError,
    Fenced,
    MarkLost,
    RowRefused,
    SinkFailed,
    StoreAway,
    UnknownColumn,
    WrongType,
)
from clonos.sinks import kafka as kafka_sink
from clonos.sinks.kafka_messages import Format, Message
from clonos.sinks.kafka_store import KafkaClaim
from clonos.sinks.kafka_transactions import MARKS, KafkaTransactions, Mark, Opened
from clonos.sinks.lanes import Lane, Output, OutputKey
from clonos.sinks.spec import SinkSpec
from clonos.sinks.transactions import TransactionalWriter
from clonos.testing import check_sink
from clonos.testing.sinks import SCHEMA, _Check, _outputs

LANE = Lane("run", "out", 0, 1)

# --- what is decided -----------------------------------------------------------------------------


class BrokerSession:
    """A broker in a file: who takes an id fences its older users, and what is aborted is hidden."""

    def __init__(self, path: str, lane: Lane) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._db.execute("pragma synchronous = off")
        self._id, self._epoch = lane.name, 0
        self._waiting: list[tuple[Any, ...]] = []  # as producers do, it sends many at once

    @contextlib.contextmanager
    def _step(self, *, is_fenced: bool = True) -> Iterator[Any]:
        self._db.execute("begin immediate")
        try:
            if is_fenced and self._newest_epoch() != self._epoch:
                raise StoreAway("another session has taken the id")
            yield self._db
        finally:
            self._db.execute("commit")

    def _newest_epoch(self) -> int:
        query = "select coalesce(max(epoch), 0) from epochs where id = ?"
        (epoch,) = self._db.execute(query, [self._id]).fetchone()
        return int(epoch)

    def take(self) -> None:
        with self._step(is_fenced=False) as db:
            self._epoch = self._newest_epoch() + 1
            db.execute("insert into epochs values (?, ?)", [self._id, self._epoch])
            db.execute("delete from log where id = ? and not is_committed", [self._id])

    def last_mark(self) -> bytes | None:
        query = "select value from log where topic = ? and key = ? and is_committed"
        found = self._db.execute(f"{query} order by rowid", [MARKS, self._id]).fetchall()
        return found[-1][0] if found else None

    def begin(self) -> None:
        with self._step():
            pass

    def send(self, message: Message, topic: str = "rows") -> None:
        self._waiting.append((topic, message.key, message.value, self._id))
        if len(self._waiting) == 1000:
            self._flush()

    def _flush(self) -> None:
        with self._step() as db:
            db.executemany("insert into log values (?, ?, ?, ?, false)", self._waiting)
        self._waiting = []

    def send_mark(self, mark: bytes) -> None:
        self.send(Message(self._id, mark), MARKS)

    def commit(self) -> None:
        self._flush()
        with self._step() as db:
            db.execute("update log set is_committed = true where id = ?", [self._id])

    def close(self) -> None:
        self._db.close()


@dataclass(frozen=True)
class BrokerStore:
    """Lanes that write to such a broker."""

    path: str
    transactions: KafkaTransactions
    place = None

    def check(self, schema: pa.Schema) -> None:
        """It is given what it expects."""

    def claim(self, lane: Lane, tasks: int) -> None:
        """Nothing is claimed."""

    def writer(self, lane: Lane) -> TransactionalWriter:
        return TransactionalWriter(self.transactions, lane)


def broker_sink(folder: Any, kind: type[KafkaTransactions] = KafkaTransactions) -> SinkSpec:
    path = str(folder / f"{time.monotonic_ns()}.db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("create table log (topic, key, value, id, is_committed)")
        db.execute("create table epochs (id, epoch)")
        db.commit()
    return SinkSpec("kafka", store=BrokerStore(path, kind(partial(BrokerSession, path), Format())))


def committed(sink: Any) -> list[tuple[int, str]]:
    with contextlib.closing(sqlite3.connect(sink.store.path)) as db:
        found = db.execute("select value from log where topic = 'rows' and is_committed").fetchall()
    return [tuple(json.loads(value).values()) for (value,) in found]


def test_the_contract_is_kept(tmp_path):
    report = check_sink(lambda: broker_sink(tmp_path), committed, patience="100 ms")
    assert report.passed, report
    assert all(f.points > 10 for f in report.findings if "every line" in f.scenario), report


class WithoutItsIncarnation(KafkaTransactions):
    """Trusts that whoever has taken the id last is the youngest."""

    def open(self, lane: Lane) -> Opened:
        return super().open(replace(lane, incarnation=0))

    def write(self, db: Opened, lane: Lane, *rest: Any) -> None:
        super().write(db, replace(lane, incarnation=0), *rest)


class WithItsMarkInAnotherTransaction(KafkaTransactions):
    def write(self, db: Opened, lane: Lane, outputs: Any, before: Any, last: OutputKey) -> None:
        db.session.begin()
        for batch in outputs:
            for message in self.format.messages(batch):
                db.session.send(message)
        db.session.commit()
        db.session.begin()
        db.session.send_mark(Mark(lane.incarnation, last).encode())
        db.session.commit()
        db.last = last


class ThatReadsItsMarkFirst(KafkaTransactions):
    """Reads the mark, and takes the id then: somebody may have written in between."""

    def open(self, lane: Lane) -> Opened:
        session = self.connect(lane)
        found = self._found(session, lane)
        if found.incarnation > lane.incarnation:
            raise Fenced("a later life")
        session.take()
        session.begin()
        session.send_mark(Mark(lane.incarnation, found.last).encode())
        session.commit()
        return Opened(session, found.last)


@pytest.mark.parametrize(
    ("kind", "caught"),
    [
        (WithoutItsIncarnation, "older_life"),
        (WithItsMarkInAnotherTransaction, "killed"),
        (ThatReadsItsMarkFirst, "frozen"),
    ],
)
def test_a_broken_one_is_caught(tmp_path, kind, caught):
    check = _Check(lambda: broker_sink(tmp_path, kind), committed, 0.1)
    assert not check.run("groups", check.groups).wrong
    assert check.run(caught, getattr(check, caught)).wrong


def test_a_life_whose_id_was_taken_by_an_older_one_takes_it_back(tmp_path):
    sink: Any = broker_sink(tmp_path)
    new = sink.store.writer(replace(LANE, incarnation=2))
    new.write(_outputs(1))
    BrokerSession(sink.store.path, LANE).take()  # an older life wakes up
    with pytest.raises(StoreAway):
        new.write(_outputs(2))
    new.write(_outputs(2))
    with pytest.raises(Fenced):
        sink.store.writer(LANE).write(_outputs(2))
    assert [row[0] for row in committed(sink)] == [1, 2]


def test_a_message_that_is_no_mark(tmp_path):
    sink: Any = broker_sink(tmp_path)
    session = BrokerSession(sink.store.path, LANE)
    session.take()
    session.send_mark(b"what?")
    session.commit()
    with pytest.raises(MarkLost, match="not a mark"):
        sink.store.writer(LANE).write(_outputs(1))


# --- what is sent --------------------------------------------------------------------------------


@pytest.fixture
def topic(kafka):
    if not kafka.is_real:  # there the sink creates it
        kafka.producer().list_topics(MARKS, timeout=10)
    return kafka.topic()


def sent(kafka: Any, topic: str) -> list[Any]:
    """What is in a topic, in the order of its partitions."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(4)])
    found, ended = [], 0
    until = time.monotonic() + 30
    while ended < 4:
        assert time.monotonic() < until
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                found.append(message)
            else:
                ended += 1
    consumer.close()
    return found


def ids(kafka: Any, topic: str) -> list[int]:
    return sorted(json.loads(message.value())["id"] for message in sent(kafka, topic))


def writer_of(kafka: Any, topic: str, lane: Lane = LANE, **options: Any) -> Any:
    sink: Any = kafka_sink(kafka.servers, topic, **options)
    return sink.store.writer(lane)


def lane_of(topic: str, incarnation: int = 1) -> Lane:
    return Lane(topic, "out", 0, incarnation)  # a run of its own


def test_groups_are_there_and_a_later_life_goes_on_behind_the_mark(kafka, topic):
    first = writer_of(kafka, topic, lane_of(topic), key="id")
    first.write(_outputs(1, 2))
    first.write(_outputs(2, 3))
    first.close()
    second = writer_of(kafka, topic, lane_of(topic, 2))
    second.write(_outputs(1, 2, 3, 4))
    second.close()
    assert ids(kafka, topic) == [1, 2, 3, 4]
    keys = {m.key(): json.loads(m.value()) for m in sent(kafka, topic)}
    assert keys[b"2"] == {"id": 2, "word": "word 2"}


def test_an_older_life_that_opens_late_is_fenced(kafka, topic):
    newer = writer_of(kafka, topic, lane_of(topic, 2))
    newer.write(_outputs(1))
    older = writer_of(kafka, topic, lane_of(topic, 1))
    with pytest.raises(Fenced):
        older.write(_outputs(1, 2))
    older.close()
    newer.close()
    assert ids(kafka, topic) == [1]


def test_a_life_that_died_in_a_transaction_has_written_nothing(kafka, topic):
    if not kafka.is_real:
        pytest.skip("the mock shows what was aborted; CLONOS_KAFKA=host:port names a cluster")
    store: Any = kafka_sink(kafka.servers, topic).store
    old = store.transactions.open(lane_of(topic))
    old.session.begin()
    for message in store.format.messages(_outputs(1)[0].batch):
        old.session.send(message)
    new = writer_of(kafka, topic, lane_of(topic, 2))
    new.write(_outputs(1))
    with pytest.raises(StoreAway):
        old.session.commit()
    new.write(_outputs(2))
    assert ids(kafka, topic) == [1, 2]


def test_a_mark_that_should_be_there(kafka, topic):
    with pytest.raises(MarkLost, match="no mark"):
        writer_of(kafka, topic, lane_of(topic)).write(_outputs(7))


def test_a_message_that_is_too_large_is_named(kafka, topic):
    writer = writer_of(kafka, topic, lane_of(topic), options={"message.max.bytes": 2000})
    rows = pa.RecordBatch.from_pydict({"id": [1, 2], "word": ["x", "y" * 3000]}, schema=SCHEMA)
    with pytest.raises(RowRefused, match='"id":2') as caught:
        writer.write([Output(OutputKey(0, 1), rows)])
    assert "message.max.bytes" in caught.value.remedy
    writer.write(_outputs(1))
    writer.close()
    found = ids(kafka, topic)
    assert found == [1] if kafka.is_real else found[-1] == 1


def test_without_transactions_a_repetition_has_the_same_name(kafka, topic):
    writer = writer_of(kafka, topic, lane_of(topic), transactions=False)
    writer.write(_outputs(1, 2))
    writer.write(_outputs(2))
    writer.close()
    names = [dict(message.headers())["clonos-key"] for message in sent(kafka, topic)]
    assert len(names) == 3
    assert set(names) == {f"{topic}/out/0/0/{n}/0".encode() for n in (1, 2)}


def test_a_cluster_that_is_away_is_tried_again(monkeypatch):
    monkeypatch.setattr("clonos.sinks.kafka_session.ANSWER_S", 0.3)
    for options in ({}, {"transactions": False}):
        sink: Any = kafka_sink("127.0.0.1:1", "t", **options)  # type: ignore[arg-type]
        writer = sink.store.writer(LANE)
        with pytest.raises(StoreAway):
            writer.write(_outputs(1))
        writer.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_FENCED", StoreAway),
        ("INVALID_PRODUCER_EPOCH", StoreAway),
        ("_STATE", StoreAway),
        ("_MSG_TIMED_OUT", StoreAway),
        ("_ALL_BROKERS_DOWN", StoreAway),
        ("NOT_LEADER_FOR_PARTITION", StoreAway),
        ("TOPIC_AUTHORIZATION_FAILED", SinkFailed),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", SinkFailed),
        ("UNSUPPORTED_VERSION", SinkFailed),
    ],
)
def test_what_librdkafkas_errors_mean(name, kind):
    confluent_kafka = pytest.importorskip("confluent_kafka")
    error = confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name))
    sink: Any = kafka_sink("a:1", "t")
    assert type(sink.store.topic.error(error)) is kind


def test_a_transaction_that_has_to_be_aborted_is_tried_again():
    confluent_kafka = pytest.importorskip("confluent_kafka")
    unknown = confluent_kafka.KafkaError.UNKNOWN
    error = confluent_kafka.KafkaError(unknown, "what", txn_requires_abort=True)
    sink: Any = kafka_sink("a:1", "t")
    assert isinstance(sink.store.topic.error(error), StoreAway)


# --- what is seen before the job runs ------------------------------------------------------------


def claim(kafka: Any, topic: str, schema: pa.Schema = SCHEMA, **options: Any) -> None:
    sink: Any = kafka_sink(kafka.servers, topic, **options)
    sink.store.claim(LANE, 1).begin(schema, is_new=True)


def test_a_topic_that_does_not_exist(kafka):
    with pytest.raises(SinkFailed, match="does not exist") as caught:
        claim(kafka, "nobody-has-made-this-one")
    assert caught.value.remedy == "create it"


def test_marks_are_created_or_asked_for(kafka, topic, monkeypatch):
    claim(kafka, topic)
    monkeypatch.setattr(KafkaClaim, "_policy", lambda self: "delete")
    with pytest.raises(SinkFailed, match="newest message") as caught:
        claim(kafka, topic)
    assert "cleanup.policy=compact" in caught.value.remedy
    claim(kafka, topic, transactions=False)


def test_a_cluster_that_does_not_answer(monkeypatch):
    monkeypatch.setattr("clonos.sinks.kafka_session.METADATA_S", 0.3)
    sink: Any = kafka_sink("127.0.0.1:1", "t", options={"sasl.password": "secret"})
    assert "secret" not in repr(sink)
    with pytest.raises(SinkFailed, match="does not answer") as caught:
        sink.store.claim(LANE, 1).begin(SCHEMA, is_new=True)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"key": "nothing"}, UnknownColumn),
        ({"key": "price"}, WrongType),
        ({"value": "text"}, UnknownColumn),
        ({"value": "bytes"}, UnknownColumn),
    ],
)
def test_columns_that_do_not_fit(options, kind):
    sink: Any = kafka_sink("127.0.0.1:1", "t", **options)
    schema = pa.schema([("id", pa.int64()), ("price", pa.float64())])
    with pytest.raises(kind) as caught:
        sink.with_schema(schema)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["transactional.id", "acks", "bootstrap.servers"])
def test_options_that_are_not_the_users(name):
    with pytest.raises(WrongType, match=name):
        kafka_sink("a:1", "t", options={name: "x"})
    with pytest.raises(ClonosError, match="value="):
        kafka_sink("a:1", "t", value="avro")  # type: ignore[arg-type]


def test_values_that_are_not_json():
    rows = pa.RecordBatch.from_pydict({"value": ["a", None], "id": [1, None]})
    assert list(Format("text", "id").messages(rows)) == [Message("1", "a"), Message(None, None)]
    rows = pa.RecordBatch.from_pydict({"value": [b"a"], "word": ["é"]})
    assert list(Format("bytes", "word").messages(rows)) == [Message("é", b"a")]
    Format("bytes", "word").check(rows.schema)
    with pytest.raises(WrongType):
        Format("text").check(rows.schema)
