"""Topics in and out of real jobs, whose processes are killed."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import clonos
from clonos.errors import CannotUpgrade, OtherJob, RowRefused
from clonos.sinks.kafka_transactions import MARKS
from clonos.sources.kafka_reader import KafkaReader
from clonos.sources.readers import EndOfInput

confluent_kafka = pytest.importorskip("confluent_kafka")
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
KEYS = 11
ROWS = 300


class Counting(clonos.Process):
    """Says which message of its key each one is."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.state("seen", "long")

    def on_row(self, row: Any, ctx: Any) -> Iterator[Any]:
        nth = self.seen.get(0) + 1
        self.seen.set(nth)
        yield (row.word, nth, row.partition, row.offset)


class Ending(KafkaReader):
    """Ends behind what is there once there is a file `tap`."""

    tap: Path

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        is_tapped = self.tap.exists()
        batch = super().read(max_rows, max_wait_s)
        if batch is None and is_tapped:
            edges = self._edges(list(self._ends))
            if all(edges[p][1] <= end for p, end in self._ends.items()):
                raise EndOfInput
        return batch


def ending(tap: Path, topics: Any, index: int, parallelism: int) -> KafkaReader:
    reader = Ending(topics, index, parallelism)
    reader.tap = tap
    return reader


class Bench:
    """A topic, and a job that reads it."""

    def __init__(self, kafka: Any, folder: Path) -> None:
        self.kafka, self.tap = kafka, folder / "tap"
        self.topic, self.produced = kafka.topic(), 0

    def produce(self, rows: int = ROWS) -> None:
        """So many messages more; a key is always in the same partition."""
        by_partition = defaultdict(list)
        for n in range(self.produced, self.produced + rows):
            by_partition[n % KEYS % 4].append(json.dumps({"word": f"k{n % KEYS}"}).encode())
        for partition, messages in by_partition.items():
            self.kafka.produce(self.topic, *messages, partition=partition)
        self.produced += rows

    def job(self, sink: Any, **settings: Any) -> clonos.Job:
        source = clonos.sources.kafka(
            self.kafka.servers, self.topic, schema="word string", metadata=True
        )
        topics = source.factory.args[0]  # type: ignore[union-attr]
        source = replace(source, factory=partial(ending, self.tap, topics), ends=True)
        job = clonos.Job("counts", parallelism=2, checkpoint_interval="300 ms", **settings)
        rows = job.source(source, name="events").slot_group("count").key_by("word")
        counted = rows.process(
            Counting(), "word string, nth long, partition int, offset long", name="count"
        )
        counted.slot_group("out").start_new_chain().sink(sink, name="out")
        return job

    def expected(self) -> list[tuple[Any, ...]]:
        seen: Counter[str] = Counter()
        offsets: Counter[int] = Counter()
        found = []
        for n in range(self.produced):
            word, partition = f"k{n % KEYS}", n % KEYS % 4
            seen[word] += 1
            found.append((word, seen[word], partition, offsets[partition]))
            offsets[partition] += 1
        return sorted(found)

    def written(self, topic: str) -> list[tuple[Any, ...]]:
        """What is in a topic."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.kafka.servers,
                "group.id": "test",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(4)])
        found, ended = [], 0
        while ended < 4:
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    found.append(tuple(json.loads(message.value()).values()))
                else:
                    ended += 1
        consumer.close()
        return sorted(found)


@pytest.fixture
def bench(kafka, tmp_path):
    return Bench(kafka, tmp_path)


@pytest.mark.parametrize(
    "checkpoints", ["marked", pytest.param("uncoordinated", marks=pytest.mark.soak)]
)
def test_each_message_is_counted_once_whoever_dies(kit, spark, bench, checkpoints):
    job = bench.job(clonos.sinks.collect(), checkpoints=checkpoints).start(spark)
    bench.produce()
    kit.wait_for(lambda: job.delivered["out"] == ROWS)
    for count, victims in enumerate((("events[0]",), ("events[1]", "count[0]")), 1):
        bench.produce()
        kit.kill(job, *victims)
        kit.wait_for(lambda count=count: job.delivered["out"] == (count + 1) * ROWS)
        kit.wait_for(lambda: kit.is_quiet(job))
    bench.tap.touch()
    table = job.wait(kit.WAIT_S).table()
    assert kit.rows_of(table) == bench.expected()
    assert {"events[0]", "events[1]"} <= {r.name for r in job.observer.recoveries}


def test_a_job_that_is_started_again_goes_on_where_it_was(kit, spark, bench, tmp_path):
    settings = {"checkpoint_dir": str(tmp_path / "checkpoint")}
    job = bench.job(clonos.sinks.collect(), **settings).start(spark)
    for _ in range(2):
        bench.produce()
        kit.wait_for(lambda: job.delivered["out"] == bench.produced)
    kit.wait_quiet(job)
    job.stop()
    bench.produce()
    again = bench.job(clonos.sinks.collect(), **settings).start(spark)
    assert again.term == 2
    bench.tap.touch()
    assert kit.rows_of(again.wait(kit.WAIT_S).table()) == bench.expected()


def test_a_job_reads_another_topic_too_and_then_only_that(kit, spark, kafka, tmp_path):
    first, second = kafka.topic(), kafka.topic()
    came: list[str] = []

    def job(*topics: str) -> clonos.Job:
        source = clonos.sources.kafka(kafka.servers, topics, value="text")
        made = clonos.Job("words", parallelism=2, checkpoint_dir=str(tmp_path / "checkpoint"))
        sink = clonos.sinks.callback(lambda rows: came.extend(rows.column("value").to_pylist()))
        made.source(source, name="events").sink(sink, name="out")
        return made

    def settled(running: Any, *words: str) -> None:
        kit.wait_for(lambda: len(came) >= len(words))
        assert running.stop(settle="60 seconds")
        assert sorted(came) == sorted(words)

    kafka.produce(first, "a0", "a1", partition=1)
    settled(job(first).start(spark), "a0", "a1")
    kafka.produce(first, "a2", partition=2)
    kafka.produce(second, "b0", partition=0)
    with pytest.raises(OtherJob, match=f"read {first}, and is to read {first}, {second}"):
        job(first, second).start(spark)
    settled(job(first, second).start(spark, upgrade=True), "a0", "a1", "a2", "b0")
    kafka.produce(first, "a3", partition=1)
    kafka.produce(second, "b1", partition=0)
    with pytest.raises(CannotUpgrade, match=f"its position in '{first}' would be lost"):
        job(second).start(spark, upgrade=True)
    only = job(second).start(spark, upgrade=True, drop_state=[("events", first)])
    settled(only, "a0", "a1", "a2", "b0", "b1")


def test_from_topic_to_topic(kit, spark, bench):
    if not bench.kafka.is_real:
        bench.kafka.producer().list_topics(MARKS, timeout=10)
    out = bench.kafka.topic()
    job = bench.job(clonos.sinks.kafka(bench.kafka.servers, out, key="word")).start(spark)
    bench.produce()
    kit.wait_for(lambda: len(bench.written(out)) == ROWS)
    for victims in (("events[0]",), ("events[1]", "count[0]"), ("out[0]",)):
        # The mock shows what was aborted, so there the sink dies between its transactions.
        kit.wait_quiet(job)
        if victims != ("out[0]",) or bench.kafka.is_real:
            bench.produce()
            kit.kill(job, *victims)
        else:
            kit.kill(job, *victims)
            bench.produce()
        kit.wait_for(lambda: len(bench.written(out)) >= bench.produced)
        kit.wait_for(lambda: kit.is_quiet(job))
    bench.tap.touch()
    job.wait(kit.WAIT_S)
    assert bench.written(out) == bench.expected()
    assert "out[0]" in {r.name for r in job.observer.recoveries}


@pytest.mark.soak
def test_a_message_that_brokers_reject_ends_the_job_by_name(kit, spark, kafka):
    if not kafka.is_real:
        kafka.producer().list_topics(MARKS, timeout=10)
    topic = kafka.topic()
    rows = [(n, "y" * 3000 * (n == 5)) for n in range(10)]
    job = clonos.Job("rejected", parallelism=1)
    source = job.source(clonos.sources.from_batches([rows], "n long, text string"), name="in")
    options = {"message.max.bytes": 2000}
    source.sink(clonos.sinks.kafka(kafka.servers, topic, options=options), name="out")
    with pytest.raises(RowRefused, match=r'"n":5') as caught:
        job.run(spark, timeout_s=kit.WAIT_S)
    assert topic in str(caught.value)
    assert "message.max.bytes" in caught.value.remedy
